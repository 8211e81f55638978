"""Measures of synthetic rows of a table: two-sample tests, learned models, neighbours, and shapes of columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from torch import Tensor

from bfn._utils.arguments import require
from bfn._utils.estimate import LEVEL, Estimate, bootstrap_estimates, share_estimate
from bfn.core.errors import UserError, did_you_mean
from bfn.data.table_columns import CellType
from bfn.data.table_files import as_frame
from bfn.quality.features import nearest

Floats = NDArray[np.float64]

N_RESAMPLES = 200
"""Number of resamples of each bootstrap."""

Z = float(ndtri(0.5 + LEVEL / 2))
"""Quantile of the standard normal distribution for 95 % intervals."""


# --- rows as numbers --------------------------------------------------------------------------------------------------

MOST_TARGET_CLASSES = 10
"""A target of integers with at most this number of distinct values is predicted as classes."""


@dataclass(frozen=True)
class JudgedColumn:
    """A column of the real table.

    Attributes:
        name: name of the column.
        cells: how its numbers are read; None for categories.
        levels: the categories.
    """

    name: str
    cells: CellType | None = None
    levels: tuple[str, ...] = ()

    @classmethod
    def of(cls, series: Any) -> JudgedColumn:
        """Read the column. Numbers, times and durations are numbers; texts, categories and booleans are categories."""
        cells = CellType.of(series)
        if cells.kind in ("whole", "real", "time", "duration"):
            # Rows to judge need not be rounded.
            return cls(series.name, replace(cells, kind="real") if cells.kind == "whole" else cells)
        return cls(series.name, None, tuple(sorted(series.dropna().astype(str).unique())))

    @property
    def is_number(self) -> bool:
        """True if the values have an order and distances."""
        return self.cells is not None

    def values(self, series: Any) -> Floats:
        """Return numbers, or numbers of categories. Missing cells are NaN, and all unknown categories have one number.

        Args:
            series: a column of this name of any table.
        """
        if self.cells is not None:
            raw, missing = self.cells.raw(series)
            found: Floats = np.where(missing, np.nan, raw.astype(np.float64))
            return found
        numbers = {level: number for number, level in enumerate(self.levels)}
        known = series.astype(object).map(lambda value: numbers.get(str(value), len(numbers)))
        return np.where(series.isna(), np.nan, known.to_numpy(np.float64))


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """The columns of a real table and their ranges, which make other rows comparable with it.

    Attributes:
        columns: the columns that are judged.
        low, high: smallest and largest number of each column of the real table.
    """

    columns: tuple[JudgedColumn, ...]
    low: Floats
    high: Floats

    @classmethod
    def of(cls, table: Any) -> TableFeatures:
        """Read a real table, without columns that have no value."""
        table = as_frame(table)
        names = [name for name in table.columns if bool(table[name].notna().any())]
        if len(table) < 2 or not names:
            raise UserError(
                f"a table of {len(table)} rows and {len(names)} columns: expected at least 2 rows, 1 column"
            )
        columns = tuple(JudgedColumn.of(table[name]) for name in names)
        matrix = cls(columns, np.empty(0), np.empty(0)).matrix(table)
        return cls(columns, np.nanmin(matrix, 0), np.nanmax(matrix, 0))

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @property
    def is_number(self) -> NDArray[np.bool_]:
        """True for columns of numbers."""
        return np.array([column.is_number for column in self.columns])

    def place(self, name: str) -> int:
        """Return the index of a column by its name."""
        if name not in self.names:
            raise UserError(f"column {name!r}: expected one of {', '.join(self.names)}{did_you_mean(name, self.names)}")
        return self.names.index(name)

    def matrix(self, table: Any) -> Floats:
        """Return numbers and numbers of categories, (n, columns), with NaN for missing cells."""
        table = as_frame(table)
        absent = next((name for name in self.names if name not in table.columns), None)
        if absent is not None:
            raise UserError(f"column {absent!r}: the table to judge has {', '.join(table.columns)}; expected it too")
        if len(table) == 0:
            raise UserError("a table without rows: expected at least 1")
        return np.stack([column.values(table[column.name]) for column in self.columns], 1)

    def vectors(self, matrix: Floats) -> Tensor:
        """Return vectors for distances, (n, d): numbers scaled to [0, 1] over the real range, categories one-hot.

        A missing cell is a category of its own; a missing number is 0.5 beside it.
        """
        found = []
        for j, column in enumerate(self.columns):
            values, missing = matrix[:, j], np.isnan(matrix[:, j])
            if column.is_number:
                reach = self.high[j] - self.low[j] or 1.0
                scaled = np.where(missing, 0.5, (values - self.low[j]) / reach)
                found.append(np.stack([scaled, missing.astype(np.float64)], 1))
            else:
                numbers = np.where(missing, len(column.levels), values).astype(np.int64)
                found.append(np.eye(len(column.levels) + 1)[np.minimum(numbers, len(column.levels))])
        return torch.from_numpy(np.concatenate(found, 1))

    def is_class(self, j: int, matrix: Floats) -> bool:
        """Return True if column j is predicted as classes: categories, or few distinct integers."""
        values = matrix[~np.isnan(matrix[:, j]), j]
        few = len(np.unique(values)) <= MOST_TARGET_CLASSES and bool((values == np.rint(values)).all())
        return not self.columns[j].is_number or few


# --- boosted trees ----------------------------------------------------------------------------------------------------

FOLDS = 3
N_TREES = 100


def two_sample(features: TableFeatures, rows: Floats, real: Floats, generator: torch.Generator) -> Estimate:
    """Return the two-sample score 1 - 2 |AUC - 1/2| of trees that tell rows from real rows, with DeLong's interval.

    Both sets are reduced to the same size at random; the AUC is the mean over folds.
    """
    n = min(len(rows), len(real))
    halves = [matrix[torch.randperm(len(matrix), generator=generator)[:n].numpy()] for matrix in (rows, real)]
    x, y = np.concatenate(halves), np.repeat([0.0, 1.0], n)
    fold = np.tile(np.arange(n) % FOLDS, 2)
    kinds = _kinds(features)
    areas, variances = [], []
    for k in range(FOLDS):
        test = fold == k
        scores = _predictions(x[~test], y[~test], kinds, {"objective": "binary:logistic"}, x[test])
        area, variance = _area(scores[y[test] == 1], scores[y[test] == 0])
        areas.append(area)
        variances.append(variance)
    # Folds share training rows, so their errors are correlated: if the sets have the same distribution, the variance
    # of the mean is twice that of independent folds.
    area, reach = float(np.mean(areas)), Z * math.sqrt(2 * sum(variances)) / FOLDS
    value, low, high = (1 - 2 * abs(some - 0.5) for some in (area, area - reach, area + reach))
    # The interval reaches 1 if that of the area contains 1/2.
    return Estimate(value, min(low, high), 1.0 if abs(area - 0.5) <= reach else max(low, high)).within(0, 1)


def learned(
    features: TableFeatures, rows: Floats, held_out: Floats, target: int, as_classes: bool, generator: torch.Generator
) -> Estimate:
    """Return how well trees that were fitted to rows predict a column of held-out real rows from the others.

    Args:
        features: features of the table.
        rows: rows to fit to.
        held_out: real rows to predict.
        target: index of the column to predict.
        as_classes: whether it is predicted as classes.
        generator: source of the random numbers of the bootstrap over held-out rows.

    Returns:
        The AUC of classes (of several, the mean over each against the others), or R^2 of numbers.
    """
    rows, held_out = (matrix[~np.isnan(matrix[:, target])] for matrix in (rows, held_out))
    others = [j for j in range(rows.shape[1]) if j != target]
    kinds = [_kinds(features)[j] for j in others]
    x, y, x_test, y_test = rows[:, others], rows[:, target], held_out[:, others], held_out[:, target]
    if as_classes:
        return _learned_classes(x, y, x_test, y_test, kinds, generator)
    # Trees start from a mean; scaling makes the result independent of the unit.
    centre, scale = float(y.mean()), float(y.std()) or 1.0
    found = _predictions(x, (y - centre) / scale, kinds, {"objective": "reg:squarederror"}, x_test) * scale + centre

    def r_squared(index: Tensor) -> Tensor:
        own, errors = y_test[index.numpy()], (y_test - found)[index.numpy()]
        return torch.tensor([1 - float((errors**2).sum()) / max(float(((own - own.mean()) ** 2).sum()), 1e-300)])

    return _bootstrap(r_squared, len(y_test), generator).within(highest=1)


def _learned_classes(
    x: Floats, y: Floats, x_test: Floats, y_test: Floats, kinds: list[str], generator: torch.Generator
) -> Estimate:
    """Return the AUC of trees that were fitted to classes."""
    (classes, counts), known = np.unique(y_test, return_counts=True), np.unique(y)
    if len(classes) < 2:
        return Estimate(math.nan)
    if len(known) < 2:
        return Estimate(0.5, 0.5, 0.5)  # the rows have one class only, so nothing was learned
    labels = np.searchsorted(known, y).astype(np.float64)
    binary = len(known) == 2
    objective = {"objective": "binary:logistic"} if binary else {"objective": "multi:softprob", "num_class": len(known)}
    scores = _predictions(x, labels, kinds, objective, x_test)
    columns = {value: (scores if k else 1 - scores) if binary else scores[:, k] for k, value in enumerate(known)}
    if len(classes) == 2 and binary:
        area, variance = _area(*(columns.get(classes[1], scores * 0)[y_test == value] for value in classes[::-1]))
        reach = Z * math.sqrt(variance)
        return Estimate(area, area - reach, area + reach).within(0, 1)
    pairs = [(columns.get(value, np.zeros(len(y_test))), y_test == value) for value in classes[counts >= 2]]

    def mean_area(index: Tensor) -> Tensor:
        some = index.numpy()
        areas = [_area(s[some][of[some]], s[some][~of[some]])[0] for s, of in pairs if of[some].sum() > 0]
        return torch.tensor([np.mean(areas)])

    return _bootstrap(mean_area, len(y_test), generator).within(0, 1)


def _bootstrap(statistic: Callable[[Tensor], Tensor], n: int, generator: torch.Generator) -> Estimate:
    (figure,) = bootstrap_estimates(statistic, n, generator=generator, n_resamples=N_RESAMPLES)
    return figure


def _kinds(features: TableFeatures) -> list[str]:
    """Return the types of the columns as XGBoost names them: quantitative or categorical."""
    return ["q" if number else "c" for number in features.is_number]


def _predictions(x: Floats, y: Floats, kinds: list[str], objective: dict[str, Any], x_test: Floats) -> Floats:
    """Fit trees to (x, y) with XGBoost's defaults and seed 0, and return their predictions on x_test."""
    xgboost = require("xgboost", "to judge tables")
    settings = {"tree_method": "hist", "seed": 0, "nthread": torch.get_num_threads(), **objective}
    data = xgboost.QuantileDMatrix(x, y, feature_types=kinds, enable_categorical=True)
    trees = xgboost.train(settings, data, N_TREES)
    found = trees.predict(xgboost.DMatrix(x_test, feature_types=kinds, enable_categorical=True))
    result: Floats = found.astype(np.float64)
    return result


