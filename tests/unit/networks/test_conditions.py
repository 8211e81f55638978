"""Named conditions of the networks: numbers, vectors, classes, sequences, and what stands for none of them."""

import math

import pytest
import torch
from torch import Tensor, nn

from bfn.networks.conditioning import ConditionSpec, NumberEmbedding
from bfn.networks.mlp import MLP
from bfn.networks.transformer import Transformer
from bfn.networks.unet import UNet

VECTORS = {
    "gap": {"shape": (), "mean": 0.25, "std": 0.05},
    "target": {"shape": [], "n_classes": 5},
    "pose": {"shape": [8], "std": [2.0] * 8},
    "type": {"shape": [2]},  # the name of something that every module has
}
SEQUENCES = {"prompt": {"shape": [6], "n_classes": 7}, "tokens": {"shape": [4, 3], "mean": 1.0, "std": [1.0, 2.0, 3.0]}}
ALL = VECTORS | SEQUENCES
BATCH = 4

MAKERS = {
    "mlp": lambda: MLP(3, width=16, conditions=VECTORS, n_labels=3),
    "transformer": lambda: Transformer(3, width=16, n_blocks=2, n_heads=2, conditions=ALL, n_labels=3),
    "unet": lambda: UNet(3, channels=8, n_blocks=1, head_features=8, conditions=ALL, n_labels=3),
}
SHAPES = {"mlp": (3,), "transformer": (5, 3), "unet": (3, 8, 8)}


def values(seed: int = 0) -> dict[str, Tensor]:
    """Values of every condition, none of them null."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "label": torch.randint(3, (BATCH,), generator=generator),
        "gap": 0.25 + 0.05 * torch.randn(BATCH, generator=generator),
        "target": torch.randint(5, (BATCH,), generator=generator),
        "pose": torch.randn(BATCH, 8, generator=generator),
        "type": torch.randn(BATCH, 2, generator=generator),
        "prompt": torch.randint(7, (BATCH, 6), generator=generator),
        "tokens": torch.randn(BATCH, 4, 3, generator=generator),
    }


def null(value: Tensor) -> Tensor:
    return torch.full_like(value, math.nan if value.is_floating_point() else -1)


def example(name: str) -> tuple[nn.Module, Tensor, Tensor, dict[str, Tensor]]:
    """A network whose weights are nowhere zero, with inputs, times and all its conditions."""
    torch.manual_seed(0)
    network = MAKERS[name]()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    known = {"label", *network.config["conditions"]}
    given = {key: value for key, value in values().items() if key in known}
    return network.eval(), torch.randn(BATCH, *SHAPES[name]), torch.rand(BATCH), given


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_condition_changes_the_output_of_its_own_sample_alone(name: str) -> None:
    network, inputs, t, given = example(name)
    output, others = network(inputs, t, **given), values(1)
    for key in given:
        changed = given[key].clone()
        changed[1] = others[key][1] if not torch.equal(others[key][1], changed[1]) else (changed[1] + 1) % 3
        difference = (network(inputs, t, **{**given, key: changed}) - output).abs().flatten(1).amax(1)
        assert difference[1] > 1e-3, key
        assert difference[[0, 2, 3]].max() < 1e-5, key


def test_null_is_what_it_is_to_leave_a_condition_out(name: str) -> None:
    network, inputs, t, given = example(name)
    output = network(inputs, t, **given)
    for key in given:
        without = network(inputs, t, **{other: value for other, value in given.items() if other != key})
        assert torch.equal(network(inputs, t, **{**given, key: null(given[key])}), without)
        assert torch.equal(network(inputs, t, **{**given, key: None}), without)
        assert (without - output).abs().max() > 1e-3
        # One sample of the batch without it is as that sample is alone.
        partly = given[key].clone()
        partly[2] = null(partly[2])
        mixed = network(inputs, t, **{**given, key: partly})
        torch.testing.assert_close(mixed[2], without[2], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mixed[[0, 1, 3]], output[[0, 1, 3]], rtol=1e-4, atol=1e-5)


def test_gradients_are_finite_and_reach_every_weight(name: str) -> None:
    network, inputs, t, given = example(name)
    for key, value in given.items():
        value[1] = null(value[1])
        if key in SEQUENCES:
            value[2, 1:] = null(value[2, 1:])
    network(inputs, t, **given).square().sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", ["transformer", "unet"])
def test_padding_of_a_sequence_gets_no_attention(name: str) -> None:
    network, inputs, t, given = example(name)
    short = {key: given[key].clone() for key in SEQUENCES}
    for key in SEQUENCES:
        short[key][:, 2:] = null(short[key][:, 2:])
    output = network(inputs, t, **given | short)
    assert (output - network(inputs, t, **given)).abs().max() > 1e-3
    # One NaN makes a row padding, whatever else is in it.
    short["tokens"][:, 2:, 1:] = 5.0
    assert torch.equal(network(inputs, t, **given | short), output)
    # The order of the tokens matters.
    assert (
        network(inputs, t, **given | {"prompt": given["prompt"].flip(1)}) - network(inputs, t, **given)
    ).abs().max() > 1e-3


def test_conditions_are_one_graph_and_bear_half_precision(name: str) -> None:
    network, inputs, t, given = example(name)
    given["gap"] = None
    exact = network(inputs, t, **given)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(network, fullgraph=True, backend="eager")(inputs, t, **given), exact)
    with torch.autocast("cpu", torch.bfloat16):
        rough = network(inputs, t, **given).float()
    assert (rough - exact).norm() < 0.05 * exact.norm()


def test_numbers_are_standardised() -> None:
    """The same network for a quantity in other units gives the same."""
    metres = NumberEmbedding(ConditionSpec("size", (2,), mean=[1.0, 2.0], std=0.5), 4)
    centimetres = NumberEmbedding(ConditionSpec("size", (2,), mean=[100.0, 200.0], std=[50.0, 50.0]), 4)
    centimetres.load_state_dict(metres.state_dict())
    sizes = torch.rand(5, 2)
    torch.testing.assert_close(centimetres(100 * sizes), metres(sizes))
