from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bfn


def table(steps: list[tuple[float, float]], beta_1: float) -> bfn.TabulatedSchedule:
    """A table by the sizes of its steps in t and beta."""
    times, betas = ([0.0, *accumulate(sizes)] for sizes in zip(*steps, strict=True))
    return bfn.TabulatedSchedule([t / times[-1] for t in times], [beta_1 * b / betas[-1] for b in betas])


EXPONENTIAL, TABLE = bfn.ExponentialSchedule(1e-3), table([(1, 2), (1, 1), (2, 1)], 9.0)
STEPS = st.lists(st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)), min_size=1, max_size=6)
SCHEDULES = st.one_of(
    st.floats(1e-4, 0.95).map(bfn.ExponentialSchedule),
    st.floats(1e-3, 1e8).map(bfn.QuadraticSchedule),
    st.builds(bfn.LogarithmicSchedule, st.floats(0.05, 3.0), st.floats(0.05, 3.0)),
    st.builds(table, STEPS, st.floats(1e-3, 1e8)),
)


@settings(deadline=None)
@given(SCHEDULES, st.floats(0, 1))
def test_inverse(schedule: bfn.Schedule, t: float) -> None:
    assert float(schedule.inverse(schedule.beta(t))) == pytest.approx(t, rel=1e-12, abs=1e-150)
    assert float(schedule.time_of_s(schedule.s(t))) == pytest.approx(t, rel=1e-12, abs=1e-150)


@settings(deadline=None)
@given(SCHEDULES, st.floats(0, 0.9), st.floats(1e-9, 0.1))
def test_increment_is_the_integral_of_the_slope(schedule: bfn.Schedule, t: float, width: float) -> None:
    nodes, weights = (torch.tensor(values) for values in np.polynomial.legendre.leggauss(12))
    knots = schedule.times if isinstance(schedule, bfn.TabulatedSchedule) else ()
    integral = 0.0
    for a, b in pairwise([t, *(knot for knot in knots if t < knot < t + width), t + width]):
        integral += float((weights * schedule.slope(a + (b - a) * (nodes + 1) / 2)).sum() * (b - a) / 2)
    assert float(schedule.increment(t + width, t)) == pytest.approx(-integral, rel=1e-6)
    assert float(schedule.increment(t, t + width)) == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize("schedule", [EXPONENTIAL, bfn.QuadraticSchedule(0.5625), bfn.LogarithmicSchedule(2, 1), TABLE])
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


@settings(deadline=None)
@given(st.builds(table, STEPS, st.floats(1e-3, 1e8)), st.floats(0, 1), st.floats(0, 1))
def test_a_table_holds_at_its_knots_and_increases_between(schedule, a: float, b: float) -> None:
    times = torch.tensor(schedule.times, dtype=torch.float64)
    assert schedule.beta(times).tolist() == pytest.approx(schedule.betas, rel=1e-14)
    assert float(schedule.beta(min(a, b))) <= float(schedule.beta(max(a, b))) * (1 + 1e-15)
    assert float(schedule.slope(max(a, 1e-9))) > 0
    # No jump of the slope at a knot.
    before, after = schedule.slope(times[1:-1] - 1e-12), schedule.slope(times[1:-1])
    torch.testing.assert_close(before, after, rtol=1e-8, atol=0)


@settings(deadline=None)
@given(st.builds(table, STEPS, st.just(5.0)), st.floats(0.01, 0.5), st.floats(1e-14, 1e-10))
def test_increments_of_a_table_do_not_cancel(schedule, t: float, width: float) -> None:
    """Over so short a time the slope is constant to 1e-8; a difference of betas would keep a few digits at best."""
    end = t + width
    assert float(schedule.increment(t, end)) == pytest.approx(float(schedule.slope(t)) * (end - t), rel=1e-7)


def test_a_table_has_gradients_and_is_constant_outside_of_its_times() -> None:
    schedule = TABLE
    assert schedule.beta(torch.tensor([-0.2, 1.3], dtype=torch.float64)).tolist() == pytest.approx([0.0, 9.0])
    t = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(schedule.beta(t).sum(), t)
    torch.testing.assert_close(slope, schedule.slope(t.detach()))
    beta = schedule.beta(t.detach()).requires_grad_()
    (of_inverse,) = torch.autograd.grad(schedule.inverse(beta).sum(), beta)
    torch.testing.assert_close(of_inverse, 1 / slope)


KNOTS = torch.linspace(0, 1, 200, dtype=torch.float64)
OF_EXPONENTIAL = bfn.TabulatedSchedule(tuple(KNOTS.tolist()), tuple(EXPONENTIAL.beta(KNOTS).tolist()))


def test_a_table_of_the_exponential_schedule_is_near_it() -> None:
    t = torch.linspace(1e-6, 1, 5001, dtype=torch.float64)
    torch.testing.assert_close(OF_EXPONENTIAL.beta(t), EXPONENTIAL.beta(t), rtol=1e-4, atol=0)
    inner = t[t > 0.05]
    torch.testing.assert_close(OF_EXPONENTIAL.beta(inner), EXPONENTIAL.beta(inner), rtol=1e-6, atol=0)