def _area(positive: NDArray[Any], negative: NDArray[Any]) -> tuple[float, float]:
    """Return the area under the ROC curve and its variance (DeLong et al., 1988)."""
    n, m = len(positive), len(negative)
    if not n or not m:
        return 0.5, 0.0
    ranks = rankdata(np.concatenate([positive, negative]))
    above = (ranks[:n] - rankdata(positive)) / m  # for each positive, the share of negatives below it
    below = 1 - (ranks[n:] - rankdata(negative)) / n
    variance = (above.var(ddof=1) / n if n > 1 else 0.0) + (below.var(ddof=1) / m if m > 1 else 0.0)
    return float(above.mean()), float(variance)


# --- neighbours -------------------------------------------------------------------------------------------------------

MOST_ROWS = 10_000
"""Maximum number of rows of each set whose neighbours are searched; larger sets are subsampled."""

SHARES = torch.linspace(0, 1, 31, dtype=torch.float64)[1:]
"""Values of alpha and beta."""

EQUAL = 1e-6
"""Distances that differ by less count as equal: they are roots of differences of float64 sums."""


def precision_and_recall(rows: Tensor, real: Tensor, generator: torch.Generator) -> dict[str, Estimate]:
    """Return alpha-precision and beta-recall (Alaa et al., 2022), each averaged over alpha or beta.

    - alpha_precision: a share alpha of the rows should lie in the ball around the real centre that holds a share alpha
      of the real rows; 1 - twice the mean gap.
    - beta_recall: a real row is covered if a row is nearer than the next real row, and if that row is within the share
      beta of such rows nearest to their centre; 1 - twice the mean gap.

    New real rows have alpha-precision 1, and a beta-recall near 1/2, since every other one is nearer than the next.

    Args:
        rows, real: vectors, (n, d); both sets are reduced to the same size.
        generator: source of the random numbers.
    """
    n = min(len(rows), len(real), MOST_ROWS)
    rows, real = subsample(rows, n, generator), subsample(real, n, generator)
    radii = _distances(real, real.mean(0)).quantile(SHARES)
    from_centre = _distances(rows, real.mean(0))

    def precision(index: Tensor) -> Tensor:
        return _coverage(from_centre[index], radii, len(index))

    to_real = nearest(real, real, 2)[0][:, 1]
    to_rows, which = (found.squeeze(1) for found in nearest(real, rows, 1))
    covered = to_rows <= to_real + EQUAL
    typical = _distances(rows[which], rows.mean(0))
    bounds = typical.quantile(SHARES)

    def recall(index: Tensor) -> Tensor:
        return _coverage(typical[index][covered[index]], bounds, len(index))

    # No coverage at all gives a figure slightly below 0, since the mean of SHARES is slightly above 1/2.
    alpha = _bootstrap(precision, len(rows), generator).within(0, 1)
    return {"alpha_precision": alpha, "beta_recall": _bootstrap(recall, len(real), generator).within(0, 1)}


