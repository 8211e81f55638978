"""Tables that are fitted to a model: their free numbers, and the search for the best ones.

A row u_next = a u + sum_j b_j w_hat[-1-j] + c xi from s_0 to s_1 of any good solver keeps two sums,

    a s_0 + sum_j b_j = s_1          a constant w_hat is integrated exactly
    a^2 + c^2 / kappa = 1            the noise in the state stays that of its level

What is left is free: the grid; the angle phi of each row, with a = cos phi and c = sqrt(kappa) sin phi, which is its
stochasticity (0 for the ODE, a right angle for new noise); the shares of the older predictions in each step and in the
sample. The predictions of a network have errors. If the noise is fitted, two more numbers of each row, the gain and the
noise, let it depart from both sums. If the first call is not made at s = 0, its s and the width of the first state are
free too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from bfn._utils.pieces import evaluating
from bfn.core.errors import NetworkError, UserError
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.model import Model
from bfn.core.sampling import clip_range, integrate
from bfn.core.solver import plan
from bfn.core.table import BoundRow, BoundTable, Row, Table
from bfn.training.tuning.calibration import ROUNDS, search_grid
from bfn.training.tuning.objectives import Draws, Objective

DEPTH = 3
"""Number of predictions that a row may mix, or more if the table that tuning starts from mixes more."""


class TableParameters:
    """The free numbers of a table, each a float64 tensor with gradients.

    Args:
        flow: flow of the model.
        table: a table without Runge-Kutta stages, such as that of any multistep solver.
        noisy: whether angles, gain, noise and the start may be fitted.
        least_angle: smallest angle that rows start with.

    Attributes:
        steps: logits of the shares of [s_0, s(1)] that the intervals of the grid take. The last one is what is left at
            the end, absent if the grid ends at s(1). If noise is fitted and s_0 > 0, they are shares of [0, s(1)], and
            the first one is s_0.
        angles: phi of each row.
        older: shares of the older predictions in each row.
        mix: shares of the older predictions in the sample.
        gain, noise: logs of the factors of sum_j b_j and of c.
        width: log of the standard deviation of the first state over sqrt(kappa).
    """

    def __init__(self, flow: Flow, table: Table, *, noisy: bool = True, least_angle: float = 0.0) -> None:
        if table.parts:
            raise UserError("joint data: only the grid of their tables can be fitted; use the objective SearchedGrid")
        if table.draws or not all(row.commit for row in table.rows):
            raise UserError("the table draws classes or has Runge-Kutta stages: tune from a multistep solver")
        self.flow = flow
        s = torch.tensor(flow.schedule.s_of(table.times), dtype=torch.float64)
        self.starts_late = noisy and bool(s[0] > 0)
        self.width = torch.tensor([table.start], dtype=torch.float64).log().requires_grad_(self.starts_late)
        self.start, self.end = (torch.zeros_like(s[0]) if self.starts_late else s[0]), flow.schedule.s(1.0)
        left = 1 - (s[-1] - self.start) / (self.end - self.start)
        ends = torch.cat([self.start[None], s]) if self.starts_late else s
        shares = torch.cat([ends.diff() / (self.end - self.start), left[None]])
        self.ends_early = bool(left > 1e-9)
        self.steps = (shares if self.ends_early else shares[:-1]).log().requires_grad_()
        rows = table.rows[:-1]
        numbers = [(row.a, row.c, sum(row.b)) for row in rows]
        a, c, total = torch.tensor(numbers, dtype=torch.float64).reshape(-1, 3).unbind(1)
        gain = total / (s[1:] - a * s[:-1])
        if not bool(((a.abs() <= 1 + 1e-9) & (gain > 0)).all()):
            raise UserError("the table stretches the state or steps back: tune from a multistep solver")
        angles = a.clamp(-1, 1).acos()
        self.gain = gain.log().requires_grad_(noisy)
        drawn = c / (math.sqrt(flow.leading.kappa) * angles.sin().clamp(min=1e-9))
        self.noise = torch.where(c > 0, drawn, 1.0).log().requires_grad_(noisy)
        self.angles = angles.clamp(min=least_angle).requires_grad_(noisy)
        width = max(DEPTH, table.depth) - 1
        self.older = _padded([[b / sum(row.b) for b in row.b[1:]] for row in rows], width).requires_grad_()
        self.mix = _padded([table.final[1:]], width)[0].requires_grad_()
        # A prediction that has not been made yet has no share.
        self._made = torch.ones(table.nfe, width, dtype=torch.float64).tril(-1)

    @property
    def first_std(self) -> Tensor:
        """Standard deviation of the first state over sqrt(kappa)."""
        return self.width.exp()[0]

    @property
    def fitted(self) -> list[Tensor]:
        """The numbers that are fitted."""
        every = (self.steps, self.width, self.angles, self.gain, self.noise, self.older, self.mix)
        return [each for each in every if each.requires_grad]

    @property
    def vector(self) -> Tensor:
        """The fitted numbers as one vector, without shares of predictions that have not been made yet."""
        return torch.cat([each.detach()[used] for each, used in self._used()])

    @torch.no_grad()
    def set(self, vector: Tensor) -> None:
        """Set the fitted numbers."""
        used = self._used()
        parts = torch.split(vector, [int(mask.sum()) for _, mask in used])
        for (each, mask), part in zip(used, parts, strict=True):
            each[mask] = part

    @property
    def shared_directions(self) -> Tensor:
        """Directions that change one kind of number in all rows alike, (len(vector), m).

        For the steps these are: from early to late ones, the end of the grid, and its start if that is fitted. The
        older shares change in proportion, which is how far predictions are extrapolated; of the mix, the first changes.
        """
        first, last = int(self.starts_late), len(self.steps) - self.ends_early
        tilt = torch.zeros_like(self.steps)
        tilt[first:last] = torch.linspace(-1, 1, last - first, dtype=torch.float64)
        extrapolation = self.older.detach()
        ways = [(self.steps, tilt.detach())]
        ways += [(self.steps, _unit(self.steps, -1))] if self.ends_early else []
        ways += [(self.steps, _unit(self.steps, 0))] if self.starts_late else []
        every = (self.width, self.angles, self.gain, self.noise)
        ways += [(each, torch.ones_like(each)) for each in every if each.requires_grad]
        ways += [(self.older, extrapolation if bool(extrapolation.any()) else torch.ones_like(extrapolation))]
        ways += [(self.mix, _unit(self.mix, 0))]

        def direction(changed: Tensor, way: Tensor) -> Tensor:
            parts = [(way if each is changed else torch.zeros_like(each))[used] for each, used in self._used()]
            return torch.cat(parts).detach()

        found = torch.stack([direction(*way) for way in ways], 1)
        # With few calls some directions are zero: there is no older prediction, or only one step.
        return found[:, found.any(0)]

    def _used(self) -> list[tuple[Tensor, Tensor]]:
        masks = {id(self.older): self._made[:-1] > 0, id(self.mix): self._made[-1] > 0}
        return [(each, masks.get(id(each), torch.ones_like(each, dtype=torch.bool))) for each in self.fitted]

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the coefficients of the table: s (nfe,), a (nfe - 1,), b (nfe - 1, depth) newest first, c, final."""
        shares = torch.softmax(self.steps, 0).cumsum(0)
        inner = self.start + (self.end - self.start) * shares[:-1]
        s = torch.cat([inner, *(() if self.ends_early else (self.end[None],))])
        s = s if self.starts_late else torch.cat([self.start[None], s])
        a = self.angles.cos()
        total = (s[1:] - a * s[:-1]) * self.gain.exp()
        older, mix = self.older * self._made[:-1], self.mix * self._made[-1]
        b = total[:, None] * torch.cat([1 - older.sum(1, keepdim=True), older], 1)
        # An angle may become negative; the sign of the noise does not matter.
        c = math.sqrt(self.flow.leading.kappa) * self.angles.sin().abs() * self.noise.exp()
        return s, a, b, c, torch.cat([1 - mix.sum()[None], mix])

    def bind(self, u: Tensor) -> BoundTable:
        """Return the table for a batch of states, with gradients to the parameters."""
        s, a, b, c, final = self.coefficients()
        times = self.flow.schedule.time_of_s(s).clamp(max=1)
        calls = zip(times.to(u), s.to(u), strict=True)
        levels = tuple(NoiseLevel(t.expand(len(u)), each.view(1, *(1,) * (u.ndim - 1))) for t, each in calls)
        steps = zip(a.to(u), b.to(u), c.to(u), strict=True)
        rows = [BoundRow.bind(self.flow, u, a, b[: i + 1].unbind(), c) for i, (a, b, c) in enumerate(steps)]
        last = BoundRow.bind(self.flow, u, 1.0, (), 0.0)
        return BoundTable(tuple(times.tolist()), levels, (*rows, last), tuple(final.to(u)[: len(times)]))

    @torch.no_grad()
    def table(self) -> Table:
        """Return the table as plain numbers."""
        s, a, b, c, final = self.coefficients()
        times = self.flow.schedule.time_of_s(s).clamp(max=1).tolist()
        steps = zip(times, a.tolist(), b.tolist(), c.tolist(), strict=False)
        rows = [Row(t, a, tuple(b[: i + 1]), c) for i, (t, a, b, c) in enumerate(steps)]
        return Table((*rows, Row(times[-1])), tuple(final[: len(times)].tolist()), start=float(self.first_std))


