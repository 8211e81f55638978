"""Old names of ``bfn.core.solver``, until their importers have moved."""

from bfn.core.solver import MOST_CALLS, Sharing, Solver, check_nfe

__all__ = ["MOST_CALLS", "Sharing", "Solver", "check_nfe"]
