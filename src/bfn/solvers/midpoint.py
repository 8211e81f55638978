"""Single-step second-order solver: a midpoint stage in every step, two network calls each (paper, algorithm 7)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from bfn.core.solver import Solver, check_nfe
from bfn.core.table import Row, Table
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.grids import Grid

__all__ = ["Midpoint"]


@dataclass(frozen=True)
class Midpoint(Solver):
    """Explicit midpoint of du/ds = w_hat, the stage half way in t; the last stage's prediction is the sample."""

    def nodes(self, flow: Flow, grid: Grid, nfe: int, t_start: float) -> Tensor:
        check_nfe(nfe, multiple_of=2)
        return grid(flow, nfe // 2, t_start)

    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
        if len(nodes) < 2:
            raise UserError(
                f"a grid of {len(nodes)} time: {self.name!r} makes two calls a step; expected at least 2 times"
            )
        rows: list[Row] = []
        for t_start, t_end in pairwise(nodes):
            t_mid = (t_start + t_end) / 2
            s_start, s_mid, s_end = flow.schedule.s_of([t_start, t_mid, t_end])
            rows.append(Row(t_start, b=(s_mid - s_start,), commit=False))
            # w_hat linear in s through both stages: (s_end - s_start) [w + (s_end - s_start)/2 * slope].
            step = s_end - s_start
            lean = step * step / (2 * (s_mid - s_start))
            rows.append(Row(t_mid, b=(lean, step - lean)))
        return Table(tuple(rows))
