"""Quality of samples: metrics, judges of a model's samples, and comparisons of samplers.

    judge = judge_for(model)                                   # the judge that fits the model's data
    comparison = compare(model, crossed(model.flow, ["bfn", "auto"], [5, 10]), judge, n=200)
    print(comparison.markdown())

Every figure is an ``Estimate``, a value with its 95 % interval.
"""

from bfn._utils.estimate import Estimate, bootstrap_estimates, mean_estimate, share_estimate
from bfn.quality.comparison import (
    USUAL,
    Comparison,
    Record,
    Setting,
    compare,
    crossed,
    default_store,
    draw,
    markdown_table,
    measure,
    pool,
    summarise,
)
from bfn.quality.features import cached_statistics, check_finite, classify, extract, load_classifier
from bfn.quality.frechet import FeatureStatistics, Gaussian, expected_bias, frechet_distance, frechet_estimate
from bfn.quality.judge import Judge, JudgePart, Measure, ReferenceData, read_images, read_texts
from bfn.quality.judge_choice import (
    METRICS,
    Frechet,
    Metric,
    as_classes,
    as_values,
    features_for,
    judge_for,
    metric_for,
    near_copies,
    parts_with_classes,
    read_vectors,
    text_parts,
)
from bfn.quality.metrics import class_ngram_counts, divergence, spelling_accuracy, spelling_estimate
from bfn.quality.molecules import KnownMolecules, MoleculeReport, Molecules, is_of_molecules, report_molecules
from bfn.quality.table_report import TableQuality, TableReport, table_report

__all__ = [
    "METRICS", "USUAL", "Comparison", "Estimate", "FeatureStatistics", "Frechet", "Gaussian", "Judge", "JudgePart",
    "KnownMolecules", "Measure", "Metric", "MoleculeReport", "Molecules", "Record", "ReferenceData", "Setting",
    "TableQuality", "TableReport", "as_classes", "as_values", "bootstrap_estimates", "cached_statistics",
    "check_finite", "class_ngram_counts", "classify", "compare", "crossed", "default_store", "divergence", "draw",
    "expected_bias", "extract", "features_for", "frechet_distance", "frechet_estimate", "is_of_molecules",
    "judge_for", "load_classifier", "markdown_table", "mean_estimate", "measure", "metric_for", "near_copies",
    "parts_with_classes", "pool", "read_images", "read_texts", "read_vectors", "report_molecules", "share_estimate",
    "spelling_accuracy", "spelling_estimate", "summarise", "table_report", "text_parts",
]  # fmt: skip
