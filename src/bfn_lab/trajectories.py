"""Experiments on trajectories: the effect of drawn classes (table 4 of the paper), and orders of convergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import torch
from torch import Tensor

from bfn import ContinuousFlow, DiscreteFlow, Flow, Model, Step, grids, solvers
from bfn.exact import ExactModel, GaussianMixture, MarkovChain
from bfn.quality import Estimate, markdown_table, mean_estimate
from bfn.solvers import Multistep, Solver, Table
from bfn_lab import report as printed
from bfn_lab.measuring import JudgedModel
from bfn_lab.report import Options, Section, chapter, lines_plot, log_log_slope

PAPER = (
    "bfn", "euler-ode", "euler-sde", "bfn-solver1", "bfn-solver2", "bfn-solver2-singlestep", "sde-bfn-solver1",
    "sde-bfn-solver2", "bfn-solver++1", "bfn-solver++2", "sde-bfn-solver++2",
)  # fmt: skip
"""Solvers of the paper."""

STEPS = (0.1, 0.05, 0.02, 0.01, 0.005)


def trajectory_distance(model: Model, n: int, n_steps: int, seed: int, *, mean_only: bool = False) -> Tensor:
    """Return the distance of z(t) = s u with and without drawn classes, (n,), of n pairs with the same Gaussian noise.

    The distance is the mean of |z - z'| over times, positions and classes.

    Args:
        model: a model of discrete data.
        n: number of pairs.
        n_steps: number of steps.
        seed: seed of the noise.
        mean_only: whether both are without drawn classes, which must give 0.
    """
    grid = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64)

    def run(solver: str, look: Callable[[Step], None]) -> None:
        model.sample(
            n, solver, grid=grid, generator=torch.Generator(model.device).manual_seed(seed),
            class_generator=torch.Generator(model.device).manual_seed(seed + 1), on_step=look,
        )  # fmt: skip

    drawn: list[Tensor] = []
    run("sde-bfn-solver1" if mean_only else "bfn", lambda step: drawn.append(step.u))
    distance = torch.zeros(n, dtype=torch.float64)

    def compare(step: Step) -> None:
        s = float(model.flow.schedule.s(step.t))
        distance.add_((drawn[step.index] - step.u).abs().flatten(1).mean(1).double().cpu(), alpha=s)

    run("sde-bfn-solver1", compare)
    return distance / len(drawn)


def cs_trajectories(judged: JudgedModel, options: Options) -> Section:
    """Measure table 4: distances at each step size and their power law, beside the paper's."""
    table = printed.printed_table("cs-trajectories")
    n = max(2, options.n or min(judged.n, 16))
    steps = sorted((1 / nfe for nfe in options.nfe), reverse=True) if options.nfe else STEPS
    batches = torch.split(torch.arange(n), options.batch or judged.batch)
    measured: dict[float, Estimate] = {}
    for step in steps:
        parts = [
            trajectory_distance(judged.model, len(batch), round(1 / step), options.seed + 1000 * index)
            for index, batch in enumerate(batches)
        ]
        measured[step] = mean_estimate(torch.cat(parts))
    theirs = {f.column.step: f.value for f in table.figures if f.column.step is not None}
    rows = [[f"{step:g}", str(m), f"{theirs[step]:g}" if step in theirs else ""] for step, m in measured.items()]
    ours = {step: m.value for step, m in measured.items()}
    compared = {step: value for step, value in theirs.items() if step in measured}
    compared = compared if len(compared) > 1 else theirs
    powers = {"measured": _power(ours), "paper": _power(compared)}
    lines = chapter(
        "How far apart are the trajectories with and without drawn classes?",
        "Mean of |z - z'| over times, positions and classes; z = s u is the state with drawn classes, z' without, "
        f"under the same Gaussian noise. 95 % intervals over {n} pairs of trajectories.",
        markdown_table(["step size", "measured", "paper"], rows),
        trend(measured, powers),
    )
    results = {"n": n, "distances": {f"{step:g}": m.asdict() for step, m in measured.items()}, "power": powers}
    curves = {"measured": list(ours.items()), "paper": list(theirs.items())}
    draw = partial(lines_plot, curves, x="step size", y="L1 distance of trajectories", dashed=["paper"])
    return Section(judged.name, judged.title, "\n".join(lines), results, {f"{judged.name}.png": draw})


