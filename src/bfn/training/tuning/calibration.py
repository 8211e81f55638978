"""A grid of one's own for a model: coordinate descent on a few trajectories, without gradients."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import torch
from torch import Tensor

from bfn.core.conditions import conditions_in_turn
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.core.sampling import sample
from bfn.core.solver import Solver, plan
from bfn.core.table import Table
from bfn.solvers.few_step import Anchor, Calibration, Rule, interpolated
from bfn.solvers.named import SOLVERS
from bfn.training.tuning.objectives import Objective

ROUNDS = 6
"""Times that each time of a grid is moved, at most."""


@torch.no_grad()
def search_grid(
    model: Model,
    nfe: int,
    solver: str | Solver = "fast-ode",
    *,
    n: int = 64,
    reference: int = 100,
    rounds: int = ROUNDS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """(nfe,) times for ``sample(..., grid=times)`` that bring few steps nearest to where many steps end.

    Each time in turn is moved by a part of the way to its neighbours, in log(1 + 2s), where that lowers the mean
    distance of the n end points from those of ``fast-ode`` with ``reference`` calls from the same starts; a time that
    gains by no move takes half the part in the next round. At most 2 rounds (nfe - 1) nfe calls on n samples, with the
    model's classes in turn.
    """
    flow = model.flow
    for name, count, smallest in (("n", n, 1), ("reference", reference, 1), ("rounds", rounds, 0)):
        if count < smallest:
            raise UserError(f"{name}={count}: expected at least {smallest}")
    planned = plan(model, solver, nfe)
    own, chosen = planned.table, planned.solver
    if chosen is None or chosen.stochastic:
        name = "auto" if chosen is None else chosen.name
        raise UserError(f"solver={name!r} draws noise: a grid is searched along fixed paths, as of 'fast-ode'")
    if plan(model, solver, grid=own.times).table.nfe != nfe:
        raise UserError(f"solver={chosen.name!r} makes more than one call a step: search with a multistep solver")
    shape = (n, *flow.state_shape(model.data_shape))
    initial = torch.randn(shape, generator=generator, dtype=model.dtype, device=model.device)
    condition = conditions_in_turn(model.info, n)

    def end(by: Solver | str, calls: int | None, grid: Tensor | None) -> Tensor:
        return sample(model, n, by, calls, grid=grid, initial=initial, condition=condition).final

    def times_of(places: list[float]) -> Tensor:
        times = flow.schedule.time_of_s(torch.tensor(places, dtype=torch.float64).expm1() / 2).clamp(0, 1)
        times[0] = own.times[0]
        return times

    def error(places: list[float]) -> float:
        return float((end(solver, None, times_of(places)) - target).flatten(1).norm(dim=1).mean())

    target = end("fast-ode", reference, None)
    *places, last = (math.log1p(2 * s) for s in flow.schedule.s_of([*own.times, 1.0]))
    least, parts = error(places), [0.4] * nfe
    for _ in range(rounds):
        for i in range(1, nfe):
            below = places[i] - places[i - 1]
            above = (places[i + 1] - places[i]) if i + 1 < nfe else min(below, last - places[i])
            for way in (parts[i] * above, -parts[i] * below):
                moved = [*places[:i], places[i] + way, *places[i + 1 :]]
                if way and (found := error(moved)) < least:
                    places, least = moved, found
                    break
            else:
                parts[i] /= 2
    return times_of(places)


CALLS = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100)
"""Numbers of calls that are searched."""
TRIALS = 14
"""Settings that are tried at a number of calls, at most; of many calls fewer, at least :data:`LEAST_TRIALS`."""
LEAST_TRIALS = 3
TRIED_CALLS = 120
"""Calls a sample that are spent on one number of calls, about."""
MARGIN = 0.04
"""A change must gain this share of the objective: less is chance. So must more calls lose twice as much to be searched
again."""


def calibrate(
    model: Model,
    objective: Objective,
    calls: Sequence[int] = CALLS,
    *,
    n: int = 300,
    trials: int = TRIALS,
    seed: int = 0,
    batch: int = 100,
    seconds: float = inf,
    on_trial: Callable[[Anchor, float], None] | None = None,
) -> Calibration:
    """Anchors for these numbers of calls, found on n samples a trial; set ``model.info.calibration`` to the result.

    objective: such as ``objective_for(model)``; not the judge that the samples are reported by. trials: at most, at
    each number of calls. seconds: once they are over nothing more is searched, and the rule's anchors are taken for
    the calls that were not come to. on_trial: told every setting that was tried, and its value.
    """
    if len(model.flow.parts) > 1:
        raise UserError("joint data: calibration is for data of one kind; auto takes its rule for each part")
    if not calls or calls[0] < 1 or any(b <= a for a, b in pairwise(calls)):
        raise UserError(f"calls {tuple(calls)}: expected increasing numbers from 1 up")
    if n < objective.least:
        raise UserError(f"n={n}: the objective needs at least {objective.least} samples; give more")
    if trials < LEAST_TRIALS:
        raise UserError(f"trials={trials}: expected at least {LEAST_TRIALS}")
    problem = _Trials(model, objective, n, seed, batch, time.monotonic() + seconds, on_trial)
    found: list[tuple[float, Anchor]] = []
    for count in calls:
        if problem.is_late():
            break
        most = max(LEAST_TRIALS, min(trials, TRIED_CALLS // count))
        starts = [interpolated(rule(model, name), count) for name in ("fast-sde", "fast-ode")]
        last = [_carried(found[-1][1], count, starts[0])] if found else []
        best = problem.search([*last, *starts], most if count > 1 else 1)
        if last and best[0] > found[-1][0] * (1 + 2 * MARGIN):
            best = min(best, problem.search([replace(found[-1][1], calls=count)], most), key=_value)
        found.append(best)
    left = tuple(interpolated(rule(model, "fast-sde"), count) for count in calls[len(found) :])
    return Calibration(
        (*(anchor for _, anchor in found), *left), tuple(value for value, _ in found),
        f"{objective.describe()['objective']}, {n} samples, seed {seed}",
    )  # fmt: skip


def rule(model: Model, name: str) -> tuple[Anchor, ...]:
    """The anchors that a solver of that name has for a model's kind of data."""
    solver = SOLVERS[name]
    if not isinstance(solver, Rule):
        raise UserError(f"solver={name!r}: expected one whose settings are a rule over the number of calls")
    return solver.anchors(model.flow)