def _coverage(distances: Tensor, bounds: Tensor, n: int) -> Tensor:
    """Return 1 - twice the mean gap between the shares of n that are within each bound and :data:`SHARES`, (1,)."""
    within = torch.searchsorted(distances.sort().values, bounds, right=True) / n
    return (1 - 2 * (within - SHARES).abs().mean())[None]


def nearer_to_training(rows: Tensor, train: Tensor, held_out: Tensor, generator: torch.Generator) -> Estimate:
    """Return the share of rows that are nearer to a training row than to any held-out row; ties count as one half.

    It is 1/2 if nothing was memorised. All rows next to the same real row depend on whether that row is a training row,
    so the interval treats them as one cluster.

    Args:
        rows, train, held_out: vectors, (n, d); training rows are subsampled to the number of held-out rows, or the
            other way round.
        generator: source of the random numbers.
    """
    n = min(len(train), len(held_out), MOST_ROWS)
    rows, train, held_out = (
        subsample(some, most, generator) for some, most in ((rows, MOST_ROWS), (train, n), (held_out, n))
    )
    (to_train, of_train), (to_held_out, of_held_out) = (nearest(rows, real, 1) for real in (train, held_out))
    gap = (to_held_out - to_train).squeeze(1)
    value = torch.where(gap.abs() <= EQUAL, 0.5, (gap > 0).double())
    share = float(value.mean())
    neighbour = torch.where(gap >= 0, of_train.squeeze(1), n + of_held_out.squeeze(1))
    clusters = torch.zeros(2 * n, dtype=torch.float64).index_add_(0, neighbour, value - share)
    reach = Z * math.sqrt(float(clusters.square().sum())) / len(rows)
    return Estimate(share, share - reach, share + reach).within(0, 1)


