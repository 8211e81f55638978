"""What is fitted to one model: the numbers of a solver's table, or its grid alone.

    tuned = tune(model, 5, objective_for(model))
    model.info.tables = {**model.info.tables, 5: tuned.table}

The solver "auto" then takes the table at 5 calls.
"""

from bfn.tuning.fit import Tuned, default_steps, tune
from bfn.tuning.grid_search import search_grid
from bfn.tuning.objectives import EndPoint, FeatureDistance, NGramDivergence, Objective, SearchedGrid, objective_for

__all__ = [
    "EndPoint",
    "FeatureDistance",
    "NGramDivergence",
    "Objective",
    "SearchedGrid",
    "Tuned",
    "default_steps",
    "objective_for",
    "search_grid",
    "tune",
]
