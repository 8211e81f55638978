"""How good samples are: measures of text and images, judges of a model's samples, and comparisons of samplers.

    judge = judge_for(model)                                   # what fits the model's data
    comparison = compare(model, crossed(model.flow, ["bfn", "auto"], [5, 10]), judge, n=200)
    print(comparison.markdown())

Every figure is a :class:`bfn.estimate.Estimate`, a value with its 95 % interval.
"""

from bfn.quality.classifier import classify, load_classifier
from bfn.quality.comparison import Comparison, compare, summarise
from bfn.quality.features import InceptionFeatures, gather_statistics
from bfn.quality.frechet import FeatureStatistics, Gaussian, frechet_distance, frechet_estimate
from bfn.quality.judge import Judge, JudgePart, Measure
from bfn.quality.judge_choice import METRICS, Metric, features_for, judge_for, metric_for
from bfn.quality.judge_parts import Frechet
from bfn.quality.markdown import markdown_table
from bfn.quality.measurements import Record, draw, measure
from bfn.quality.molecule_report import MoleculeReport, report_molecules
from bfn.quality.molecules import KnownMolecules, Molecules
from bfn.quality.ngrams import class_ngram_counts, divergence
from bfn.quality.settings import USUAL, Setting, crossed
from bfn.quality.spelling import spelling_accuracy, spelling_estimate
from bfn.quality.store import default_store
from bfn.quality.table_quality import TableQuality
from bfn.quality.table_report import TableReport, table_report

__all__ = [
    "METRICS",
    "USUAL",
    "Comparison",
    "FeatureStatistics",
    "Frechet",
    "Gaussian",
    "InceptionFeatures",
    "Judge",
    "JudgePart",
    "KnownMolecules",
    "Measure",
    "Metric",
    "MoleculeReport",
    "Molecules",
    "Record",
    "Setting",
    "TableQuality",
    "TableReport",
    "class_ngram_counts",
    "classify",
    "compare",
    "crossed",
    "default_store",
    "divergence",
    "draw",
    "features_for",
    "frechet_distance",
    "frechet_estimate",
    "gather_statistics",
    "judge_for",
    "load_classifier",
    "markdown_table",
    "measure",
    "metric_for",
    "report_molecules",
    "spelling_accuracy",
    "spelling_estimate",
    "summarise",
    "table_report",
]
