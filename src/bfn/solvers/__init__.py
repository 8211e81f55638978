"""Solvers: rules that make a table of coefficients from a flow and the times of the network calls.

A new solver is a subclass of ``Solver`` that makes the rows of a table, and an entry of ``SOLVERS``. Then
``model.sample(16, "leap")`` finds it. This one takes a step of du/ds = w_hat with each call:

    class Leap(Solver):
        def table(self, flow, nodes):
            s = flow.schedule.s_of(nodes)
            return Table((*(Row(t, b=(end - start,)) for t, start, end in zip(nodes, s, s[1:])), Row(nodes[-1])))

    SOLVERS["leap"] = Leap("leap", "Euler in s", ("continuous", "discrete"), order=1)

A row sets u = a u + sum_j b_j w_hat_j + c noise, see ``Row``. A package registers its solver under the entry point
"solver.leap" of the group ``bfn.plugins`` instead. ``paper`` has the solvers of the paper, ``multistep`` a family with
those of diffusion models, ``few_step`` ours and "auto", ``paths`` the order in which parts are drawn, ``sde`` the
paper's SDEs.
"""

from bfn.core.solver import SOLVERS, Plan, Solver, get, names, plan
from bfn.core.table import Row, Table
from bfn.solvers.few_step import Anchor, Calibration, Rule, interpolated, spread_of
from bfn.solvers.multistep import Multistep

__all__ = [
    "SOLVERS", "Anchor", "Calibration", "Multistep", "Plan", "Row", "Rule", "Solver", "Table", "get", "interpolated",
    "names", "plan", "spread_of",
]  # fmt: skip
