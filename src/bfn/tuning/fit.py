r"""Solvers tuned to one model: a grid and coefficients, some dozen numbers, fitted to what the samples should be.

A row u_next = a u + sum_j b_j w_hat[-1-j] + c xi from s_0 to s_1 of any good solver keeps two sums,

    a s_0 + sum_j b_j = s_1          a constant w_hat is integrated exactly
    a^2 + c^2 / kappa = 1            the noise in the state stays that of its level

and what is left is free: the grid; the angle phi of each row, a = cos phi and c = sqrt(kappa) sin phi, which is the
stochasticity dial (0 the ODE, a right angle full re-noising); the shares of the older predictions in each step and in
the sample. A network is not exact, and its predictions in few steps even less: where noise is fitted, two more numbers
a row, the gain and the noise, let it depart from both sums. :class:`Knobs` are all these numbers.

They are turned to lower an :class:`Objective` on samples, by gradients through the sampler, or by a
search without them where samples are classes, read by argmax; held-out starts decide what is kept.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bfn.errors import NetworkError, UserError
from bfn.eval_mode import evaluating
from bfn.flows import Flow, NoiseLevel
from bfn.model import Model
from bfn.sampling import make_table, walk
from bfn.solvers import BoundRow, BoundTable, Row, Table
from bfn.tuning.grid_search import ROUNDS, search_grid
from bfn.tuning.objectives import Draws, Objective

DEPTH = 3
"""Predictions that a row may mix at least; more where the table that tuning starts from does."""

LEAST_ANGLE = 0.3
"""Where the noise of a row is fitted by gradients it starts from here at least: at 0 that is 0, by symmetry."""

STEPS, TURNS_A_KNOB = 40, 5
"""Steps of gradient descent; turns of a search for each knob, of which its first model of them takes two."""

FIRST_TURN, LAST_TURN = 0.15, 0.02
"""The search's trust radius at its start and where it ends; knobs beyond 1 are turned in proportion."""


