"""Training: settings, recipes, and a loop that can be killed at any moment and goes on where it was."""

from bfn.training.building import build_model, default_settings
from bfn.training.checkpoints import CheckpointError, read_log
from bfn.training.fitting import fit
from bfn.training.loop import Result, train
from bfn.training.own_networks import load_with_network
from bfn.training.settings import Settings, read_settings, recipe, recipes
from bfn.training.trainer import TrainingError

__all__ = [
    "CheckpointError",
    "Result",
    "Settings",
    "TrainingError",
    "build_model",
    "default_settings",
    "fit",
    "load_with_network",
    "read_log",
    "read_settings",
    "recipe",
    "recipes",
    "train",
]