def _value(pair: tuple[float, Anchor]) -> float:
    return pair[0]


def _carried(anchor: Anchor, calls: int, at_rule: Anchor) -> Anchor:
    """The last anchor at more calls, its end moved on as much as calls have grown, up to the rule's own."""
    further = anchor.end * (calls / anchor.calls)
    return replace(anchor, calls=calls, end=max(anchor.end, min(further, at_rule.end)))


MOVES: tuple[Callable[[Anchor], Anchor], ...] = (
    lambda a: replace(a, g=2 * a.g if a.g else 1.0, corrector=False),
    lambda a: replace(a, g=a.g / 2, corrector=False),
    lambda a: replace(a, end=a.end / 1.5),
    lambda a: replace(a, end=a.end * 1.5),
    lambda a: replace(a, exponent=a.exponent + 0.25),
    lambda a: replace(a, exponent=max(0.5, a.exponent - 0.25)),
    lambda a: replace(a, quiet=0 if a.quiet else 2),
    lambda a: replace(a, order=3 if a.order != 3 else 2),
    lambda a: replace(a, power=a.power + 0.5, scale=a.scale * 1.5),
    lambda a: replace(a, power=max(0.5, a.power - 0.5), scale=a.scale / 1.5),
)
"""One change each, those that matter most first."""


@dataclass(frozen=True)
class _Trials:
    """What all trials share."""

    model: Model
    objective: Objective
    n: int
    seed: int
    batch: int
    end: float
    on_trial: Callable[[Anchor, float], None] | None

    def search(self, starts: Sequence[Anchor], most: int) -> tuple[float, Anchor]:
        """The best of the starts, and of what one change after another makes of it, in so many trials.

        A change that gains is made again. One that comes to a table that was tried already costs nothing.
        """
        tables = {self.table(anchor): anchor for anchor in reversed(starts[:most])}
        best = min(((self.value(anchor, table), anchor) for table, anchor in tables.items()), key=_value)
        tried, moves = set(tables), deque(MOVES)
        while moves and len(tried) < most and not self.is_late():
            move = moves.popleft()
            anchor = move(best[1])
            table = self.table(anchor)
            if table in tried or anchor.quiet > max(0, anchor.calls - 2):
                continue
            tried.add(table)
            value = self.value(anchor, table)
            if value < best[0] * (1 - MARGIN):
                best = (value, anchor)
                moves.appendleft(move)
        return best

    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.end

    def table(self, anchor: Anchor) -> Table:
        """What these settings come down to."""
        model = self.model
        return plan(model, anchor.solver(model.flow, model.info), anchor.calls).table

    @torch.no_grad()
    def value(self, anchor: Anchor, table: Table) -> float:
        """The objective of samples with these settings."""
        model = self.model
        classes = model.info.classes
        labels = None if classes is None else classes.in_turn(self.n)
        summaries = []
        for first in range(0, self.n, self.batch):
            part = slice(first, min(self.n, first + self.batch))
            drawn = sample(
                model, part.stop - first, table, label=None if labels is None else labels[part],
                generator=torch.Generator(model.device).manual_seed(self.seed * 1_000_003 + first),
            )  # fmt: skip
            summary = self.objective.summary(drawn.final)
            summaries.append(self.objective.without_padding(summary, drawn.present))
        value = float(self.objective.loss(torch.cat(summaries), None))
        if self.on_trial is not None:
            self.on_trial(anchor, value)
        return value
