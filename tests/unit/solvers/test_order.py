"""Every solver converges with its declared order, on problems with exact solutions."""

from dataclasses import dataclass

import pytest
import torch

import bfn
from bfn import solvers
from bfn.core.info import ErrorCurve
from bfn.solvers.multistep import Multistep
from bfn.solvers.paper import PAPER
from linear import LinearModel, final_variance, slope
from planned import make_table

T_START = {"continuous": 0.02, "discrete": 0.05}
FLOWS = {"continuous": bfn.ContinuousFlow(sigma_1=0.05), "discrete": bfn.DiscreteFlow(n_classes=5, beta_1=3.0)}
STEPS = [64, 128, 256, 512]
TOLERANCE = 0.15


def cases(stochastic: bool) -> list[tuple[str, str]]:
    paper = [s for s in PAPER if s.stochastic == stochastic]
    return [(s.name, kind) for s in paper for kind in s.kinds]


def grid_of(name: str) -> str:
    # On a grid uniform in t the rules in log s are not in their asymptotic regime below about 80 steps.
    return "log-snr" if "++" in name else "uniform"


@pytest.mark.parametrize(("name", "kind"), cases(stochastic=False))
def test_ode_order(name: str, kind: str) -> None:
    model = LinearModel(FLOWS[kind], variance=2.0)
    initial = torch.linspace(-2, 2, 3 * (5 if kind == "discrete" else 1), dtype=torch.float64)
    initial = initial.view(1, *model.flow.state_shape((3,))) * model.std(T_START[kind]) / model.flow.kappa**0.5
    errors = []
    for n in STEPS:
        calls = 2 * n if "singlestep" in name else n
        out = model.sample(1, name, calls, grid=grid_of(name), t_start=T_START[kind], initial=initial)
        exact = initial * model.flow.kappa**0.5 * model.std(out.times[-1]) / model.std(T_START[kind])
        assert out.nfe == calls
        errors.append(float((out.u - exact).abs().max()))
    assert slope(errors, STEPS) == pytest.approx(solvers.get(name).order, abs=TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), cases(stochastic=True))
def test_sde_weak_order(name: str, kind: str) -> None:
    """Variance 0.5: at 2.0 the second-order coefficient of SDE-BFN-Solver2 happens to nearly vanish."""
    model = LinearModel(FLOWS[kind], variance=0.5)
    errors = weak_errors(name, model)
    assert slope(errors, STEPS) == pytest.approx(solvers.get(name).order, abs=TOLERANCE)


def weak_errors(solver: str | solvers.Solver, model: LinearModel) -> list[float]:
    name = solver if isinstance(solver, str) else solver.name
    errors = []
    for n in STEPS:
        table = make_table(model.flow, solver, n, grid_of(name), T_START[model.flow.kind])
        errors.append(final_variance(table, model) / model.std(table.times[-1]) ** 2 - 1)
    return errors


@dataclass(frozen=True)
class PrintedSign(Multistep):
    """SDE-BFN-Solver2 with the minus that the paper prints before the second-order term."""

    def _weights(self, flow, s, i, newest):  # type: ignore[no-untyped-def]
        b = super()._weights(flow, s, i, newest)
        return b if len(b) == 1 else (sum(b) + b[1], -b[1])


def test_the_printed_sign_of_sde_bfn_solver2_fails() -> None:
    model = LinearModel(FLOWS["discrete"], variance=0.5)
    printed = PrintedSign("sde-bfn-solver2", "", ("discrete",), order=2, g=1.0)
    errors, right = weak_errors(printed, model), weak_errors("sde-bfn-solver2", model)
    first = weak_errors("sde-bfn-solver1", model)
    assert slope(errors, STEPS) == pytest.approx(1, abs=TOLERANCE)
    assert abs(errors[-1]) > 1.5 * abs(first[-1])
    assert abs(right[-1]) < 0.1 * abs(first[-1])


