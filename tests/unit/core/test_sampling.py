from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bfn
import tiny
from bfn import solvers
from bfn.core.flows import NoiseLevel
from bfn.core.heads import Categorical, Output, Point
from bfn.core.info import ErrorCurve
from bfn.core.model import Model
from bfn.solvers.multistep import COORDINATES, Multistep, basis_over, step_moments
from bfn.solvers.sde import message_from_data
from planned import make_table

CONTINUOUS, DISCRETE = bfn.ContinuousFlow(sigma_1=0.05), bfn.DiscreteFlow(n_classes=4, beta_1=2.0)
FLOWS = {"continuous": CONTINUOUS, "discrete": DISCRETE}
CERTAIN = ErrorCurve((0.0,), (0.0,))
EXACT_ON_CONSTANTS = [name for name in solvers.names() if not name.startswith("euler")]
"""All but the Euler baselines, which know nothing of the process's linear part."""


class Constant(Model):
    """Predicts the same data whatever it is shown."""

    dtype = torch.float64

    def __init__(self, flow: bfn.Flow, prediction: torch.Tensor) -> None:
        self.flow, self.prediction = flow, prediction
        self.data_shape = (3,)

    def output(self, u: torch.Tensor, level: NoiseLevel, **conditions: torch.Tensor) -> Output:
        prediction = self.prediction.expand_as(u)
        return Point(prediction, 1.0) if self.flow.kind == "continuous" else Categorical(prediction.log())


def constant_model(flow: bfn.Flow, generator: torch.Generator) -> Constant:
    if flow.kind == "continuous":
        return Constant(flow, torch.randn(3, generator=generator, dtype=torch.float64))
    one_hot = torch.eye(4, dtype=torch.float64)[torch.randint(4, (3,), generator=generator)]
    return Constant(flow, one_hot)


increasing_times = st.lists(st.floats(0.001, 1), min_size=2, max_size=7, unique=True).map(sorted)


@settings(deadline=None, max_examples=100)
@given(
    name=st.sampled_from(EXACT_ON_CONSTANTS),
    schedule=st.one_of(
        st.floats(1e-3, 0.9).map(bfn.ExponentialSchedule), st.floats(0.05, 50).map(bfn.QuadraticSchedule)
    ),
    times=increasing_times,
    g=st.sampled_from([0.0, 0.3, 1.0, 2.5, 10.0, float("inf")]),
    seed=st.integers(0, 99),
)
def test_a_constant_prediction_is_integrated_exactly(name, schedule, times, g, seed) -> None:
    """u(s) = r^(g^2) u_0 + s (1 - r^(1+g^2)) w plus noise of variance kappa (1 - r^(2g^2)), r = s_0/s, on any grid."""
    if min(b - a for a, b in pairwise(times)) < 1e-3:
        return
    for kind in solvers.get(name).kinds:
        flow = bfn.ContinuousFlow(schedule=schedule) if kind == "continuous" else bfn.DiscreteFlow(4, schedule=schedule)
        model = constant_model(flow, torch.Generator().manual_seed(seed))
        solver = solvers.get(name).resolve(flow, len(times))
        if solver.has_dial:
            solver = solver.with_dial(g)
        table = make_table(flow, solver, grid=torch.tensor(times, dtype=torch.float64), curve=CERTAIN)
        s = flow.schedule.s_of(table.times)
        start, weight, noise = 1.0, 0.0, 0.0
        base = (start, weight, noise)
        for row in table.rows[:-1]:
            start, weight = row.a * base[0], row.a * base[1] + sum(row.b)
            noise = row.a**2 * base[2] + row.c**2
            if row.commit:
                base = (start, weight, noise)
        first = min(getattr(solver, "quiet", 0), len(s) - 1)
        decay, mass, std = step_moments(s[first], s[-1], solver.g) if first < len(s) - 1 else (1.0, 0.0, 0.0)
        mass += decay * (s[first] - s[0])
        assert start == pytest.approx(decay, rel=1e-9, abs=1e-12)
        assert weight == pytest.approx(mass, rel=1e-9)
        assert noise == pytest.approx(flow.kappa * std**2, rel=1e-8, abs=1e-12)
        # The loop does what the table says: with no noise the end state is known.
        if not solver.stochastic:
            initial = torch.ones(1, *flow.state_shape((3,)), dtype=torch.float64)
            out = model.sample(1, solver, grid=torch.tensor(times, dtype=torch.float64), initial=initial)
            w = message_from_data(model.prediction, flow)
            torch.testing.assert_close(out.u, (initial * flow.kappa**0.5 + mass * w), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(out.prediction[0], model.prediction)
            assert out.nfe == table.nfe


@settings(deadline=None)
@given(
    st.sampled_from(sorted(COORDINATES)),
    st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]),
    st.integers(1, 4),
    st.floats(0.01, 5),
    st.floats(1.05, 30),
)
def test_polynomials_in_the_coordinate_are_integrated_exactly(coordinate, g, order, s_start, ratio) -> None:
    """Weights of order p integrate c(s)^k, k < p, against the dial's kernel: checked by adaptive quadrature."""
    from scipy.integrate import quad

    s_end, schedule = s_start * ratio, CONTINUOUS.schedule
    history = [s_start * 0.8**j for j in range(order)]
    mass = step_moments(s_start, s_end, g)[1]
    b = [mass * x for x in basis_over(history, s_start, s_end, 1 + g * g, partial(COORDINATES[coordinate], schedule))]

    def c(s: float) -> float:
        return float(COORDINATES[coordinate](schedule, torch.tensor(s, dtype=torch.float64)))

    for k in range(order):

        def kernel(s, k=k):
            return (1 + g * g) * (s / s_end) ** (g * g) * c(s) ** k

        points = [s_end * (1 - 0.1 / (1 + g * g))]
        expected = quad(kernel, s_start, s_end, epsabs=1e-13, epsrel=1e-12, limit=200, points=points)[0]
        got = sum(weight * c(s) ** k for weight, s in zip(b, history, strict=True))
        assert got == pytest.approx(expected, rel=1e-8, abs=1e-8 * sum(abs(w) * abs(c(history[0])) ** k for w in b))


