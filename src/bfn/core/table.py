"""Tables: the form that every solver has.

Every explicit method is linear in the state, the predicted messages so far, and fresh noise:

    u_next = a u + sum_j b_j w_hat[-1-j] + c xi          xi ~ N(0, I)

a, b, c are float64 numbers that are known before the first network call. A solver makes the rows from a flow and a
grid. A row is applied here, by ``BoundRow.__call__``; the loop over the rows is in ``bfn.core.sampling``.
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

LARGEST = 1e30
"""Maximum size of a coefficient. Products of larger ones with data are infinite in float32."""


@dataclass(frozen=True)
class Row:
    """One network call, at time t on the newest state, and the step that follows it.

    Args:
        a, b, c: see above; b[0] belongs to the newest prediction.
        commit: whether the result becomes the state that later rows start from. A stage of a single-step (Runge-Kutta)
            method does not commit: the network is called on it, and the next row starts from the old state again.
    """

    t: float
    a: float = 1.0
    b: tuple[float, ...] = ()
    c: float = 0.0
    commit: bool = True


@dataclass(frozen=True)
class Table:
    """Rows in order. The last row makes its call but no step.

    Args:
        rows: the rows.
        final: weights, newest first and summing to 1, of the predictions that are mixed into the sample.
        draws: whether messages are draws from the output distribution instead of its mean (the original sampler on
            classes).
        start: standard deviation of the first state over sqrt(kappa): 1 for the exact prior, more with data in it.
        whole: whether draws, and the sample, are of all variables together, if the network can do that.
        record: how a table that was tuned to a model was made, plain values.
        parts: tables of the parts of joint data. They share the calls, and the times unless each part has its own. The
            rows of this table are then those of the leading part.
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
        """Number of network calls."""
        return len(self.rows)

    @property
    def times(self) -> tuple[float, ...]:
        """Times of the network calls."""
        return tuple(row.t for row in self.rows)

    @property
    def depth(self) -> int:
        """Number of predictions that must be kept."""
        return max([len(self.final), *(len(row.b) for row in self.rows)])

    @property
    def stochastic(self) -> bool:
        """True if random numbers are drawn after the first state."""
        return self.draws or any(row.c > 0 for table in (self, *self.parts.values()) for row in table.rows)

    def times_by_part(self, flow: Flow) -> Sequence[Any]:
        """Return the time of each call, or the times of the parts in the order of the flow if they differ."""
        apart = any(table.times != self.times for table in self.parts.values())
        return [*zip(*(self.parts[name].times for name in flow.parts), strict=True)] if apart else self.times

    @classmethod
    def side_by_side(cls, parts: Mapping[str, Table], leading: str) -> Table:
        """Join the tables of several parts that share their network calls."""
        first = parts[leading]
        wrong = next((name for name, table in parts.items() if table.nfe != first.nfe), None)
        if wrong is not None:
            raise UserError(
                f"the table of part {wrong!r}: expected {first.nfe} calls as of {leading!r}: they share them"
            )
        return cls(first.rows, first.final, any(table.draws for table in parts.values()), parts=parts)

    def bind(self, flow: Flow, like: Tensor) -> BoundTable:
        """Return the table for a batch of states like ``like``; coefficients that differ by part become vectors."""
        tables = [self.parts.get(name, self) for name in flow.parts]
        maps = [part.message_map for part in flow.parts.values()]
        depths = [max(map(len, weights)) for weights in zip(*([row.b for row in t.rows] for t in tables), strict=True)]

        def over(numbers: Iterable[Sequence[float]]) -> Sequence[Number]:
            """Return factors of the state from the numbers of each part, one for each row."""
            rows = [*zip(*numbers, strict=True)]
            wrong = next((x for row in rows for x in row if not abs(x) <= LARGEST), None)
            if wrong is not None:
                raise UserError(
                    f"a solver's coefficient {wrong:g}: expected at most {LARGEST:g}; mend schedule or table"
                )
            return flow.over_state(rows, like)

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
        levels = flow.noise_levels(self.times_by_part(flow), len(like), like.ndim - 1, like)
        return BoundTable(self.times, tuple(levels), rows, tuple(final), self.draws, self.whole)

    def check(self) -> None:
        """Raise a UserError for rows that cannot be followed, as a file may have them."""
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
    """A row bound to a flow. It takes predictions (x_hat, probabilities) instead of messages.

    The map w_hat = scale p + shift is folded into the coefficients, so that it costs no pass over the data.
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
        """Return the next state, in one pass for each prediction and for the noise, and one for the state if a != 1.

        Args:
            out: memory of an old state to write to.
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
    """Return True if a term with this weight needs a pass: it is not 0, or it is a tensor that is being fitted."""
    return isinstance(weight, Tensor) or weight != 0


def _sum(x: Tensor, weight: Number, y: Tensor, out: Tensor | None = None) -> Tensor:
    """Return x + weight y in one pass."""
    if isinstance(weight, Tensor):
        return torch.addcmul(x, y, weight, out=out)
    return torch.add(x, y, alpha=weight, out=out)


def _add(x: Tensor, weight: Number, y: Tensor) -> Tensor:
    """Add weight y to x in place and return it."""
    return x.addcmul_(y, weight) if isinstance(weight, Tensor) else x.add_(y, alpha=weight)


@dataclass(frozen=True)
class BoundTable:
    """A table bound to a flow and a batch, see ``Table``. Everything that the loop needs is computed before it.

    Attributes:
        times, levels: time and noise level of each call.
    """

    times: tuple[float, ...]
    levels: tuple[NoiseLevel, ...]
    rows: tuple[BoundRow, ...]
    final: tuple[Number, ...]
    draws: bool = False
    whole: bool = False

    @property
    def nfe(self) -> int:
        """Number of network calls."""
        return len(self.rows)

    @property
    def depth(self) -> int:
        """Number of predictions that must be kept."""
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
"""True if the model was distilled: it predicts the end of the path from a state, not the mean of the data."""
