"""How good samples are: measures of text and images, judges of a model's samples, and comparisons of samplers.

    judge = judge_for(model)                                   # what fits the model's data
    comparison = compare(model, crossed(model.flow, ["bfn", "auto"], [5, 10]), judge, n=200)
    print(comparison.markdown())

Every figure is a :class:`bfn._utils.estimate.Estimate`, a value with its 95 % interval.
"""

from bfn.quality.comparison import Comparison, compare, markdown_table, summarise
from bfn.quality.features import InceptionFeatures, classify, gather_statistics, load_classifier
from bfn.quality.frechet import FeatureStatistics, Gaussian, frechet_distance, frechet_estimate
from bfn.quality.judge import Frechet, Judge, JudgePart, Measure
from bfn.quality.judge_choice import METRICS, Metric, features_for, judge_for, metric_for
from bfn.quality.measurements import USUAL, Record, Setting, crossed, default_store, draw, measure
from bfn.quality.molecule_report import MoleculeReport, report_molecules
from bfn.quality.molecules import KnownMolecules, Molecules
from bfn.quality.table_report import TableQuality, TableReport, table_report
from bfn.quality.text import class_ngram_counts, divergence, spelling_accuracy, spelling_estimate

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
