"""A solver is a table.

Every explicit method is linear in the state, the predicted messages so far, and fresh noise:

    u_next = a u + sum_j b_j w_hat[-1-j] + c xi          xi ~ N(0, I)

a, b, c are float64 numbers known before the first network call. A solver makes the rows from a flow and a grid; this
module holds the rows and the one function that applies them, ``bfn.sampling`` the one loop that runs through them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn.curves import ErrorCurve
from bfn.flows import Flow
from bfn.grids import Grid


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
    draws: the message is a draw from the output distribution instead of its mean (the original sampler on classes).
    record: how a table that was tuned to one model came to be, plain values.
    """

    rows: tuple[Row, ...]
    final: tuple[float, ...] = (1.0,)
    draws: bool = False
    record: Mapping[str, Any] = field(default_factory=dict, compare=False)

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
        return max(len(self.final), *(len(row.b) for row in self.rows))


@dataclass(frozen=True)
class BoundRow:
    """A row bound to a flow: it takes predictions (x_hat, probabilities) where the row takes messages.

    With w_hat = scale p + shift the affine map costs no pass over the data: it is folded into the numbers.
    """

    a: float
    b: tuple[float, ...]
    c: float
    offset: Tensor | None

    @classmethod
    def bind(cls, row: Row, flow: Flow, like: Tensor) -> "BoundRow":
        """The row for predictions of this flow, on the device of ``like``."""
        scale, shift = flow.message_map
        offset = shift * sum(row.b)
        tensor = torch.tensor(offset, dtype=like.dtype, device=like.device) if offset else None
        return cls(row.a, tuple(scale * b for b in row.b), row.c, tensor)

    def __call__(self, u: Tensor, predictions: Sequence[Tensor], noise: Callable[[], Tensor]) -> Tensor:
        """The next state: one pass for each prediction and for the noise, and one for the state if it is scaled."""
        terms = [(b, prediction) for b, prediction in zip(self.b, predictions, strict=False) if b]
        if self.offset is not None:
            new = torch.add(self.offset, u, alpha=self.a)
        elif self.a == 1 and terms:
            b, prediction = terms.pop()
            new = torch.add(u, prediction, alpha=b)
        else:
            new = u * self.a
        for b, prediction in terms:
            new.add_(prediction, alpha=b)
        if self.c:
            new.add_(noise(), alpha=self.c)
        return new


@dataclass(frozen=True)
class Solver(ABC):
    """A rule (flow, nodes) -> table, with what one needs to know to choose it.

    kinds: the kinds of data it is for. order: of the ODE's solution, or weak order of the SDE's.
    grid: the name of its own grid; t_start: where that grid starts.
    g: stochasticity, 0 the ODE, 1 the reverse SDE; has_dial: whether it may be set from outside.
    from_prior: it starts at t = 0 whatever the network predicts (a noise prediction then counts as x_hat = 0).
    needs_curve: it is made from the model's error curve.
    """

    needs_curve: ClassVar[bool] = False

    name: str
    summary: str
    kinds: tuple[str, ...]
    order: int
    grid: str = "paper"
    t_start: float = 1e-3
    g: float = 0.0
    has_dial: bool = False
    from_prior: bool = False

    def resolve(self, flow: Flow, nfe: int) -> "Solver":
        """The solver that does the work: this one, or the one that a rule such as "auto" picks."""
        return self

    def with_curve(self, curve: ErrorCurve | None) -> "Solver":
        """The solver told how wrong the model is at each time; most have no use for it."""
        return self

    @abstractmethod
    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
        """The rows for these increasing times."""

    @property
    def stochastic(self) -> bool:
        """Whether it draws noise after the start."""
        return self.g > 0

    def nodes(self, flow: Flow, grid: Grid, nfe: int, t_start: float) -> Tensor:
        """The nodes on which ``nfe`` calls are spent: here one call a node, the last one's prediction the sample."""
        intervals = nfe if grid.stops_short else nfe - 1
        return grid(flow, intervals, t_start)[:nfe]

    def with_dial(self, g: float) -> "Solver":
        """The same solver at another stochasticity."""
        if not self.has_dial:
            raise ValueError(f"g={g}: solver {self.name!r} has no stochasticity dial; 'fast-sde' has one")
        if not g >= 0:
            raise ValueError(f"g={g}: expected a number from 0 (the ODE) through 1 (the reverse SDE) to infinity")
        return replace(self, g=g)


def check_nfe(nfe: int, multiple_of: int = 1) -> None:
    """Refuse a number of calls that cannot be spent."""
    if nfe < 1 or nfe != int(nfe):
        raise ValueError(f"nfe={nfe}: expected at least 1 network call")
    if nfe % multiple_of:
        near = (nfe - nfe % multiple_of) or multiple_of
        raise ValueError(f"nfe={nfe}: this solver makes {multiple_of} calls a step; give a multiple, such as {near}")
