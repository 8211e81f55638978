"""Multistep solvers, and their family by name."""

import re
from textwrap import dedent

import pytest
import torch

import bfn
from bfn import solvers
from bfn.core.info import ErrorCurve
from bfn.exact.numbers import GaussianMixture
from bfn.solvers.multistep import Multistep
from planned import make_table

FLOWS = {"continuous": bfn.ContinuousFlow(sigma_1=0.05), "discrete": bfn.DiscreteFlow(n_classes=5, beta_1=3.0)}


@pytest.mark.parametrize("kind", FLOWS)
def test_a_multistep_name_makes_the_solver(kind):
    flow = FLOWS[kind]
    times = torch.tensor([0.0, 0.2, 0.5, 0.9], dtype=torch.float64)
    for name, settings in {
        "multistep:1:s": {"order": 1},
        "multistep:3:asinh": {"order": 3, "coordinate": "asinh"},
        "multistep:2:t:corrector": {"order": 2, "coordinate": "t", "corrector": True},
    }.items():
        ours = Multistep("mine", "", (kind,), **settings)
        assert make_table(flow, name, grid=times) == ours.table(flow, times.tolist())
        noisy = make_table(flow, name, 6, g=2.0)
        assert noisy.nfe == 6
        assert noisy.times[0] == 0
        assert all(row.c > 0 for row in noisy.rows[:-1])
    assert make_table(flow, "multistep:2:log s", 6).times[0] == 1e-3


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize("nfe", [2, 3, 5, 12])
def test_a_given_g_holds_in_every_step(kind, nfe):
    redrawn = make_table(FLOWS[kind], "fast-sde", nfe, g=float("inf"))
    assert all(row.a == 0 and row.c > 0 for row in redrawn.rows[:-1])
    still = make_table(FLOWS[kind], "fast-sde", nfe, g=0.0)
    assert all(row.a == 1 and row.c == 0 for row in still.rows[:-1])


def test_close_old_nodes_are_left_out_before_a_long_step() -> None:
    """With them the weights, and so rounding and the errors of the network, would be about 1e10 times larger."""
    flow = bfn.ContinuousFlow(1 / 256)
    times = [0.25, 0.25 + 1e-9, 0.25 + 2e-9, 1.0]
    rows = solvers.plan(bfn.exact.Points(torch.zeros(1, 2), flow=flow), "fast-ode", grid=times).table.rows
    step = flow.schedule.s_of([1.0])[0] - flow.schedule.s_of([times[2]])[0]
    assert sum(map(abs, rows[2].b)) < 2e3 * step
    assert sum(rows[2].b) == pytest.approx(step, rel=1e-9)


@pytest.mark.parametrize("name", solvers.SOLVERS)
def test_every_solver_makes_a_valid_table(name):
    """Increasing times, no weight on calls that are still to come, and a final mix of weights that sum to 1."""
    for kind in set(solvers.get(name).kinds) & set(FLOWS):
        for nfe in (2, 6):
            table = make_table(FLOWS[kind], name, nfe, curve=ErrorCurve((0.0, 1.0), (1.0, 0.1)))
            table.check()
            assert table.nfe == nfe


def test_the_solver_of_the_docstring_is_found_by_its_name() -> None:
    example = "\n".join(re.findall(r"^(?:    .*)?$", solvers.__doc__ or "", re.M))
    exec(dedent(example), {**vars(solvers)})
    try:
        model = GaussianMixture(torch.tensor([[-0.5], [0.5]]), stds=torch.tensor([0.1, 0.2]))
        settings = {"grid": [0.1, 0.4, 0.7, 1.0], "initial": torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]}
        found, expected = (model.sample(5, name, **settings).x for name in ("leap", "bfn-solver1"))
        torch.testing.assert_close(found, expected)
    finally:
        del solvers.SOLVERS["leap"]