def test_full_renoising_extrapolates_to_the_next_level() -> None:
    """At g = infinity the old state is forgotten: u = s_1 * (prediction extrapolated to s_1) + sqrt(kappa) xi."""
    row = Multistep("m", "", ("discrete",), 2, g=float("inf")).table(DISCRETE, [0.2, 0.4, 0.7]).rows[1]
    s = DISCRETE.schedule.s_of([0.2, 0.4, 0.7])
    slope = (s[2] - s[1]) / (s[1] - s[0])
    assert row.a == 0
    assert row.c == pytest.approx(2)
    assert row.b == pytest.approx((s[2] * (1 + slope), -s[2] * slope), rel=1e-12)


def test_the_start_from_the_prior_is_exact() -> None:
    """From s = 0 every dial draws the first state as it must: all of u_0 is kept at g = 0, all is fresh beyond."""
    for g in (0.0, 0.5, 1.0, 3.0):
        decay, noise = (1.0, 0.0) if g == 0 else (0.0, 1.0)
        assert step_moments(0.0, 1.7, g) == pytest.approx((decay, 1.7, noise))


def network(inputs: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.tanh(inputs * 2 + t.view(-1, *(1,) * (inputs.ndim - 1)))


def bfn_model(kind: str) -> bfn.BFN:
    model = bfn.BFN(network, FLOWS[kind], "noise" if kind == "continuous" else "logits", (3,))
    model.info.error_curve = CERTAIN
    return model


@pytest.mark.parametrize(("name", "kind"), [(n, k) for k in FLOWS for n in solvers.names(k)])
def test_same_seed_same_sample_and_the_order_of_draws(name: str, kind: str) -> None:
    """The generator draws the initial state, then one tensor of noise for each noisy row, in the state's shape."""
    model, calls = bfn_model(kind), 6
    out = model.sample(5, name, calls, seed=3)
    assert out.nfe == calls == len(out.times)

    generator = torch.Generator().manual_seed(3)
    shape = (5, *FLOWS[kind].state_shape((3,)))
    first = torch.randn(shape, generator=generator)
    seen = []
    assert torch.equal(model.sample(5, name, calls, seed=3, on_step=seen.append).x, out.x)
    torch.testing.assert_close(seen[0].u, first * FLOWS[kind].kappa ** 0.5)
    assert [step.index for step in seen] == list(range(calls))

    resolved = solvers.get(name).resolve(FLOWS[kind], calls)
    table = make_table(FLOWS[kind], name, calls, starts_at_zero=model.starts_at_zero, curve=CERTAIN)
    if resolved.stochastic and not table.draws:
        xi = torch.randn(shape, generator=generator)
        row = table.rows[0]
        w = message_from_data(seen[0].prediction, FLOWS[kind])
        torch.testing.assert_close(seen[1].u, row.a * seen[0].u + row.b[0] * w + row.c * xi, rtol=1e-5, atol=1e-5)


def test_an_initial_state_replaces_the_first_draw() -> None:
    model, generator = bfn_model("discrete"), torch.Generator().manual_seed(3)
    whole = model.sample(5, "sde-bfn-solver2", 4, seed=3)
    initial = torch.randn(5, 3, 4, generator=generator)
    assert torch.equal(whole.u, model.sample(5, "sde-bfn-solver2", 4, initial=initial, generator=generator).u)


def test_the_optimal_initial_gaussian_is_used() -> None:
    mean, variance = torch.tensor([1.0, -2.0, 0.5]), 3.0
    seen = []
    noise = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    initial = bfn.InitialGaussian(mean, variance)
    bfn_model("continuous").sample(2, "bfn-solver1", 3, t_start=0.1, initial=initial, seed=1, on_step=seen.append)
    s = float(CONTINUOUS.schedule.s(0.1))
    torch.testing.assert_close(seen[0].u, s * mean + (1 + s * s * variance) ** 0.5 * noise)


@pytest.mark.parametrize(
    ("kind", "solver", "options", "times"),
    [
        ("discrete", "bfn", {"nfe": 5}, (0, 0.25, 0.5, 0.75, 1)),
        ("discrete", "bfn-solver2", {"t_start": 0.2}, (0.2, 0.4, 0.6, 0.8)),
        ("discrete", "bfn-solver2-singlestep", {"t_start": 0.2}, (0.2, 0.4, 0.6, 0.8)),
        # Where a grid or a prediction of noise has no point at t = 0, sampling starts where it can.
        ("continuous", "fast-sde", {"grid": "karras"}, (1e-3,)),
        ("discrete", "fast-sde", {"grid": "log-snr"}, (1e-3,)),
        ("continuous", "fast-ode", {"grid": "log1p"}, (1e-3,)),
        ("continuous", "fast-ode", {}, (float(CONTINUOUS.schedule.time_of_s(0.5)),)),
    ],
)
def test_calls_start_and_end_where_the_solver_and_the_grid_say(kind, solver, options, times) -> None:
    found = bfn_model(kind).sample(2, solver, **{"nfe": 4, **options}).times
    assert found[: len(times)] == pytest.approx(times)


def test_the_original_sampler_is_the_papers_update() -> None:
    """mu_i of eq. bg-cbfn-sample, in its noise form, from the same noise."""
    model, times = bfn_model("continuous"), torch.tensor([0.1, 0.4, 0.8], dtype=torch.float64)
    gamma = [float(b / (1 + b)) for b in CONTINUOUS.schedule.beta(times)]
    states = []
    model.sample(2, "bfn", grid=times, seed=2, on_step=states.append)
    generator = torch.Generator().manual_seed(2)
    mu = torch.randn(2, 3, generator=generator) * (gamma[0] * (1 - gamma[0])) ** 0.5
    for i in (1, 2):
        eps_hat = network(mu, torch.full((2,), float(times[i - 1])))
        step = gamma[i] - gamma[i - 1]
        mu = (
            -step / (gamma[i - 1] * (1 - gamma[i - 1])) ** 0.5 * eps_hat
            + gamma[i] / gamma[i - 1] * mu
            + ((1 - gamma[i]) / (1 - gamma[i - 1]) * step) ** 0.5 * torch.randn(2, 3, generator=generator)
        )
        s = float(CONTINUOUS.schedule.s(times[i]))
        torch.testing.assert_close(CONTINUOUS.network_input(states[i].u, s), mu, rtol=1e-4, atol=1e-5)


def test_autocast_leaves_the_state_alone_and_dropout_comes_back() -> None:
    seen = []

    class Net(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            out = super().forward(inputs)
            seen.append((out.dtype, self.training))
            return out

    model = bfn.BFN(Net(3, 3), CONTINUOUS, "data", (3,))
    out = model.sample(2, "bfn-solver1", 2, autocast=torch.bfloat16)
    assert seen == [(torch.bfloat16, False)] * 2
    assert out.u.dtype == torch.float32
    assert model.training


def test_samplers_with_and_without_drawn_classes_share_their_noise() -> None:
    """With certain classes and the same noise, drawn and undrawn classes give the same trajectories."""

    model = constant_model(DISCRETE, torch.Generator().manual_seed(1))

    def states(name: str, own: torch.Generator | None) -> list[torch.Tensor]:
        seen: list[bfn.Step] = []
        settings = {"grid": "uniform", "t_start": 0.0, "class_generator": own, "on_step": seen.append}
        model.sample(2, name, 6, seed=2, **settings)
        return [step.u for step in seen]

    drawn, plain = states("bfn", torch.Generator().manual_seed(3)), states("sde-bfn-solver1", None)
    assert all(torch.equal(a, b) for a, b in zip(drawn, plain, strict=True))
    assert not torch.equal(states("bfn", None)[2], plain[2])


@pytest.mark.parametrize(
    ("kind", "solver"),
    [("images", "fast-ode"), ("images", "fast-sde"), ("images", "unipc3"), ("text", "bfn"),
     ("text", "bfn-solver2-singlestep")],
)  # fmt: skip
def test_memory_that_is_used_again_changes_nothing(kind: str, solver: str) -> None:
    model = tiny.build(kind)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    # States that are shown belong to who looks: with a look at each step no memory is used again.
    whole = model.sample(3, solver, 8, seed=1, on_step=lambda step: seen.append((step.u, step.u.clone())))
    again = model.sample(3, solver, 8, seed=1)
    assert torch.equal(whole.x, again.x)
    assert torch.equal(whole.u, again.u)
    assert all(torch.equal(shown, copy) for shown, copy in seen)
    initial = torch.randn(3, *model.flow.state_shape(model.data_shape))
    before = initial.clone()
    model.sample(3, solver, 8, initial=initial)
    assert torch.equal(initial, before)


def test_a_table_says_how_wide_the_first_state_is():
    model = bfn.BFN(lambda mu, t: mu, bfn.ContinuousFlow(), "data", (3,))
    usual, half = (model.sample(2, solvers.Table((solvers.Row(0.5),), start=start), seed=0).x for start in (1.0, 0.5))
    torch.testing.assert_close(half, usual / 2)
