"""How alike two tables are, column by column and pair by pair, counted as the metrics of sdmetrics count it.

Shape, of a column: 1 - the Kolmogorov-Smirnov distance of numbers, 1 - the total variation distance of categories.
Trend, of a pair: 1 - half the difference of the correlations of two numbers, else 1 - the total variation distance of
the pairs of values, a number being cut into ten pieces of the real table's range. Both are means, 1 is best. Missing
cells count in no column, and as a value of their own in a pair that is not of numbers. (Newer reports of sdmetrics
leave out pairs that hardly hang together in the real table and cut numbers by each table's own range; its metrics do
not.)
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.estimate import Estimate, bootstrap_estimates
from bfn.quality.table_features import Floats, TableFeatures

__all__ = ["ShapesAndTrends"]

PIECES = 10
N_RESAMPLES = 200


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

    def estimates(self, generator: torch.Generator, n_resamples: int = N_RESAMPLES) -> dict[str, Estimate]:
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
