"""Rows of a table as plain numbers: what the measures of tables are taken on."""

from __future__ import annotations

import math
from collections.abc import Collection
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
from bfn.quality.frechet import nearest

Floats = NDArray[np.float64]
MOST_TARGET_CLASSES = 10
"""Whole numbers of so many different values, to be predicted, are classes."""


@dataclass(frozen=True)
class JudgedColumn:
    """A column as the real table has it. cells: how its numbers are read; None for a category, which has levels."""

    name: str
    cells: CellType | None = None
    levels: tuple[str, ...] = ()

    @classmethod
    def of(cls, series: Any) -> JudgedColumn:
        """Numbers, times and durations are numbers; texts, categories and truth values are categories."""
        cells = CellType.of(series)
        if cells.kind in ("whole", "real"):
            return cls(series.name, replace(cells, kind="real"))  # a judge also takes rows that are not rounded
        if cells.kind in ("time", "duration"):
            return cls(series.name, cells)
        return cls(series.name, None, tuple(sorted(series.dropna().astype(str).unique())))

    @property
    def is_number(self) -> bool:
        """Whether it has an order and distances."""
        return self.cells is not None

    def values(self, series: Any) -> Floats:
        """Numbers, or the places of levels; NaN where a cell is missing. Levels that are not known share one place."""
        if self.cells is not None:
            raw, missing = self.cells.raw(series)
            found: Floats = np.where(missing, np.nan, raw.astype(np.float64))
            return found
        missing = series.isna().to_numpy(dtype=bool)
        places = {level: float(place) for place, level in enumerate(self.levels)}
        values = np.full(len(series), np.nan)
        values[~missing] = [places.get(str(value), len(self.levels)) for value in series[~missing].tolist()]
        return values


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """The columns of a real table, and its range: what makes other rows comparable with it.

    columns: those that are judged. low, high: the least and the largest number of each, over the real table.
    """

    columns: tuple[JudgedColumn, ...]
    low: Floats
    high: Floats

    @classmethod
    def of(cls, table: Any, leave_out: Collection[str] = ()) -> TableFeatures:
        """Of a real table; columns without a single value are left out, as are those that are named."""
        table = as_frame(table)
        names = [name for name in table.columns if name not in leave_out and bool(table[name].notna().any())]
        if len(table) < 2 or not names:
            raise UserError(
                f"a table of {len(table)} rows and {len(names)} columns: expected at least 2 rows, 1 column"
            )
        columns = tuple(JudgedColumn.of(table[name]) for name in names)
        matrix = cls(columns, np.empty(0), np.empty(0)).matrix(table)
        return cls(columns, np.nanmin(matrix, 0), np.nanmax(matrix, 0))

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [column.name for column in self.columns]

    @property
    def is_number(self) -> NDArray[np.bool_]:
        """Of each column, whether it is a number."""
        return np.array([column.is_number for column in self.columns])

    def place(self, name: str) -> int:
        """The place of a column among those judged."""
        if name not in self.names:
            raise UserError(f"column {name!r}: expected one of {', '.join(self.names)}{did_you_mean(name, self.names)}")
        return self.names.index(name)

    def matrix(self, table: Any) -> Floats:
        """(n, columns) numbers and places of levels, NaN for missing cells."""
        table = as_frame(table)
        absent = next((name for name in self.names if name not in table.columns), None)
        if absent is not None:
            raise UserError(f"column {absent!r}: the table to judge has {', '.join(table.columns)}; expected it too")
        if len(table) == 0:
            raise UserError("a table without rows: expected at least 1")
        return np.stack([column.values(table[column.name]) for column in self.columns], 1)

    def vectors(self, matrix: Floats) -> Tensor:
        """(n, d) for distances: numbers over the real range as [0, 1], each level and "missing" a place with 1."""
        found = []
        for j, column in enumerate(self.columns):
            values, missing = matrix[:, j], np.isnan(matrix[:, j])
            if column.is_number:
                reach = self.high[j] - self.low[j] or 1.0
                scaled = np.where(missing, 0.5, (values - self.low[j]) / reach)
                found.append(np.stack([scaled, missing.astype(np.float64)], 1))
            else:
                places = np.where(missing, len(column.levels), values).astype(np.int64)
                found.append(np.eye(len(column.levels) + 1)[np.minimum(places, len(column.levels))])
        return torch.from_numpy(np.concatenate(found, 1))

    def is_class(self, j: int, matrix: Floats) -> bool:
        """Whether column j of the real table is to be predicted as classes: a category, or a few whole numbers."""
        values = matrix[~np.isnan(matrix[:, j]), j]
        few = len(np.unique(values)) <= MOST_TARGET_CLASSES and bool((values == np.rint(values)).all())
        return not self.columns[j].is_number or few


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


MOST_ROWS = 10_000
"""Rows, of each kind, whose neighbours are looked for; of more, so many are chosen at random."""
N_RESAMPLES_TABLE_NEIGHBOURS = 200
SHARES = torch.linspace(0, 1, 31, dtype=torch.float64)[1:]
"""alpha and beta."""
EQUAL = 1e-6
"""Distances that differ by less are the same: they are roots of differences of sums in double precision."""


