"""Solvers by name. A family is one file with a tuple ``SOLVERS``; one export here makes it known everywhere."""

from difflib import get_close_matches

from bfn.solvers import fast, optimal, paper, zoo
from bfn.solvers.table import BoundRow, BoundTable, Number, Row, Solver, Table

SOLVERS: dict[str, Solver] = {
    solver.name: solver for family in (paper, optimal, zoo, fast) for solver in family.SOLVERS
}

__all__ = ["SOLVERS", "BoundRow", "BoundTable", "Number", "Row", "Solver", "Table", "get", "names"]


def names(kind: str | None = None) -> list[str]:
    """Names of all solvers, or of those for one kind of data ("continuous", "discrete")."""
    return [name for name, solver in SOLVERS.items() if kind is None or kind in solver.kinds]


def get(solver: str | Solver, kind: str | None = None) -> Solver:
    """The solver of that name, checked against the kind of data."""
    fitting = names(kind)
    if isinstance(solver, str) and solver.startswith("multistep:"):
        solver = fast.family(solver)
    if isinstance(solver, str):
        if solver not in SOLVERS:
            near = get_close_matches(solver, fitting, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"solver={solver!r}: expected one of {', '.join(fitting)}{hint}")
        solver = SOLVERS[solver]
    if kind is not None and kind not in solver.kinds:
        raise ValueError(
            f"solver={solver.name!r} is for {' and '.join(solver.kinds)} data: for {kind} data take one of "
            f"{', '.join(fitting)}"
        )
    return solver
