"""Solvers tuned to one model: the numbers of a table, some dozen, fitted to what the samples should be.

The :class:`~bfn.tuning.parameters.TableParameters` are moved to lower an objective on samples, by gradients through
the sampler, or by a search without them where samples are classes, read by argmax; held-out starts decide what is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from bfn.core.sampling import clip_range, integrate
from bfn.errors import NetworkError, UserError
from bfn.eval_mode import evaluating
from bfn.model import Model
from bfn.solvers import Table, plan
from bfn.tuning.grid_search import ROUNDS, search_grid
from bfn.tuning.objectives import Draws, Objective
from bfn.tuning.parameters import TableParameters

__all__ = ["Tuned", "default_steps", "tune"]

LEAST_ANGLE = 0.3
"""Where the noise of a row is fitted by gradients it starts from here at least: at 0 that is 0, by symmetry."""

STEPS, TRIALS_A_NUMBER = 40, 5
"""Steps of gradient descent; trials of a search for each number, of which its first model of them takes two."""

FIRST_RADIUS, LAST_RADIUS = 0.15, 0.02
"""The search's trust radius at its start and where it ends; numbers beyond 1 are moved in proportion."""

LATE, ENDS = (1 / 16, 1 / 8, 1 / 4, 1 / 2), (1.0, 0.5, 0.25)
"""Grids that tuning may start from: the first call at such a share of the first step's s, the last at such a share of
its own. At s = 0 the network sees nothing, and a prediction that is the same for all samples is a call spent on the
mean of the data: of a few calls one too many."""


@dataclass(frozen=True)
class Tuned:
    """A table fitted to a model.

    before, after: the objective on held-out starts, of the solver that tuning began with and of the table.
    curve: (step, objective on held-out starts). stopped: "interrupted", or what the network did, where that ended it;
    the table is then the best so far.
    """

    table: Table
    before: float
    after: float
    curve: tuple[tuple[int, float], ...]
    stopped: str | None = None


