"""Small checkpoints of the original code, with its outputs and losses."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import bfn
from bfn.core.flows import NoiseLevel
from bfn.interop.official import PUBLISHED, configuration, load_official

DATA = Path(__file__).parents[1] / "data" / "official-checkpoints"
SETTINGS = json.loads((DATA / "small-cases.json").read_text())
SHAPES = json.loads((DATA / "state-dict-shapes.json").read_text())


@pytest.fixture(params=SETTINGS)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def load(case: str) -> bfn.BFN:
    return load_official(DATA / f"{case}_ema.pt", SETTINGS[case])


def channel_first(x: Tensor) -> Tensor:
    """Return images as (batch, channel, height, width), and text unchanged."""
    return x.movedim(-1, 1) if x.ndim == 4 else x


def stored(case: str, model: bfn.BFN) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return data, times, network input, network output and loss, in the layout of this library."""
    file = load_file(DATA / f"{case}_io.safetensors")
    x, params, raw = channel_first(file["data"]), channel_first(file["params"]), file["net_output"]
    if case == "mnist":
        x, params = x.long(), torch.stack([params, 1 - params], -1)
    if len(model.data_shape) == 3:
        raw = raw.unflatten(1, model.data_shape[1:]).movedim(3, 1)
        raw = raw.squeeze(-1) if raw.shape[-1] == 1 else raw
    return x, file["t"], params, raw, file["loss_continuous"]


def state(model: bfn.BFN, inputs: Tensor, t: Tensor) -> tuple[Tensor, NoiseLevel]:
    """Return the state u of a network input, and its noise level."""
    level = model.flow.noise_level(t, len(t), inputs.ndim - 1, like=inputs)
    u = inputs * (1 + level.s**2) / level.s if model.flow.kind == "continuous" else inputs.log() / level.s
    return u, level


@torch.no_grad()
def test_network_output_and_loss_are_the_original_ones(case: str) -> None:
    model = load(case)
    x, t, inputs, raw, expected = stored(case, model)
    assert (model.network(inputs, t) - raw).abs().max() < 1e-4 * raw.abs().max()
    u, level = state(model, inputs, t)
    error = model.flow.squared_error(x, model.head.output(model.flow, raw, u, level).mean)
    loss = (error * model.flow.schedule.slope(t) / 2).mean()
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)
    # The whole model, from its own state and with its own network.
    error = model.flow.squared_error(x, model.output(u, level).mean)
    assert float((error * model.flow.schedule.slope(t) / 2).mean()) == pytest.approx(float(expected), rel=1e-4)


def test_keys_without_prefix_are_the_same_file(case: str, tmp_path: Path) -> None:
    weights = torch.load(DATA / f"{case}_ema.pt", weights_only=True)
    torch.save({key.removeprefix("net."): value for key, value in weights.items()}, tmp_path / "bare.pt")
    bare, model = load_official(tmp_path / "bare.pt", SETTINGS[case]), load(case)
    _, t, inputs, _, _ = stored(case, model)
    assert torch.equal(bare.network(inputs, t), model.network(inputs, t))


def test_the_original_sampler_draws_from_the_bins() -> None:
    """Predictions of the discretised model are values that the data can take."""
    model = load("cifar10_discretized")
    seen: list[Tensor] = []
    model.sample(1, "bfn", nfe=4, seed=0, on_step=lambda step: seen.append(step.prediction))
    for prediction in seen[:-1]:
        assert torch.equal(prediction, bfn.kinds.discretised.quantise(prediction, 256))


@pytest.mark.parametrize("name", PUBLISHED)
def test_original_settings_give_the_published_configurations(name: str) -> None:
    # Only the name says which data set it was, and how many levels of it.
    chosen = configuration(SHAPES[name]["model"])
    assert dataclasses.replace(chosen, data=PUBLISHED[name].data) == PUBLISHED[name]
