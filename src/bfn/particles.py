"""Old names of ``bfn.controls.particles``, until its importers have moved."""

from typing import Any

from bfn.controls.particles import Particles

__all__ = ["Particles", "solver_with_noise"]


def solver_with_noise(solver: Any, g: float | None) -> tuple[Any, float | None]:
    """Return the solver and dial that particles take."""
    return ("fast-sde", 1.0 if g is None else g) if isinstance(solver, str) and solver == "auto" else (solver, g)
