"""Settings of a sampler: how one is said, and how several are crossed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from bfn import grids, solvers
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.grids import Grid
from bfn.solvers import Solver, Table

__all__ = ["USUAL", "Setting", "crossed"]

USUAL = {
    "continuous": ("auto", "bfn", "bfn-solver++1", "bfn-solver++2", "sde-bfn-solver++2"),
    "discrete": ("auto", "bfn", "sde-bfn-solver1", "sde-bfn-solver2", "bfn-solver1", "bfn-solver2"),
    "joint": ("auto", "bfn", "fast-ode"),
}
"""What is compared where nothing else is asked for, by the kind of data: the default, the original sampler, the
paper's."""


@dataclass(frozen=True)
class Setting:
    """How to sample: the arguments of ``bfn.sample`` of the same names.

    t_start: the paper's eta. order: another order of the same solver, where it has one.
    """

    solver: str | Solver | Table
    nfe: int
    t_start: float | None = None
    g: float | None = None
    grid: str | Grid | None = None
    order: int | None = None
    guidance: float | None = None

    @property
    def name(self) -> str:
        """The solver's name."""
        if isinstance(self.solver, Table):
            return "a table"
        return self.solver if isinstance(self.solver, str) else self.solver.name

    @property
    def sampler(self) -> str:
        """The setting in words, but for the number of calls."""
        words = {"eta": self.t_start, "g": self.g, "grid": self.grid, "order": self.order, "guidance": self.guidance}
        given = [f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"
                 for word, value in words.items() if value is not None]  # fmt: skip
        return ", ".join([self.name, *given])

    @property
    def label(self) -> str:
        """The setting in words."""
        return f"{self.sampler}, {self.nfe} calls"

    def arguments(self, flow: Flow) -> dict[str, Any]:
        """For ``model.sample``, and but for the guidance for ``bfn.solvers.plan``."""
        solver = self.solver
        if self.order is not None:
            if isinstance(solver, Table):
                raise UserError(f"order={self.order}: a table has the order it was made with; leave it out")
            solver = replace(_at_work(solver, flow, self.nfe), order=self.order)
        return {"solver": solver, "nfe": self.nfe, "t_start": self.t_start, "g": self.g, "grid": self.grid}

    def asdict(self) -> dict[str, Any]:
        """For JSON: what is set."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: str(value) if isinstance(value, Grid) else value for key, value in given.items()}
        return {**{key: value for key, value in plain.items() if value is not None}, "solver": self.name}


def _at_work(solver: str | Solver, flow: Flow, nfe: int) -> Solver:
    """The solver that does the work, of joint data that on the leading part; a UserError unless it takes all parts."""
    resolved = {name: solvers.get(solver, part.kind).resolve(part, nfe) for name, part in flow.parts.items()}
    return resolved[flow.leading_part]


def crossed(
    flow: Flow,
    names: Sequence[str],
    nfe: Sequence[int],
    *,
    t_start: Sequence[float] = (),
    g: Sequence[float] = (),
    grid: str | Grid | None = None,
    guidance: float | None = None,
) -> list[Setting]:
    """Solvers x calls, x t_start on grids that need one, as the paper's does, x g for solvers with a dial."""
    if not names or not nfe:
        raise UserError("nothing to compare: expected at least one solver and one number of calls")
    for value in (value for value in t_start if not 0 < value < 1):
        raise UserError(f"t_start={value:g}: expected a time between 0 and 1, such as 0.001")
    given = grids.parse(grid) if isinstance(grid, str) else grid
    found: list[Setting] = []
    for name, calls in product(dict.fromkeys(names), dict.fromkeys(nfe)):
        solver = _at_work(name, flow, max(1, calls))
        on = given or solver.grid
        starts = t_start if on.stops_short or on.needs_start else ()
        dials = g if solver.has_dial else ()
        found += [Setting(name, calls, start, dial, grid, guidance=guidance)
                  for start, dial in product(starts or (None,), dials or (None,))]  # fmt: skip
    for what, values, used in (("t_start", t_start, [s.t_start for s in found]), ("g", g, [s.g for s in found])):
        if values and all(value is None for value in used):
            raise UserError(f"{what}={values[0]:g}: none of {', '.join(dict.fromkeys(names))} takes it; leave it out")
    return found
