import math

import pytest
import scipy.stats
import torch

from bfn._utils.estimate import Estimate, bootstrap_estimates, mean_estimate, share_estimate
from messages import refused


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (5, 5), (3, 17), (900, 1000)])
def test_a_share_has_wilson_s_interval(successes: int, trials: int) -> None:
    # (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    p, n, z = successes / trials, trials, 1.959963984540054
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    estimate = share_estimate(successes, trials)
    assert estimate.value == p
    assert estimate.low == pytest.approx((p + z * z / (2 * n) - half) / (1 + z * z / n), abs=1e-12)
    assert estimate.high == pytest.approx((p + z * z / (2 * n) + half) / (1 + z * z / n), abs=1e-12)
    assert (estimate.low == 0) == (successes == 0)
    assert (estimate.high == 1) == (successes == trials)


@pytest.mark.parametrize("n", [2, 3, 8, 102])
def test_a_mean_has_student_s_interval(n: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    half = scipy.stats.t.ppf(0.975, n - 1) * x.std().item() / math.sqrt(n)
    estimate = mean_estimate(x)
    assert estimate.low == pytest.approx(x.mean().item() - half, rel=1e-10)
    assert estimate.high == pytest.approx(x.mean().item() + half, rel=1e-10)


def test_one_value_has_no_interval() -> None:
    assert str(mean_estimate([2.0])) == "2.0000"


def test_coverage_of_a_mean_is_95_percent() -> None:
    values = 5 + torch.randn(2000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hits = sum(e.low <= 5 <= e.high for e in map(mean_estimate, values))
    # Binomial with standard deviation 0.5 %: four of them.
    assert abs(hits / 2000 - 0.95) < 0.02


def test_bootstrap_of_a_mean_has_its_standard_error() -> None:
    x = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (estimate,) = bootstrap_estimates(
        lambda index: x[index].mean()[None], 400, n_resamples=2000, generator=torch.Generator().manual_seed(1)
    )
    half = 1.96 * x.std().item() / math.sqrt(400)
    assert estimate.value == pytest.approx(x.mean().item())
    assert estimate.low == pytest.approx(x.mean().item() - half, abs=0.15 * half)
    assert estimate.high == pytest.approx(x.mean().item() + half, abs=0.15 * half)


def test_bootstrap_repeats_with_its_generator_and_leaves_the_global_one() -> None:
    before = torch.get_rng_state()

    def both(index: torch.Tensor) -> torch.Tensor:
        return torch.stack([index.double().mean(), index.double().std()])

    first, second = (bootstrap_estimates(both, 50, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (Estimate(1, 0, 2), Estimate(3, 2, 4), True),
        (Estimate(1, 0, 2), Estimate(3, 2.1, 4), False),
        (Estimate(1), Estimate(3, 1, 4), True),
        (Estimate(1), Estimate(3), False),
    ],
)
def test_overlap(one: Estimate, other: Estimate, shared: bool) -> None:
    assert one.overlaps(other) == other.overlaps(one) == shared


@pytest.mark.parametrize(
    "call",
    [
        lambda: share_estimate(3, 2),
        lambda: share_estimate(0, 0),
        lambda: mean_estimate([]),
        lambda: mean_estimate([1.0, math.nan]),
        lambda: bootstrap_estimates(lambda _: torch.zeros(1), 1, generator=torch.Generator()),
    ],
)
def test_wrong_input(call) -> None:  # type: ignore[no-untyped-def]
    refused(r"expected|needs", call)
