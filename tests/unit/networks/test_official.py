"""The published networks as networks: golden values are in tests/golden."""

import json

import pytest
import torch
from torch import Tensor, nn

from bfn.networks import build
from bfn.networks.official import AttentionBlock, position_code

CONFIGS = {
    "transformer": {
        "name": "official-transformer", "n_classes": 5, "length": 7, "width": 16, "n_layers": 2, "n_heads": 4,
    },
    "flat": {
        "name": "official-flat-unet", "channels": 2, "width": 16, "n_blocks": 2, "n_heads": 2, "groups": 4,
        "n_outputs": 1,
    },
    "flat-two": {
        "name": "official-flat-unet", "channels": 2, "width": 16, "n_blocks": 1, "n_heads": 1, "groups": 4,
        "n_outputs": 2,
    },
    "binary": {
        "name": "official-binary-unet", "width": 16, "multipliers": [1, 2, 2], "n_blocks": 1, "attention_rates": [2, 4],
        "n_heads": 2, "groups": 4,
    },
}  # fmt: skip
SHAPES = {"transformer": (7, 5), "flat": (2, 6, 4), "flat-two": (2, 6, 4), "binary": (1, 8, 4, 2)}
OUTPUTS = {"transformer": (7, 5), "flat": (2, 6, 4), "flat-two": (2, 6, 4, 2), "binary": (1, 8, 4)}


def example(case: str, **changes: object) -> tuple[nn.Module, Tensor, Tensor]:
    """A network in which nothing hides behind zeros, with inputs and times."""
    generator = torch.Generator().manual_seed(0)
    network = build({**CONFIGS[case], **changes}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return network, torch.rand(3, *SHAPES[case], generator=generator), torch.rand(3, generator=generator)


@pytest.fixture(params=CONFIGS)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_config_rebuilds_the_same_function(case: str) -> None:
    network, inputs, t = example(case)
    twin = build(json.loads(json.dumps(network.config))).eval()
    twin.load_state_dict(network.state_dict())
    assert torch.equal(twin(inputs, t), network(inputs, t))
    assert tuple(network(inputs, t).shape) == (3, *OUTPUTS[case])


def test_every_weight_matters(case: str) -> None:
    network, inputs, t = example(case)
    network(inputs, t).square().sum().backward()
    unused = [name for name, parameter in network.named_parameters() if not parameter.grad.abs().sum() > 0]
    # A bias of the keys adds the same to all of a query's scores; it shares its tensor with those of q and v.
    assert unused == []


def test_samples_do_not_see_each_other(case: str) -> None:
    network, inputs, t = example(case)
    alone = torch.cat([network(inputs[i : i + 1], t[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(network(inputs, t), alone, rtol=1e-4, atol=1e-5)


def test_it_compiles_to_one_graph(case: str) -> None:
    network, inputs, t = example(case)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(inputs, t), network(inputs, t), rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_alone(case: str) -> None:
    network, inputs, t = example(case, dropout=0.5)
    assert torch.equal(network(inputs, t), network(inputs, t))
    network.train()
    assert not torch.equal(network(inputs, t), network(inputs, t))


def test_double_precision(case: str) -> None:
    network, inputs, t = example(case)
    single = network(inputs, t)
    torch.testing.assert_close(network.double()(inputs.double(), t.double()).float(), single, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("head_first", [True, False])
def test_attention_against_its_formula(head_first: bool, generator: torch.Generator) -> None:
    """q and k scaled by c^(-1/4) each; the heads' q, k, v adjacent, or all q before all k before all v."""
    n_heads, c = 2, 4
    block = AttentionBlock(8, n_heads=n_heads, groups=2, head_first=head_first)
    nn.init.normal_(block.out.weight, generator=generator)
    x = torch.randn(2, 8, 3, 5, generator=generator)
    qkv = block.qkv(block.norm(x).flatten(2).mT)
    parts = []
    for head in range(n_heads):
        starts = [3 * c * head + c * i for i in range(3)] if head_first else [8 * i + c * head for i in range(3)]
        q, k, v = (qkv[..., start : start + c] for start in starts)
        parts.append(torch.softmax((q * c**-0.25) @ (k * c**-0.25).mT, -1) @ v)
    expected = x + block.out(torch.cat(parts, -1)).mT.reshape(x.shape)
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)


def test_position_code_has_base_1000_and_a_frequency_a_column() -> None:
    code = position_code(9, 6)
    for column, wave in ((0, torch.sin), (1, torch.cos), (4, torch.sin), (5, torch.cos)):
        torch.testing.assert_close(code[:, column], wave(torch.arange(9) / 1000 ** (column / 6)))
