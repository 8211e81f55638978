import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bfn

SCHEDULES = st.one_of(
    st.floats(1e-4, 0.95).map(bfn.ExponentialSchedule), st.floats(1e-3, 1e8).map(bfn.QuadraticSchedule)
)


@given(SCHEDULES, st.floats(0, 1))
def test_inverse(schedule: bfn.Schedule, t: float) -> None:
    assert float(schedule.inverse(schedule.beta(t))) == pytest.approx(t, rel=1e-12, abs=1e-150)
    assert float(schedule.time_of_s(schedule.s(t))) == pytest.approx(t, rel=1e-12, abs=1e-150)


@given(SCHEDULES, st.floats(0, 0.9), st.floats(1e-9, 0.1))
def test_increment_is_the_integral_of_the_slope(schedule: bfn.Schedule, t: float, width: float) -> None:
    nodes, weights = map(torch.tensor, _gauss_legendre(12))
    points = t + width * (nodes + 1) / 2
    integral = float((weights * schedule.slope(points)).sum() * width / 2)
    assert float(schedule.increment(t, t + width)) == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize("schedule", [bfn.ExponentialSchedule(1e-3), bfn.QuadraticSchedule(0.5625)])
def test_both_ends_are_exact(schedule: bfn.Schedule) -> None:
    assert float(schedule.beta(0.0)) == 0 == float(schedule.inverse(0.0))
    tiny = schedule.increment(0.0, 1e-300)
    assert float(tiny) == pytest.approx(float(schedule.beta(1e-300)), rel=1e-15)
    if isinstance(schedule, bfn.ExponentialSchedule):
        # Written as sigma_1^(-2t) - 1, this would be 0.
        assert float(schedule.beta(1e-18)) == pytest.approx(1e-18 * float(schedule.slope(0.0)), rel=1e-15)


def test_the_papers_gamma() -> None:
    """gamma = beta / (1 + beta) = 1 - sigma_1^(2t), which tends to 0, not to 1, where nothing is known (errata)."""
    schedule, t = bfn.ExponentialSchedule(0.1), torch.linspace(0, 1, 5, dtype=torch.float64)
    gamma = schedule.beta(t) / (1 + schedule.beta(t))
    torch.testing.assert_close(gamma, 1 - 0.1 ** (2 * t), atol=1e-15, rtol=1e-14)
    assert float(gamma[0]) == 0


@pytest.mark.parametrize("sigma_1", [0, 1, -0.5, float("nan")])
def test_wrong_sigma_1(sigma_1: float) -> None:
    with pytest.raises(ValueError, match=rf"sigma_1={sigma_1}.*\(0, 1\)"):
        bfn.ContinuousFlow(sigma_1=sigma_1)


@pytest.mark.parametrize("beta_1", [0, -1, float("inf"), float("nan")])
def test_wrong_beta_1(beta_1: float) -> None:
    with pytest.raises(ValueError, match=rf"beta_1={beta_1}.*positive"):
        bfn.DiscreteFlow(n_classes=3, beta_1=beta_1)


def _gauss_legendre(n: int) -> tuple[list[float], list[float]]:
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(n)
    return nodes.tolist(), weights.tolist()
