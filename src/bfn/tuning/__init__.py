"""What is fitted to one model: the numbers of a solver's table, or its grid alone."""

from bfn.tuning.fit import Knobs, Tuned, default_steps, tune
from bfn.tuning.grid_search import search_grid

__all__ = ["Knobs", "Tuned", "default_steps", "search_grid", "tune"]
