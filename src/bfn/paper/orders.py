"""Our own: error against step size on problems with exact answers, and its slope beside the declared order.

ODE solvers: distance of the last state from the flow's end, found with very many steps, on a Gaussian mixture
(continuous) and a Markov chain (discrete). SDE solvers: relative error of the last state's variance where messages are
Gaussian, w ~ N(0, v I). The prediction is then linear, w_hat = s v u / (kappa + s^2 v), so that a solver maps Gaussians
to Gaussians and the variance follows from its table without Monte Carlo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from bfn import solvers
from bfn.exact import ExactModel, GaussianMixture, MarkovChain
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow
from bfn.paper.reports import Options, Section, markdown_table
from bfn.sampling import make_table
from bfn.solvers import Table
from bfn.solvers.paper import SOLVERS

STEPS = (16, 32, 64, 128, 256)
T_START = {"continuous": 0.02, "discrete": 0.05}
VARIANCE = 0.5
"""Of the Gaussian messages; at 2.0 the second-order coefficient of SDE-BFN-Solver2 happens to nearly vanish."""
REFERENCE_STEPS = 600
"""Of a rule of order 3 with a corrector: some 1e-4 of the smallest error here."""


def problems() -> dict[str, ExactModel]:
    """A model of each kind, float64, with posteriors that bend along the way."""
    mixture = GaussianMixture(
        torch.tensor([[-0.8, 0.2], [0.5, 0.6], [0.3, -0.7]], dtype=torch.float64),
        stds=torch.tensor([0.3, 0.2, 0.25], dtype=torch.float64),
        flow=ContinuousFlow(sigma_1=0.05),
    )
    transition = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]], dtype=torch.float64)
    initial = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    chain = MarkovChain(initial, transition, 4, flow=DiscreteFlow(n_classes=3, beta_1=3.0))
    return {"continuous": mixture, "discrete": chain}


def grid_of(solver: solvers.Solver) -> str:
    """Rules in log s are not in their asymptotic regime on a grid uniform in t below some hundred steps."""
    return "log-snr" if "++" in solver.name else "uniform"


def calls_of(solver: solvers.Solver, n_steps: int) -> int:
    """Network calls of so many steps."""
    return 2 * n_steps if "singlestep" in solver.name else n_steps


def ode_errors(
    solver: solvers.Solver, model: ExactModel, steps: Sequence[int], initial: Tensor, exact: Callable[[float], Tensor]
) -> list[float]:
    """Mean distance of the last state from the exact flow through the states initial, (n, ...), at its time."""
    errors = []
    for n_steps in steps:
        calls, start = calls_of(solver, n_steps), T_START[model.flow.kind]
        out = model.sample(len(initial), solver, calls, grid=grid_of(solver), t_start=start, initial=initial)
        errors.append((out.u - exact(out.times[-1])).flatten(1).norm(dim=1).mean().item())
    return errors


def reference(model: ExactModel, initial: Tensor, t_end: float) -> Tensor:
    """The flow at t_end by very many steps of a third-order rule with a corrector."""
    rule = solvers.get("fast-ode").resolve(model.flow, REFERENCE_STEPS)
    ends = model.flow.schedule.s_of([T_START[model.flow.kind], t_end])
    # Equal steps in log(1 + s): small where little is known, and never coarse at the end.
    warped = torch.linspace(math.log1p(ends[0]), math.log1p(ends[1]), REFERENCE_STEPS, dtype=torch.float64)
    times = model.flow.schedule.time_of_s(warped.expm1())
    times[0], times[-1] = T_START[model.flow.kind], t_end
    return model.sample(len(initial), rule, grid=times, initial=initial).u


def weak_errors(solver: solvers.Solver, flow: Flow, steps: Sequence[int]) -> list[float]:
    """Relative error of the last state's variance."""
    errors = []
    for n_steps in steps:
        table = make_table(flow, solver, n_steps, grid_of(solver), T_START[flow.kind])
        exact = flow.kappa + float(flow.schedule.beta(table.times[-1])) * VARIANCE
        errors.append(abs(final_variance(table, flow) / exact - 1))
    return errors


