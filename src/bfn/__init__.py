"""Bayesian flow networks: train them, sample from them in a handful of network calls, measure them, learn from them."""

from bfn import grids, heads, losses, sde, solvers
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow
from bfn.heads import Head
from bfn.model import BFN, Model
from bfn.sampling import CallbackStep as Step
from bfn.sampling import InitialGaussian, NetworkError, Samples, sample
from bfn.schedules import ExponentialSchedule, QuadraticSchedule, Schedule

__version__ = "0.1.0"

__all__ = [
    "BFN",
    "ContinuousFlow",
    "DiscreteFlow",
    "ExponentialSchedule",
    "Flow",
    "Head",
    "InitialGaussian",
    "Model",
    "NetworkError",
    "QuadraticSchedule",
    "Samples",
    "Schedule",
    "Step",
    "grids",
    "heads",
    "losses",
    "sample",
    "sde",
    "solvers",
]
