import math

import pytest
import scipy.stats
import torch

from bfn.quality.intervals import (
    Interval,
    bootstrap_interval,
    bootstrap_intervals,
    normal_quantile,
    t_interval,
    t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (5, 5), (3, 17), (900, 1000)])
def test_wilson_is_scipy_s(successes: int, trials: int) -> None:
    expected = scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson")
    interval = wilson_interval(successes, trials)
    assert interval.low == pytest.approx(expected.low, abs=1e-12)
    assert interval.high == pytest.approx(expected.high, abs=1e-12)


@pytest.mark.parametrize("n_degrees", [1, 2, 3, 4, 7, 30, 101])
@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.975, 0.9995])
def test_t_quantile_is_scipy_s(p: float, n_degrees: int) -> None:
    assert t_quantile(p, n_degrees) == pytest.approx(scipy.stats.t.ppf(p, n_degrees), rel=1e-10, abs=1e-10)


def test_t_interval_of_three_repeats() -> None:
    # mean 2, standard deviation 1, t(0.975, 2) = 4.302653
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert interval.high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)


def test_bootstrap_of_a_mean_has_its_standard_error() -> None:
    x = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    interval = bootstrap_interval(
        lambda index: x[index].mean().item(), 400, n_resamples=2000, generator=torch.Generator().manual_seed(1)
    )
    half = 1.96 * x.std().item() / math.sqrt(400)
    assert interval.low == pytest.approx(x.mean().item() - half, abs=0.15 * half)
    assert interval.high == pytest.approx(x.mean().item() + half, abs=0.15 * half)


def test_bootstrap_repeats_with_its_generator_and_leaves_the_global_one() -> None:
    before = torch.get_rng_state()
    draws = [
        bootstrap_interval(lambda index: index.double().mean().item(), 50, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    ]
    assert draws[0] == draws[1]
    assert torch.equal(before, torch.get_rng_state())


def test_overlap() -> None:
    assert Interval(0, 1).overlaps(Interval(1, 2))
    assert not Interval(0, 1).overlaps(Interval(1.1, 2))
    assert not Interval(1.1, 2).overlaps(Interval(0, 1))


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson_interval(3, 2),
        lambda: wilson_interval(0, 0),
        lambda: wilson_interval(1, 2, level=95),
        lambda: t_interval([1.0]),
        lambda: bootstrap_interval(lambda _: 0.0, 1, generator=torch.Generator()),
    ],
)
def test_wrong_input(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"expected|needs"):
        call()


def test_several_statistics_of_the_same_resamples() -> None:
    x = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def both(index: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[index].mean(), x[index].std()])

    pair = bootstrap_intervals(both, 40, generator=torch.Generator().manual_seed(2))
    alone = bootstrap_interval(lambda i: x[i].std().item(), 40, generator=torch.Generator().manual_seed(2))
    assert pair[1].low == pytest.approx(alone.low)
    assert pair[1].high == pytest.approx(alone.high)


def test_normal_quantile() -> None:
    assert normal_quantile() == pytest.approx(1.959964, abs=1e-6)