def precision_and_recall(rows: Tensor, real: Tensor, generator: torch.Generator) -> dict[str, Estimate]:
    """alpha-precision and beta-recall, each as one figure over all alpha or beta (Alaa et al., 2022).

    alpha_precision: rows within the ball around the real centre that holds a share alpha of the real rows should be a
    share alpha of all; 1 - twice the mean gap. beta_recall: real rows that have a row nearer than the next real one,
    that row being within the share beta of such rows nearest to their centre; 1 - twice the mean gap. New real rows
    have alpha-precision 1, and a beta-recall near 1/2, since every other one is nearer than the next; as many are taken
    of both.
    """
    n = min(len(rows), len(real), MOST_ROWS)
    rows, real = chosen(rows, n, generator), chosen(real, n, generator)
    radii = _distances(real, real.mean(0)).quantile(SHARES)
    from_centre = _distances(rows, real.mean(0))

    def precision(index: Tensor) -> Tensor:
        within = torch.searchsorted(from_centre[index].sort().values, radii, right=True) / len(index)
        return (1 - 2 * (within - SHARES).abs().mean())[None]

    to_real = nearest(real, real, 2)[0][:, 1]
    to_rows, which = (found.squeeze(1) for found in nearest(real, rows, 1))
    covered = to_rows <= to_real + EQUAL
    typical = _distances(rows[which], rows.mean(0))
    bounds = typical.quantile(SHARES)

    def recall(index: Tensor) -> Tensor:
        inside = typical[index][covered[index]].sort().values
        within = torch.searchsorted(inside, bounds, right=True) / len(index)
        return (1 - 2 * (within - SHARES).abs().mean())[None]

    (alpha,) = bootstrap_estimates(precision, len(rows), generator=generator, n_resamples=N_RESAMPLES_TABLE_NEIGHBOURS)
    (beta,) = bootstrap_estimates(recall, len(real), generator=generator, n_resamples=N_RESAMPLES_TABLE_NEIGHBOURS)
    return {"alpha_precision": alpha.within(0, 1), "beta_recall": beta.within(0, 1)}


def nearer_to_training(rows: Tensor, train: Tensor, held_out: Tensor, generator: torch.Generator) -> Estimate:
    """The share of rows that are nearer to a training row than to any of as many held-out rows; ties count half.

    1/2 where nothing was learned by heart. Which of two real rows is a training row is a toss that all rows next to it
    share, so the interval counts rows by the real row that is nearest to them.
    """
    n = min(len(train), len(held_out), MOST_ROWS)
    rows, train, held_out = (
        chosen(rows, MOST_ROWS, generator),
        chosen(train, n, generator),
        chosen(held_out, n, generator),
    )
    (to_train, of_train), (to_held_out, of_held_out) = (nearest(rows, real, 1) for real in (train, held_out))
    gap = (to_held_out - to_train).squeeze(1)
    value = torch.where(gap.abs() <= EQUAL, 0.5, (gap > 0).double())
    share = float(value.mean())
    neighbour = torch.where(gap >= 0, of_train.squeeze(1), n + of_held_out.squeeze(1))
    together = torch.zeros(2 * n, dtype=torch.float64).index_add_(0, neighbour, value - share)
    reach = float(ndtri(0.5 + LEVEL / 2)) * math.sqrt(float(together.square().sum())) / len(rows)
    return Estimate(share, share - reach, share + reach).within(0, 1)


def copies(rows: Floats, train: Floats) -> Estimate:
    """The share of rows that are equal to a training row in every cell."""
    rows, train = (np.ascontiguousarray(matrix + 0.0) for matrix in (rows, train))  # -0.0 is 0.0
    known = {row.tobytes() for row in train}
    return share_estimate(sum(row.tobytes() in known for row in rows), len(rows))


