"""Training: settings, recipes, and a loop that can be stopped at any step and resumed to the same weights."""

from bfn.training.building import build_model, default_settings, load_with_network
from bfn.training.checkpoints import CheckpointError, read_log
from bfn.training.fitting import Result, fit, recipe_trainer, train
from bfn.training.settings import Settings, read_settings, recipe, recipes
from bfn.training.trainer import OneProcess, TrainingError

__all__ = [
    "CheckpointError", "OneProcess", "Result", "Settings", "TrainingError", "build_model", "default_settings", "fit",
    "load_with_network", "read_log", "read_settings", "recipe", "recipe_trainer",
    "recipes", "train",
]  # fmt: skip
