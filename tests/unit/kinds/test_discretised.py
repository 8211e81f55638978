import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

import bfn
from bfn.core.flows import NoiseLevel
from bfn.kinds.discretised import (
    SCALE_RANGE,
    ClippedNoiseHead,
    Discretised,
    DiscretisedHead,
    LogitHead,
    bin_centre,
    bin_index,
    log_bin_mass,
    quantise,
)

FLOW = bfn.ContinuousFlow(sigma_1=1e-3)
BITS = torch.float64


def normal(mean: float, scale: float, n_bins: int = 16, batch: int = 1) -> Discretised:
    one = torch.ones(batch, 1, dtype=BITS)
    return Discretised(mean * one, scale * one, 0 * one, n_bins)


def mixture(n_bins: int = 16, batch: int = 1) -> Discretised:
    """Return three normals with different weights, one of them outside the range."""
    rows = torch.tensor([[-0.6, 0.1, 1.2], [0.05, 0.3, 0.2], [0.2, 0.5, 0.3]], dtype=BITS)
    means, scales, weights = rows[:, None, :].expand(3, batch, 3)
    return Discretised(means, scales, weights.log(), n_bins)


def exact_log_mass(low: float, high: float, mean: float, scale: float) -> float:
    """Return the log of the mass of a normal between two edges, by quadrature."""
    z_low, z_high = (low - mean) / scale, (high - mean) / scale
    peak = min(max(0.0, z_low), z_high)
    # Beyond 40 / |peak| from the edge nothing is left.
    reach = 40 / max(1.0, abs(peak))
    ends = max(z_low, peak - reach), min(z_high, peak + reach)
    value, _ = integrate.quad(lambda z: math.exp((peak**2 - z**2) / 2), *ends, epsabs=0)
    return math.log(value) - peak**2 / 2 - math.log(2 * math.pi) / 2


@pytest.mark.parametrize("n_bins", [2, 16, 256])
def test_centres_are_their_own_bins(n_bins: int) -> None:
    index = torch.arange(n_bins)
    centres = bin_centre(index, n_bins)
    assert torch.equal(bin_index(centres, n_bins), index)
    assert torch.equal(quantise(centres, n_bins), centres)
    torch.testing.assert_close(centres, -centres.flip(0))
    levels = 2 * index / (n_bins - 1) - 1
    assert torch.equal(bin_index(levels, n_bins), index)
    outside = torch.tensor([-7.0, -1.0, 1.0, 7.0])
    assert bin_index(outside, n_bins).tolist() == [0, 0, n_bins - 1, n_bins - 1]


@pytest.mark.parametrize("mean", [0.0, 0.9, -3.0, 40.0])
@pytest.mark.parametrize("scale", [SCALE_RANGE[0], 0.05, 1.0, SCALE_RANGE[1]])
@pytest.mark.parametrize("index", [0, 1, 130, 255])
def test_mass_of_a_bin_against_quadrature(mean: float, scale: float, index: int) -> None:
    """Even for a mass of exp(-1e9), far below the rounding of a difference of two probabilities."""
    low = -math.inf if index == 0 else 2 * index / 256 - 1
    high = math.inf if index == 255 else 2 * (index + 1) / 256 - 1
    mass = log_bin_mass(torch.tensor(index), torch.tensor(mean), torch.tensor(scale), 256)
    exact = exact_log_mass(low, high, float(torch.tensor(mean)), float(torch.tensor(scale)))
    assert float(mass) == pytest.approx(exact, rel=1e-7, abs=1e-7)