def _unit(like: Tensor, index: int) -> Tensor:
    """Return a tensor with 1 at the index and 0 elsewhere."""
    way = torch.zeros_like(like)
    way[index] = 1
    return way.detach()


def _padded(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """Return rows as (len(rows), width) float64, padded with zeros."""
    padded = [[*row, *[0.0] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.float64).reshape(-1, width)


LEAST_ANGLE = 0.3
"""Smallest angle that gradients start from: at 0 the gradient of the angle is 0, by symmetry."""

STEPS = 40
"""Number of steps of gradient descent."""

TRIALS_A_NUMBER = 5
"""Number of trials of a search for each number. The first quadratic model takes two of them."""

FIRST_RADIUS, LAST_RADIUS = 0.15, 0.02
"""Trust radius at the start of a search and where it ends. Numbers beyond 1 are moved in proportion."""

LATE, ENDS = (1 / 16, 1 / 8, 1 / 4, 1 / 2), (1.0, 0.5, 0.25)
"""Grids that tuning may start from: the first call at these shares of the first step's s, the last call at these shares
of its own. At s = 0 the prediction is the mean of the data for all samples: with few calls, one too many."""

EVALUATIONS = 8
"""Number of times that a fit measures the objective on the held-out starts."""


@dataclass(frozen=True)
class Tuned:
    """A table fitted to a model.

    Attributes:
        table: the table, the best one on held-out starts.
        before, after: objective on held-out starts, of the solver that tuning started from and of the table.
        curve: pairs of a step and the objective on held-out starts.
        stopped: "interrupted", or the error of the network, if that ended the fit.
    """

    table: Table
    before: float
    after: float
    curve: tuple[tuple[int, float], ...]
    stopped: str | None = None


def tune(
    model: Model, nfe: int, objective: Objective, *, steps: int | None = None, batch: int = 300,
    starts: int | None = None, held_out: int = 500, rate: float = 0.04, patience: int = 3, seed: int = 0,
    part: int = 50, on_step: Callable[[int, float | None], None] | None = None,
) -> Tuned:  # fmt: skip
    """Fit a table of ``nfe`` calls to a model, and keep the best one on held-out starts.

    The objective decides the method: Adam; a search by COBYQA, which fits a quadratic model in a trust region; or, if
    only the grid is fitted, ``bfn.training.tuning.calibration.search_grid``. Samples have the classes of the model
    in turn and are clipped to its range. An interrupt (Ctrl-C) or NaN from the network ends the fit with the best table
    so far.

    Args:
        model: the model.
        nfe: number of network calls.
        objective: what is minimised.
        steps: maximum number of steps, trials or rounds; ``default_steps`` if None.
        batch: number of samples in each step.
        starts: number of different starts; if None, each step of Adam has new ones. A search always has the same.
        held_out: number of held-out starts. They are measured eight times in a fit of all steps.
        rate: learning rate of Adam, which falls linearly to 0.
        patience: number of measurements that are worse than the best one after which the fit ends.
        seed: seed of all random numbers.
        part: number of samples that go through the network with gradients together.
        on_step: called after each step with its number and the objective on held-out starts, None if not measured.
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
        raise UserError("a start with noise: only tables without noise have fixed ends; use a solver such as fast-ode")
    problem = _Problem(model, objective, nfe, seed, clip_range(model), part)
    steps = default_steps(model, nfe, objective) if steps is None else steps
    judged = _HeldOut(problem, held_out, max(1, steps // EVALUATIONS), steps, patience, on_step)
    stopped = None
    try:
        with evaluating(model):
            judged(0, start)
            _fit(problem, start, batch, steps, steps if starts is None else starts // batch, rate, judged)
    except (KeyboardInterrupt, NetworkError) as end:
        if not judged.curve:
            raise
        stopped = str(end) or "interrupted"
    except _NoGainError:
        pass
    before, after = judged.curve[0][1], judged.values[judged.best]
    record = {
        **objective.describe(), "start": objective.start if isinstance(objective.start, str) else objective.start.name,
        "steps": judged.curve[-1][0], "batch": batch, "held_out": held_out, "seed": seed, "clip": problem.clip,
        "before": before, "after": after, "stopped": stopped,
    }  # fmt: skip
    return Tuned(replace(judged.best, record=record), before, after, tuple(judged.curve), stopped)


def _fit(
    problem: _Problem, start: Table, batch: int, steps: int, n_batches: int, rate: float, judged: _HeldOut
) -> None:
    """Fit a table by the method of the objective."""
    objective, method = problem.objective, problem.objective.method
    first = _best_start(problem, start, batch)
    if method == "grid":
        judged(steps, problem.on_searched_grid(batch, steps))
        return
    least_angle = LEAST_ANGLE if objective.noisy and method == "gradients" else 0.0
    parameters = TableParameters(problem.model.flow, first, noisy=objective.noisy, least_angle=least_angle)
    if method == "search":
        _search(problem, parameters, batch, steps, judged)
    else:
        _descend(problem, parameters, batch, steps, n_batches, rate, judged)


def default_steps(model: Model, nfe: int, objective: Objective) -> int:
    """Return the default number of steps: 40 of gradient descent, or five trials for each number and direction."""
    objective.check(nfe)
    if objective.method != "search":
        return STEPS if objective.method == "gradients" else ROUNDS
    start = plan(model, objective.start, nfe).table
    times = [start.times, *_other_times(model, objective, start)][-1]
    start = plan(model, objective.start, grid=times).table
    directions = TableParameters(model.flow, start, noisy=objective.noisy).shared_directions
    return TRIALS_A_NUMBER * sum(directions.shape)


def _best_start(problem: _Problem, start: Table, batch: int) -> Table:
    """Return the table to start from: the best times for the objective's start, and with these the best value of g."""
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
    """Return other times for a start, if the noise is fitted too: with a later first and an earlier last call.

    The steps between them keep their proportions.
    """
    if not objective.noisy or start.parts:
        return []
    s = torch.tensor(model.flow.schedule.s_of(start.times), dtype=torch.float64)
    if len(s) == 1:
        # One call is made at a share of the s of the second of two calls.
        last = torch.tensor(model.flow.schedule.s_of(plan(model, objective.start, 2).table.times[1:]))
        later = [share * last for share in LATE]
    else:
        shares = (s - s[0]) / (s[-1] - s[0])
        later = [torch.lerp(late * end * s[1], end * s[-1], shares) for end in ENDS for late in LATE]
    return [tuple(model.flow.schedule.time_of_s(each).clamp(max=1).tolist()) for each in later]


@dataclass(frozen=True)
class _Problem:
    """The settings that stay the same from step to step."""

    model: Model
    objective: Objective
    nfe: int
    seed: int
    clip: tuple[float, float] | None
    part: int
    targets: dict[int, Tensor | None] = field(default_factory=dict)

    def draws(self, n: int, index: int) -> Draws:
        """Return the random numbers of a batch, by number; -1 for the held-out starts."""
        return Draws.make(self.model, n, self.nfe, self._generator(index))

    def _generator(self, index: int) -> torch.Generator:
        return torch.Generator(self.model.device).manual_seed(self.seed * 1_000_003 + index + 1)

    def on_searched_grid(self, n: int, rounds: int) -> Table:
        """Return the start on the grid that is best for the first batch."""
        solver = self.objective.start
        times = search_grid(
            self.model, self.nfe, solver, n=n, reference=self.objective.teacher_nfe, rounds=rounds,
            generator=self._generator(0),
        )  # fmt: skip
        return plan(self.model, solver, grid=times).table

    def target(self, draws: Draws, index: int) -> Tensor | None:
        """Return the target of the objective for a batch. It is computed once."""
        if index not in self.targets:
            parts = [self.objective.target(self.model, part) for part in draws.split(self.part)]
            known = [part for part in parts if part is not None]
            self.targets[index] = torch.cat(known) if known else None
        return self.targets[index]

    def final(self, parameters: TableParameters | Table, draws: Draws) -> Tensor:
        """Return the predictions that samples are read from, with gradients to the parameters."""
        noise = iter(draws.noise).__next__
        u = draws.u * (parameters.start if isinstance(parameters, Table) else parameters.first_std)
        table = parameters.bind(self.model.flow, u) if isinstance(parameters, Table) else parameters.bind(u)
        return integrate(self.model.output, table, u, noise, conditions=draws.conditions, clip=self.clip).final

    @torch.no_grad()
    def finals(self, parameters: TableParameters | Table, draws: Draws) -> Tensor:
        """Return the same for many draws, without gradients."""
        return torch.cat([self.final(parameters, part) for part in draws.split(self.part)])

    @torch.no_grad()
    def value(self, fitted: TableParameters | Table, n: int, index: int = -1) -> float:
        """Return the objective of parameters or of a table on a batch, by default that of the held-out starts."""
        draws = self.draws(n, index)
        summaries = self.objective.summary(self.finals(fitted, draws))
        return float(self.objective.loss(summaries, self.target(draws, index)))


class _NoGainError(Exception):
    """The last measurements on the held-out starts were all worse than the best one."""


@dataclass
class _HeldOut:
    """Measures tables on the held-out starts, every few steps and at the last one, and keeps the best of them."""

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
        """Measure the table after a step, if it is time to. Raises _NoGainError if nothing was gained for long."""
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
    problem: _Problem, parameters: TableParameters, batch: int, steps: int, n_batches: int, rate: float,
    judged: _HeldOut,
) -> None:  # fmt: skip
    """Minimise the objective by Adam, with gradients through the sampler and a learning rate that falls to zero.

    The loss depends on all samples together. They are drawn without gradients first; the gradient of the loss is then
    sent back through one part of them at a time, so that memory does not grow with the batch.
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
            # autograd.grad computes no gradients of the network's weights.
            gradients = torch.autograd.grad(problem.final(parameters, part), fitted, slope)
            for each, gradient in zip(fitted, gradients, strict=True):
                each.grad = gradient if each.grad is None else each.grad + gradient
        optimiser.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimiser.step()
        judged(step + 1, parameters.table())


def _search(problem: _Problem, parameters: TableParameters, batch: int, steps: int, judged: _HeldOut) -> None:
    """Minimise the objective on one batch by COBYQA, first along the shared directions, then in each number."""
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
            import_module("scipy.optimize").minimize(value, [0.0] * n, method="COBYQA", options=options)
