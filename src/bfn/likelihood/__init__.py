"""Likelihoods: how probable a model holds data to be, by the probability-flow ODE and by bounds, in nats and bits."""

from bfn.likelihood.bits import Likelihood, bits_estimate, bits_parts, held_out_bits
from bfn.likelihood.bounds import receiver_variance
from bfn.likelihood.likelihood import log_likelihood
from bfn.likelihood.ode import NFE, Dequantise, Divergence, Method

__all__ = [
    "NFE",
    "Dequantise",
    "Divergence",
    "Likelihood",
    "Method",
    "bits_estimate",
    "bits_parts",
    "held_out_bits",
    "log_likelihood",
    "receiver_variance",
]
