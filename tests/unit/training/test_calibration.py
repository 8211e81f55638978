"""Calibration: found, stored, loaded, interpolated; more calls are not worse; wrong input is told."""

import pytest
import torch

import bfn
import tiny
from bfn.core.solver import plan
from bfn.solvers.few_step import interpolated
from bfn.storage import models as storage
from bfn.training.tuning.calibration import calibrate, rule
from bfn.training.tuning.objectives import EnergyDistance, NGramDivergence, objective_for


def circle(n, seed=0):
    angle = 6.2832 * torch.rand(n, 1, generator=torch.Generator().manual_seed(seed))
    return torch.cat([angle.cos(), angle.sin()], 1)


@pytest.fixture(scope="module")
def trained():
    """A small network that predicts noise, on a circle."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = bfn.networks.MLP(2, width=64)
        model = bfn.BFN(network, bfn.ContinuousFlow(0.02), predicts="noise", data_shape=(2,))
        optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
        for step in range(400):
            loss = model.loss(circle(256, step)).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model


def test_the_energy_distance_is_small_for_the_same_distribution_only():
    objective = EnergyDistance(circle(1000), bfn.ContinuousFlow(0.02))
    same = float(objective.loss(objective.summary(circle(1000, 1)), None))
    other = float(objective.loss(objective.summary(0.7 * circle(1000, 2)), None))
    assert same < 0.01 < 0.05 < other


def test_calibrated_settings_are_no_worse_than_the_rules_and_kept_with_the_model(trained, tmp_path):
    seen = {}
    objective = objective_for(trained, circle(1000))
    found = calibrate(trained, objective, (1, 2, 4, 10), n=400, trials=6,
                      on_trial=lambda anchor, value: seen.setdefault(anchor.calls, []).append(value))  # fmt: skip
    assert [anchor.calls for anchor in found.anchors] == [1, 2, 4, 10]
    for anchor, loss in zip(found.anchors, found.losses, strict=True):
        assert loss <= min(seen[anchor.calls]) * 1.03
        assert len(seen[anchor.calls]) <= 12
    assert found.losses[-1] < found.losses[0]
    trained.info.calibration = found
    trained.save(tmp_path / "m")
    loaded = storage.read_info(tmp_path / "m")
    assert loaded.calibration == found
    assert plan(trained, "auto", 4).solver.g == pytest.approx(found.anchors[2].g)
    low, high = sorted((found.anchors[2].g, found.anchors[3].g))
    assert low - 1e-9 <= plan(trained, "auto", 6).solver.g <= high + 1e-9
    trained.info.calibration = None


def test_where_time_is_over_the_rule_is_kept(trained):
    found = calibrate(trained, objective_for(trained, circle(200)), (1, 2, 4, 10), n=100, seconds=0.0)
    assert found.losses == ()
    assert found.anchors == tuple(interpolated(rule(trained, "fast-sde"), n) for n in (1, 2, 4, 10))


def test_padding_is_no_part_of_what_is_compared():
    model = tiny.build("molecules")
    real = torch.tensor([[0, 0, 2, -1, -1, -1], [0, 1, 2, 0, 3, 2]] * 10)
    objective = NGramDivergence(real, model.flow, n=2)
    seen = []
    objective.loss = lambda summaries, target=None: seen.append(summaries) or torch.ones(())
    calibrate(model, objective, (2,), n=40, trials=3)
    for summaries in seen:
        lengths = (summaries >= 0).sum(1)
        assert set(lengths.tolist()) <= {2, 3, 4, 6}
        assert torch.equal(summaries >= 0, torch.arange(6) < lengths[:, None])
