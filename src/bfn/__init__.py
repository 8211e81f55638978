"""Bayesian flow networks: train them, sample from them in a few network calls, and measure them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn import data, exact, interop, likelihood, networks, quality, solvers, tables, training, viz
    from bfn import kinds as heads
    from bfn.controls.guidance import Guidance, Steering
    from bfn.controls.particles import Particles
    from bfn.core import grids, losses, schedules
    from bfn.core.conditions import Classes, Condition, Lengths
    from bfn.core.control import Control
    from bfn.core.errors import NetworkError, UserError
    from bfn.core.flows import ContinuousFlow, DiscreteFlow, Flow
    from bfn.core.heads import Head
    from bfn.core.info import ModelInfo
    from bfn.core.joint import JointFlow
    from bfn.core.model import BFN, Model
    from bfn.core.samples import Samples
    from bfn.core.sampling import Request, Step, sample
    from bfn.core.schedules import ExponentialSchedule, LogarithmicSchedule, QuadraticSchedule, Schedule
    from bfn.kinds.schedules import TabulatedSchedule
    from bfn.quality import metrics
    from bfn.solvers import sde
    from bfn.solvers.sde import InitialGaussian
    from bfn.storage.models import load
    from bfn.storage.sample_files import sample_to
    from bfn.tables.synthesizer import TableSynthesizer
    from bfn.training import tuning
    from bfn.training.distillation import distill
    from bfn.training.fitting import fit

__version__ = "0.1.0"

# Names are imported when they are first used: importing torch takes a second, and `bfn --help` does not need it.
_MODULES = {
    "data": "data",
    "exact": "exact",
    "grids": "core.grids",
    "heads": "kinds",
    "interop": "interop",
    "likelihood": "likelihood",
    "losses": "core.losses",
    "metrics": "quality.metrics",
    "networks": "networks",
    "quality": "quality",
    "schedules": "kinds.schedules",
    "sde": "solvers.sde",
    "solvers": "solvers",
    "tables": "tables",
    "training": "training",
    "tuning": "training.tuning",
    "viz": "viz",
}
_NAMES = {
    "BFN": "core.model",
    "Classes": "core.conditions",
    "Condition": "core.conditions",
    "ContinuousFlow": "core.flows",
    "Control": "core.control",
    "DiscreteFlow": "core.flows",
    "ExponentialSchedule": "core.schedules",
    "Flow": "core.flows",
    "Guidance": "controls.guidance",
    "Head": "core.heads",
    "InitialGaussian": "solvers.sde",
    "JointFlow": "core.joint",
    "Lengths": "core.conditions",
    "LogarithmicSchedule": "core.schedules",
    "Model": "core.model",
    "ModelInfo": "core.info",
    "NetworkError": "core.errors",
    "Particles": "controls.particles",
    "QuadraticSchedule": "core.schedules",
    "Request": "core.sampling",
    "Samples": "core.samples",
    "Schedule": "core.schedules",
    "Steering": "controls.guidance",
    "Step": "core.sampling",
    "TableSynthesizer": "tables.synthesizer",
    "TabulatedSchedule": "kinds.schedules",
    "UserError": "core.errors",
    "distill": "training.distillation",
    "fit": "training.fitting",
    "load": "storage.models",
    "sample": "core.sampling",
    "sample_to": "storage.sample_files",
}

__all__ = [
    "BFN", "Classes", "Condition", "ContinuousFlow", "Control", "DiscreteFlow", "ExponentialSchedule", "Flow",
    "Guidance", "Head", "InitialGaussian", "JointFlow", "Lengths", "LogarithmicSchedule", "Model", "ModelInfo",
    "NetworkError", "Particles", "QuadraticSchedule", "Request", "Samples", "Schedule", "Steering", "Step",
    "TableSynthesizer", "TabulatedSchedule", "UserError", "data", "distill", "exact", "fit", "grids", "heads",
    "interop", "likelihood", "load", "losses", "metrics", "networks", "quality", "sample", "sample_to", "schedules",
    "sde", "solvers", "tables", "training", "tuning", "viz",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"bfn.{_MODULES[name]}")
    if name in _NAMES:
        return getattr(import_module(f"bfn.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'bfn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
