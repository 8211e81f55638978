import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bfn
from bfn.core.info import ErrorCurve
from bfn.core.losses import error_curve
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.kinds.schedules import error_curves, even_flow

FLOW = bfn.ContinuousFlow(sigma_1=0.02)


def normal(variance: float) -> GaussianMixture:
    return GaussianMixture(torch.zeros(1, 4), stds=torch.full((1,), variance**0.5), flow=FLOW)


def curve_of_normal(variance: float, flow: bfn.Flow, t: torch.Tensor) -> ErrorCurve:
    return ErrorCurve(tuple(t.tolist()), tuple((variance / (1 + flow.schedule.beta(t) * variance)).tolist()))


def test_it_is_linear_between_and_constant_outside() -> None:
    curve = ErrorCurve((0.2, 0.4, 0.8), (1.0, 0.5, 0.1))
    at = torch.tensor([0.0, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64)
    assert curve.at(at).tolist() == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.3, 0.1, 0.1])
    assert float(ErrorCurve((0.5,), (2.0,)).at(0.1)) == 2.0
    assert ErrorCurve.from_bins({}) is ErrorCurve.from_bins(None) is None


def test_of_normal_data_it_is_the_posterior_variance() -> None:
    """Var(x | u) = v / (1 + s^2 v); the information gathered up to s is log(1 + s^2 v) / 2."""
    variance = 0.3
    model = normal(variance)
    generator = torch.Generator().manual_seed(0)
    curve = error_curve(model, model.sample_data(4000, generator), n_times=17, generator=generator)
    beta = FLOW.schedule.beta(torch.tensor(curve.t, dtype=torch.float64))
    exact = variance / (1 + beta * variance)
    assert curve.squared_error == pytest.approx(exact.tolist(), rel=0.05)

    t = torch.linspace(0, 1, 2001, dtype=torch.float64)
    gained = curve_of_normal(variance, FLOW, t).information(FLOW, t)
    torch.testing.assert_close(gained, (1 + FLOW.schedule.beta(t) * variance).log() / 2, rtol=1e-4, atol=1e-5)


def test_of_classes_it_starts_at_the_variance_of_the_message() -> None:
    """Nothing is known at t = 0: E ||w - E w||^2 / kappa = K (1 - sum p^2) a dimension."""
    model = StringSet(torch.tensor([[0], [1], [2]]), torch.tensor([0.5, 0.25, 0.25]), n_classes=3)
    x = torch.tensor([[0], [0], [1], [2]])
    assert error_curve(model, x, n_times=2).squared_error[0] == pytest.approx(3 * (1 - 0.375))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_a_stored_curve_never_rises(errors: list[float]) -> None:
    stored = {"t": [(i + 0.5) / len(errors) for i in range(len(errors))], "squared_error": errors}
    curve = ErrorCurve.from_bins(stored)
    assert curve is not None
    assert all(b <= a for a, b in zip(curve.squared_error, curve.squared_error[1:], strict=False))
    assert all(a <= b for a, b in zip(curve.squared_error, errors, strict=True))


@pytest.mark.parametrize("flow", [FLOW, bfn.ContinuousFlow(schedule=bfn.QuadraticSchedule(400.0))], ids=["exp", "t^2"])
def test_on_the_even_schedule_information_grows_evenly(flow: bfn.Flow) -> None:
    """Normal data of variance v have information log(1 + beta v)/2: beta(t) = ((1 + beta_1 v)^t - 1) / v."""
    variance = 0.5
    t = torch.linspace(0, 1, 1001, dtype=torch.float64)
    schedule = curve_of_normal(variance, flow, t).even_schedule(flow)
    assert float(schedule.beta(1.0)) == pytest.approx(float(flow.schedule.beta(1.0)), rel=1e-14)
    gained = (1 + schedule.beta(t) * variance).log() / 2
    torch.testing.assert_close(gained, t * gained[-1], rtol=0, atol=1e-3 * float(gained[-1]))
    # The curve measured anew on it is that of a model whose beta' E||w - w_hat||^2 is the same at all times.
    rate = schedule.slope(t) * variance / (1 + schedule.beta(t) * variance)
    torch.testing.assert_close(rate, rate.mean().expand(1001), rtol=0.02, atol=0)


def coupled(**settings: object) -> JointMixture:
    """Numbers that tell the class and classes that tell the number, on schedules of very different pace."""
    return JointMixture(
        {"x": ([[-1.0], [1.0], [0.3]], [[0.05], [0.05], [0.05]])},
        {"kind": [[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]]},
        **settings,  # type: ignore[arg-type]
    )


def unevenness(flow: bfn.Flow, data: dict[str, torch.Tensor], generator: torch.Generator) -> float:
    """Return how unevenly the information of a part grows in t, measured on an exact model of that flow."""
    model, t = coupled(flows=flow.parts), torch.linspace(0, 1, 33, dtype=torch.float64)
    found = []
    for name, curve in error_curves(model, model.as_data(data), 33, generator).items():
        gained = curve.information(flow.parts[name], t)
        found.append(float((gained / gained[-1] - t).abs().max()))
    return max(found)


def test_the_error_curve_of_joint_data_is_that_of_their_leading_part() -> None:
    model = coupled()
    x = model.as_data(model.sample_data(50, torch.Generator().manual_seed(0)))
    own = error_curves(model, x, 9, torch.Generator().manual_seed(1))
    whole = error_curve(model, x, 9, torch.Generator().manual_seed(1))
    assert whole.squared_error == pytest.approx(own["x"].squared_error)


def test_an_even_flow_is_even_in_each_part() -> None:
    """Within 0.03 of the line, where the given schedules are far off it, and those of one measurement still off."""
    generator = torch.Generator().manual_seed(0)
    flows = {"x": bfn.ContinuousFlow(0.02), "kind": bfn.DiscreteFlow(3, 6.0)}
    model = coupled(flows=flows, times="separate")
    data = model.sample_data(2000, generator)
    once = even_flow(model, model.as_data(data), 65, generator, n_rounds=1)
    flows = (model.even_flow(data, 65, generator), once, model.flow)
    even, once, given = (unevenness(flow, data, generator) for flow in flows)
    assert even < 0.03 < once / 2 < given / 4


def test_an_even_flow_of_one_kind_of_data() -> None:
    """Normal data: beta_even(t) v = (1 + beta_1 v)^t - 1."""
    model = normal(0.3)
    generator = torch.Generator().manual_seed(0)
    flow = model.even_flow(model.sample_data(4000, generator), 256, generator)
    t = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    beta_1 = FLOW.schedule.beta(1.0)
    torch.testing.assert_close((1 + 0.3 * flow.schedule.beta(t)).log(), (1 + 0.3 * beta_1).log() * t, rtol=0.02, atol=0)


def test_even_schedules_are_stored_and_loaded(tmp_path) -> None:
    model = coupled(times="separate")
    flow = model.even_flow(model.sample_data(200, torch.Generator().manual_seed(0)), 17)
    ours = bfn.BFN(torch.nn.Identity(), flow, {"x": "data", "kind": "logits"}, {"x": (1,), "kind": ()})
    ours.save(tmp_path)
    assert bfn.load(tmp_path, network=torch.nn.Identity()).flow == ours.flow