class Knobs:
    """The free numbers of a table with ``nfe`` calls, each a float64 tensor with gradients.

    steps: logits of the shares of [s_0, s(1)] that the grid's intervals take, the last one what is left out at its end
        (absent where the grid ends at s(1)). angles: phi of each row. older: shares of the older predictions in each
        row. mix: shares of the older predictions in the sample. gain, noise: logs of what sum_j b_j and c are
        multiplied by.
    """

    def __init__(self, flow: Flow, table: Table, *, noisy: bool = True, least_angle: float = 0.0) -> None:
        """Those of a table without Runge-Kutta stages, such as any multistep solver's.

        noisy: whether angles, gain and noise may be fitted. least_angle: where the angles start at least.
        """
        if table.draws or not all(row.commit for row in table.rows):
            raise UserError("the table draws classes or has Runge-Kutta stages: tune from a multistep solver")
        self.flow = flow
        s = torch.tensor(flow.schedule.s_of(table.times), dtype=torch.float64)
        self.start, self.end = s[0], flow.schedule.s(1.0)
        left = 1 - (s[-1] - s[0]) / (self.end - s[0])
        shares = torch.cat([s.diff() / (self.end - s[0]), left[None]])
        self.ends_early = bool(left > 1e-9)
        self.steps = (shares if self.ends_early else shares[:-1]).log().requires_grad_()
        rows = table.rows[:-1]
        a, c, total = torch.tensor([(row.a, row.c, sum(row.b)) for row in rows], dtype=torch.float64).unbind(1)
        gain = total / (s[1:] - a * s[:-1])
        if not bool(((a.abs() <= 1 + 1e-9) & (gain > 0)).all()):
            raise UserError("the table stretches the state or steps back: tune from a multistep solver")
        angles = a.clamp(-1, 1).acos()
        self.gain = gain.log().requires_grad_(noisy)
        drawn = c / (math.sqrt(flow.kappa) * angles.sin().clamp(min=1e-9))
        self.noise = torch.where(c > 0, drawn, 1.0).log().requires_grad_(noisy)
        self.angles = angles.clamp(min=least_angle).requires_grad_(noisy)
        width = max(DEPTH, table.depth) - 1
        self.older = _padded([[b / sum(row.b) for b in row.b[1:]] for row in rows], width).requires_grad_()
        self.mix = _padded([table.final[1:]], width)[0].requires_grad_()
        # A prediction that has not been made yet has no share.
        self._made = torch.ones(table.nfe, width, dtype=torch.float64).tril(-1)

    @property
    def parameters(self) -> list[Tensor]:
        """All that may be fitted."""
        knobs = (self.steps, self.angles, self.gain, self.noise, self.older, self.mix)
        return [knob for knob in knobs if knob.requires_grad]

    @property
    def vector(self) -> Tensor:
        """All that may be fitted in one row, without shares of predictions that have not been made yet."""
        return torch.cat([knob.detach()[used] for knob, used in self._used()])

    @torch.no_grad()
    def turn_to(self, vector: Tensor) -> None:
        """Set all that may be fitted."""
        used = self._used()
        parts = torch.split(vector, [int(mask.sum()) for _, mask in used])
        for (knob, mask), part in zip(used, parts, strict=True):
            knob[mask] = part

    @property
    def shared(self) -> Tensor:
        """(len(vector), m): turns of one knob in all rows alike, for a search that first looks where there are few.

        Of the steps: from early to late ones, and where the grid ends. Of the older shares: all of them in proportion,
        how far to extrapolate. Of the mix: its first.
        """
        inner = len(self.steps) - self.ends_early
        tilt = torch.linspace(-1, 1, inner, dtype=torch.float64)
        extrapolation = self.older.detach()
        ways = [(self.steps, torch.cat([tilt, torch.zeros(len(self.steps) - inner)]))]
        ways += [(self.steps, _unit(self.steps, -1))] if self.ends_early else []
        ways += [(knob, torch.ones_like(knob)) for knob in (self.angles, self.gain, self.noise) if knob.requires_grad]
        ways += [(self.older, extrapolation if bool(extrapolation.any()) else torch.ones_like(extrapolation))]
        ways += [(self.mix, _unit(self.mix, 0))]

        def turn(turned: Tensor, way: Tensor) -> Tensor:
            parts = [(way if knob is turned else torch.zeros_like(knob))[used] for knob, used in self._used()]
            return torch.cat(parts).detach()

        return torch.stack([turn(*way) for way in ways], 1)

    def _used(self) -> list[tuple[Tensor, Tensor]]:
        masks = {id(self.older): self._made[:-1] > 0, id(self.mix): self._made[-1] > 0}
        return [(knob, masks.get(id(knob), torch.ones_like(knob, dtype=torch.bool))) for knob in self.parameters]

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The table they stand for: s (nfe,), a (nfe - 1,), b (nfe - 1, depth) newest first, c (nfe - 1,), final."""
        shares = torch.softmax(self.steps, 0).cumsum(0)
        inner = self.start + (self.end - self.start) * shares[:-1]
        s = torch.cat([self.start[None], inner, *(() if self.ends_early else (self.end[None],))])
        a = self.angles.cos()
        total = (s[1:] - a * s[:-1]) * self.gain.exp()
        older, mix = self.older * self._made[:-1], self.mix * self._made[-1]
        b = total[:, None] * torch.cat([1 - older.sum(1, keepdim=True), older], 1)
        # A row may turn its angle through 0; the sign of noise means nothing.
        c = math.sqrt(self.flow.kappa) * self.angles.sin().abs() * self.noise.exp()
        return s, a, b, c, torch.cat([1 - mix.sum()[None], mix])

    def bind(self, u: Tensor) -> BoundTable:
        """The table for a batch of states, with gradients to the knobs."""
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
        """The table as plain numbers."""
        s, a, b, c, final = self.coefficients()
        times = self.flow.schedule.time_of_s(s).clamp(max=1).tolist()
        steps = zip(times, a.tolist(), b.tolist(), c.tolist(), strict=False)
        rows = [Row(t, a, tuple(b[: i + 1]), c) for i, (t, a, b, c) in enumerate(steps)]
        return Table((*rows, Row(times[-1])), tuple(final[: len(times)].tolist()))


def _unit(knob: Tensor, index: int) -> Tensor:
    """1 at the index, 0 elsewhere."""
    way = torch.zeros_like(knob)
    way[index] = 1
    return way.detach()


def _padded(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """(len(rows), width) float64, zeros where a row has fewer."""
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


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
    clip: tuple[float, float] | None = None,
    n_labels: int = 0,
    part: int = 50,
    on_step: Callable[[int, float | None], None] | None = None,
) -> Tuned:
    """Fit a table of ``nfe`` calls to a model: the :class:`Knobs` are turned, the best on held-out starts is kept.

    By the objective's method: Adam; a search by COBYQA (a quadratic model in a trust region, no gradients; from scipy);
    or, where only the grid is fitted, :func:`bfn.tuning.grid_search.search_grid`, whose rounds the steps then are.
    steps: at most, on ``batch`` samples each; :func:`default_steps` if left out. starts: how many different starts are
    used; None for fresh ones at each step (a search has always the same). held_out: starts that
    decide, looked at eight times; after ``patience`` looks that are worse than the best it ends. rate: of Adam, falling
    linearly to zero. part: samples that go through the network with gradients at a time.
    on_step: told (step, objective on held-out starts or None where there was no look) after each step. An interrupt
    (Ctrl-C) or a network that gives NaN ends it with the best so far.
    """
    _check_calls(nfe)
    least = objective.least
    wanted = {"steps": (1 if steps is None else steps, 1), "batch": (batch, least), "held_out": (held_out, least),
              "starts": (batch if starts is None else starts, batch), "part": (part, 1)}  # fmt: skip
    for name, (value, at_least) in wanted.items():
        if value < at_least:
            raise UserError(f"{name}={value}: expected at least {at_least}")
    solvers = [objective.start, *objective.others(model.flow, nfe)]
    start, *others = (make_table(model.flow, solver, nfe, starts_at_zero=model.starts_at_zero) for solver in solvers)
    if not objective.noisy and any(row.c for row in start.rows):
        raise UserError("a start with noise: end points are only matched by tables without; take one such as fast-ode")
    run = _Run(model, objective, nfe, n_labels, seed, clip, part)
    steps = default_steps(model, nfe, objective) if steps is None else steps
    looks = _Looks(run, held_out, max(1, steps // 8), steps, patience, on_step)
    stopped = None
    try:
        with evaluating(model):
            looks(0, start)
            knobs = run.knobs(min((start, *others), key=lambda other: run.value(run.fixed(other), batch, 0)))
            if objective.method == "gradients":
                _descend(run, knobs, batch, steps, steps if starts is None else starts // batch, rate, looks)
            elif objective.method == "search":
                _search(run, knobs, batch, steps, looks)
            else:
                looks(steps, run.regridded(batch, steps))
    except (KeyboardInterrupt, NetworkError) as end:
        if not looks.curve:
            raise
        stopped = str(end) or "interrupted"
    except _NoGainError:
        pass
    before, after = looks.curve[0][1], looks.seen[looks.best]
    record = {
        **objective.describe(),
        "start": objective.start if isinstance(objective.start, str) else objective.start.name,
        "steps": looks.curve[-1][0],
        "batch": batch,
        "held_out": held_out,
        "seed": seed,
        "clip": clip,
        "before": before,
        "after": after,
        "stopped": stopped,
    }
    return Tuned(replace(looks.best, record=record), before, after, tuple(looks.curve), stopped)


def default_steps(model: Model, nfe: int, objective: Objective) -> int:
    """Steps that tuning takes if it is not told: 40 of gradient descent, or five turns a knob, shared and single."""
    _check_calls(nfe)
    if objective.method != "search":
        return STEPS if objective.method == "gradients" else ROUNDS
    start = make_table(model.flow, objective.start, nfe, starts_at_zero=model.starts_at_zero)
    return TURNS_A_KNOB * sum(Knobs(model.flow, start, noisy=objective.noisy).shared.shape)


def _check_calls(nfe: int) -> None:
    if nfe < 2:
        raise UserError(f"nfe={nfe}: a table of one call has no step to tune; expected at least 2 calls")


@dataclass(frozen=True)
class _Run:
    """What stays the same from step to step."""

    model: Model
    objective: Objective
    nfe: int
    n_labels: int
    seed: int
    clip: tuple[float, float] | None
    part: int
    targets: dict[int, Tensor | None] = field(default_factory=dict)

    def draws(self, n: int, index: int) -> Draws:
        """The index-th batch: index -1 are the held-out starts."""
        return Draws.make(self.model, n, self.nfe, self.n_labels, self._generator(index))

    def _generator(self, index: int) -> torch.Generator:
        return torch.Generator(self.model.device).manual_seed(self.seed * 1_000_003 + index + 1)

    def regridded(self, n: int, rounds: int) -> Table:
        """The start on the grid that is best for the first batch."""
        solver = self.objective.start
        times = search_grid(
            self.model, self.nfe, solver, n=n, reference=self.objective.teacher_nfe, rounds=rounds, clip=self.clip,
            label=self.draws(n, 0).label, generator=self._generator(0),
        )  # fmt: skip
        return make_table(self.model.flow, solver, grid=times)

    def target(self, draws: Draws, index: int) -> Tensor | None:
        """What the objective wants of that batch, asked for once."""
        if index not in self.targets:
            parts = [self.objective.target(self.model, part, self.clip) for part in draws.split(self.part)]
            known = [part for part in parts if part is not None]
            self.targets[index] = torch.cat(known) if known else None
        return self.targets[index]

    def fixed(self, table: Table) -> Knobs:
        """The knobs that stand for a table as it is."""
        return Knobs(self.model.flow, table, noisy=False)

    def knobs(self, table: Table) -> Knobs:
        """The knobs that are turned, as the table has them."""
        least_angle = LEAST_ANGLE if self.objective.noisy and self.objective.method == "gradients" else 0.0
        return Knobs(self.model.flow, table, noisy=self.objective.noisy, least_angle=least_angle)

    def predict(self, knobs: Knobs, draws: Draws) -> Tensor:
        """What samples are read from, with gradients to the knobs."""
        noise = iter(draws.noise).__next__
        return walk(
            self.model.output, knobs.bind(draws.u), draws.u, noise, label=draws.label, clip=self.clip
        ).final  # fmt: skip

    @torch.no_grad()
    def predictions(self, knobs: Knobs, draws: Draws) -> Tensor:
        """The same of many draws, without gradients."""
        return torch.cat([self.predict(knobs, part) for part in draws.split(self.part)])

    @torch.no_grad()
    def value(self, knobs: Knobs, n: int, index: int = -1) -> float:
        """The objective on a batch, the held-out one if none is named."""
        draws = self.draws(n, index)
        summaries = self.objective.summary(self.predictions(knobs, draws))
        return float(self.objective.loss(summaries, self.target(draws, index)))


class _NoGainError(Exception):
    """The last looks at the held-out starts were all worse than the best."""


@dataclass
class _Looks:
    """Looks at the held-out starts, every so many steps and at the last."""

    run: _Run
    held_out: int
    every: int
    last: int
    patience: int
    on_step: Callable[[int, float | None], None] | None
    curve: list[tuple[int, float]] = field(default_factory=list)
    seen: dict[Table, float] = field(default_factory=dict)

    @property
    def best(self) -> Table:
        return min(self.seen, key=self.seen.__getitem__)

    def __call__(self, step: int, table: Table) -> None:
        """After a step: look if it is time to, tell, and end it all where nothing has been gained for long."""
        if step % self.every and step != self.last:
            if self.on_step is not None:
                self.on_step(step, None)
            return
        if table not in self.seen:
            self.seen[table] = self.run.value(self.run.fixed(table), self.held_out)
        self.curve.append((step, self.seen[table]))
        if self.on_step is not None:
            self.on_step(*self.curve[-1])
        if step and all(value > self.seen[self.best] for _, value in self.curve[-self.patience :]):
            raise _NoGainError


def _descend(run: _Run, knobs: Knobs, batch: int, steps: int, n_batches: int, rate: float, looks: _Looks) -> None:
    """Adam on the knobs, by gradients through the sampler; its rate falls linearly to zero.

    The loss is of all samples together, so they are made first without gradients, and the loss's gradient is sent back
    through one part of them at a time: memory does not grow with the batch.
    """
    optimiser = torch.optim.Adam(knobs.parameters, lr=rate, betas=(0.8, 0.95))
    for step in range(steps):
        index = step % n_batches
        draws = run.draws(batch, index)
        predictions = run.predictions(knobs, draws).requires_grad_()
        loss = run.objective.loss(run.objective.summary(predictions), run.target(draws, index))
        (slopes,) = torch.autograd.grad(loss, predictions)
        optimiser.zero_grad()
        for part, slope in zip(draws.split(run.part), torch.split(slopes, run.part), strict=True):
            # Only the knobs are asked for: no gradient of the network's weights is ever made.
            gradients = torch.autograd.grad(run.predict(knobs, part), knobs.parameters, slope)
            for knob, gradient in zip(knobs.parameters, gradients, strict=True):
                knob.grad = gradient if knob.grad is None else knob.grad + gradient
        optimiser.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimiser.step()
        looks(step + 1, knobs.table())


def _search(run: _Run, knobs: Knobs, batch: int, steps: int, looks: _Looks) -> None:
    """COBYQA on one batch, always the same: first all rows alike, where there is most to find, then each knob."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    turns: list[tuple[float, Tensor, Table]] = []

    def best() -> tuple[float, Tensor, Table]:
        return min(turns, key=lambda turn: turn[0])

    def value(vector: Any) -> float:
        knobs.turn_to(start + directions @ torch.as_tensor(vector))
        turns.append((run.value(knobs, batch, 0), knobs.vector, knobs.table()))
        looks(len(turns), best()[2])
        return turns[-1][0]

    for shared in (True, False):
        start = best()[1] if turns else knobs.vector
        directions = knobs.shared if shared else torch.diag(start.abs().clamp(min=1))
        turns_left = steps - len(turns)
        if turns_left:
            minimize(
                value, torch.zeros(directions.shape[1], dtype=torch.float64).numpy(), method="COBYQA",
                options={
                    "maxfev": min(turns_left, TURNS_A_KNOB * directions.shape[1]) if shared else turns_left,
                    "initial_tr_radius": FIRST_TURN, "final_tr_radius": LAST_TURN,
                },
            )  # fmt: skip
