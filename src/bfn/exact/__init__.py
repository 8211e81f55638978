"""Models with exact answers: posterior, samples and log-probability known to rounding.

With them anybody can see what a solver does: whatever is wrong with a sample is the solver's own error.
``Points`` and ``NGram`` carry real images and real text.
"""

from bfn.exact.base import DiscreteExactModel, ExactModel
from bfn.exact.bayesian_network import BayesianNetwork
from bfn.exact.chains import MarkovChain
from bfn.exact.circle import VonMisesMixture
from bfn.exact.gaussian import GaussianMixture
from bfn.exact.joint import JointMixture
from bfn.exact.ngram import NGram
from bfn.exact.points import Points
from bfn.exact.strings import MixtureOfProducts, ProductOfCategoricals, StringSet

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
