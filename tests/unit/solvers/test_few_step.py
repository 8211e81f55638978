"""Few-step rules: continuous in the number of calls, with less noise and a later end for more calls."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import bfn
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.info import ModelInfo, Spread
from bfn.core.solver import plan
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import MarkovChain
from bfn.solvers import SOLVERS
from bfn.solvers.few_step import Anchor, Calibration, interpolated

FLOWS = {"numbers": ContinuousFlow(0.001), "two": DiscreteFlow(2, 9.0), "many": DiscreteFlow(27, 0.5625)}
RULES = ("fast-ode", "fast-sde", "auto")


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize("name", RULES)
def test_rules_are_continuous_in_the_number_of_calls(kind, name):
    anchors = SOLVERS[name].anchors(FLOWS[kind])
    for n in range(20, 300):
        a, b = (interpolated(anchors, count) for count in (n, n + 1))
        assert abs(b.g - a.g) <= 0.1 * (1 + a.g)
        assert 1 / 1.15 < b.end / a.end < 1.15
        assert abs(b.exponent - a.exponent) < 0.05
        assert abs(b.power - a.power) < 0.05
        if name == "fast-sde":  # more calls have less noise and a later end
            assert b.g <= a.g + 1e-12
            assert b.end >= a.end * (1 - 1e-12)
    for anchor in anchors:
        assert interpolated(anchors, anchor.calls) == replace(anchor, quiet=min(anchor.quiet, max(0, anchor.calls - 2)))


@pytest.mark.parametrize(
    "model",
    [
        GaussianMixture(torch.tensor([[-1.0, 0.3], [0.6, -0.5]]), stds=torch.tensor([0.1, 0.3])),
        MarkovChain(torch.tensor([0.6, 0.4]), torch.tensor([[0.9, 0.1], [0.3, 0.7]]), 5, beta_1=4.0),
    ],
    ids=["numbers", "classes"],
)
def test_on_exact_models_auto_converges_to_the_truth(model):
    initial = torch.randn(64, *model.flow.state_shape(model.data_shape), generator=torch.Generator().manual_seed(0))
    initial = initial.to(model.dtype)
    end = model.sample(64, "fast-ode", 400, initial=initial).final
    errors = [float((model.sample(64, nfe=n, initial=initial).final - end).abs().mean()) for n in (5, 10, 20, 40, 80)]
    assert all(later < 0.6 * sooner for sooner, later in pairwise(errors)), errors
    assert errors[-1] < 1e-4
    assert plan(model, "auto", 12).solver.g == 0


def test_the_scale_of_the_data_sets_the_grid():
    def first_step(widest):
        model = GaussianMixture(torch.tensor([[-widest], [widest]]), stds=torch.tensor([0.1, 0.1]))
        return float(model.flow.schedule.s(plan(model, "fast-ode", 12).table.times[1]))

    assert first_step(8.0) < first_step(2.0) / 2 < first_step(0.5) / 4


@pytest.mark.parametrize("name", ["digits", "mnist-binary", "text8-plain"])
def test_a_single_call_is_made_after_t_0(name):
    """At t = 0 a network predicts the same for all samples."""
    model = bfn.load(name)
    model.info.tables = {}
    (first,) = plan(model, "auto", 1).table.times
    curve = model.info.error_curve
    assert float(curve.at(first)) == pytest.approx(0.75 * curve.squared_error[0], rel=1e-6)
    x = model.sample(4, nfe=1, seed=0, label=3 if model.info.classes else None).x
    assert not bool((x[0] == x[1]).all())
    assert plan(model, "auto", 3).table.times[0] == 0
    model.info.error_curve = None
    assert plan(model, "auto", 1).table.times == (0.0,)


def test_a_calibrated_model_has_its_own_settings():
    anchors = (Anchor(2, 0.0, 2, 3.0), Anchor(8, 3.0, 2, 6.0, exponent=1.5), Anchor(32, 1.0, 2, 24.0))
    info = ModelInfo(calibration=Calibration(anchors))
    flow = FLOWS["numbers"]
    at_4 = SOLVERS["auto"].resolve(flow, 4, info)
    assert at_4.g == pytest.approx(1.0)  # half way from log 1 to log 4
    assert at_4.grid.s_end == pytest.approx(18**0.5)
    assert at_4.grid.exponent == pytest.approx(1.25)
    assert SOLVERS["auto"].resolve(flow, 500, info).g == pytest.approx(1.0)
    assert SOLVERS["fast-sde"].resolve(flow, 4, info) == SOLVERS["fast-sde"].resolve(flow, 4)


def test_noise_prediction_starts_later_and_as_wide_as_the_data():
    model = bfn.BFN(lambda mu, t: torch.zeros_like(mu), ContinuousFlow(0.001), predicts="noise", data_shape=(2,))
    model.info.spread = Spread(2.0, 2.0)
    table = plan(model, "auto", 5).table
    assert float(model.flow.schedule.s(table.times[0])) == pytest.approx(0.5)
    assert table.start == pytest.approx(2**0.5)
    assert plan(model, "auto", 200).table.times[0] < table.times[0] / 50
    assert plan(model, "bfn", 5).table.start == 1
    first = []
    model.sample(4000, nfe=5, seed=0, on_step=lambda step: first.append(step.u))
    assert float(first[0].std()) == pytest.approx(2**0.5, rel=0.03)


def test_parts_share_equal_steps_to_a_time_that_grows_with_the_calls():
    flow = bfn.JointFlow({"at": FLOWS["numbers"], "kind": FLOWS["many"]}, times="separate")
    shapes = {"at": (2,), "kind": (1,)}
    model = bfn.BFN(lambda x, t: x, flow, {"at": "data", "kind": "logits"}, shapes)
    ends = []
    for calls in (2, 3, 5, 10, 20, 50):
        table = plan(model, "auto", calls).table
        times = table.parts["at"].times
        assert table.parts["kind"].times == times
        assert times == pytest.approx([times[-1] * i / (calls - 1) for i in range(calls)])
        ends.append(times[-1])
    assert ends == sorted(ends)
    assert ends[0] < 0.6
    assert ends[-1] == 1
    first = plan(model, "auto", 5, path=["at", "kind"]).table.parts["at"].times
    assert max(first) == 1  # a part that comes first goes all its way


def test_equal_parts_have_the_table_of_one_of_them():
    voices = dict.fromkeys(("soprano", "bass"), FLOWS["many"])
    model = bfn.BFN(lambda x, t: x, bfn.JointFlow(voices), dict.fromkeys(voices, "logits"), dict.fromkeys(voices, (4,)))
    alone = bfn.BFN(lambda x, t: x, FLOWS["many"], "logits", (4,))
    for name in RULES:
        for calls in (3, 5, 12):
            tables, expected = plan(model, name, calls).table.parts, plan(alone, name, calls).table
            assert all(own.rows == expected.rows for own in tables.values())
