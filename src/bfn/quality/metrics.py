"""The measures that papers report, as plain functions of texts and features; ``bfn.quality`` judges models by them."""

from bfn.quality.frechet import frechet_distance
from bfn.quality.text import jensen_shannon, ngram_counts, spelling_accuracy

__all__ = ["frechet_distance", "jensen_shannon", "ngram_counts", "spelling_accuracy"]
