"""How good samples are: measures of text and images, judges of a model's samples, and comparisons of samplers.

    judge = judge_for(model)                                   # what fits the model's data
    comparison = compare(model, crossed(model.flow, ["bfn", "auto"], [5, 10]), judge, n=200)
    print(comparison.markdown())

Every figure is a :class:`bfn.estimate.Estimate`, a value with its 95 % interval.
"""

from bfn.quality.classifier import DigitClassifier, classify, load_classifier
from bfn.quality.comparison import Comparison, compare, summarise
from bfn.quality.features import InceptionFeatures, extract, gather_statistics, pooled_pixels
from bfn.quality.frechet import FeatureStatistics, Gaussian, expected_bias, frechet_distance, frechet_estimate
from bfn.quality.judge import Judge, JudgePart, Measure
from bfn.quality.judge_choice import METRICS, features_for, judge_for, metric_for
from bfn.quality.judge_parts import Digits, Frechet, NearCopies, NearestClasses, Texts
from bfn.quality.markdown import markdown_table
from bfn.quality.measurements import Drawn, Record, draw, identify, measure
from bfn.quality.ngrams import class_ngram_counts, divergence, jensen_shannon, ngram_counts
from bfn.quality.settings import USUAL, Setting, crossed
from bfn.quality.spelling import spelling_accuracy, spelling_estimate
from bfn.quality.store import default_store

__all__ = [
    "METRICS",
    "USUAL",
    "Comparison",
    "DigitClassifier",
    "Digits",
    "Drawn",
    "FeatureStatistics",
    "Frechet",
    "Gaussian",
    "InceptionFeatures",
    "Judge",
    "JudgePart",
    "Measure",
    "NearCopies",
    "NearestClasses",
    "Record",
    "Setting",
    "Texts",
    "class_ngram_counts",
    "classify",
    "compare",
    "crossed",
    "default_store",
    "divergence",
    "draw",
    "expected_bias",
    "extract",
    "features_for",
    "frechet_distance",
    "frechet_estimate",
    "gather_statistics",
    "identify",
    "jensen_shannon",
    "judge_for",
    "load_classifier",
    "markdown_table",
    "measure",
    "metric_for",
    "ngram_counts",
    "pooled_pixels",
    "spelling_accuracy",
    "spelling_estimate",
    "summarise",
]
