"""Solvers: rules that make a table of coefficients from a flow and a grid, and the plan that picks one for a model."""

from bfn.solvers.base import Solver
from bfn.solvers.multistep import Multistep
from bfn.solvers.named import SOLVERS, get, names
from bfn.solvers.plan import Plan, plan
from bfn.solvers.table import Row, Table

__all__ = ["SOLVERS", "Multistep", "Plan", "Row", "Solver", "Table", "get", "names", "plan"]
