"""Solvers: rules that make a table of coefficients from a flow and a grid, and the plan that picks one for a model."""

from bfn.core.solver import Plan, Solver, plan
from bfn.core.table import Row, Table
from bfn.solvers.few_step import Anchor, Calibration, Rule, interpolated, spread_of
from bfn.solvers.multistep import Multistep
from bfn.solvers.named import SOLVERS, get, names
from bfn.solvers.paper import PAPER

__all__ = [
    "PAPER", "SOLVERS", "Anchor", "Calibration", "Multistep", "Plan", "Row", "Rule", "Solver", "Table", "get",
    "interpolated", "names", "plan", "spread_of",
]  # fmt: skip
