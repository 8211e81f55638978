"""Properties that every network shares."""

import inspect
import json

import pytest
import torch
from torch import Tensor, nn

from bfn.core.errors import NetworkError, UserError
from bfn.core.flows import ContinuousFlow
from bfn.core.model import BFN
from bfn.networks import NETWORKS, build
from bfn.networks.mlp import MLP
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
    discrete = network.config["n_classes"]
    inputs = (2 * inputs).softmax(-1) if discrete else inputs
    t = torch.rand((batch,), generator=generator)
    label = torch.randint(3, (batch,), generator=generator) if network.config["n_labels"] else None
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
    output = network(inputs, t, torch.arange(-1, 3) if label is not None else None)
    (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    silent = [name for name, parameter in network.named_parameters() if not parameter.grad.abs().max() > 1e-7]
    assert not silent


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


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case]()[0].config["n_labels"]])
def test_label_minus_one_is_no_label(case: str) -> None:
    network, inputs, t, label = example(case)
    without = network(inputs, t)
    assert torch.equal(network(inputs, t, torch.full_like(t, -1, dtype=torch.int64)), without)
    assert (network(inputs, t, label) - without).abs().max() > 1e-3


@pytest.mark.parametrize("label", [3, -2])
def test_a_class_that_is_not_known(label):
    network = MLP(4, width=8, n_blocks=1, n_labels=3)
    expected = "label from 0 to 3: expected classes from 0 to 2, or -1 for none" if label > 0 else "label from -2 to 0"
    with pytest.raises(ValueError, match=expected):
        network(torch.zeros(2, 4), torch.zeros(2), label=torch.tensor([0, label]))


def test_a_label_for_a_network_without_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="without labels: build it with n_labels"):
        MLP(2)(torch.zeros(1, 2), torch.zeros(1), torch.zeros(1, dtype=torch.int64))


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


@pytest.mark.parametrize("case", ["unet-discrete", "transformer-conv", "mlp-discrete"])
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


def test_unknown_networks_and_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="network name 'vae': expected one of unet, transformer, mlp"):
        build({"name": "vae"})
    with pytest.raises(ValueError, match="network name None"):
        build({})
    with pytest.raises(
        ValueError, match="network mlp: got an unexpected keyword argument 'depth'; its arguments are in_features"
    ):
        build({"name": "mlp", "in_features": 2, "depth": 3})
    with pytest.raises(ValueError, match="network unet: missing a required argument: 'in_channels'"):
        build({"name": "unet"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mlp", "in_features": 0}, "in_features=0: expected at least 1"),
        ({"name": "mlp", "in_features": 2.5}, "in_features=2.5: expected a whole number"),
        (
            {"name": "mlp", "in_features": 2, "n_blocks": 10**12},
            "n_blocks=10+: expected a whole number from 1 to 10,000",
        ),
        ({"name": "mlp", "in_features": 2, "n_classes": 1}, "n_classes=1: expected 0 .* or at least 2"),
        ({"name": "mlp", "in_features": 2, "n_labels": -1}, "n_labels=-1"),
        ({"name": "unet", "in_channels": 1, "channels": 12}, "channels=12: expected a multiple of 8"),
        ({"name": "unet", "in_channels": 1, "multipliers": []}, "n_levels=0"),
        ({"name": "unet", "in_channels": 1, "attention_levels": [2]}, "attention_levels has 2: .* levels 0 to 1"),
        ({"name": "unet", "in_channels": 1, "head_features": 48}, "head_features=48: does not divide the 128 channels"),
        ({"name": "transformer"}, "give n_classes alone"),
        ({"name": "transformer", "in_features": 3, "n_classes": 3}, "give n_classes alone"),
        ({"name": "transformer", "n_classes": 1}, "n_classes=1"),
        ({"name": "transformer", "n_classes": 3, "width": 20, "n_heads": 4}, "width=20, n_heads=4"),
        ({"name": "transformer", "n_classes": 3, "kernel_size": 4}, "kernel_size=4: expected an odd number"),
    ],
)
def test_impossible_arguments_give_one_clear_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build(arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "shape", "message"),
    [
        ("unet", (4, 3, 8, 8), r"inputs of shape \(4, 3, 8, 8\): this network takes \(batch, 2, height, width\)"),
        ("unet-discrete", (4, 1, 12, 8), r"takes \(batch, 1, height, width, 2\)"),
        ("unet-patch", (4, 1, 28, 30), "images of 28 x 30: expected sides that are multiples of 4"),
        ("transformer", (4, 7, 6), r"takes \(batch, length, 5\)"),
        ("transformer", (4, 300, 5), "sequences of length 300: this network was built with max_length=256"),
        ("mlp", (4, 4, 3), r"takes \(batch, 4\)"),
        ("mlp-discrete", (4, 3, 4), r"takes \(batch, 4, 3\)"),
    ],
)
def test_wrong_shapes_give_one_clear_line(case: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        CASES[case]()[0](torch.zeros(shape), torch.zeros(4))
    assert "\n" not in str(caught.value)


def test_one_time_a_sample_is_needed() -> None:
    with pytest.raises(ValueError, match=r"t of shape \(\): expected one time a sample, \(3,\)"):
        MLP(2)(torch.zeros(3, 2), torch.tensor(0.5))


def test_which_parameters_a_network_takes() -> None:
    assert accepts("unet", "n_labels")
    assert not accepts("official-flat-unet", "n_labels")
    assert not accepts("no-such-network", "n_labels")


class WithoutLabel(nn.Module):
    def forward(self, inputs: Tensor, t: Tensor) -> Tensor:
        return inputs


class Broken(nn.Module):
    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        return inputs + None  # type: ignore[operator]


def test_a_label_that_a_network_does_not_take_is_one_clear_line() -> None:
    for network in (WithoutLabel(), lambda inputs, t: inputs):
        model = BFN(network, ContinuousFlow(), "data", (2,))
        with pytest.raises(NetworkError, match=r"takes no argument 'label'; leave label out$"):
            model.sample(2, nfe=2, label=0)
        assert model.sample(2, nfe=2).x.shape == (2, 2)
    with pytest.raises(UserError, match="without labels: build it with n_labels"):
        BFN(MLP(2, width=8), ContinuousFlow(), "data", (2,)).sample(2, nfe=2, label=1)


def test_a_mistake_inside_a_network_keeps_its_own_error() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        BFN(Broken(), ContinuousFlow(), "data", (2,)).sample(2, nfe=2, label=0)
