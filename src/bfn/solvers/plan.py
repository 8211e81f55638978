"""Old names of ``bfn.core.solver``, until their importers have moved."""

from typing import Any

from bfn.core.solver import CALLS, LEAST_T_START, Plan, Planned
from bfn.core.solver import plan as new_plan

__all__ = ["CALLS", "LEAST_T_START", "Plan", "Planned", "plan"]


def plan(model: Any, solver: Any = "auto", nfe: int | None = None, *, whole: bool = True, **options: Any) -> Plan:
    """Make the table that ``model.sample`` uses with these settings."""
    return new_plan(model, solver, nfe, plain=whole, **options)
