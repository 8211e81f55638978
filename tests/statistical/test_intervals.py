"""Coverage of every kind of interval in the library, by repetition.

Student's is exact for Gaussian values, Wilson's coverage is a sum over the binomial, so both are held to 95 %. The
others are right for many samples; here they hold the truth in 91 to 98 of 100 cases. A share of 400 repeats has
a standard deviation of 1.1 %, and bands are four of them wider: a false alarm in 10^4 for a new seed; seeds are fixed.
"""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

import bfn
from bfn._utils.estimate import Estimate, bootstrap_estimates, mean_estimate, share_estimate
from bfn.likelihood.bits import held_out_bits
from bfn.quality.comparison import pool
from bfn.quality.frechet import frechet_estimate
from bfn.quality.judge_choice import Digits, NearCopies, asked_class
from bfn.quality.metrics import spelling_estimate
from bfn.tables import sampling as row_sampling
from bfn_lab.bench import ratio_of

REPEATS = 400


def covered(estimates: list[Estimate], truth: float) -> float:
    """Return the share of intervals that contain the truth."""
    return sum(e.low <= truth <= e.high for e in estimates) / len(estimates)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("n", [5, 20, 200])
def test_wilson_s_interval_of_a_share(n: int) -> None:
    """Exactly: the probability of those counts whose interval holds p; 95 % on average, never far below."""
    intervals = [share_estimate(k, n) for k in range(n + 1)]
    shares = torch.linspace(0.02, 0.98, 97, dtype=torch.float64).tolist()
    coverage = [
        sum(scipy.stats.binom.pmf(k, n, p) for k, e in enumerate(intervals) if e.low <= p <= e.high) for p in shares
    ]
    assert math.fsum(coverage) / len(coverage) == pytest.approx(0.95, abs=0.015)
    assert min(coverage) > 0.82


def test_student_s_interval_of_skewed_values() -> None:
    values = torch.empty(2000, 100, dtype=torch.float64).exponential_(1.0, generator=seeded(0))
    assert 0.91 < covered([mean_estimate(row) for row in values], 1.0) < 0.97


@pytest.mark.long
def test_the_bootstrap_of_a_mean() -> None:
    values = torch.randn(REPEATS, 60, generator=seeded(1), dtype=torch.float64)
    found = [
        bootstrap_estimates(lambda index, x=x: x[index].mean()[None], 60, generator=seeded(i), n_resamples=100)[0]
        for i, x in enumerate(values)
    ]
    assert 0.88 < covered(found, 0.0) < 0.98


@pytest.mark.parametrize("n_resamples", [pytest.param(80, marks=pytest.mark.long), 0])
def test_the_frechet_distance(n_resamples: int) -> None:
    """The interval is for the distance at this number of samples, which is larger than that of the Gaussians."""
    reference = torch.randn(5000, 3, generator=seeded(2), dtype=torch.float64)
    draws = 0.3 + 1.2 * torch.randn(REPEATS, 150, 3, generator=seeded(3), dtype=torch.float64)
    found = [frechet_estimate(x, reference, generator=seeded(i), n_resamples=n_resamples) for i, x in enumerate(draws)]
    truth = sum(e.value for e in found) / REPEATS
    assert 0.88 < covered(found, truth) < 0.98


def test_spelling_of_texts_whose_words_err_together() -> None:
    chance = seeded(4)
    found = []
    for _ in range(REPEATS):
        careless = torch.rand(40, generator=chance)  # each text has its own rate of mistakes
        wrong = torch.rand(40, 20, generator=chance) < careless[:, None]
        found.append(spelling_estimate([" ".join("qxzzk" if w else "the" for w in row) for row in wrong.tolist()]))
    assert 0.90 < covered(found, 0.5) < 0.985
    # Words as if they were independent: far too narrow. This is what the interval is for.
    naive = [share_estimate(round(e.value * 800), 800) for e in found]
    assert covered(naive, 0.5) < 0.75


@pytest.mark.long
def test_figures_of_a_classifier() -> None:
    chance = seeded(6)
    shares = torch.softmax(torch.arange(10) / 4.0, 0)
    found = []
    for _ in range(REPEATS):
        classes = torch.multinomial(shares, 100, replacement=True, generator=chance)
        sure = torch.rand(100, generator=chance) < 0.7
        rest = 0.2 * torch.rand(100, generator=chance)
        peak = torch.where(sure, 0.98, 0.5) + 0.02 * rest
        probabilities = ((1 - peak) / 9)[:, None].repeat(1, 10)
        probabilities[torch.arange(100), classes] = peak
        found.append(Digits(False).figures(probabilities))
    truths = {"recognised": 0.7, "confidence": 0.7 * 0.98 + 0.3 * 0.5 + 0.002}
    for key, truth in truths.items():
        assert 0.90 < covered([figures[key] for figures in found], truth) < 0.99
    entropies = [figures["class_entropy"] for figures in found]
    assert 0.88 < covered(entropies, sum(e.value for e in entropies) / REPEATS) < 0.98


def test_the_asked_class() -> None:
    chance = seeded(7)
    asked = torch.zeros(80, dtype=torch.int64)
    draws = (torch.rand(600, 80, generator=chance) > 0.85).long()
    assert 0.91 < covered([asked_class(row, asked)["asked_class"] for row in draws], 0.85) < 0.98


