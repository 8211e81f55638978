"""F, G, H, L, scores and equations of the paper, against the printed formulas and against autograd."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bfn
from bfn.solvers import sde
from bfn.solvers.sde import LinearSDE

FLOWS = [bfn.ContinuousFlow(sigma_1=0.02), bfn.DiscreteFlow(n_classes=6, beta_1=0.8)]
TIMES = [0.01, 0.3, 0.77, 1.0]


MESSAGES = {
    "noise": (sde.message_from_noise, sde.noise_from_message),
    "score": (sde.message_from_score, sde.score_from_message),
    "data": (lambda x, u, s, kappa: sde.message_from_data(x, FLOW_OF[kappa]),
             lambda w, u, s, kappa: sde.data_from_message(w, FLOW_OF[kappa])),
    "message": (lambda w, u, s, kappa: w, lambda w, u, s, kappa: w),
}  # fmt: skip
FLOW_OF = {flow.kappa: flow for flow in FLOWS}


@settings(deadline=None)  # the first call of all takes seconds on a busy machine
@given(
    st.sampled_from(FLOWS),
    st.floats(1e-2, 30),
    st.sampled_from(list(itertools.product(MESSAGES, repeat=2))),
    st.integers(0, 1000),
)
def test_round_trips(flow: bfn.Flow, s: float, pair: tuple[str, str], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    value, u = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    (from_source, to_source), (from_target, to_target) = (MESSAGES[name] for name in pair)
    there = to_target(from_source(value, u, s, flow.kappa), u, s, flow.kappa)
    back = to_source(from_target(there, u, s, flow.kappa), u, s, flow.kappa)
    # The way through w_hat = (u - ...)/s loses digits in proportion to what is added and taken off again.
    scale = max(1.0, float(u.abs().max()) / s, s) * flow.kappa
    torch.testing.assert_close(back, value, atol=1e-12 * scale, rtol=1e-12)


@pytest.mark.parametrize("t", TIMES)
def test_the_papers_coefficients(t: float) -> None:
    """Theorems 4.1 and 5.1, printed in tau = 1 - t with primes that have the other sign."""
    tau, sigma_1, K, beta_1 = 1 - t, 0.02, 6, 0.8
    power = sigma_1 ** (2 * (1 - tau))
    continuous, discrete = (LinearSDE(flow) for flow in FLOWS)
    assert float(continuous.drift(t)) == pytest.approx(2 * power / (1 - power) * math.log(sigma_1), rel=1e-10)
    assert float(continuous.diffusion(t)) ** 2 == pytest.approx(-2 * power * math.log(sigma_1), rel=1e-10)
    assert float(discrete.drift(t)) == pytest.approx(-2 / (1 - tau), rel=1e-10)
    assert float(discrete.diffusion(t)) ** 2 == pytest.approx(2 * K * beta_1 * (1 - tau), rel=1e-10)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.kind)
@pytest.mark.parametrize("t", TIMES)
def test_the_sde_has_the_flows_marginals(flow: bfn.Flow, t: float) -> None:
    """dm = F m d(1-t), dV = (2 F V + G^2) d(1-t) for mean alpha and variance kappa sigma^2.

    The second is g^2 = d sigma^2/dt - 2 (log alpha)' sigma^2; the background section prints 1/2 for 2 (errata).
    """
    process, h = LinearSDE(flow), 1e-5
    rate = {
        name: float((f(min(1.0, t + h)) - f(t - h)) / (min(1.0, t + h) - (t - h)))
        for name, f in (("mean", process.alpha), ("variance", lambda r: flow.kappa * process.sigma(r) ** 2))
    }
    drift, diffusion = float(process.drift(t)), float(process.diffusion(t))
    variance = flow.kappa * float(process.sigma(t)) ** 2
    tolerance = {"rel": 2e-3 if t == 1.0 else 1e-5}
    assert -rate["mean"] == pytest.approx(drift * float(process.alpha(t)), **tolerance)
    assert -rate["variance"] == pytest.approx(2 * drift * variance + diffusion**2, **tolerance)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.kind)
def test_the_score_is_the_gradient_of_the_log_density(flow: bfn.Flow, generator: torch.Generator) -> None:
    """For one data point x, p(v) is N(alpha w, kappa sigma^2): w_hat = w(x), and autograd gives the score."""
    x = torch.tensor([[0.4]], dtype=torch.float64) if flow.kind == "continuous" else torch.tensor([[2]])
    w, t = flow.message(x, torch.float64), 0.6
    process = LinearSDE(flow)
    v = torch.randn(w.shape, generator=generator, dtype=torch.float64).requires_grad_()
    log_p = -((v - process.alpha(t) * w) ** 2).sum() / (2 * flow.kappa * process.sigma(t) ** 2)
    (gradient,) = torch.autograd.grad(log_p, v)
    torch.testing.assert_close(process.score(w, v.detach(), t), gradient)
    # The same score in the coordinate y = s u, by the conversion functions; for classes v is y.
    s = float(flow.schedule.s(t))
    u = v.detach() / process.sigma(t)
    score_y = sde.score_from_message(w, u, s, flow.kappa)
    torch.testing.assert_close(score_y * s / process.sigma(t), gradient)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.kind)
def test_the_ode_in_u_is_du_ds_equals_w_hat(flow: bfn.Flow, generator: torch.Generator) -> None:
    """d(v / sigma)/dt = s' w_hat, whatever the state and the prediction."""
    process, t, h = LinearSDE(flow), 0.5, 1e-6
    u, w_hat = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    v = process.sigma(t) * u
    velocity = process.reverse(w_hat, v, t, g=0.0)[0]
    sigma_slope = (process.sigma(t + h) - process.sigma(t - h)) / (2 * h)
    s_slope = (flow.schedule.s(t + h) - flow.schedule.s(t - h)) / (2 * h)
    torch.testing.assert_close(velocity - sigma_slope * u, process.sigma(t) * s_slope * w_hat, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.kind)
def test_optimal_initial_minimises_the_kl(flow: bfn.Flow, generator: torch.Generator) -> None:
    """Among isotropic Gaussians the best fit to p(u) has its mean and mean variance (paper, app. D.1)."""
    if flow.kind == "continuous":
        x = torch.randn(500, 3, generator=generator, dtype=torch.float64) * torch.tensor([0.2, 1.0, 2.0]) + 0.5
    else:
        x = torch.randint(6, (500, 3), generator=generator) // 2
    mean, variance = sde.message_moments(flow, x)
    t, s = 0.7, float(flow.schedule.s(0.7))
    start, zero = bfn.InitialGaussian(mean, variance), torch.zeros_like(mean)
    unit_mean = start(flow, t, zero)
    unit_std = float((start(flow, t, zero + 1) - unit_mean).flatten()[0])
    w = flow.message(x, torch.float64)
    expected_variance = flow.kappa + s * s * (w - w.mean(0)).square().mean()
    torch.testing.assert_close(unit_mean * flow.kappa**0.5, s * w.mean(0))
    assert unit_std**2 * flow.kappa == pytest.approx(float(expected_variance))


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_the_slope_of_the_log_snr(t: float) -> None:
    """lambda = log s: d lambda/dt = G^2 / (2 gamma (1 - gamma)); the paper prints it without the 2 (errata)."""
    flow, h = FLOWS[0], 1e-6
    process = LinearSDE(flow)
    gamma = float(process.alpha(t))
    slope = float(flow.schedule.s(t + h).log() - flow.schedule.s(t - h).log()) / (2 * h)
    assert slope == pytest.approx(float(process.diffusion(t)) ** 2 / (2 * gamma * (1 - gamma)), rel=1e-6)
