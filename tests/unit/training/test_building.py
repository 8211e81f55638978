"""Models, optimisers and learning rates."""

import math

import pytest
import torch
from torch import nn

from bfn.core.flows import ContinuousFlow
from bfn.kinds.schedules import TabulatedSchedule
from bfn.networks.mlp import MLP
from bfn.networks.transformer import Transformer
from bfn.networks.unet import UNet
from bfn.training.building import Muon, build_model, learning_rate, make_optimiser, make_weighting, orthogonalise, split
from bfn.training.building import open_recipe_data as open_source


def test_the_learning_rate_rises_stays_and_falls(settings):
    settings = settings.override({"steps": 100, "warmup": 10, "decay_from": 0.5, "lr": 0.4, "final_lr": 0.1})
    rates = [learning_rate(settings, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.04)
    assert rates[9:50] == pytest.approx([0.4] * 41)
    assert rates[75] == pytest.approx(0.4 * (0.1 + 0.9 / 2))
    assert rates[100] == pytest.approx(0.04)


def test_biases_and_norms_are_spared_from_weight_decay(settings, images):
    settings = settings.override({"weight_decay": 0.1, "optimiser": "adamw"})
    model = build_model(settings, open_source(settings.data, "continuous", "train"))
    decays = {id(p): group["weight_decay"] for group in make_optimiser(settings, model).param_groups
              for p in group["params"]}  # fmt: skip
    assert len(decays) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (0.1 if parameter.ndim > 1 else 0.0), name


def test_a_flow_may_have_any_schedule_that_can_be_stored(settings):
    config = {"name": "tabulated", "times": [0, 0.5, 1], "betas": [0, 1, 9]}
    settings = settings.override({"flow": {"name": "continuous", "schedule": config}})
    model = build_model(settings, open_source(settings.data, "continuous", "train"))
    assert model.flow == ContinuousFlow(schedule=TabulatedSchedule((0, 0.5, 1), (0, 1, 9)))


def test_the_spread_of_the_data_is_measured_where_a_part_asks_for_it(settings):
    source = open_source(settings.data, "continuous", "train")
    model = build_model(settings, source)
    measured = model.head.data_std
    assert measured == pytest.approx(float(source.first(1024)[0].std()), abs=1e-4)
    assert make_weighting(settings, source, model).data_std == measured
    assert make_weighting(settings.override({"weighting.data_std": 0.5}), source, model).data_std == 0.5


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (48, 16), (3, 12, 20)])
def test_orthogonalise_keeps_the_singular_vectors_and_levels_the_values(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    core = left.mT @ orthogonalise(matrices) @ right.mT
    values = core.diagonal(dim1=-2, dim2=-1)
    assert (core - torch.diag_embed(values)).abs().max() < 1e-10
    assert values.min() > 0.6
    assert values.max() < 1.25


def test_orthogonalise_is_blind_to_scale_and_safe_at_zero() -> None:
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(orthogonalise(1000 * matrix), orthogonalise(matrix))
    assert torch.equal(orthogonalise(torch.zeros(4, 4)), torch.zeros(4, 4))


def test_first_step_of_a_matrix_is_its_orthogonalised_gradient() -> None:
    weight = nn.Parameter(torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0)))
    before = weight.detach().clone()
    gradient = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
    weight.grad = gradient
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    direction = orthogonalise(gradient.reshape(4, 6)).reshape(4, 2, 3)
    torch.testing.assert_close(weight.detach(), before * (1 - 0.05) - 0.1 * 0.2 * math.sqrt(6) * direction)


def test_state_survives_saving() -> None:
    def run(n_steps, state, start):
        parameters = [nn.Parameter(tensor.clone()) for tensor in start]
        optimiser = Muon(parameters[:1], parameters[1:], lr=0.05)
        if state is not None:
            optimiser.load_state_dict(state)
        for _ in range(n_steps):
            optimiser.zero_grad()
            sum(parameter.cos().sum() for parameter in parameters).backward()
            optimiser.step()
        return optimiser.state_dict(), [parameter.detach() for parameter in parameters]

    start = [torch.arange(6.0).reshape(2, 3), torch.arange(4.0)]
    _, whole = run(6, None, start)
    state, half = run(3, None, start)
    _, resumed = run(3, state, half)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.parametrize(
    "network", [UNet(1, channels=8, head_features=8), Transformer(n_classes=3, width=8, n_heads=2), MLP(3, width=8)]
)
def test_split_gives_every_parameter_once(network: nn.Module) -> None:
    matrices, rest = split(network)
    assert {id(p) for p in (*matrices, *rest)} == {id(p) for p in network.parameters()}
    assert len(matrices) + len(rest) == len(list(network.parameters()))
    assert all(parameter.ndim >= 2 for parameter in matrices)
    outer = {id(p) for layer in (network.stem, network.head, network.conditioning) for p in layer.parameters()}
    modulation = {id(p) for name, p in network.named_parameters() if "modulation" in name}
    assert modulation
    assert not (outer | modulation) & {id(p) for p in matrices}
