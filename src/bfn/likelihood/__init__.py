"""Likelihoods: how probable a model holds data to be, by the probability-flow ODE and by bounds."""

from bfn.likelihood.bounds import receiver_variance
from bfn.likelihood.evaluation import NFE, Divergence, Method, log_likelihood
from bfn.likelihood.ode import Dequantise
from bfn.likelihood.results import Likelihood

__all__ = [
    "NFE",
    "Dequantise",
    "Divergence",
    "Likelihood",
    "Method",
    "log_likelihood",
    "receiver_variance",
]