def ramp_slope(solver: str | solvers.Solver, kind: str, first: float) -> float:
    """Return the slope on a grid in s with small first steps, since these have a lower order."""
    model = LinearModel(FLOWS[kind], variance=2.0)
    last, steps, errors = min(3.0, float(model.flow.schedule.s(1.0))), [100, 200, 400], []
    for n in steps:
        ramp = torch.linspace(0, 1, n, dtype=torch.float64) ** 4
        times = model.flow.schedule.time_of_s(first + ramp * (last - first)).clamp(max=1)
        initial = torch.ones(1, *model.flow.state_shape((3,)), dtype=torch.float64)
        out = model.sample(1, solver, grid=times, initial=initial)
        exact = model.std(out.times[-1]) / model.std(out.times[0]) * model.flow.kappa**0.5
        errors.append(float((out.u - exact).abs().max()))
    return slope(errors, steps)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
@pytest.mark.parametrize("coordinate", ["s", "asinh", "t"])
@pytest.mark.parametrize(
    ("order", "corrector", "expected"),
    [(1, False, 1), (1, True, 2), (2, False, 2), (2, True, 3), (3, False, 3), (3, True, 4), (4, False, 4)],
)
def test_the_corrector_adds_an_order(kind: str, coordinate: str, order: int, corrector: bool, expected: int) -> None:
    """In particular order 2 with the corrector has a slope of at least 2.8."""
    solver = Multistep("m", "", (kind,), order, coordinate=coordinate, corrector=corrector, t_start=0.0)
    assert ramp_slope(solver, kind, first=0.3 if coordinate == "t" else 0.0) > expected - 0.2


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
@pytest.mark.parametrize(("name", "expected"), [("unipc2", 3), ("unipc3", 4), ("deis2", 2), ("deis3", 3)])
def test_published_solvers_have_their_order(name: str, expected: int, kind: str) -> None:
    """UniPC-p with its corrector is of order p + 1."""
    assert ramp_slope(name, kind, first=0.3) > expected - 0.2


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
@pytest.mark.parametrize("g", [1.0, 3.0])
@pytest.mark.parametrize(("order", "corrector"), [(2, False), (1, True)])
def test_weak_order_along_the_dial(kind: str, g: float, order: int, corrector: bool) -> None:
    solver = Multistep("++", "", (kind,), order, coordinate="log s", g=g, corrector=corrector)
    errors = weak_errors(solver, LinearModel(FLOWS[kind], variance=0.5))
    assert slope(errors[1:], STEPS[1:]) > 2 - TOLERANCE


# The optimal variance: exact in distribution for normal data and any step.


def exact_curve(model: LinearModel) -> ErrorCurve:
    """Return the variance of an entry of w given u, v kappa / (kappa + s^2 v), at many times."""
    t = torch.linspace(0, 1, 20001, dtype=torch.float64)
    kappa, v = model.flow.kappa, model.variance
    return ErrorCurve(tuple(t.tolist()), tuple((v * kappa / (kappa + model.flow.schedule.beta(t) * v)).tolist()))


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize("nfe", [2, 3, 5, 20])
def test_normal_messages_keep_their_exact_variance(kind: str, nfe: int) -> None:
    model = LinearModel(FLOWS[kind], variance=0.7)
    table = make_table(model.flow, "bfn-optimal", nfe, curve=exact_curve(model))
    assert final_variance(table, model) == pytest.approx(model.std(1.0) ** 2, rel=1e-5)
    if kind == "continuous":
        plain = make_table(model.flow, "bfn", nfe)
        assert final_variance(plain, model) < 0.95 * model.std(1.0) ** 2


@pytest.mark.parametrize("kind", FLOWS)
def test_a_certain_model_adds_no_noise(kind: str) -> None:
    certain = make_table(FLOWS[kind], "bfn-optimal", 7, curve=ErrorCurve((0.0,), (0.0,)))
    for row, plain in zip(certain.rows, make_table(FLOWS[kind], "bfn", 7).rows, strict=True):
        assert (row.a, row.b, row.c) == (plain.a, plain.b, plain.c)
