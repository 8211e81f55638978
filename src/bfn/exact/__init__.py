"""Models with exact answers: posterior, samples and log-probability known to rounding.

With them anybody can see what a solver does: whatever is wrong with a sample is the solver's own error.
``Points`` and ``NGram`` carry real images and real text.
"""

from bfn.exact.base import DiscreteExactModel, ExactModel
from bfn.exact.bayesian_network import BayesianNetwork
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture, Points, VonMisesMixture
from bfn.exact.strings import MarkovChain, MixtureOfProducts, NGram, ProductOfCategoricals, StringSet

__all__ = [
    "BayesianNetwork",
    "DiscreteExactModel",
    "ExactModel",
    "GaussianMixture",
    "JointMixture",
    "MarkovChain",
    "MixtureOfProducts",
    "NGram",
    "Points",
    "ProductOfCategoricals",
    "StringSet",
    "VonMisesMixture",
]
