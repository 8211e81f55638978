"""Bayesian flow networks: train them, sample from them in a handful of network calls, measure them, learn from them."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfn import (
        data,
        exact,
        grids,
        heads,
        interop,
        likelihood,
        losses,
        metrics,
        networks,
        quality,
        sde,
        solvers,
        tuning,
        viz,
    )
    from bfn.conditions import Condition
    from bfn.controls.guidance import Guidance
    from bfn.controls.particles import Particles
    from bfn.controls.steering import Steering
    from bfn.distilling import distill
    from bfn.errors import NetworkError, UserError
    from bfn.flows import ContinuousFlow, DiscreteFlow, Flow
    from bfn.heads import Head
    from bfn.info import Classes, ModelInfo
    from bfn.joint import JointFlow
    from bfn.model import BFN, Model, load
    from bfn.presence import Lengths
    from bfn.sampling import Samples, Step, sample
    from bfn.schedules import (
        ExponentialSchedule,
        LogarithmicSchedule,
        QuadraticSchedule,
        Schedule,
        TabulatedSchedule,
    )
    from bfn.sde import InitialGaussian
    from bfn.tables import TableSynthesizer
    from bfn.training import fit

__version__ = "0.1.0"

# Names are imported when first asked for: torch takes seconds to import, and `bfn --help` should not.
_MODULES = {module.name for module in iter_modules(__path__) if not module.name.startswith("_")}
_NAMES = {
    "BFN": "model",
    "Classes": "info",
    "Condition": "conditions",
    "ContinuousFlow": "flows",
    "DiscreteFlow": "flows",
    "ExponentialSchedule": "schedules",
    "Flow": "flows",
    "Guidance": "controls.guidance",
    "Head": "heads",
    "InitialGaussian": "sde",
    "JointFlow": "joint",
    "Lengths": "presence",
    "LogarithmicSchedule": "schedules",
    "Model": "model",
    "ModelInfo": "info",
    "NetworkError": "errors",
    "Particles": "controls.particles",
    "QuadraticSchedule": "schedules",
    "Samples": "core.sampling",
    "Schedule": "schedules",
    "Steering": "controls.steering",
    "Step": "core.sampling",
    "TableSynthesizer": "tables",
    "TabulatedSchedule": "schedules",
    "UserError": "errors",
    "distill": "distilling",
    "fit": "training",
    "load": "model",
    "sample": "core.sampling",
}

__all__ = [
    "BFN",
    "Classes",
    "Condition",
    "ContinuousFlow",
    "DiscreteFlow",
    "ExponentialSchedule",
    "Flow",
    "Guidance",
    "Head",
    "InitialGaussian",
    "JointFlow",
    "Lengths",
    "LogarithmicSchedule",
    "Model",
    "ModelInfo",
    "NetworkError",
    "Particles",
    "QuadraticSchedule",
    "Samples",
    "Schedule",
    "Steering",
    "Step",
    "TableSynthesizer",
    "TabulatedSchedule",
    "UserError",
    "data",
    "distill",
    "exact",
    "fit",
    "grids",
    "heads",
    "interop",
    "likelihood",
    "load",
    "losses",
    "metrics",
    "networks",
    "quality",
    "sample",
    "sde",
    "solvers",
    "tuning",
    "viz",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"bfn.{name}")
    if name in _NAMES:
        return getattr(import_module(f"bfn.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'bfn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
