"""What is fitted to one model: the numbers of a solver's table, or its grid alone.

    tuned = tune(model, 5, objective_for(model))
    model.info.tables = {**model.info.tables, 5: tuned.table}

The solver "auto" then takes the table at 5 calls. Its settings at any number of calls are found by

    model.info.calibration = calibrate(model, objective_for(model))
"""

from bfn.training.tuning.calibration import calibrate, search_grid
from bfn.training.tuning.objectives import (
    EndPoint,
    EnergyDistance,
    FeatureDistance,
    NGramDivergence,
    Objective,
    SearchedGrid,
    objective_for,
)
from bfn.training.tuning.tables import Tuned, default_steps, tune

__all__ = [
    "EndPoint",
    "EnergyDistance",
    "FeatureDistance",
    "NGramDivergence",
    "Objective",
    "SearchedGrid",
    "Tuned",
    "calibrate",
    "default_steps",
    "objective_for",
    "search_grid",
    "tune",
]