@given(mean=st.floats(-1e6, 1e6), log_scale=st.floats(*map(math.log, SCALE_RANGE)))
@settings(max_examples=40, deadline=None)
def test_probabilities_sum_to_one_and_have_gradients(mean: float, log_scale: float) -> None:
    parameters = torch.tensor([[mean], [log_scale]], dtype=BITS, requires_grad=True)
    output = Discretised(parameters[:1], parameters[1:].exp(), torch.zeros(1, 1, dtype=BITS), 256)
    total = torch.logsumexp(output.log_probs, -1)
    assert float(total.detach()) == pytest.approx(0, abs=1e-9)
    (gradient,) = torch.autograd.grad(output.log_probs.sum() + output.mean.sum(), parameters)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    "output", [normal(0.3, 0.2), normal(0.3, 8.0), normal(-2.0, 0.5), normal(0.01, 1e-3, 256), mixture(), mixture(256)]
)
def test_mean_mode_and_log_prob_are_those_of_the_bins(output: Discretised) -> None:
    centres = bin_centre(torch.arange(output.n_bins), output.n_bins, BITS)
    torch.testing.assert_close(output.mean, (output.log_probs.exp() * centres).sum(-1), rtol=0, atol=1e-12)
    torch.testing.assert_close(output.log_prob(centres[:, None])[:, 0], output.log_probs[0, :])
    # The outermost bins contain the tails of a wide normal and can be more probable than the bin at its mean.
    assert float(output.log_prob(output.mode[None])) == pytest.approx(float(output.log_probs.max()))


@pytest.mark.parametrize("make", [lambda n: normal(0.3, 0.4, batch=n), lambda n: mixture(batch=n)])
def test_draws_have_the_bins_probabilities(make, generator: torch.Generator) -> None:
    """Chi-squared with 15 degrees of freedom exceeds 44.3 once in 10,000 runs."""
    n = 20_000
    output = make(n)
    draws = output.draw(generator)
    assert draws.shape == (n,)
    assert torch.equal(draws, quantise(draws, 16))
    counts = torch.bincount(bin_index(draws, 16), minlength=16)
    expected = n * output.log_probs[0].exp()
    assert float(((counts - expected) ** 2 / expected.clamp(min=1)).sum()) < 44.3


def exact_message_kl(output: Discretised, x: float, accuracy: float) -> float:
    """Return KL(N(x, 1/alpha) || mixture of N(c_k, 1/alpha)) by quadrature over the message."""
    centres = bin_centre(torch.arange(output.n_bins), output.n_bins, BITS)
    eps = torch.linspace(-8, 8, 4001, dtype=BITS)[:, None]
    distance = eps + math.sqrt(accuracy) * (x - centres)
    log_ratio = -(eps[:, 0] ** 2) / 2 - torch.logsumexp(output.log_probs[:1] - distance**2 / 2, -1)
    density = (-(eps[:, 0] ** 2) / 2).exp() / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(density * log_ratio, eps[:, 0]))


@pytest.mark.parametrize("accuracy", [1e-3, 1.0, 300.0, 1e6])
def test_message_kl_is_unbiased(accuracy: float, generator: torch.Generator) -> None:
    """Within 5 standard errors of the exact divergence."""
    n = 5_000
    output, x = mixture(batch=n), torch.full((n,), 0.8125, dtype=BITS)
    kl = output.message_kl(x, torch.full((n,), accuracy, dtype=BITS), generator)
    exact = exact_message_kl(output, 0.8125, accuracy)
    assert abs(float(kl.mean()) - exact) < 5 * float(kl.std()) / math.sqrt(n) + 1e-9
    # A message that tells everything costs the data's log-probability, a faint one half alpha times the squared error.
    if accuracy == 1e6:
        assert exact == pytest.approx(-float(output.log_prob(x)[0]), rel=1e-6)
    if accuracy == 1e-3:
        assert exact == pytest.approx(accuracy / 2 * float((output.mean[0] - 0.8125) ** 2), rel=0.01)


def test_a_perfect_network_knows_the_bin(generator: torch.Generator) -> None:
    """The true noise with a small standard deviation puts all mass on the bin of the data, at any noise level."""
    x = quantise(torch.rand(4, 3, generator=generator, dtype=BITS) * 2 - 1, 256)
    eps = torch.randn(4, 3, generator=generator, dtype=BITS)
    output = torch.stack([eps, torch.full_like(eps, -9.0)], -1)
    head = DiscretisedHead(256)
    for t in (0.5, torch.tensor([0.3, 0.5, 0.9, 1.0], dtype=BITS)):
        level = FLOW.noise_level(t, 4, 1, like=x)
        result = head.output(FLOW, output, FLOW.noised(x, level.s, eps), level)
        torch.testing.assert_close(result.mean, x, atol=1e-5, rtol=0)
        assert bool((result.log_prob(x) > -1e-3).all())


