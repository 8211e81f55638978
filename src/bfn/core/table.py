"""A solver is a table.

Every explicit method is linear in the state, the predicted messages so far, and fresh noise:

    u_next = a u + sum_j b_j w_hat[-1-j] + c xi          xi ~ N(0, I)

a, b, c are float64 numbers known before the first network call. A solver makes the rows from a flow and a grid; this
module holds the rows and the one function that applies them, ``bfn.sampling`` the one loop that runs through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.info import NOTHING, Fact


@dataclass(frozen=True)
class Row:
    """One network call, at time t on the newest state, and the step that follows it.

    a, b, c: see above; b[0] belongs to the newest prediction.
    commit: whether the result becomes the state that later rows start from. A stage of a single-step (Runge-Kutta)
        method does not commit: the network sees it, and the next row starts from the old state again.
    """

    t: float
    a: float = 1.0
    b: tuple[float, ...] = ()
    c: float = 0.0
    commit: bool = True


@dataclass(frozen=True)
class Table:
    """Rows in order. The last row makes its call but no step.

    final: weights, newest first and summing to 1, of the predictions whose mix is the sample: the last one alone,
        unless the rule for the rest of the way knows better.
    start: standard deviation of the first state over sqrt(kappa): 1 is the exact prior, more what data add by then.
    draws: the message is a draw from the output distribution instead of its mean (the original sampler on classes).
    whole: draws are of all variables together, where the network can do that; the sample is one too.
    record: how a table that was tuned to one model came to be, plain values.
    parts: tables of the parts of joint data, that share the calls, and the times unless each part has its own; the rows
        here are then those of the leading part.
    """

    rows: tuple[Row, ...]
    final: tuple[float, ...] = (1.0,)
    draws: bool = False
    start: float = field(default=1.0, kw_only=True)
    whole: bool = field(default=False, kw_only=True)
    record: Mapping[str, Any] = field(default_factory=dict, compare=False)
    parts: Mapping[str, Table] = field(default_factory=dict, hash=False)

    @property
    def nfe(self) -> int:
        """Network calls."""
        return len(self.rows)

    @property
    def times(self) -> tuple[float, ...]:
        """When the network is called."""
        return tuple(row.t for row in self.rows)

    @property
    def depth(self) -> int:
        """How many predictions must be kept."""
        return max([len(self.final), *(len(row.b) for row in self.rows)])

    @property
    def stochastic(self) -> bool:
        """Whether a run through it draws anything after the start."""
        return self.draws or any(row.c > 0 for table in (self, *self.parts.values()) for row in table.rows)

    def told(self, flow: Flow) -> Sequence[Any]:
        """The time of each call, or, where they differ, those of the parts in the flow's order."""
        apart = any(table.times != self.times for table in self.parts.values())
        return [*zip(*(self.parts[name].times for name in flow.parts), strict=True)] if apart else self.times

    @classmethod
    def side_by_side(cls, parts: Mapping[str, Table], leading: str) -> Table:
        """One table of several parts that share their network calls."""
        first = parts[leading]
        wrong = next((name for name, table in parts.items() if table.nfe != first.nfe), None)
        if wrong is not None:
            raise UserError(
                f"the table of part {wrong!r}: expected {first.nfe} calls as of {leading!r}: they share them"
            )
        return cls(first.rows, first.final, any(table.draws for table in parts.values()), parts=parts)

    def bind(self, flow: Flow, like: Tensor) -> BoundTable:
        """The table for a batch of states ``like`` this one; coefficients that differ by part become vectors."""
        tables = [self.parts.get(name, self) for name in flow.parts]
        maps = [part.message_map for part in flow.parts.values()]
        depths = [max(map(len, weights)) for weights in zip(*([row.b for row in t.rows] for t in tables), strict=True)]

        def over(numbers: Iterable[Sequence[float]]) -> Sequence[Number]:
            """From the numbers of each part, one a row."""
            return flow.over_state([*zip(*numbers, strict=True)], like)

        a, c = over([row.a for row in t.rows] for t in tables), over([row.c for row in t.rows] for t in tables)
        b = [
            over([scale * _at(row.b, j) for row in t.rows] for t, (scale, _) in zip(tables, maps, strict=True))
            for j in range(max(depths))
        ]
        moved = over([shift * sum(row.b) for row in t.rows] for t, (_, shift) in zip(tables, maps, strict=True))
        offset = [torch.as_tensor(x, dtype=like.dtype, device=like.device) if _counts(x) else None for x in moved]
        rows = tuple(
            BoundRow(a[i], tuple(own[i] for own in b[:depth]), c[i], offset[i], self.rows[i].commit)
            for i, depth in enumerate(depths)
        )
        n_final = max(len(table.final) for table in tables)
        final = over([_at(table.final, j) for j in range(n_final)] for table in tables)
        levels = flow.noise_levels(self.told(flow), len(like), like.ndim - 1, like)
        return BoundTable(self.times, tuple(levels), rows, tuple(final), self.draws, self.whole)

    def check(self) -> None:
        """Refuse rows that no run through them could follow: those of a file may say anything."""
        if not self.rows:
            raise UserError("has no rows: expected one a call, at least 1")
        if not all(0 <= t <= 1 for t in self.times) or any(b <= a for a, b in pairwise(self.times)):
            raise UserError(f"times {self.times}: expected increasing ones within [0, 1]")
        for i, row in enumerate(self.rows):
            if len(row.b) > i + 1 or row.c < 0:
                raise UserError(f"row {i}: expected at most {i + 1} numbers b, one a call so far, and c of at least 0")
        if not 1 <= len(self.final) <= self.nfe or abs(sum(self.final) - 1) > 1e-6:
            raise UserError(f"final {self.final}: expected 1 to {self.nfe} weights that sum to 1")


