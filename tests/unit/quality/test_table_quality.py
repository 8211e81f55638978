"""Measures of tables: against sdmetrics, against brute force, and at the two ends of their scales."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from bfn._utils.estimate import Estimate
from bfn.quality.table_measures import (
    ShapesAndTrends,
    TableFeatures,
    _area,
    copies,
    learned,
    nearer_to_training,
    precision_and_recall,
    two_sample,
)
from bfn.quality.table_report import TableQuality


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def mixed(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    z, k = rng.normal(size=n) + shift, rng.integers(0, 3, n)
    return pd.DataFrame({
        "a": z, "b": np.round(0.7 * z + rng.normal(size=n), 1), "c": np.array(["x", "y", "z"])[k],
        "y": np.where(z + k + rng.normal(size=n) > 1, "p", "q"),
    })  # fmt: skip


def with_gaps() -> tuple[pd.DataFrame, pd.DataFrame]:
    found = []
    for seed, n in ((0, 400), (1, 300)):
        rng = np.random.default_rng(seed)
        z, k = rng.normal(size=n) + 0.3 * seed, rng.integers(0, 3, n)
        table = pd.DataFrame({
            "a": z, "b": np.round(z * (0.8 - 0.3 * seed) + rng.normal(size=n), 1), "c": np.array(["x", "y", "z"])[k],
            "d": np.array(["p", "q"])[((z > 0) ^ (rng.random(n) < 0.2 + 0.1 * seed)).astype(int)],
            "e": rng.integers(0, 20, n) + k * 4,
        })  # fmt: skip
        table.loc[rng.random(n) < 0.1, "c"] = None
        table.loc[rng.random(n) < 0.05, "b"] = np.nan
        for column, low, high in (("a", -4.0, 5.0), ("b", -6.0, 6.0), ("e", 0, 27)):
            table.loc[0, column], table.loc[1, column] = low, high
        found.append(table)
    return found[0], found[1]


def test_shape_and_trend_are_those_of_sdmetrics() -> None:
    """Figures of sdmetrics 0.32.0: KSComplement, TVComplement, CorrelationSimilarity, and ContingencySimilarity with
    its continuous_column_names."""
    real, rows = with_gaps()
    features = TableFeatures.of(real)
    found = ShapesAndTrends(features, features.matrix(rows), features.matrix(real))
    ones = np.ones(len(rows))
    assert found.shapes(ones) == pytest.approx([0.861667, 0.913067, 0.992424, 0.899167, 0.964167], abs=1e-6)
    expected = {
        "ab": 0.8868543581074031, "ac": 0.8308333333333333, "ad": 0.85, "ae": 0.9562533992193795,
        "bc": 0.8858333333333334, "bd": 0.86, "be": 0.9910246605980604, "cd": 0.8741666666666666,
        "ce": 0.8291666666666666, "de": 0.8466666666666667,
    }  # fmt: skip
    pairs = [features.names[i] + features.names[j] for i, j in found.pairs]
    assert dict(zip(pairs, found.trends(ones).tolist(), strict=True)) == pytest.approx(expected, abs=1e-9)


def test_the_same_rows_are_alike_and_a_weight_of_two_is_a_row_twice() -> None:
    real, rows = with_gaps()
    features = TableFeatures.of(real)
    same = ShapesAndTrends(features, features.matrix(real), features.matrix(real))
    assert same.shapes(np.ones(400)).tolist() == [1.0] * 5
    assert same.trends(np.ones(400)) == pytest.approx(1.0)
    rows.loc[:5, "c"] = "new"  # a level that real rows do not have
    twice = pd.concat([rows, rows.head(50)])
    long, short = (ShapesAndTrends(features, features.matrix(some), features.matrix(real)) for some in (twice, rows))
    weights = np.where(np.arange(300) < 50, 2.0, 1.0)
    assert short.shapes(weights) == pytest.approx(long.shapes(np.ones(350)))
    assert short.trends(weights) == pytest.approx(long.trends(np.ones(350)), abs=1e-9)


def test_the_area_and_its_variance() -> None:
    """The area is the share of pairs in order, ties half; DeLong's variance is near that over many draws."""
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(0, 8, 40).astype(float), rng.integers(0, 6, 30).astype(float)
    pairs = positive[:, None] - negative
    assert _area(positive, negative)[0] == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())
    drawn = [_area(rng.normal(0.5, 1, 100), rng.normal(0, 1, 80)) for _ in range(2000)]
    areas, variances = np.array(drawn).T
    assert areas.mean() == pytest.approx(0.5 * (1 + math.erf(0.5 / 2)), abs=0.005)
    assert variances.mean() == pytest.approx(areas.var(), rel=0.15)


def test_two_sample_score_of_what_can_and_cannot_be_told_apart() -> None:
    """Numbers one standard deviation apart: the best area is Phi(1 / sqrt 2) = 0.760, a score of 0.479."""
    rng = np.random.default_rng(1)
    features = TableFeatures.of(pd.DataFrame({"a": rng.normal(size=2000)}))

    def score(shift: float) -> Estimate:
        rows, real = rng.normal(shift, 1, (2000, 1)), rng.normal(0, 1, (2000, 1))
        return two_sample(features, rows, real, generator())

    assert 0.479 - 0.02 < score(1.0).value < 0.479 + 0.12  # trees on noise lose some
    assert score(0.0).value > 0.85
    assert score(20.0).high < 0.01


