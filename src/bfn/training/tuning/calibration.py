"""Searches for the settings of the default solver that suit one model, without gradients.

``search_grid`` finds the times of a few calls, ``calibrate`` the settings of "auto" for any number of calls,
and ``choose_tables`` the times at which a distilled model is called.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from typing import cast

import torch
from torch import Tensor

from bfn._utils.arguments import MOST_COUNT, check_whole
from bfn._utils.pieces import derived_generator, evaluating
from bfn._utils.progress import Shown, over
from bfn.core.conditions import ConditionTensors, conditions_in_turn, rows_of
from bfn.core.errors import UserError
from bfn.core.losses import squared_error
from bfn.core.model import Model
from bfn.core.sampling import sample
from bfn.core.solver import Solver, plan
from bfn.core.table import Table
from bfn.solvers import SOLVERS
from bfn.solvers.few_step import RENOISING, Anchor, Calibration, Rule, interpolated
from bfn.training.tuning.objectives import Objective, energy_distance

BATCH = 100
"""Number of samples that go through the network together."""

ROUNDS = 6
"""Maximum number of times that each time of a grid is moved."""


@torch.no_grad()
def search_grid(
    model: Model, nfe: int, solver: str | Solver = "fast-ode", *, n: int = 64, reference: int = 100,
    rounds: int = ROUNDS, generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """Search the times at which few steps end nearest to where many steps end, from the same starts.

    Each time in turn is moved by a share of the way to its neighbours, in log(1 + 2s), if that lowers the mean distance
    of the end points. A time that gains by no move is moved by half the share in the next round. This takes at most
    2 rounds (nfe - 1) nfe network calls on n samples.

    Args:
        model: the model.
        nfe: number of network calls.
        solver: a solver without noise that makes one call in each step.
        n: number of samples, with the classes of the model in turn.
        reference: number of calls of "fast-ode" that find the end points.
        rounds: number of rounds over all times.
        generator: source of the starts.

    Returns:
        The times, (nfe,), for ``sample(..., grid=times)``.
    """
    flow = model.flow
    for name, count, smallest in (("n", n, 1), ("reference", reference, 1), ("rounds", rounds, 0)):
        check_whole(name, count, smallest, MOST_COUNT)
    planned = plan(model, solver, nfe)
    own, name = planned.table, getattr(planned.solver, "name", "auto")
    if getattr(planned.solver, "stochastic", True):
        raise UserError(f"solver={name!r} draws noise: expected a solver without noise, such as 'fast-ode'")
    if plan(model, solver, grid=own.times).table.nfe != nfe:
        raise UserError(f"solver={name!r} makes more than one call in a step: expected a multistep solver")
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
"""Numbers of calls for which settings are searched."""

TRIALS, LEAST_TRIALS = 14, 3
"""Maximum number of settings that are tried for a number of calls: for few calls, and for many."""

TRIED_CALLS = 120
"""Approximate number of calls per sample that are spent on one number of calls."""

MARGIN = 0.04
"""Share of the objective that a change must gain, since less is chance. Settings of fewer calls are searched again for
more calls if these lose twice as much."""


def calibrate(
    model: Model, objective: Objective, calls: Sequence[int] = CALLS, *, n: int = 300, trials: int = TRIALS,
    seed: int = 0, seconds: float = inf, on_trial: Callable[[Anchor, float], None] | None = None,
) -> Calibration:  # fmt: skip
    """Search the settings of "auto" for several numbers of calls; set ``model.info.calibration`` to the result.

    Args:
        model: the model.
        objective: what is minimised, such as ``objective_for(model)``. It should not be the metric that the samples are
            reported by.
        calls: numbers of calls, increasing.
        n: number of samples in each trial.
        trials: maximum number of trials for each number of calls.
        seed: seed of the samples.
        seconds: time after which the search ends. Numbers of calls that it has not reached keep the default settings.
        on_trial: called with each setting that is tried and its value.
    """
    if len(model.flow.parts) > 1:
        raise UserError("joint data: calibration is for data of one kind; auto has its own rule for each part")
    if min(calls, default=0) < 1 or list(calls) != sorted(set(calls)):
        raise UserError(f"calls {tuple(calls)}: expected increasing numbers from 1 up")
    if n < objective.least:
        raise UserError(f"n={n}: the objective needs at least {objective.least} samples; give more")
    check_whole("trials", trials, LEAST_TRIALS, MOST_COUNT)
    search = _Search(model, objective, n, seed, time.monotonic() + seconds, on_trial)
    found: list[tuple[float, Anchor]] = []
    for count in calls:
        if search.is_late():
            break
        most = max(LEAST_TRIALS, min(trials, TRIED_CALLS // count))
        starts = [interpolated(rule(model, name), count) for name in ("fast-sde", "fast-ode")]
        last = [_carried(found[-1][1], count, starts[0])] if found else []
        best = search.run([*last, *starts], most if count > 1 else 1)
        if last and best[0] > found[-1][0] * (1 + 2 * MARGIN):
            best = min(best, search.run([replace(found[-1][1], calls=count)], most), key=itemgetter(0))
        found.append(best)
    left = tuple(interpolated(rule(model, "fast-sde"), count) for count in calls[len(found) :])
    return Calibration(
        (*(anchor for _, anchor in found), *left), tuple(value for value, _ in found),
        f"{objective.describe()['objective']}, {n} samples, seed {seed}",
    )  # fmt: skip


def rule(model: Model, name: str) -> tuple[Anchor, ...]:
    """Return the anchors of a solver for the data of a model."""
    return cast(Rule, SOLVERS[name]).anchors(model.flow.leading)


def _carried(anchor: Anchor, calls: int, at_rule: Anchor) -> Anchor:
    """Return the last anchor for more calls, with its end moved in proportion, at most to that of the rule."""
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
"""Changes of an anchor, those that matter most first."""


@dataclass(frozen=True)
class _Search:
    """A search for the best settings; see ``calibrate`` for the fields. ``end`` is the time at which it ends."""

    model: Model
    objective: Objective
    n: int
    seed: int
    end: float
    on_trial: Callable[[Anchor, float], None] | None

    def run(self, starts: Sequence[Anchor], most: int) -> tuple[float, Anchor]:
        """Return the best settings that are found in so many trials, and their value.

        The best start is changed step by step. A change that gains is repeated. Settings with a table that was tried
        already cost nothing.
        """
        tables = {self.table(anchor): anchor for anchor in reversed(starts[:most])}
        best = min(((self.value(anchor, table), anchor) for table, anchor in tables.items()), key=itemgetter(0))
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
        """Return True if the time is over."""
        return time.monotonic() > self.end

    def table(self, anchor: Anchor) -> Table:
        """Return the table of these settings."""
        model = self.model
        return plan(model, anchor.solver(model.flow.leading, model.info), anchor.calls).table

    @torch.no_grad()
    def value(self, anchor: Anchor, table: Table) -> float:
        """Return the objective of samples with these settings."""
        model, classes = self.model, self.model.info.classes
        labels = torch.zeros(self.n) if classes is None else classes.in_turn(self.n)
        summaries = []
        for first in range(0, self.n, BATCH):
            generator = torch.Generator(model.device).manual_seed(self.seed * 1_000_003 + first)
            part = labels[first : first + BATCH]
            label = None if classes is None else part
            drawn = sample(model, len(part), table, label=label, generator=generator)
            summaries.append(self.objective.without_padding(self.objective.summary(drawn.final), drawn.present))
        value = float(self.objective.loss(torch.cat(summaries), None))
        if self.on_trial is not None:
            self.on_trial(anchor, value)
        return value


# --- tables of distilled models ---------------------------------------------------------------------------------------

LOOKS = 4
"""Number of noise levels at which samples are compared with data."""

NEGLIGIBLE = 0.03
"""Share of the error at t = 0 below which errors do not count: they are of texture that nobody sees."""


def choose_tables(
    model: Model, teacher: Model, x: Tensor, conditions: ConditionTensors, times: Sequence[float], most: int, *,
    seed: int = 0, progress: Shown = False,
) -> dict[int, Table]:  # fmt: skip
    """Choose tables of 1 to ``most`` calls for a model that maps to the end of paths.

    Each table adds one time to those of the one before: that for which the teacher finds samples most like data.

    Args:
        model: the model.
        teacher: model whose errors on samples and on data are compared, see ``error_profile``.
        x, conditions: data that samples should be like, and their conditions.
        times: times to choose from.
        most: largest number of calls.
        seed: seed of the samples.
        progress: whether to show progress.
    """
    flow, chosen = model.flow.leading, [0.0]
    given = dict(conditions)
    present = given.pop("present", None)
    tables = {1: RENOISING.table(flow, chosen)}
    if not times:
        return tables
    levels = times[:: -(-len(times) // LOOKS)]
    ends = error_profile(teacher, x, conditions, levels, seed=seed)

    def distance(tried: list[float]) -> float:
        table = RENOISING.table(flow, tried)
        drawn = sample(model, len(x), table, condition=given, present=present, seed=seed).x
        return energy_distance(error_profile(teacher, drawn, conditions, levels, seed=seed), ends)

    for calls in range(2, most + 1):
        others = [sorted([*chosen, t]) for t in times if t not in chosen]
        if not others:
            break
        chosen = min(over(others, f"choosing the times of {calls} calls", "trial", progress), key=distance)
        tables[calls] = RENOISING.table(flow, chosen)
    return tables


@torch.no_grad()
def error_profile(
    model: Model, x: Tensor, conditions: ConditionTensors, times: Sequence[float], *, seed: int = 0
) -> Tensor:
    """Return the log of a model's error on each sample at each time, relative to that at t = 0, (n, times).

    The noise is the same for all x of the same number, so that two sets of samples differ by the samples alone.
    """
    device, columns = model.device, []
    for number, t in enumerate((0.0, *times)):
        generator, errors = derived_generator(seed, "profile", number), []
        for rows in torch.split(torch.arange(len(x)), BATCH):
            shape = (len(rows), *model.flow.state_shape(model.data_shape))
            eps = torch.randn(shape, generator=generator, dtype=model.dtype).to(device)
            moved = {name: value.to(device) for name, value in rows_of(conditions, rows).items()}
            at = torch.full((len(rows),), t, dtype=torch.float64, device=device)
            with evaluating(model):
                errors.append(squared_error(model, x[rows].to(device), at, None, moved, eps).double().cpu())
        columns.append(torch.cat(errors))
    first, *others = columns
    return (torch.stack(others, 1) / first.mean() + NEGLIGIBLE).log()
