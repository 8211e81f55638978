"""Paths through the times of parts: the first part is drawn alone, the next one given the first."""

import math

import pytest
import torch
from torch import Tensor

from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.table import Row, Table
from bfn.exact.joint import JointMixture
from bfn.solvers.paths import waiting

X = ([[-1.0, 0.3], [0.8, -0.4], [0.2, 1.1]], [[0.2, 0.1], [0.3, 0.2], [0.1, 0.4]])
KIND = [[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], [[0.1, 0.8, 0.1], [0.3, 0.4, 0.3]], [[0.2, 0.2, 0.6], [0.9, 0.05, 0.05]]]
WEIGHTS = [0.5, 0.2, 0.3]
FLOWS = {"x": ContinuousFlow(0.05), "kind": DiscreteFlow(3, 6.0)}
N_X = 2


def mixture(times: str = "separate") -> JointMixture:
    return JointMixture({"x": X}, {"kind": KIND}, weights=WEIGHTS, flows=FLOWS, times=times)


def start(n: int) -> Tensor:
    return torch.randn(n, N_X + 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("solver", ["multistep:3:asinh", "bfn-solver1", "multistep:3:s:corrector"])
def test_the_first_part_is_drawn_alone_and_the_rest_given_it(solver: str) -> None:
    """The classes are those of the model of classes alone, the numbers those of the mixture given the classes."""
    model, initial, calls = mixture(), start(3), 13
    out = model.sample(3, solver, calls, path="kind", initial=initial, t_start=0.0)
    states = []
    model.sample(
        3, solver, calls, path=["kind", "x"], initial=initial, t_start=0.0, on_step=lambda s: states.append(s.u)
    )
    assert torch.equal(states[-1], out.u)
    classes = JointMixture({}, {"kind": KIND}, weights=WEIGHTS, flows={"kind": FLOWS["kind"]})
    grid = torch.linspace(0, 1, 7, dtype=torch.float64)
    alone = classes.sample(3, solver, initial=initial[:, N_X:], grid=grid)
    torch.testing.assert_close(out.u[:, N_X:], alone.u, atol=1e-9, rtol=0)
    torch.testing.assert_close(states[6][:, :N_X], initial[:, :N_X], atol=0, rtol=0)
    level = classes.flow.noise_level(1.0, 3, 1, alone.u)
    left = torch.softmax(classes._log_joint(alone.u, level), 1)
    for i, weights in enumerate(left):
        given = JointMixture({"x": X}, {}, weights=weights, flows={"x": FLOWS["x"]})
        numbers = given.sample(1, solver, initial=initial[i : i + 1, :N_X], grid=grid)
        torch.testing.assert_close(out.u[i : i + 1, :N_X], numbers.u, atol=1e-9, rtol=0)
        torch.testing.assert_close(out.x["x"][i : i + 1], numbers.x["x"], atol=1e-9, rtol=0)


def test_together_gives_all_parts_the_times_of_the_grid() -> None:
    model, initial, grid = mixture(), start(4), [0.01, 0.2, 0.5, 0.8, 1.0]
    for solver in ("fast-ode", "fast-sde"):
        ways = [
            mixture("together").sample(4, solver, initial=initial, grid=grid, seed=0),
            model.sample(4, solver, initial=initial, grid=grid, seed=0),
            model.sample(4, solver, initial=initial, grid=grid, seed=0, path="together"),
            model.sample(4, solver, initial=initial, grid=grid, seed=0, path=lambda t: {"x": t, "kind": t}),
            model.sample(4, solver, initial=initial, seed=0, path={"x": grid, "kind": grid}),
        ]
        for way in ways[1:]:
            torch.testing.assert_close(way.u, ways[0].u, atol=1e-12, rtol=0)
            assert torch.equal(way.x["kind"], ways[0].x["kind"])


PATHS = {"classes first": "kind", "numbers first": ["x"], "bent": lambda t: {"x": t**2, "kind": min(1.0, 1.5 * t)}}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("settings", [{"solver": "fast-ode"}, {"solver": "fast-sde", "g": 1.0}])
def test_every_path_gives_the_distribution_of_the_data(name: str, settings: dict) -> None:
    """Moments, shares of classes and correlations within five standard errors and the error of the solver."""
    model, n = mixture(), 5000
    out = model.sample(n, nfe=80, seed=1, grid="uniform", path=PATHS[name], **settings).x
    real = model.sample_data(n, torch.Generator().manual_seed(9))

    def statistics(data: dict[str, Tensor]) -> Tensor:
        one_hot = torch.nn.functional.one_hot(data["kind"], 3).double().flatten(1)
        x = data["x"]
        return torch.cat([x, x.square(), one_hot, (x.unsqueeze(2) * one_hot.unsqueeze(1)).flatten(1)], 1)

    ours, theirs = statistics(out), statistics(real)
    error = ((ours.var(0) + theirs.var(0)) / n).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 5 * error + 0.015).all())


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("order", [1, 2])
def test_solvers_keep_their_order_on_a_path(name: str, order: int) -> None:
    model, initial = mixture(), start(32)

    def end(calls: int, order: int = order) -> Tensor:
        return model.sample(
            32, f"multistep:{order}:s", calls, grid="uniform", t_start=0.05, path=PATHS[name], initial=initial
        ).u

    exact = end(1441, 4)
    errors = [float((end(n + 1) - exact).norm(dim=1).mean()) for n in (120, 240)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.4)


def test_a_part_that_waits_uses_the_last_prediction_of_each_time() -> None:
    def make(times: tuple[float, ...]) -> Table:
        assert times == (0.0, 0.5, 1.0)
        return Table((Row(0.0, 1.0, (1.0,)), Row(0.5, 0.9, (2.0, 3.0), 0.1), Row(1.0)), final=(0.75, 0.25))

    table = waiting(make, (0.0, 0.0, 0.5, 0.5, 1.0, 1.0))
    assert [row.t for row in table.rows] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert [row.b for row in table.rows] == [(), (1.0,), (), (2.0, 0.0, 3.0), (), ()]
    assert [(row.a, row.c) for row in table.rows[:4]] == [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.9, 0.1)]
    assert table.final == (0.75, 0.0, 0.25)
