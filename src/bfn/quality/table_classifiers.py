"""What gradient-boosted trees make of rows: whether they are told from real ones, and what is learned from them.

Two-sample score: 1 - 2 |AUC - 1/2| of trees (XGBoost, with its own defaults) that tell rows from as many real ones,
each row by trees that have not seen it. 1: not told apart, as real rows are; 0: every row is told.

Train on synthetic, test on real: trees learn a column from the others on the rows that are judged and predict it on
held-out real rows; the AUC of classes, R^2 of numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri  # type: ignore[import-untyped]
from scipy.stats import rankdata  # type: ignore[import-untyped]
from torch import Tensor

from bfn.data.optional_packages import require
from bfn.estimate import LEVEL, Estimate, bootstrap_estimates
from bfn.quality.table_features import Floats, TableFeatures

__all__ = ["learned", "two_sample"]

FOLDS = 3
N_TREES = 100
N_RESAMPLES = 200
_Z = float(ndtri(0.5 + LEVEL / 2))


def two_sample(features: TableFeatures, rows: Floats, real: Floats, generator: torch.Generator) -> Estimate:
    """The two-sample score of as many rows as there are of both, chosen at random; DeLong's interval of the AUC."""
    n = min(len(rows), len(real))
    chosen = [matrix[torch.randperm(len(matrix), generator=generator)[:n].numpy()] for matrix in (rows, real)]
    x, y = np.concatenate(chosen), np.repeat([0.0, 1.0], n)
    fold = np.tile(np.arange(n) % FOLDS, 2)
    kinds = _kinds(features)
    areas, variances = [], []
    for k in range(FOLDS):
        test = fold == k
        scores = _fitted(x[~test], y[~test], kinds, {"objective": "binary:logistic"}, x[test])
        area, variance = _area(scores[y[test] == 1], scores[y[test] == 0])
        areas.append(area)
        variances.append(variance)
    # What two folds have in common by chance shows in the area of both, so that folds do not err on their own: where
    # nothing is to be told the variance of their mean is twice that of as many independent ones.
    area, reach = float(np.mean(areas)), _Z * math.sqrt(2 * sum(variances)) / FOLDS
    return _score_of_area(area, area - reach, area + reach)


def _score_of_area(area: float, low: float, high: float) -> Estimate:
    """1 - 2 |area - 1/2| with its interval; where that of the area has 1/2 in it, the score may be 1."""
    value, ends = 1 - 2 * abs(area - 0.5), sorted(1 - 2 * abs(end - 0.5) for end in (low, high))
    return Estimate(value, ends[0], 1.0 if low <= 0.5 <= high else ends[1]).within(0, 1)


def learned(
    features: TableFeatures, rows: Floats, held_out: Floats, target: int, as_classes: bool, generator: torch.Generator
) -> Estimate:
    """What trees learn of column ``target`` from the others on rows, as they predict it on held-out real rows.

    The AUC of classes (of several, the mean over each against the others), R^2 of numbers; intervals by the bootstrap
    over the held-out rows.
    """
    rows, held_out = (matrix[~np.isnan(matrix[:, target])] for matrix in (rows, held_out))
    others = [j for j in range(rows.shape[1]) if j != target]
    kinds = [_kinds(features)[j] for j in others]
    x, y, x_test, y_test = rows[:, others], rows[:, target], held_out[:, others], held_out[:, target]
    if not as_classes:
        # Trees start from a mean; numbers of any size come out alike.
        centre, scale = float(y.mean()), float(y.std()) or 1.0
        found = _fitted(x, (y - centre) / scale, kinds, {"objective": "reg:squarederror"}, x_test) * scale + centre
        return _explained(found, y_test, generator)
    classes, counts = np.unique(y_test, return_counts=True)
    seen = np.unique(y)
    if len(classes) < 2:
        return Estimate(math.nan)
    if len(seen) < 2:
        return Estimate(0.5, 0.5, 0.5)  # nothing was learned
    labels = np.searchsorted(seen, y).astype(np.float64)
    binary = len(seen) == 2
    objective = {"objective": "binary:logistic"} if binary else {"objective": "multi:softprob", "num_class": len(seen)}
    scores = _fitted(x, labels, kinds, objective, x_test)
    columns = {value: (scores if k else 1 - scores) if binary else scores[:, k] for k, value in enumerate(seen)}
    if len(classes) == 2 and binary:
        area, variance = _area(*(columns.get(classes[1], scores * 0)[y_test == value] for value in classes[::-1]))
        reach = _Z * math.sqrt(variance)
        return Estimate(area, area - reach, area + reach).within(0, 1)
    pairs = [(columns.get(value, np.zeros(len(y_test))), y_test == value) for value in classes[counts >= 2]]

    def mean_area(index: Tensor) -> Tensor:
        chosen = index.numpy()
        areas = [_area(s[chosen][of[chosen]], s[chosen][~of[chosen]])[0] for s, of in pairs if of[chosen].sum() > 0]
        return torch.tensor([np.mean(areas)])

    (figure,) = bootstrap_estimates(mean_area, len(y_test), generator=generator, n_resamples=N_RESAMPLES)
    return figure.within(0, 1)


def _explained(found: Floats, y: Floats, generator: torch.Generator) -> Estimate:
    """R^2."""

    def statistic(index: Tensor) -> Tensor:
        own, errors = y[index.numpy()], (y - found)[index.numpy()]
        return torch.tensor([1 - float((errors**2).sum()) / max(float(((own - own.mean()) ** 2).sum()), 1e-300)])

    (figure,) = bootstrap_estimates(statistic, len(y), generator=generator, n_resamples=N_RESAMPLES)
    return figure.within(highest=1)


def _kinds(features: TableFeatures) -> list[str]:
    return ["q" if number else "c" for number in features.is_number]


def _fitted(x: Floats, y: Floats, kinds: list[str], objective: dict[str, Any], x_test: Floats) -> Floats:
    """Predictions on x_test of trees that were fitted to (x, y); XGBoost's defaults, seeded 0."""
    xgboost = require("xgboost", "to judge tables")
    settings = {"tree_method": "hist", "seed": 0, "nthread": torch.get_num_threads(), **objective}
    data = xgboost.QuantileDMatrix(x, y, feature_types=kinds, enable_categorical=True)
    trees = xgboost.train(settings, data, N_TREES)
    found = trees.predict(xgboost.DMatrix(x_test, feature_types=kinds, enable_categorical=True))
    result: Floats = found.astype(np.float64)
    return result


def _area(positive: NDArray[Any], negative: NDArray[Any]) -> tuple[float, float]:
    """The area under the ROC curve and its variance (DeLong et al., 1988)."""
    n, m = len(positive), len(negative)
    if not n or not m:
        return 0.5, 0.0
    ranks = rankdata(np.concatenate([positive, negative]))
    above = (ranks[:n] - rankdata(positive)) / m  # of each positive: the share of negatives below it
    below = 1 - (ranks[n:] - rankdata(negative)) / n
    variance = (above.var(ddof=1) / n if n > 1 else 0.0) + (below.var(ddof=1) / m if m > 1 else 0.0)
    return float(above.mean()), float(variance)
