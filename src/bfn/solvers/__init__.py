"""Solvers: rules that make a table of coefficients from a flow and the times of the network calls.

A new solver is a subclass of :class:`Solver` that makes the rows of a table, and an entry of :data:`SOLVERS`. Then
``model.sample(16, "leap")`` finds it. This one takes a step of du/ds = w_hat with each call:

    class Leap(Solver):
        def table(self, flow, nodes):
            s = flow.schedule.s_of(nodes)
            return Table((*(Row(t, b=(end - start,)) for t, start, end in zip(nodes, s, s[1:])), Row(nodes[-1])))

    SOLVERS["leap"] = Leap("leap", "Euler in s", ("continuous", "discrete"), order=1)

A row sets u = a u + sum_j b_j w_hat_j + c noise, see :class:`Row`. A package registers its solver under the entry point
"solver.leap" of the group ``bfn.plugins`` instead. ``paper`` has the solvers of the paper, ``diffusion`` those of
diffusion models, ``few_step`` ours and "auto", ``paths`` the order in which parts are drawn, ``sde`` the paper's SDEs.
"""

from bfn.core.errors import UserError, did_you_mean
from bfn.core.registry import Registry, registry
from bfn.core.solver import Plan, Solver, plan
from bfn.core.table import Row, Table
from bfn.solvers.few_step import Anchor, Calibration, Rule, interpolated, multistep_by_name, spread_of
from bfn.solvers.multistep import Multistep

__all__ = [
    "SOLVERS", "Anchor", "Calibration", "Multistep", "Plan", "Row", "Rule", "Solver", "Table", "get", "interpolated",
    "names", "plan", "spread_of",
]  # fmt: skip

SOLVERS: Registry[Solver] = registry("solver")
"""Solvers by the name that ``sample(solver=...)`` takes."""


def names(kind: str | None = None) -> list[str]:
    """Return the names of all solvers, or of those for one kind of data ("continuous", "discrete")."""
    return [name for name, solver in SOLVERS.items() if kind is None or kind in solver.kinds]


def get(solver: str | Solver, kind: str | None = None) -> Solver:
    """Return the solver of that name; check that it is for that kind of data."""
    if isinstance(solver, str) and solver.startswith("multistep:"):
        solver = multistep_by_name(solver)
    if isinstance(solver, str):
        if solver not in SOLVERS:
            known = names(kind)
            raise UserError(f"solver={solver!r}: expected one of {', '.join(known)}{did_you_mean(solver, known)}")
        solver = SOLVERS[solver]
    if not isinstance(solver, Solver):
        raise UserError(f"solver={solver!r}: expected a name, such as 'auto', a solver or a table")
    if kind is not None and kind not in solver.kinds:
        own, fitting = " and ".join(solver.kinds), ", ".join(names(kind))
        raise UserError(f"solver={solver.name!r} is for {own} data: for {kind} data take one of {fitting}")
    return solver