def copies(rows: Floats, train: Floats) -> Estimate:
    """Return the share of rows that are equal to a training row in every cell."""
    rows, train = (np.ascontiguousarray(matrix + 0.0) for matrix in (rows, train))  # turns -0.0 into 0.0
    known = {row.tobytes() for row in train}
    return share_estimate(sum(row.tobytes() in known for row in rows), len(rows))


def subsample(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return at most that number of rows, chosen at random."""
    return x if len(x) <= most else x[torch.randperm(len(x), generator=generator)[:most]]


def _distances(x: Tensor, centre: Tensor) -> Tensor:
    return (x - centre).square().sum(1).sqrt()


# --- shapes of columns and trends of pairs ----------------------------------------------------------------------------

PIECES = 10
"""Number of bins of numbers in tables of two columns."""

MOST_BINS = 1_000_003
"""Number above that of all bins of a column, which makes one number of two."""


class ShapesAndTrends:
    """Similarity of the columns, and of the pairs of columns, of rows and of a real table.

    The shape of a column is 1 - the distance of its two distributions: Kolmogorov-Smirnov for numbers, total variation
    for categories. The trend of a pair is 1 - half the difference of correlations for two numbers, and 1 - the total
    variation of the joint distribution otherwise.

    Args:
        features: features of the table.
        rows, real: matrices, as ``features.matrix`` returns them.
    """

    def __init__(self, features: TableFeatures, rows: Floats, real: Floats) -> None:
        self.features, self.n = features, len(rows)
        numbers = features.is_number
        self.pairs = list(combinations(range(len(features.columns)), 2))
        self._of_numbers = np.array([bool(numbers[i] and numbers[j]) for i, j in self.pairs], dtype=bool)
        self._columns = [_Counts(rows[:, j], real[:, j], by_rank=bool(numbers[j])) for j in range(len(numbers))]
        own, others = (self._bins(matrix, real) for matrix in (rows, real))
        self._tables = {
            (i, j): _Counts(own[:, i] * MOST_BINS + own[:, j], others[:, i] * MOST_BINS + others[:, j], by_rank=False)
            for (i, j), of_numbers in zip(self.pairs, self._of_numbers, strict=True)
            if not of_numbers
        }
        self._index = {int(place): k for k, place in enumerate(np.flatnonzero(numbers))}
        self._moments = _Moments(rows[:, numbers])
        self._real_correlations = _Moments(real[:, numbers]).correlations(np.ones(len(real)))

    def shapes(self, weights: Floats) -> Floats:
        """Return the shape of each column, where row i counts weights[i] times; NaN if it has no values."""
        return np.array([1 - column.distance(weights) for column in self._columns])

    def trends(self, weights: Floats) -> Floats:
        """Return the trend of each of ``pairs``; NaN if a number does not vary."""
        differences = 1 - np.abs(self._moments.correlations(weights) - self._real_correlations) / 2
        found = [
            differences[self._index[i], self._index[j]] if of_numbers else 1 - self._tables[i, j].distance(weights)
            for (i, j), of_numbers in zip(self.pairs, self._of_numbers, strict=True)
        ]
        return np.array(found)

    def estimates(self, generator: torch.Generator, n_resamples: int = N_RESAMPLES) -> dict[str, Estimate]:
        """Return the means ``shape`` and, if there are several columns, ``trend``, with bootstrap intervals."""
        with_trend = bool(self.pairs) and not bool(np.isnan(self.trends(np.ones(self.n))).all())

        def both(index: Tensor) -> Tensor:
            weights = np.bincount(index.numpy(), minlength=self.n).astype(np.float64)
            trend = [np.nanmean(self.trends(weights))] if with_trend else []
            return torch.tensor([np.nanmean(self.shapes(weights)), *trend], dtype=torch.float64)

        found = bootstrap_estimates(both, self.n, generator=generator, n_resamples=n_resamples)
        return dict(zip(("shape", "trend"), [figure.within(0, 1) for figure in found], strict=False))

    def _bins(self, matrix: Floats, real: Floats) -> NDArray[np.int64]:
        """Return numbers of categories, and of ten bins of numbers, with one more number for missing cells."""
        found = np.empty(matrix.shape, np.int64)
        for j, column in enumerate(self.features.columns):
            values, missing = matrix[:, j], np.isnan(matrix[:, j])
            if column.is_number:
                edges = np.histogram_bin_edges(real[~np.isnan(real[:, j]), j], PIECES)
                values = np.searchsorted(edges[1:-1], values, side="right").astype(np.float64)
            found[:, j] = np.where(missing, max(len(column.levels) + 1, PIECES), values)
        return found


class _Counts:
    """Distance of two distributions of values: Kolmogorov-Smirnov, or total variation.

    NaN stands for a missing cell, which is not counted.
    """

    def __init__(self, rows: NDArray[Any], real: NDArray[Any], by_rank: bool) -> None:
        self.present, self.by_rank, real = ~np.isnan(rows), by_rank, real[~np.isnan(real)]
        both = np.unique(np.concatenate([rows[self.present], real]))
        counts = np.bincount(np.searchsorted(both, real), minlength=len(both))
        self.place, self.real = np.searchsorted(both, rows[self.present]), counts / max(counts.sum(), 1)

    def distance(self, weights: Floats) -> float:
        """Return the distance, where row i counts weights[i] times; NaN if a side has no values."""
        counts = np.bincount(self.place, weights[self.present], minlength=len(self.real))
        if counts.sum() == 0 or self.real.sum() == 0:
            return float("nan")
        gap = counts / counts.sum() - self.real
        return float(np.abs(np.cumsum(gap)).max() if self.by_rank else np.abs(gap).sum() / 2)


class _Moments:
    """Correlations of all pairs of columns over the rows that have both."""

    def __init__(self, x: Floats) -> None:
        self.present = (~np.isnan(x)).astype(np.float64)
        centre = np.nanmean(x, 0) if len(x) and x.shape[1] else np.zeros(x.shape[1])
        scale = np.nanstd(x, 0) if len(x) and x.shape[1] else np.ones(x.shape[1])
        self.x = np.where(np.isnan(x), 0.0, (x - centre) / np.where(scale > 0, scale, 1.0))

    def correlations(self, weights: Floats) -> Floats:
        """Return the correlations, (k, k), where row i counts weights[i] times; NaN if one of a pair does not vary."""
        present, x = self.present * weights[:, None], self.x * weights[:, None]
        n = present.T @ self.present
        with np.errstate(divide="ignore", invalid="ignore"):
            mean_i, mean_j = (x.T @ self.present) / n, (present.T @ self.x) / n
            var_i = ((self.x * x).T @ self.present) / n - mean_i**2
            var_j = (present.T @ self.x**2) / n - mean_j**2
            varies = (var_i > 1e-12) & (var_j > 1e-12)
            found: Floats = np.where(varies, ((x.T @ self.x) / n - mean_i * mean_j) / np.sqrt(var_i * var_j), np.nan)
        return found