@pytest.mark.parametrize("log_scale", [0.0, -30.0, 30.0])
def test_noise_deviation_becomes_data_deviation(log_scale: float) -> None:
    """N(m, d^2) for the noise is N((u - m)/s, (d/s)^2) for the data, clipped to the range, and N(0, 1) at t = 0."""
    u, head = torch.tensor([[0.5]], dtype=BITS), DiscretisedHead(16)
    s = float(FLOW.schedule.s(0.3))
    network = torch.stack([u - 0.4, torch.full_like(u, log_scale)], -1)
    output = head.output(FLOW, network, u, NoiseLevel(torch.tensor([0.3], dtype=BITS), s))
    assert float(output.means) == pytest.approx(0.4 / s)
    assert float(output.scales) == pytest.approx(min(max(math.exp(log_scale) / s, SCALE_RANGE[0]), SCALE_RANGE[1]))
    start = head.output(FLOW, network, u, NoiseLevel(torch.zeros(1, dtype=BITS), 0.0))
    torch.testing.assert_close(start.mean, torch.zeros_like(u))
    torch.testing.assert_close(start.log_prob(u), normal(0, 1).log_prob(u))


def test_a_mixture_of_equal_normals_is_one_normal(generator: torch.Generator) -> None:
    noise, log_scale, u = torch.randn(3, 5, 3, generator=generator, dtype=BITS)
    logits = torch.randn(5, 3, 4, generator=generator, dtype=BITS)
    level = FLOW.noise_level(0.2, 5, 1, like=u)
    one = DiscretisedHead(16).output(FLOW, torch.stack([noise, log_scale], -1), u, level)
    stacked = [logits, noise[..., None].expand_as(logits), log_scale[..., None].expand_as(logits)]
    head = DiscretisedHead(16, n_components=4)
    many = head.output(FLOW, torch.cat(stacked, -1), u, level)
    assert head.raw_shape((3,)) == (3, 12)
    torch.testing.assert_close(many.mean, one.mean)
    torch.testing.assert_close(many.log_prob(u), one.log_prob(u))


@pytest.mark.parametrize("n_bins", [16, 256])
def test_losses_of_a_model(n_bins: int, generator: torch.Generator) -> None:
    """With many steps the n-step loss is the continuous-time loss, within 5 % and 4 standard errors."""
    model = bfn.BFN(lambda inputs, t: torch.zeros(*inputs.shape, 2), FLOW, DiscretisedHead(n_bins), (16,))
    x = quantise(torch.rand(800, 16, generator=generator) * 1.6 - 0.8, n_bins)
    many, continuous = model.loss(x, n_steps=100, generator=generator), model.loss(x, generator=generator)
    error = math.sqrt(float(many.var() + continuous.var()) / len(x))
    assert abs(float(many.mean() - continuous.mean())) < 0.05 * float(continuous.mean()) + 4 * error
    assert 4 * error < 0.4 * float(continuous.mean())
    for loss in (model.loss(x[:9], n_steps=1, generator=generator), model.reconstruction_loss(x[:9])):
        assert torch.isfinite(loss).all()


def test_clipped_noise_is_noise_within_the_range() -> None:
    u = torch.tensor([[-9.0, 0.1, 9.0]], dtype=BITS)
    level = FLOW.noise_level(0.3, 1, 1, like=u)
    ours, plain = (head.output(FLOW, 0 * u, u, level).mean for head in (ClippedNoiseHead(), bfn.heads.NoiseHead()))
    torch.testing.assert_close(ours, plain.clamp(-1, 1))


def test_one_logit_is_a_bernoulli() -> None:
    flow = bfn.DiscreteFlow(n_classes=2, beta_1=9.0)
    logit = torch.tensor([[-30.0, -0.5, 0.0, 2.0]], dtype=BITS)
    u = torch.zeros(1, 4, 2, dtype=BITS)
    output = LogitHead().output(flow, logit, u, flow.noise_level(0.5, 1, 2, like=u))
    torch.testing.assert_close(output.mean, torch.stack([torch.sigmoid(-logit), torch.sigmoid(logit)], -1))
    for label in (0, 1):
        x = torch.full((1, 4), label)
        expected = -torch.nn.functional.binary_cross_entropy_with_logits(logit, x.to(BITS), reduction="none")
        torch.testing.assert_close(output.log_prob(x), expected)