def trend(measured: Mapping[float, Estimate], powers: Mapping[str, float]) -> str:
    """Return in words how the distances change from the largest step to the smallest."""
    pairs = list(pairwise(measured.values()))
    if not pairs:
        return f"One step size shows no trend. The paper's distances scale as step^{powers['paper']:.2f}."
    fallen = sum(after.high < before.low for before, after in pairs)
    risen = sum(after.low > before.high for before, after in pairs)
    if fallen == len(pairs):
        verdict = "Each distance is below the one before, beyond its interval, as in the paper"
    elif risen == len(pairs):
        verdict = "Each distance is above the one before, beyond its interval, which is the opposite of the paper"
    else:
        verdict = (
            f"From one step size to the next, {fallen} of {len(pairs)} distances fall beyond their intervals, "
            f"{risen} rise and {len(pairs) - fallen - risen} are not distinguishable; the paper's all fall"
        )
    if math.isnan(powers["measured"]):
        return f"{verdict}."
    scales = f"scale as step^{powers['measured']:.2f}, the paper's as step^{powers['paper']:.2f}"
    return f"{verdict}. The distances {scales}."


def _power(values: Mapping[float, float]) -> float:
    return log_log_slope(list(values), list(values.values()))


CONVERGENCE_STEPS = (16, 32, 64, 128, 256)
VARIANCE = 0.5
"""Variance of the Gaussian messages. At 2.0 the second-order coefficient of SDE-BFN-Solver2 nearly vanishes."""
REFERENCE_STEPS = 600
"""Steps of the reference, a rule of order 3 with a corrector: its error is about 1e-4 of the smallest error here."""
LAST = 3
"""Number of step sizes, the smallest ones, that a slope is fitted to."""


@dataclass(frozen=True)
class Problem:
    """An exact model in float64 with a nonlinear posterior, and the start of its grids."""

    title: str
    model: ExactModel
    t_start: float

    @property
    def name(self) -> str:
        """Name of the problem: the kind of data."""
        return self.model.flow.leading.kind


def problems() -> list[Problem]:
    """Return a problem for each kind of data."""
    mixture = GaussianMixture(
        torch.tensor([[-0.8, 0.2], [0.5, 0.6], [0.3, -0.7]], dtype=torch.float64),
        stds=torch.tensor([0.3, 0.2, 0.25], dtype=torch.float64),
        flow=ContinuousFlow(sigma_1=0.05),
    )
    transition = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]], dtype=torch.float64)
    initial = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    chain = MarkovChain(initial, transition, 4, flow=DiscreteFlow(n_classes=3, beta_1=3.0))
    return [
        Problem("A mixture of three Gaussians in the plane (sigma_1 = 0.05)", mixture, 0.02),
        Problem("A Markov chain of 4 variables with 3 classes (beta_1 = 3)", chain, 0.05),
    ]


def orders(options: Options) -> list[Section]:
    """Measure the orders of all solvers of the paper, one section for each problem."""
    steps, n = options.nfe or CONVERGENCE_STEPS, options.n or 16
    return [_section(problem, steps, n, options.seed) for problem in problems()]


def final_variance(table: Table, flow: Flow) -> float:
    """Return the variance of u at the last time of a table, from the exact distribution at its first time.

    The state and each prediction are stored as coefficients of the independent sources (u_0, xi_1, xi_2, ...).
    """
    s = flow.schedule.s_of(table.times)
    base = torch.zeros(len(table.rows) + 1, dtype=torch.float64)
    base[0] = math.sqrt(flow.leading.kappa + s[0] ** 2 * VARIANCE)
    u, messages = base, list[Tensor]()
    for i, row in enumerate(table.rows[:-1]):
        messages.insert(0, s[i] * VARIANCE / (flow.leading.kappa + s[i] ** 2 * VARIANCE) * u)
        u = row.a * base
        for b, message in zip(row.b, messages, strict=False):
            u = u + b * message
        u[i + 1] += row.c
        if row.commit:
            base = u
    return float(u.square().sum())


def _grid(solver: Solver) -> grids.Grid:
    """Return the grid: on one uniform in t, rules in log s need hundreds of steps to reach their asymptotic regime."""
    in_log_s = isinstance(solver, Multistep) and solver.coordinate == "log s"
    return grids.LogSNR() if in_log_s else grids.Uniform()


