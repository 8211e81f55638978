"""Properties that every network shares."""

import inspect
import json

import pytest
import torch
from torch import Tensor, nn

from bfn.core.errors import NetworkError
from bfn.core.flows import ContinuousFlow
from bfn.core.model import BFN
from bfn.networks import NETWORKS, build
from bfn.networks.mlp import MLP
from bfn.networks.official import (
    AttentionBlock,
    OfficialBinaryUNet,
    OfficialFlatUNet,
    OfficialTransformer,
    position_code,
)  # fmt: skip
from bfn.networks.transformer import Transformer
from bfn.networks.unet import UNet

CASES = {
    "unet": lambda: (UNet(2, 3, channels=16, head_features=8, n_labels=3), (2, 8, 8)),
    "unet-patch": lambda: (UNet(1, channels=8, head_features=16, n_labels=3, patch=2, n_blocks=1), (1, 28, 28)),
    "unet-deep": lambda: (
        UNet(3, channels=8, multipliers=(1, 2, 2), attention_levels=(2,), head_features=8),
        (3, 32, 32),
    ),
    "unet-discrete": lambda: (
        UNet(1, n_classes=2, channels=8, head_features=8, patch=2, n_blocks=1, n_labels=3),
        (1, 12, 8, 2),
    ),
    "transformer": lambda: (Transformer(n_classes=5, width=16, n_blocks=2, n_heads=2, n_labels=3), (7, 5)),
    "transformer-conv": lambda: (Transformer(n_classes=5, width=16, n_blocks=1, n_heads=2, kernel_size=5), (7, 5)),
    "transformer-ngram": lambda: (Transformer(n_classes=5, width=16, n_blocks=1, n_heads=2, ngram=2), (7, 5)),
    "transformer-continuous": lambda: (Transformer(3, 4, width=16, n_blocks=1, n_heads=2, kernel_size=3), (7, 3)),
    "mlp": lambda: (MLP(4, 6, width=16, n_labels=3), (4,)),
    "mlp-discrete": lambda: (MLP(4, n_classes=3, width=16), (4, 3)),
}
OWN = list(CASES)
TEXT = {"n_classes": 5, "length": 7, "width": 16}
FLAT = {"channels": 2, "width": 16, "n_blocks": 1, "groups": 4}
BINARY = {"width": 16, "multipliers": [1, 2, 2], "n_blocks": 1, "attention_rates": [2, 4], "n_heads": 2, "groups": 4}
CASES |= {
    "official-transformer": lambda: (OfficialTransformer(**TEXT, n_layers=2, n_heads=4), (7, 5)),
    "official-flat": lambda: (OfficialFlatUNet(**FLAT, n_heads=2, n_outputs=1), (2, 6, 4)),
    "official-flat-two": lambda: (OfficialFlatUNet(**FLAT, n_heads=1, n_outputs=2), (2, 6, 4)),
    "official-binary": lambda: (OfficialBinaryUNet(**BINARY), (1, 8, 4, 2)),
}
PUBLISHED = [case for case in CASES if case not in OWN]