def tune(
    model: Model,
    nfe: int,
    objective: Objective,
    *,
    steps: int | None = None,
    batch: int = 300,
    starts: int | None = None,
    held_out: int = 500,
    rate: float = 0.04,
    patience: int = 3,
    seed: int = 0,
    part: int = 50,
    on_step: Callable[[int, float | None], None] | None = None,
) -> Tuned:
    """Fit a table of ``nfe`` calls to a model, and keep the best on held-out starts.

    By the objective's method: Adam; a search by COBYQA (a quadratic model in a trust region, no gradients); or, where
    only the grid is fitted, :func:`bfn.tuning.search_grid`, whose rounds the steps then are. Samples have the model's
    classes in turn, and are clipped to its range.

    steps: at most, on ``batch`` samples each; :func:`default_steps` if left out. starts: how many different starts are
    used; None for fresh ones at each step (a search has always the same). held_out: starts that decide, measured eight
    times; after ``patience`` measurements that are worse than the best it ends. rate: of Adam, falling linearly to
    zero. part: samples that go through the network with gradients at a time.
    on_step: told (step, objective on held-out starts or None where it was not measured) after each step. An interrupt
    (Ctrl-C) or a network that gives NaN ends it with the best so far.
    """
    objective.check(nfe)
    least = objective.least
    wanted = {"steps": (1 if steps is None else steps, 1), "batch": (batch, least), "held_out": (held_out, least),
              "starts": (batch if starts is None else starts, batch), "part": (part, 1)}  # fmt: skip
    for name, (value, at_least) in wanted.items():
        if value < at_least:
            raise UserError(f"{name}={value}: expected at least {at_least}")
    start = plan(model, objective.start, nfe).table
    if not objective.noisy and any(row.c for row in start.rows):
        raise UserError("a start with noise: end points are only matched by tables without; take one such as fast-ode")
    problem = _Problem(model, objective, nfe, seed, clip_range(model), part)
    steps = default_steps(model, nfe, objective) if steps is None else steps
    judged = _HeldOut(problem, held_out, max(1, steps // 8), steps, patience, on_step)
    stopped = None
    try:
        with evaluating(model):
            judged(0, start)
            first = _best_start(problem, start, batch)
            if objective.method == "grid":
                judged(steps, problem.on_searched_grid(batch, steps))
            else:
                least_angle = LEAST_ANGLE if objective.noisy and objective.method == "gradients" else 0.0
                parameters = TableParameters(model.flow, first, noisy=objective.noisy, least_angle=least_angle)
                if objective.method == "search":
                    _search(problem, parameters, batch, steps, judged)
                else:
                    n_batches = steps if starts is None else starts // batch
                    _descend(problem, parameters, batch, steps, n_batches, rate, judged)
    except (KeyboardInterrupt, NetworkError) as end:
        if not judged.curve:
            raise
        stopped = str(end) or "interrupted"
    except _NoGainError:
        pass
    before, after = judged.curve[0][1], judged.values[judged.best]
    record = {
        **objective.describe(),
        "start": objective.start if isinstance(objective.start, str) else objective.start.name,
        "steps": judged.curve[-1][0],
        "batch": batch,
        "held_out": held_out,
        "seed": seed,
        "clip": problem.clip,
        "before": before,
        "after": after,
        "stopped": stopped,
    }
    return Tuned(replace(judged.best, record=record), before, after, tuple(judged.curve), stopped)


def default_steps(model: Model, nfe: int, objective: Objective) -> int:
    """Steps that tuning takes if it is not told: 40 of gradient descent, or five trials a number, shared and single."""
    objective.check(nfe)
    if objective.method != "search":
        return STEPS if objective.method == "gradients" else ROUNDS
    start = plan(model, objective.start, nfe).table
    times = [start.times, *_other_times(model, objective, start)][-1]
    start = plan(model, objective.start, grid=times).table
    directions = TableParameters(model.flow, start, noisy=objective.noisy).shared_directions
    return TRIALS_A_NUMBER * sum(directions.shape)


def _best_start(problem: "_Problem", start: Table, batch: int) -> Table:
    """What tuning starts from: the best times for the objective's start, and on these the best value of its dial."""
    model, objective = problem.model, problem.objective
    values: dict[Table, float] = {}

    def best(tables: Sequence[Table]) -> Table:
        if len(tables) > 1:
            values.update({table: problem.value(table, batch, 0) for table in tables if table not in values})
        return min(tables, key=lambda table: values.get(table, 0.0))

    times = _other_times(model, objective, start)
    start = best([start, *(plan(model, objective.start, grid=each).table for each in times)])
    solvers = objective.others(model.flow, problem.nfe)
    return best([start, *(plan(model, solver, grid=start.times).table for solver in solvers)])


def _other_times(model: Model, objective: Objective, start: Table) -> list[tuple[float, ...]]:
    """Times that a start may have instead of its own, if the noise is fitted too: a later first, an earlier last call.

    The steps between keep their proportions.
    """
    if not objective.noisy or start.parts:
        return []
    s = torch.tensor(model.flow.schedule.s_of(start.times), dtype=torch.float64)
    if len(s) == 1:
        # Of one call, shares of the way that two would go.
        last = torch.tensor(model.flow.schedule.s_of(plan(model, objective.start, 2).table.times[1:]))
        later = [share * last for share in LATE]
    else:
        shares = (s - s[0]) / (s[-1] - s[0])
        later = [torch.lerp(late * end * s[1], end * s[-1], shares) for end in ENDS for late in LATE]
    return [tuple(model.flow.schedule.time_of_s(each).clamp(max=1).tolist()) for each in later]


@dataclass(frozen=True)
class _Problem:
    """What is to be fitted to what: all that stays the same from step to step."""

    model: Model
    objective: Objective
    nfe: int
    seed: int
    clip: tuple[float, float] | None
    part: int
    targets: dict[int, Tensor | None] = field(default_factory=dict)

    def draws(self, n: int, index: int) -> Draws:
        """The index-th batch: index -1 are the held-out starts."""
        return Draws.make(self.model, n, self.nfe, self._generator(index))

    def _generator(self, index: int) -> torch.Generator:
        return torch.Generator(self.model.device).manual_seed(self.seed * 1_000_003 + index + 1)

    def on_searched_grid(self, n: int, rounds: int) -> Table:
        """The start on the grid that is best for the first batch."""
        solver = self.objective.start
        times = search_grid(
            self.model, self.nfe, solver, n=n, reference=self.objective.teacher_nfe, rounds=rounds,
            generator=self._generator(0),
        )  # fmt: skip
        return plan(self.model, solver, grid=times).table

    def target(self, draws: Draws, index: int) -> Tensor | None:
        """What the objective wants of that batch, asked for once."""
        if index not in self.targets:
            parts = [self.objective.target(self.model, part) for part in draws.split(self.part)]
            known = [part for part in parts if part is not None]
            self.targets[index] = torch.cat(known) if known else None
        return self.targets[index]

    def final(self, parameters: TableParameters | Table, draws: Draws) -> Tensor:
        """The predictions that samples are read from, with gradients to the parameters."""
        noise = iter(draws.noise).__next__
        u = draws.u * (parameters.start if isinstance(parameters, Table) else parameters.first_std)
        table = parameters.bind(self.model.flow, u) if isinstance(parameters, Table) else parameters.bind(u)
        return integrate(self.model.output, table, u, noise, conditions=draws.conditions, clip=self.clip).final

    @torch.no_grad()
    def finals(self, parameters: TableParameters | Table, draws: Draws) -> Tensor:
        """The same of many draws, without gradients."""
        return torch.cat([self.final(parameters, part) for part in draws.split(self.part)])

    @torch.no_grad()
    def value(self, fitted: TableParameters | Table, n: int, index: int = -1) -> float:
        """The objective on a batch, the held-out one if none is named, of parameters or of a table as it is."""
        if isinstance(fitted, Table) and not fitted.parts:
            fitted = TableParameters(self.model.flow, fitted, noisy=False)
        draws = self.draws(n, index)
        summaries = self.objective.summary(self.finals(fitted, draws))
        return float(self.objective.loss(summaries, self.target(draws, index)))


class _NoGainError(Exception):
    """The last values on the held-out starts were all worse than the best."""


@dataclass
class _HeldOut:
    """Measures tables on the held-out starts, every so many steps and at the last, and knows the best of them."""

    problem: _Problem
    n: int
    every: int
    last: int
    patience: int
    on_step: Callable[[int, float | None], None] | None
    curve: list[tuple[int, float]] = field(default_factory=list)
    values: dict[Table, float] = field(default_factory=dict)

    @property
    def best(self) -> Table:
        return min(self.values, key=self.values.__getitem__)

    def __call__(self, step: int, table: Table) -> None:
        """After a step: measure if it is time to, tell, and end it all where nothing has been gained for long."""
        due = step % self.every == 0 or step == self.last
        if due:
            if table not in self.values:
                self.values[table] = self.problem.value(table, self.n)
            self.curve.append((step, self.values[table]))
        if self.on_step is not None:
            self.on_step(step, self.values[table] if due else None)
        if due and step and all(value > self.values[self.best] for _, value in self.curve[-self.patience :]):
            raise _NoGainError


def _descend(
    problem: _Problem,
    parameters: TableParameters,
    batch: int,
    steps: int,
    n_batches: int,
    rate: float,
    judged: _HeldOut,
) -> None:
    """Adam on the parameters, by gradients through the sampler; its rate falls linearly to zero.

    The loss is of all samples together, so they are made first without gradients, and the loss's gradient is sent back
    through one part of them at a time: memory does not grow with the batch.
    """
    fitted = parameters.fitted
    optimiser = torch.optim.Adam(fitted, lr=rate, betas=(0.8, 0.95))
    for step in range(steps):
        index = step % n_batches
        draws = problem.draws(batch, index)
        finals = problem.finals(parameters, draws).requires_grad_()
        loss = problem.objective.loss(problem.objective.summary(finals), problem.target(draws, index))
        (slopes,) = torch.autograd.grad(loss, finals)
        optimiser.zero_grad()
        for part, slope in zip(draws.split(problem.part), torch.split(slopes, problem.part), strict=True):
            # Only the parameters are asked for: no gradient of the network's weights is ever made.
            gradients = torch.autograd.grad(problem.final(parameters, part), fitted, slope)
            for each, gradient in zip(fitted, gradients, strict=True):
                each.grad = gradient if each.grad is None else each.grad + gradient
        optimiser.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimiser.step()
        judged(step + 1, parameters.table())


def _search(problem: _Problem, parameters: TableParameters, batch: int, steps: int, judged: _HeldOut) -> None:
    """COBYQA on one batch, always the same: first all rows alike, where there is most to find, then each number."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    trials: list[tuple[float, Tensor, Table]] = []
    first = itemgetter(0)

    def value(vector: Any) -> float:
        parameters.set(start + directions @ torch.as_tensor(vector))
        trials.append((problem.value(parameters, batch, 0), parameters.vector, parameters.table()))
        judged(len(trials), min(trials, key=first)[2])
        return trials[-1][0]

    for shared in (True, False):
        start = min(trials, key=first)[1] if trials else parameters.vector
        directions = parameters.shared_directions if shared else torch.diag(start.abs().clamp(min=1))
        n, left = directions.shape[1], steps - len(trials)
        if left:
            most = min(left, TRIALS_A_NUMBER * n) if shared else left
            options = {"maxfev": most, "initial_tr_radius": FIRST_RADIUS, "final_tr_radius": LAST_RADIUS}
            minimize(value, [0.0] * n, method="COBYQA", options=options)
