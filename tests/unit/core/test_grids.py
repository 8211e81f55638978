"""Properties of all grids, and of each grid."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bfn
from bfn.core import grids
from bfn.core.info import ErrorCurve

FLOWS = {"continuous": bfn.ContinuousFlow(sigma_1=0.01), "discrete": bfn.DiscreteFlow(n_classes=4, beta_1=2.0)}
CURVE = ErrorCurve((0.0, 0.3, 0.6, 1.0), (1.0, 0.5, 0.1, 0.02))
NAMES = [*grids.GRIDS, "power:2", "power:0.5:0.7", "log1p:3", "log1p:8:0.1", "karras:3"]


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(sorted(FLOWS)),
    intervals=st.integers(0, 60),
    t_start=st.one_of(st.just(0.0), st.floats(1e-5, 0.2)),
)
def test_times_increase_from_the_start_within_the_flow(name: str, kind: str, intervals: int, t_start: float) -> None:
    grid = grids.parse(name).with_curve(CURVE)
    if grid.needs_start and t_start == 0:
        return
    times = grid(FLOWS[kind], intervals, t_start)
    assert times.dtype == torch.float64
    assert len(times) == intervals + 1
    assert float(times[0]) == t_start
    assert bool((times.diff() > 0).all())
    assert float(times[-1]) <= 1
    if intervals and not name.startswith(("log1p", "power:0.5")):
        assert float(times[-1]) == 1


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize(
    ("name", "coordinate"),
    [
        ("karras", lambda t, s: s ** (-1 / 7)),
        ("log-snr", lambda t, s: s.log()),
        ("log1p:5:0.25", lambda t, s: torch.log1p(s / 0.25)),
        ("uniform:0.6", lambda t, s: t),
    ],
)
def test_grids_are_uniform_in_their_coordinate(kind: str, name: str, coordinate) -> None:
    times = grids.parse(name)(FLOWS[kind], 9, 1e-3)
    steps = coordinate(times, FLOWS[kind].schedule.s(times)).diff()
    torch.testing.assert_close(steps, steps.mean().expand(9), rtol=1e-6, atol=0)
    if name == "uniform:0.6":
        assert float(times[-1]) == pytest.approx(0.6)
    if name == "log1p:5:0.25" and kind == "continuous":
        assert float(FLOWS[kind].schedule.s(times[-1])) == pytest.approx(5)


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_power_is_a_power_law_of_s(flow: bfn.Flow) -> None:
    s = flow.schedule.s(grids.parse("power:3:0.9")(flow, 4, 0.0))
    expected = torch.tensor([0, 1, 8, 27, 64], dtype=torch.float64) / 64 * flow.schedule.s(0.9)
    torch.testing.assert_close(s, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_information_is_shared_equally(flow: bfn.Flow) -> None:
    times = grids.Information(CURVE)(flow, 5, 0.01)
    gained = CURVE.information(flow, torch.linspace(0.01, 1, 4097, dtype=torch.float64))[-1]
    for a, b in pairwise(times.tolist()):
        fine = torch.linspace(a, b, 4001, dtype=torch.float64)
        assert float(CURVE.information(flow, fine)[-1]) == pytest.approx(float(gained) / 5, rel=1e-3)


def test_the_mean_of_grids_is_that_of_their_times() -> None:
    numbers, classes = FLOWS["continuous"], FLOWS["discrete"]
    own = grids.parse("log1p:20:0.35"), grids.parse("uniform:0.6")
    mean = grids.Mean(own, (numbers, classes), (3.0, 1.0))
    expected = 0.75 * own[0](numbers, 4, 0.0) + 0.25 * own[1](classes, 4, 0.0)
    torch.testing.assert_close(mean(numbers, 4, 0.0), expected)
    assert str(mean) == "the mean of log1p:20:0.35 and uniform:0.6"