def _calls(solver: Solver, problem: Problem, n_steps: int) -> int:
    """Return the number of network calls of a number of steps: single-step rules have rows that do not commit."""
    rows = solver.table(problem.model.flow.leading, (problem.t_start, 1.0)).rows
    return n_steps * (1 + sum(not row.commit for row in rows))


def _ode_errors(
    solver: Solver, problem: Problem, steps: Sequence[int], initial: Tensor, exact: Callable[[float], Tensor]
) -> list[float]:
    """Return the mean distance of the last states from the exact flow through the first ones, for each step size."""
    errors = []
    for n_steps in steps:
        nfe, t_start = _calls(solver, problem, n_steps), problem.t_start
        out = problem.model.sample(len(initial), solver, nfe, grid=_grid(solver), t_start=t_start, initial=initial)
        errors.append((out.u - exact(out.times[-1])).flatten(1).norm(dim=1).mean().item())
    return errors


def _reference(problem: Problem, initial: Tensor, t_end: float) -> Tensor:
    """Return the flow at t_end, by many steps of a third-order rule with a corrector."""
    schedule = problem.model.flow.schedule
    rule = solvers.get("fast-ode").resolve(problem.model.flow.leading, REFERENCE_STEPS)
    start, end = schedule.s_of([problem.t_start, t_end])
    # Equal steps in log(1 + s) are small at small s, and never large at the end.
    warped = torch.linspace(math.log1p(start), math.log1p(end), REFERENCE_STEPS, dtype=torch.float64)
    times = schedule.time_of_s(warped.expm1())
    times[0], times[-1] = problem.t_start, t_end
    return problem.model.sample(len(initial), rule, grid=times, initial=initial).u


def _weak_errors(tables: Sequence[Table], flow: Flow) -> list[float]:
    """Return the relative errors of the variance of the last state."""
    exact = [flow.leading.kappa + float(flow.schedule.beta(table.times[-1])) * VARIANCE for table in tables]
    return [abs(final_variance(table, flow) / truth - 1) for table, truth in zip(tables, exact, strict=True)]


def _section(problem: Problem, steps: Sequence[int], n: int, seed: int) -> Section:
    model = problem.model
    shape = (n, *model.flow.state_shape(model.data_shape))
    initial = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = cache(partial(_reference, problem, initial))
    rows, curves, results = [], dict[str, list[tuple[float, float]]](), dict[str, object]()
    for solver in (solver for solver in map(solvers.get, PAPER) if model.flow.leading.kind in solver.kinds):
        if solver.stochastic:
            planned = partial(solvers.plan, model, solver, grid=_grid(solver), t_start=problem.t_start)
            tables = [planned(nfe=n_steps).table for n_steps in steps]
            errors = _weak_errors(tables, model.flow)
            what = "variance, classes not drawn" if tables[0].draws else "variance"
        else:
            errors, what = _ode_errors(solver, problem, steps, initial, exact), "end of the flow"
        found = -log_log_slope(steps[-LAST:], errors[-LAST:])
        verdict = "as declared" if abs(found - solver.order) < 0.25 else f"differs by {found - solver.order:+.2f}"
        shown = [f"{error:.2e}" for error in errors]
        rows.append([f"`{solver.name}`", what, *shown, f"{found:.2f}", f"{solver.order}", verdict])
        curves[solver.name] = list(zip((1 / m for m in steps), errors, strict=True))
        results[solver.name] = {"error": what, "steps": list(steps), "errors": errors, "slope": found,
                                "order": solver.order}  # fmt: skip
    lines = chapter(
        "Does each solver converge with its declared order?",
        markdown_table(["solver", "error of", *(f"{m} steps" for m in steps), "slope", "declared", "result"], rows),
        "The slope is fitted to the errors of the last "
        f"{min(LAST, len(steps))} columns. Errors of the end of the flow are mean distances over {n} starts at "
        f"t = {problem.t_start:g}; errors of the variance are relative, in closed form, for Gaussian messages. "
        "Solvers in log s use a grid uniform in log s, the others a grid uniform in t.",
    )
    draw = partial(lines_plot, curves, x="step size (1 / steps)", y="error")
    return Section(problem.name, problem.title, "\n".join(lines), results, {f"{problem.name}.png": draw})
