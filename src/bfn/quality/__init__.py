"""Measures of samples and models: spelling and n-grams of text, Frechet distance of images, bits, intervals.

They know nothing of flows: they take texts, images, features, or nats of each sample.
"""

from bfn.quality.bits import BitsReport, Estimate, bits_report, mean_and_error, nats_to_bits
from bfn.quality.classifier import (
    DigitClassifier,
    DigitReport,
    classify,
    digit_report,
    load_classifier,
    save_classifier,
    train_classifier,
)
from bfn.quality.features import (
    InceptionFeatures,
    cached_statistics,
    extract,
    gather_statistics,
    mnist_features,
)
from bfn.quality.frechet import (
    FeatureStatistics,
    FrechetResult,
    expected_bias,
    frechet_distance,
    frechet_influence,
    frechet_result,
)
from bfn.quality.intervals import (
    Interval,
    bootstrap_interval,
    bootstrap_intervals,
    normal_quantile,
    t_interval,
    wilson_interval,
)
from bfn.quality.ngrams import (
    Bag,
    TextReference,
    TextReport,
    TextStatistics,
    character_ngrams,
    entropy,
    jensen_shannon,
    ngram_counts,
    text_report,
    word_counts,
)
from bfn.quality.spelling import SpellingResult, is_word, spelling_accuracy, spelling_result

__all__ = [
    "Bag",
    "BitsReport",
    "DigitClassifier",
    "DigitReport",
    "Estimate",
    "FeatureStatistics",
    "FrechetResult",
    "InceptionFeatures",
    "Interval",
    "SpellingResult",
    "TextReference",
    "TextReport",
    "TextStatistics",
    "bits_report",
    "bootstrap_interval",
    "bootstrap_intervals",
    "cached_statistics",
    "character_ngrams",
    "classify",
    "digit_report",
    "entropy",
    "expected_bias",
    "extract",
    "frechet_distance",
    "frechet_influence",
    "frechet_result",
    "gather_statistics",
    "is_word",
    "jensen_shannon",
    "load_classifier",
    "mean_and_error",
    "mnist_features",
    "nats_to_bits",
    "ngram_counts",
    "normal_quantile",
    "save_classifier",
    "spelling_accuracy",
    "spelling_result",
    "t_interval",
    "text_report",
    "train_classifier",
    "wilson_interval",
    "word_counts",
]