def final_variance(table: Table, flow: Flow) -> float:
    """Variance of u at the table's last node, from the exact distribution at its first.

    u and each prediction are kept as coefficients on the independent sources (u_0, xi_1, xi_2, ...).
    """
    s = flow.schedule.s_of(table.times)
    base = torch.zeros(len(table.rows) + 1, dtype=torch.float64)
    base[0] = math.sqrt(flow.kappa + s[0] ** 2 * VARIANCE)
    u, messages = base, list[Tensor]()
    for i, row in enumerate(table.rows[:-1]):
        messages.insert(0, s[i] * VARIANCE / (flow.kappa + s[i] ** 2 * VARIANCE) * u)
        u = row.a * base
        for b, message in zip(row.b, messages, strict=False):
            u = u + b * message
        u[i + 1] += row.c
        if row.commit:
            base = u
    return float(u.square().sum())


def slope(errors: Sequence[float], steps: Sequence[int]) -> float:
    """Order of convergence: minus the slope of log error against log steps, by least squares."""
    x = torch.tensor(steps, dtype=torch.float64).log()
    y = torch.tensor(errors, dtype=torch.float64).log()
    centred = x - x.mean()
    return -float((centred * y).sum() / centred.square().sum())


def orders(options: Options) -> list[Section]:
    """A section for each kind of data."""
    steps = options.nfe or STEPS
    n = options.n or 16
    return [_section(kind, model, steps, n, options.seed) for kind, model in problems().items()]


def _section(kind: str, model: ExactModel, steps: Sequence[int], n: int, seed: int) -> Section:
    shape = (n, *model.flow.state_shape(model.data_shape))
    initial = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = cache(partial(reference, model, initial))
    rows, curves, results = [], dict[str, list[tuple[float, float]]](), dict[str, object]()
    for solver in SOLVERS:
        if kind not in solver.kinds:
            continue
        if solver.stochastic:
            drawn = make_table(model.flow, solver, 2, "uniform", T_START[kind]).draws
            errors, what = (
                weak_errors(solver, model.flow, steps),
                "variance, classes not drawn" if drawn else "variance",
            )
        else:
            errors, what = ode_errors(solver, model, steps, initial, exact), "end of the flow"
        found = slope(errors[-3:], steps[-3:])
        told = "as declared" if abs(found - solver.order) < 0.25 else f"differs by {found - solver.order:+.2f}"
        shown = [f"{error:.2e}" for error in errors]
        rows.append([f"`{solver.name}`", what, *shown, f"{found:.2f}", f"{solver.order}", told])
        curves[solver.name] = list(zip((1 / m for m in steps), errors, strict=True))
        results[solver.name] = {"error": what, "steps": list(steps), "errors": errors, "slope": found,
                                "order": solver.order}  # fmt: skip
    title = {
        "continuous": "a mixture of three Gaussians in the plane, sigma_1 = 0.05",
        "discrete": "a Markov chain of 4 variables of 3 classes, beta_1 = 3",
    }[kind]
    lines = [
        f"{n} starts at t = {T_START[kind]:g}; the ++ solvers on a grid uniform in log s, the others uniform in t. "
        "Variance: relative weak error where messages are Gaussian, in closed form. Slopes over the last 3 columns.",
        "",
        *markdown_table(["solver", "error in", *(f"{m} steps" for m in steps), "slope", "declared", ""], rows),
    ]
    return Section(kind, title, "\n".join(lines), results, {f"{kind}.png": partial(_draw, curves)})


def _draw(curves: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from bfn.paper.pictures import lines_picture

    lines_picture(curves, path, x="step size (1 / steps)", y="error")
