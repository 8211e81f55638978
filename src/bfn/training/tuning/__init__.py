"""Tuning: solvers that are fitted to one model.

    tuned = tune(model, 5, objective_for(model))
    model.info.tables = {**model.info.tables, 5: tuned.table}

The solver "auto" then uses this table for 5 calls. Its settings for any number of calls are found by

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
)  # fmt: skip
from bfn.training.tuning.tables import Tuned, default_steps, tune

__all__ = [
    "EndPoint", "EnergyDistance", "FeatureDistance", "NGramDivergence", "Objective", "SearchedGrid", "Tuned",
    "calibrate", "default_steps", "objective_for", "search_grid", "tune",
]  # fmt: skip