def test_shares_of_near_copies() -> None:
    """One sample in ten is a training point, hardly moved; of the others a few lie as near by chance."""
    chance = seeded(14)
    train, held_out = torch.randn(300, 3, generator=chance), torch.randn(1000, 3, generator=chance)
    part = NearCopies(train, held_out)
    by_chance = sum(part(x, None)["near_copies"].value for x in torch.randn(60, 300, 3, generator=chance)) / 60
    assert 0.002 < by_chance < 0.03  # 1 % by construction, up to the choice of the threshold
    found = []
    for _ in range(REPEATS):
        x, copied = torch.randn(100, 3, generator=chance), torch.rand(100, generator=chance) < 0.1
        copies = train[torch.randint(300, (100,), generator=chance)] + 1e-4
        found.append(part(torch.where(copied[:, None], copies, x), None)["near_copies"])
    assert 0.90 < covered(found, 0.1 + 0.9 * by_chance) < 0.99


def test_acceptance_rates_of_rows_that_are_drawn_until_enough_meet_a_condition(monkeypatch) -> None:
    """Drawing ends when there are enough, which a count of successes alone would feel: a rate of 0.3 is still found."""
    chance = np.random.default_rng(16)

    def drawn(model, count, *settings):
        return SimpleNamespace(x={"a": chance.random(count)})

    def check(rows, report):
        report.met["a < 0.3"] = report.met.get("a < 0.3", 0) + int((rows.a < 0.3).sum())
        return (rows.a < 0.3).to_numpy()

    request = SimpleNamespace(checks=("a < 0.3",), allowed={}, decode=pd.DataFrame, check=check, keep=lambda n: ())
    monkeypatch.setattr(row_sampling, "_draw_blocks", drawn)
    found = []
    for _ in range(REPEATS):
        report = row_sampling.SamplingReport()
        rows = list(row_sampling.draw_rows(None, 25, request, report))
        assert sum(map(len, rows)) == 25
        rate = report.asdict()["acceptance_rate"]
        found.append(Estimate(rate["value"], rate["low"], rate["high"]))
    assert 0.90 < covered(found, 0.3) < 0.99


def test_figures_of_several_seeds() -> None:
    """A share measured with three seeds: at least as often as the seeds' own intervals."""
    draws = (torch.rand(300, 3, 50, generator=seeded(9)) < 0.1).sum(-1).tolist()
    found = [pool([share_estimate(k, 50) for k in row], 1.0) for row in draws]
    assert covered(found, 0.1) > 0.92


def test_two_equal_settings_are_told_apart_less_often_than_one_in_twenty() -> None:
    """Equal figures have disjoint intervals in 0.6 % of cases."""
    values = torch.randn(2000, 2, 40, generator=seeded(10), dtype=torch.float64)
    pairs = [(mean_estimate(a), mean_estimate(b)) for a, b in values]
    apart = sum(not a.overlaps(b) for a, b in pairs) / len(pairs)
    assert apart == pytest.approx(2 * scipy.stats.norm.sf(1.96 * math.sqrt(2)), abs=0.006)


MODEL = bfn.exact.GaussianMixture([[-0.5], [0.5]], stds=[0.2, 0.2])


def test_held_out_bits() -> None:
    data = MODEL.sample_data(REPEATS * 32, seeded(11)).split(32)
    entropy = float(-MODEL.log_prob(MODEL.sample_data(200_000, seeded(12))).mean()) / math.log(2)
    totals = [held_out_bits(MODEL, x.float(), batch=4, generator=seeded(i))["total"] for i, x in enumerate(data)]
    truth = sum(e.value for e in totals) / REPEATS
    assert truth == pytest.approx(entropy, abs=0.05)
    assert 0.90 < covered(totals, truth) < 0.985


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        pytest.param(
            bfn.exact.GaussianMixture([[-0.5, 0.1], [0.5, -0.3]], stds=[0.2, 0.3]),
            {"method": "ode", "divergence": "hutchinson", "probes": 8}, marks=pytest.mark.long,
        ),
        (MODEL, {"method": "bound"}),
    ],
    ids=["probes", "times"],
)  # fmt: skip
def test_the_error_of_a_likelihood_is_its_spread(model: bfn.Model, settings: dict) -> None:
    """Squared errors average to the variance over repeats: 200 of them spread by 10 %, and 50 samples are averaged."""
    x = MODEL.sample_data(50, seeded(13)).float().expand(50, *model.data_shape)
    found = [model.log_likelihood(x, nfe=8, generator=seeded(i), **settings) for i in range(200)]
    spread = torch.stack([f.log_prob for f in found]).double().var(0).mean()
    stated = torch.stack([f.error for f in found]).double().square().mean()
    assert float(stated / spread) == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("rounds", [6, 11, 25])
def test_medians_of_timings(rounds: int) -> None:
    """Order statistics know nothing of the distribution: at least 95 %, by the binomial of how many lie below."""
    noise = torch.randn(1000, rounds, generator=seeded(17), dtype=torch.float64).exp()
    found = [ratio_of("part", "name", row.tolist(), [1.0] * rounds) for row in noise]
    assert covered([Estimate(f.value, f.low, f.high) for f in found], 1.0) > 0.93
    assert all(f.low <= f.value <= f.high for f in found)
