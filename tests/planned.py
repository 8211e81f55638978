"""The table that sampling with some settings runs through, for tests that have a flow and no model."""

from types import SimpleNamespace
from typing import Any, cast

from bfn.core.flows import Flow
from bfn.core.info import ErrorCurve, ModelInfo
from bfn.core.model import Model
from bfn.core.solver import Solver, plan
from bfn.core.table import Table


def make_table(
    flow: Flow,
    solver: str | Solver,
    nfe: int | None = None,
    grid: Any = None,
    t_start: float | None = None,
    g: float | None = None,
    *,
    starts_at_zero: bool = True,
    curve: ErrorCurve | None = None,
) -> Table:
    """The table of ``plan`` for a model of which no more is known than this."""
    model = SimpleNamespace(flow=flow, starts_at_zero=starts_at_zero, info=ModelInfo(error_curve=curve))
    return plan(cast(Model, model), solver, nfe, grid=grid, t_start=t_start, g=g).table
