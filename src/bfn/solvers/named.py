"""Solvers by name."""

from bfn.core.errors import UserError, did_you_mean
from bfn.core.registry import Registry, registry
from bfn.core.solver import Solver
from bfn.solvers.few_step import multistep_by_name

SOLVERS: Registry[Solver] = registry("solver")
"""Solvers by the name that ``sample(solver=...)`` takes."""


def names(kind: str | None = None) -> list[str]:
    """Names of all solvers, or of those for one kind of data ("continuous", "discrete")."""
    return [name for name, solver in SOLVERS.items() if kind is None or kind in solver.kinds]


def get(solver: str | Solver, kind: str | None = None) -> Solver:
    """The solver of that name, checked against the kind of data."""
    if isinstance(solver, str) and solver.startswith("multistep:"):
        solver = multistep_by_name(solver)
    if isinstance(solver, str):
        if solver not in SOLVERS:
            fitting = names(kind)
            hint = did_you_mean(solver, fitting)
            raise UserError(f"solver={solver!r}: expected one of {', '.join(fitting)}{hint}")
        solver = SOLVERS[solver]
    if not isinstance(solver, Solver):
        raise UserError(f"solver={solver!r}: expected a name, such as 'auto', a solver or a table")
    if kind is not None and kind not in solver.kinds:
        raise UserError(
            f"solver={solver.name!r} is for {' and '.join(solver.kinds)} data: for {kind} data take one of "
            f"{', '.join(names(kind))}"
        )
    return solver
