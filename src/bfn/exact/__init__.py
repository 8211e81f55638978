"""Models with exact answers: posterior, samples and log-probability known to rounding.

With them anybody can see what a solver does: whatever is wrong with a sample is the solver's own error.
``Points`` and ``NGram`` carry real images and real text.
"""

from bfn.exact.base import DiscreteExactModel, ExactModel, class_factor, draw_classes, restore_log_zero, safe_log
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture, Points, VonMisesMixture
from bfn.exact.strings import MarkovChain, MixtureOfProducts, NGram, ProductOfCategoricals, StringSet
from bfn.networks.ngram_counts import BackoffTables, count_backoff

__all__ = [
    "BackoffTables", "DiscreteExactModel", "ExactModel", "GaussianMixture", "JointMixture", "MarkovChain",
    "MixtureOfProducts", "NGram", "Points", "ProductOfCategoricals", "StringSet", "VonMisesMixture", "class_factor",
    "count_backoff", "draw_classes", "restore_log_zero", "safe_log",
]  # fmt: skip