def randomise(network: nn.Module, seed: int = 0) -> None:
    """Move every parameter away from its initial value, so that nothing hides behind zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def example(case: str, batch: int = 4) -> tuple[nn.Module, Tensor, Tensor, Tensor | None]:
    """A randomised network with inputs, times and labels (None where it has none)."""
    network, shape = CASES[case]()
    randomise(network)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn((batch, *shape), generator=generator)
    discrete = case in PUBLISHED or network.config["n_classes"]
    inputs = (2 * inputs).softmax(-1) if discrete else inputs
    t = torch.rand((batch,), generator=generator)
    label = torch.randint(3, (batch,), generator=generator) if network.config.get("n_labels") else None
    return network.eval(), inputs, t, label


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_config_survives_json_and_rebuilds_the_same_function(case: str) -> None:
    network, inputs, t, label = example(case)
    twin = build(json.loads(json.dumps(network.config))).eval()
    twin.load_state_dict(network.state_dict())
    assert twin.config == network.config
    assert torch.equal(twin(inputs, t, label), network(inputs, t, label))


def test_config_holds_every_argument(case: str) -> None:
    network, _ = CASES[case]()
    assert set(network.config) == {"name", *inspect.signature(type(network)).parameters}
    assert NETWORKS[network.config["name"]] is type(network)


def test_gradient_reaches_every_parameter(case: str) -> None:
    network, inputs, t, label = example(case)
    # Random weights on the outputs: a plain sum is blind to whatever a later normalisation removes.
    output = network(inputs, t, None if label is None else torch.arange(-1, 3))
    (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    silent = [name for name, parameter in network.named_parameters() if not parameter.grad.abs().max() > 1e-7]
    assert not silent


@pytest.mark.parametrize("case", OWN)
def test_fresh_networks_answer_nothing_or_the_evidence(case: str) -> None:
    _, inputs, t, label = example(case)
    output = CASES[case]()[0](inputs, t, label)
    if "discrete" in case or case in ("transformer", "transformer-conv", "transformer-ngram"):
        torch.testing.assert_close(output.softmax(-1), inputs)
    else:
        assert output.abs().max() == 0


def test_samples_of_a_batch_do_not_mix(case: str) -> None:
    network, inputs, t, label = example(case)
    whole = network(inputs, t, label)
    for i in range(len(inputs)):
        alone = network(inputs[i : i + 1], t[i : i + 1], None if label is None else label[i : i + 1])
        torch.testing.assert_close(alone, whole[i : i + 1], rtol=1e-4, atol=1e-5)


def test_time_matters(case: str) -> None:
    network, inputs, t, label = example(case)
    assert (network(inputs, t, label) - network(inputs, 1 - t, label)).abs().max() > 1e-3


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case]()[0].config.get("n_labels")])
def test_label_minus_one_is_no_label(case: str) -> None:
    network, inputs, t, label = example(case)
    without = network(inputs, t)
    assert torch.equal(network(inputs, t, torch.full_like(t, -1, dtype=torch.int64)), without)
    assert (network(inputs, t, label) - without).abs().max() > 1e-3


def test_bfloat16_autocast_stays_near_float32(case: str) -> None:
    network, inputs, t, label = example(case)
    exact = network(inputs, t, label)
    with torch.autocast("cpu", torch.bfloat16):
        rough = network(inputs, t, label).float()
    assert (rough - exact).norm() < 0.05 * exact.norm()
    (rough**2).mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters() if parameter.grad is not None)


def test_dropout_acts_in_training_alone(case: str) -> None:
    network, inputs, t, label = example(case)
    dropped = build({**network.config, "dropout": 0.5})
    dropped.load_state_dict(network.state_dict())
    assert not torch.equal(dropped(inputs, t, label), dropped(inputs, t, label))
    assert torch.equal(dropped.eval()(inputs, t, label), network(inputs, t, label))


@pytest.mark.parametrize("case", ["unet-discrete", "transformer-conv", "mlp-discrete", *PUBLISHED])
def test_the_whole_network_is_one_graph(case: str) -> None:
    network, inputs, t, label = example(case)
    torch.compiler.reset()
    captured = torch.compile(network, fullgraph=True, backend="eager")
    assert torch.equal(captured(inputs, t, label), network(inputs, t, label))


@pytest.mark.long
@pytest.mark.parametrize("case", ["unet-patch", "transformer-conv", "mlp-discrete"])
def test_compiled_networks_compute_the_same(case: str) -> None:
    network, inputs, t, label = example(case)
    exact = network(inputs, t, label)
    torch.compiler.reset()  # shapes of other cases would make every size a symbol, and compiling far slower
    compiled = torch.compile(network, fullgraph=True)(inputs, t, label)
    assert (compiled - exact).norm() < 1e-4 * exact.norm()


def test_a_label_that_a_network_does_not_take_is_one_clear_line() -> None:
    model = BFN(lambda inputs, t: inputs, ContinuousFlow(), "data", (2,))
    with pytest.raises(NetworkError, match=r"takes no argument 'label'; leave label out$"):
        model.sample(2, nfe=2, label=0)
    assert model.sample(2, nfe=2).x.shape == (2, 2)


def test_a_mistake_inside_a_network_keeps_its_own_error() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        BFN(lambda inputs, t, label: inputs + None, ContinuousFlow(), "data", (2,)).sample(2, nfe=2, label=0)


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