def chosen(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """At most so many rows, at random."""
    return x if len(x) <= most else x[torch.randperm(len(x), generator=generator)[:most]]


def _distances(x: Tensor, centre: Tensor) -> Tensor:
    return (x - centre).square().sum(1).sqrt()


PIECES = 10
N_RESAMPLES_TABLE_SHAPES = 200


class ShapesAndTrends:
    """Rows held against a real table: ``rows`` and ``real`` are matrices of the same features."""

    def __init__(self, features: TableFeatures, rows: Floats, real: Floats) -> None:
        self.features, self.n = features, len(rows)
        numbers = features.is_number
        self.pairs = list(combinations(range(len(features.columns)), 2))
        self._of_numbers = np.array([bool(numbers[i] and numbers[j]) for i, j in self.pairs], dtype=bool)
        self._columns = [_Counts.of(rows[:, j], real[:, j], by_rank=bool(numbers[j])) for j in range(len(numbers))]
        own, others = (self._pieces(matrix, real) for matrix in (rows, real))
        self._tables = {
            pair: _Counts.of(_paired(own, *pair), _paired(others, *pair), by_rank=False)
            for pair, of_numbers in zip(self.pairs, self._of_numbers, strict=True)
            if not of_numbers
        }
        self._places = np.flatnonzero(numbers)
        self._moments = _Moments(rows[:, numbers])
        ones = np.ones(len(real))
        self._real_correlations = _Moments(real[:, numbers]).correlations(ones)

    def shapes(self, weights: Floats) -> Floats:
        """The shape of each column, where row i counts weights[i] times; NaN where it has no values."""
        return np.array([1 - column.distance(weights) for column in self._columns])

    def trends(self, weights: Floats) -> Floats:
        """The trend of each of ``pairs``; NaN where a number does not vary."""
        where = {int(place): k for k, place in enumerate(self._places)}
        differences = 1 - np.abs(self._moments.correlations(weights) - self._real_correlations) / 2
        found = [
            differences[where[i], where[j]] if of_numbers else 1 - self._tables[i, j].distance(weights)
            for (i, j), of_numbers in zip(self.pairs, self._of_numbers, strict=True)
        ]
        return np.array(found)

    def estimates(self, generator: torch.Generator, n_resamples: int = N_RESAMPLES_TABLE_SHAPES) -> dict[str, Estimate]:
        """``shape`` and, of more than one column, ``trend``, with the bootstrap over the rows."""
        with_trend = bool(self.pairs) and not bool(np.isnan(self.trends(np.ones(self.n))).all())

        def both(index: Tensor) -> Tensor:
            weights = np.bincount(index.numpy(), minlength=self.n).astype(np.float64)
            trend = [np.nanmean(self.trends(weights))] if with_trend else []
            return torch.tensor([np.nanmean(self.shapes(weights)), *trend], dtype=torch.float64)

        found = bootstrap_estimates(both, self.n, generator=generator, n_resamples=n_resamples)
        return dict(zip(("shape", "trend"), [figure.within(0, 1) for figure in found], strict=False))

    def _pieces(self, matrix: Floats, real: Floats) -> NDArray[np.int64]:
        """Places of levels, and of ten pieces of numbers; one more for missing cells."""
        found = np.empty(matrix.shape, np.int64)
        for j, column in enumerate(self.features.columns):
            values, missing = matrix[:, j], np.isnan(matrix[:, j])
            if column.is_number:
                edges = np.histogram_bin_edges(real[~np.isnan(real[:, j]), j], PIECES)
                values = np.searchsorted(edges[1:-1], values, side="right").astype(np.float64)
            found[:, j] = np.where(missing, max(len(column.levels) + 1, PIECES), values)
        return found


def _paired(pieces: NDArray[np.int64], i: int, j: int) -> Floats:
    found: Floats = (pieces[:, i] * 1_000_003 + pieces[:, j]).astype(np.float64)
    return found


class _Counts:
    """The distance of two distributions of values: of their steps (Kolmogorov-Smirnov), or of their shares."""

    def __init__(self, place: NDArray[np.int64], real: Floats, there: NDArray[np.bool_], by_rank: bool) -> None:
        self.place, self.real, self.there, self.by_rank = place, real, there, by_rank

    @classmethod
    def of(cls, rows: Floats, real: Floats, by_rank: bool) -> _Counts:
        """NaN: a missing cell, which counts in neither."""
        there, real = ~np.isnan(rows), real[~np.isnan(real)]
        both = np.unique(np.concatenate([rows[there], real]))
        counts = np.bincount(np.searchsorted(both, real), minlength=len(both))
        return cls(np.searchsorted(both, rows[there]), counts / max(counts.sum(), 1), there, by_rank)

    def distance(self, weights: Floats) -> float:
        """Where row i counts weights[i] times."""
        counts = np.bincount(self.place, weights[self.there], minlength=len(self.real))
        if counts.sum() == 0 or self.real.sum() == 0:
            return float("nan")
        gap = counts / counts.sum() - self.real
        return float(np.abs(np.cumsum(gap)).max() if self.by_rank else np.abs(gap).sum() / 2)


class _Moments:
    """Correlations of all pairs of columns over the rows that have both."""

    def __init__(self, x: Floats) -> None:
        self.there = (~np.isnan(x)).astype(np.float64)
        centre = np.nanmean(x, 0) if len(x) and x.shape[1] else np.zeros(x.shape[1])
        scale = np.nanstd(x, 0) if len(x) and x.shape[1] else np.ones(x.shape[1])
        self.x = np.where(np.isnan(x), 0.0, (x - centre) / np.where(scale > 0, scale, 1.0))

    def correlations(self, weights: Floats) -> Floats:
        """(k, k), NaN where one of a pair does not vary."""
        there, x = self.there * weights[:, None], self.x * weights[:, None]
        n = there.T @ self.there
        with np.errstate(divide="ignore", invalid="ignore"):
            mean_i, mean_j = (x.T @ self.there) / n, (there.T @ self.x) / n
            var_i = ((self.x * x).T @ self.there) / n - mean_i**2
            var_j = (there.T @ self.x**2) / n - mean_j**2
            varies = (var_i > 1e-12) & (var_j > 1e-12)
            found: Floats = np.where(varies, ((x.T @ self.x) / n - mean_i * mean_j) / np.sqrt(var_i * var_j), np.nan)
        return found
