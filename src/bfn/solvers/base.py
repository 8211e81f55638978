"""What a solver is: a rule that makes a table from a flow and a grid, with what one needs to know to choose it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING

from torch import Tensor

from bfn.errors import UserError
from bfn.flows import Flow
from bfn.grids import Grid, Paper
from bfn.solvers.table import Table

if TYPE_CHECKING:
    from bfn.info import ModelInfo

__all__ = ["Solver", "check_nfe"]

PAPER_GRID = Paper()


@dataclass(frozen=True)
class Solver(ABC):
    """A rule (flow, nodes) -> table, with what one needs to know to choose it.

    kinds: the kinds of data it is for. order: of the ODE's solution, or weak order of the SDE's.
    grid: its own grid; t_start: where that grid starts.
    g: stochasticity, 0 the ODE, 1 the reverse SDE; has_dial: whether it may be set from outside.
    from_prior: it starts at t = 0 whatever the network predicts (a noise prediction then counts as x_hat = 0).
    prefers_tuned: a table that was tuned to the model takes its place, where there is one for the number of calls.
    """

    name: str
    summary: str
    kinds: tuple[str, ...]
    order: int
    grid: Grid = PAPER_GRID
    t_start: float = 1e-3
    g: float = 0.0
    has_dial: bool = False
    from_prior: bool = False
    prefers_tuned: bool = field(default=False, kw_only=True)

    def resolve(self, flow: Flow, nfe: int, info: ModelInfo | None = None) -> Solver:
        """The solver that does the work: this one, or, behind a name that stands for several, the one that fits.

        info: what is known of the model; most have no use for it.
        """
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

    def with_dial(self, g: float) -> Solver:
        """The same solver at another stochasticity."""
        if not self.has_dial:
            raise UserError(f"g={g}: solver {self.name!r} has no stochasticity dial; 'fast-sde' has one")
        if not g >= 0:
            raise UserError(f"g={g}: expected a number from 0 (the ODE) through 1 (the reverse SDE) to infinity")
        return replace(self, g=g)


MOST_CALLS = 100_000
"""Of a table, which has a row for each."""


def check_nfe(nfe: int, multiple_of: int = 1) -> None:
    """Refuse a number of calls that cannot be spent."""
    if not isinstance(nfe, Integral) or isinstance(nfe, bool):
        raise UserError(f"nfe={nfe!r}: expected a whole number of network calls")
    if nfe < 1:
        raise UserError(f"nfe={nfe}: expected at least 1 network call")
    if nfe > MOST_CALLS:
        raise UserError(f"nfe={nfe}: expected at most {MOST_CALLS:,} network calls")
    if nfe % multiple_of:
        near = (nfe - nfe % multiple_of) or multiple_of
        raise UserError(f"nfe={nfe}: this solver makes {multiple_of} calls a step; give a multiple, such as {near}")