def test_what_is_learned_from_rows() -> None:
    train, held_out = mixed(1500, 0), mixed(800, 1)
    features = TableFeatures.of(train)
    rows, test = features.matrix(train), features.matrix(held_out)
    shuffled = rows.copy()
    shuffled[:, 3] = np.random.default_rng(0).permutation(shuffled[:, 3])
    one_class = rows[rows[:, 3] == 0]
    own, nothing, none = (learned(features, some, test, 3, True, generator()) for some in (rows, shuffled, one_class))
    assert own.low > 0.7
    assert nothing.low < 0.5 < nothing.high + 0.05
    assert none == Estimate(0.5, 0.5, 0.5)
    several = learned(features, rows, test, 2, True, generator())
    assert 0.5 < several.value < 0.9
    line = np.linspace(-1, 1, 300)
    lines = TableFeatures.of(pd.DataFrame({"x": line, "y": 3 * line}))
    number = learned(lines, *[np.stack([line, 3 * line], 1)] * 2, 1, False, generator())
    assert 0.98 < number.low <= number.value <= number.high


def test_neighbours_know_a_memory_from_none() -> None:
    train, held_out, rows = (mixed(500, seed) for seed in range(3))
    features = TableFeatures.of(train)
    train, held_out, rows = (features.vectors(features.matrix(table)) for table in (train, held_out, rows))
    new, memory = (nearer_to_training(some, train, held_out, generator()) for some in (rows, train))
    assert new.low < 0.5 < new.high
    assert memory.low > 0.95
    good = precision_and_recall(rows, train, generator())
    assert good["alpha_precision"].value > 0.9
    assert 0.35 < good["beta_recall"].value < 0.65
    narrow = precision_and_recall(rows * 0.05 + train.mean(0) * 0.95, train, generator())
    assert narrow["alpha_precision"].value < 0.1
    assert narrow["beta_recall"].value < 0.3
    # Rows far from all real rows cover none of them: the sum over beta is slightly below 0, the figure is 0.
    assert precision_and_recall(train + 1000, train, generator())["beta_recall"] == Estimate(0.0, 0.0, 0.0)


def test_intervals_of_nearness_cover_one_half() -> None:
    """Of 60 draws without a memory at least 51: a false alarm in 2,000 seeds where 95 % cover."""
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows, train, held_out = (torch.from_numpy(rng.normal(size=(80, 2))) for _ in range(3))
        figure = nearer_to_training(rows, train, held_out, generator())
        covered += figure.low <= 0.5 <= figure.high
    assert covered >= 51


@pytest.mark.long
def test_intervals_cover_what_many_draws_of_rows_have() -> None:
    """Shape, trend, alpha-precision and the two-sample score: of 60 draws at least 48 intervals hold their mean."""
    real = mixed(300, 0)
    features = TableFeatures.of(real)
    matrix = features.matrix(real)
    draws: list[dict[str, Estimate]] = []
    for seed in range(1, 61):
        rows = features.matrix(mixed(200, seed, shift=0.4))
        vectors = features.vectors(rows), features.vectors(matrix)
        draws.append({
            **ShapesAndTrends(features, rows, matrix).estimates(generator(), n_resamples=60),
            **precision_and_recall(*vectors, generator()),
            "two_sample": two_sample(features, rows, matrix, generator()),
        })  # fmt: skip
    for key in ("shape", "trend", "alpha_precision", "two_sample"):
        mean = np.mean([draw[key].value for draw in draws])
        assert sum(draw[key].low <= mean <= draw[key].high for draw in draws) >= 48, key


def test_copies_are_counted_by_every_cell() -> None:
    train = np.array([[1.0, np.nan], [2.0, 0.0]])
    rows = np.array([[1.0, np.nan], [2.0, -0.0], [2.0, 1.0], [1.0, 0.0]])
    assert copies(rows, train).value == 0.5


@cache
def judged() -> tuple[TableQuality, dict[str, Estimate]]:
    quality = TableQuality.of(mixed(600, 0), mixed(500, 1))
    return quality, quality.figures(mixed(600, 2))


def test_every_scale_has_two_ends() -> None:
    quality, figures = judged()
    keys = [measure.key for measure in quality.measures]
    assert list(figures) == keys
    assert set(quality.real) == set(quality.independent) == set(keys)
    assert quality.target == "y"
    for key in ("two_sample", "two_sample_held_out", "learned", "trend"):
        assert quality.real[key].value > quality.independent[key].value + 0.03, key
        assert figures[key].value > quality.independent[key].value + 0.03, key
    assert quality.independent["shape"].value == pytest.approx(1.0)
    assert quality.real["copies"].value == figures["copies"].value == 0.0
    everything = [*figures.values(), *quality.real.values(), *quality.independent.values()]
    assert all(0 <= figure.low <= figure.high <= 1 for figure in everything if not math.isnan(figure.low))


def test_figures_are_the_same_each_time_and_the_key_names_the_real_rows() -> None:
    quality, figures = judged()
    assert quality.figures(mixed(600, 2)) == figures
    assert quality.key == TableQuality.of(mixed(600, 0), mixed(500, 1)).key
    assert quality.key != TableQuality.of(mixed(600, 3), mixed(500, 1)).key