Number = float | Tensor
"""A coefficient in the loop: a plain number, or a tensor without dimensions where gradients flow through it."""


@dataclass(frozen=True)
class BoundRow:
    """A row bound to a flow: it takes predictions (x_hat, probabilities) where the row takes messages.

    With w_hat = scale p + shift the affine map costs no pass over the data: it is folded into the numbers.
    """

    a: Number
    b: tuple[Number, ...]
    c: Number
    offset: Tensor | None
    commit: bool = True

    @classmethod
    def bind(cls, flow: Flow, like: Tensor, a: Number, b: Sequence[Number], c: Number, commit: bool = True) -> BoundRow:
        """The row of these coefficients for predictions of this flow, on the device of ``like``."""
        scale, shift = flow.message_map
        offset = torch.as_tensor(sum(b) * shift, dtype=like.dtype, device=like.device) if shift and len(b) else None
        return cls(a, tuple(scale * each for each in b), c, offset, commit)

    def __call__(
        self, u: Tensor, predictions: Sequence[Tensor], noise: Callable[[], Tensor], out: Tensor | None = None
    ) -> Tensor:
        """The next state: one pass for each prediction and for the noise, and one for the state if it is scaled.

        out: memory to put it in, of a state that is needed no more.
        """
        terms = [(b, p) for b, p in zip(self.b, predictions, strict=False) if _counts(b)]
        if self.offset is not None:
            new = _sum(self.offset, self.a, u, out)
        elif terms and not isinstance(self.a, Tensor) and self.a == 1:
            new = _sum(u, *terms.pop(), out)
        else:
            new = torch.mul(u, self.a, out=out)
        for b, prediction in terms:
            _add(new, b, prediction)
        return _add(new, self.c, noise()) if _counts(self.c) else new


def _at(weights: Sequence[float], j: int) -> float:
    return weights[j] if j < len(weights) else 0.0


def _counts(weight: Number) -> bool:
    """Whether a term with this weight is worth a pass: one that is still being fitted is, whatever its value."""
    return isinstance(weight, Tensor) or weight != 0


def _sum(x: Tensor, weight: Number, y: Tensor, out: Tensor | None = None) -> Tensor:
    """x + weight y in one pass."""
    if isinstance(weight, Tensor):
        return torch.addcmul(x, y, weight, out=out)
    return torch.add(x, y, alpha=weight, out=out)


def _add(x: Tensor, weight: Number, y: Tensor) -> Tensor:
    """x, with weight y added to it in place."""
    return x.addcmul_(y, weight) if isinstance(weight, Tensor) else x.add_(y, alpha=weight)


@dataclass(frozen=True)
class BoundTable:
    """A table bound to a flow and a batch, all that the loop needs made before it: see :class:`Table`.

    times, levels: when each call is made, and its noise level.
    """

    times: tuple[float, ...]
    levels: tuple[NoiseLevel, ...]
    rows: tuple[BoundRow, ...]
    final: tuple[Number, ...]
    draws: bool = False
    whole: bool = False

    @property
    def nfe(self) -> int:
        """Network calls."""
        return len(self.rows)

    @property
    def depth(self) -> int:
        """How many predictions must be kept."""
        return max([len(self.final), *(len(row.b) for row in self.rows)])


def _check_tables(tables: Mapping[int, Table]) -> None:
    for nfe, table in tables.items():
        try:
            table.check()
            if nfe != table.nfe:
                raise UserError(f"has {table.nfe} rows: expected one a call")
        except UserError as error:
            raise UserError(f"the table for {nfe} calls: {error}") from None


TABLES: Fact[Mapping[int, Table]] = Fact("tables", Mapping[int, Table], NOTHING, check=_check_tables)
"""Solvers that were tuned to the model, by number of calls."""

MAPS_TO_END: Fact[bool] = Fact("maps_to_end", bool, False)
"""Whether the model was distilled: it predicts the end of the path from a state, not the mean of the data."""
