"""Angles: von Mises distributions against sums over a fine circle, and samples that lie on it."""

import math

import pytest
import torch
from torch import Tensor

import bfn
from bfn.controls.guidance import Steering
from bfn.core.flows import ContinuousFlow, DiscreteFlow, NoiseLevel
from bfn.core.joint import JointFlow
from bfn.core.model import BFN
from bfn.exact.numbers import VonMisesMixture
from bfn.kinds.angles import VonMises, angles_of, pairs_of

CIRCLE = torch.linspace(-math.pi, math.pi, 20_001, dtype=torch.float64)[:-1]
WIDTH = 2 * math.pi / len(CIRCLE)


def natural(concentration: float, angle: float) -> Tensor:
    return concentration * pairs_of(torch.tensor([angle], dtype=torch.float64))


def mixture() -> VonMises:
    """Return a narrow and a wide component for one angle of one sample."""
    both = torch.cat([natural(30.0, 2.8), natural(1.5, -1.0)])[None, None]
    return VonMises(both, torch.tensor([[[0.4, 0.6]]], dtype=torch.float64).log())


def repeated(output: VonMises, n: int) -> VonMises:
    return VonMises(output.natural.expand(n, 1, -1, 2), output.log_weights.expand(n, 1, -1))


def density(output: VonMises) -> Tensor:
    """Return densities on a fine circle; the log-density of an angle is the sum over its pair."""
    return repeated(output, len(CIRCLE)).log_prob(pairs_of(CIRCLE).unsqueeze(1)).sum((1, 2)).exp()


SINGLE = [VonMises.single(natural(concentration, 2.5).unsqueeze(0)) for concentration in (0.0, 1e-7, 0.3, 8.0, 900.0)]


@pytest.mark.parametrize("output", [*SINGLE, mixture()])
def test_the_mean_and_the_mode_are_those_of_the_density(output: VonMises) -> None:
    p = density(output)
    assert float(p.sum() * WIDTH) == pytest.approx(1, abs=1e-10)
    torch.testing.assert_close(output.mean[0, 0], (p[:, None] * pairs_of(CIRCLE)).sum(0) * WIDTH, atol=1e-10, rtol=0)
    if float(output.mean.norm()) > 0.1:
        assert float(angles_of(output.mode)) == pytest.approx(float(CIRCLE[p.argmax()]), abs=0.02)


def test_with_mean_makes_a_distribution_with_that_mean() -> None:
    level = NoiseLevel(torch.ones(1), 1.0)
    for length in (1e-12, 0.05, 0.7, 0.999, 0.999999, 1.7):
        mean = length * pairs_of(torch.tensor([[0.3]], dtype=torch.float64))
        # A mean outside of the circle is brought back to it.
        expected, tolerance = (mean / length, 1e-6) if length > 1 else (mean, 1e-9)
        torch.testing.assert_close(mixture().with_mean(mean, level).mean, expected, atol=tolerance, rtol=0)


def test_a_high_concentration_keeps_its_digits() -> None:
    """In float32, the log-density at one standard deviation, 1e-3, which is almost that of a normal."""
    output = VonMises.single(natural(1e6, 0.4).float().unsqueeze(0))
    x = pairs_of(torch.tensor([[0.4]], dtype=torch.float64) + 1e-3).float()
    expected = -0.5 - math.log(1e-3) - math.log(2 * math.pi) / 2
    assert float(output.log_prob(x).sum()) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("concentration", [0.0, 0.5, 4.0, 1e4])
def test_draws_have_the_density(concentration: float) -> None:
    """Kolmogorov's distance of the distribution function; it exceeds 2.23 once in 10,000 runs."""
    n = 20_000
    output = VonMises.single(natural(concentration, 1.0).expand(n, 1, 2))
    drawn = output.draw(torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.norm(dim=-1), torch.ones(n, 1, dtype=torch.float64))
    offset = torch.remainder(angles_of(drawn).flatten() - 1.0 + math.pi, 2 * math.pi) - math.pi
    scale = min(math.pi, 8 / math.sqrt(max(concentration, 1e-9)))
    at = torch.linspace(-scale, scale, 100_001, dtype=torch.float64)
    cdf = (concentration * (at.cos() - 1)).exp().cumsum(0)
    places = torch.searchsorted(at, offset.sort().values).clamp(max=len(at) - 1)
    distance = (cdf[places] / cdf[-1] - (torch.arange(n) + 0.5) / n).abs().max()
    assert float(distance) * math.sqrt(n) < 2.23


def divergence(output: VonMises, x: Tensor, accuracy: float) -> Tensor:
    alpha = torch.full((len(x), 1, 1), accuracy, dtype=torch.float64)
    return repeated(output, len(x)).message_kl(x, alpha, torch.Generator().manual_seed(0)).sum((1, 2))


@pytest.mark.parametrize("accuracy", [0.5, 4.0])
def test_the_divergence_of_a_message_is_that_of_the_receivers_mixture(accuracy: float) -> None:
    """Against the same messages' densities under a sum over the circle."""
    output, n = mixture(), 500
    x = pairs_of(torch.full((n, 1), 2.0, dtype=torch.float64))
    kl = divergence(output, x, accuracy)
    eps = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = accuracy * x[:, 0] + math.sqrt(accuracy) * eps[:, 0]
    apart = (y.unsqueeze(1) - accuracy * pairs_of(CIRCLE[::20])).square().sum(-1) / (2 * accuracy)
    receiver = torch.logsumexp(density(output)[::20].log() + math.log(20 * WIDTH) - apart, 1)
    torch.testing.assert_close(kl, -eps[:, 0].square().sum(-1) / 2 - receiver, atol=1e-8, rtol=1e-8)


def test_a_small_message_costs_half_its_accuracy_times_the_squared_error() -> None:
    output, n, alpha = mixture(), 200_000, 1e-4
    x = pairs_of(torch.full((n, 1), 2.0, dtype=torch.float64))
    costs = divergence(output, x, alpha) / alpha
    expected = float((x[0] - output.mean[0]).square().sum() / 2)
    assert abs(float(costs.mean()) - expected) < 5 * float(costs.std()) / math.sqrt(n) + 0.01


def test_guidance_adds_natural_parameters() -> None:
    """Mixtures keep the weights of the conditional ones: a batch of three with its unconditional version."""
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(6, 4, 2, 2, generator=generator)
    log_weights = torch.randn(6, 4, 2, generator=generator).log_softmax(-1)
    guided = VonMises(parameters, log_weights).guided((3.0,), 0.0, NoiseLevel(torch.ones(3), 1.0))
    torch.testing.assert_close(guided.log_weights, log_weights[:3])
    torch.testing.assert_close(guided.natural, 3 * parameters[:3] - 2 * parameters[3:])


def silent(inputs: Tensor, t: Tensor) -> Tensor:
    """Return 0, for which the head gives the posterior of uniform angles."""
    return torch.zeros_like(inputs)


@pytest.mark.parametrize("t", [0.0, 0.3, 0.8])
def test_a_network_of_zeros_is_exact_for_uniform_angles(t: float) -> None:
    model = BFN(silent, ContinuousFlow(0.05), "angle", (1, 2))
    u = torch.tensor([[[0.4, -1.9]]], dtype=torch.float64)
    level = model.flow.noise_level(t, 1, 2, u)
    weights = torch.softmax(-(u[0] - level.s * pairs_of(CIRCLE)).square().sum(-1) / 2, 0)
    torch.testing.assert_close(model.output(u, level).mean[0, 0], weights @ pairs_of(CIRCLE), atol=1e-10, rtol=0)


@pytest.mark.parametrize("solver", ["auto", "bfn", "fast-ode", "bfn-solver++2"])
def test_samples_lie_on_the_circle_and_predictions_inside(solver: str) -> None:
    model = BFN(silent, ContinuousFlow(0.05), "angle", (3, 2))
    lengths = []
    out = model.sample(16, solver, 6, seed=0, on_step=lambda step: lengths.append(step.prediction.norm(dim=-1)))
    torch.testing.assert_close(out.x.norm(dim=-1), torch.ones(16, 3))
    draws = solver == "bfn"  # the original sampler sends draws of the output distribution, which lie on the circle
    assert draws or float(torch.stack(lengths[:-1]).max()) < 1


@pytest.mark.parametrize("solver", ["auto", "bfn"])
def test_angles_are_a_part_of_joint_data(solver: str) -> None:
    def zeros(inputs: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        return {name: torch.zeros_like(value) for name, value in inputs.items()}

    flow = JointFlow(phi=ContinuousFlow(0.05), kind=DiscreteFlow(3))
    model = BFN(zeros, flow, {"phi": "angle", "kind": "logits"}, {"phi": (4, 2), "kind": (4,)})
    out = model.sample(8, solver, 5, seed=0)
    torch.testing.assert_close(out.x["phi"].norm(dim=-1), torch.ones(8, 4))
    given = pairs_of(torch.linspace(-2, 2, 4))
    half = (torch.arange(4) % 2 == 0).unsqueeze(1).expand(4, 2)
    kept = model.sample(8, solver, 5, seed=0, known={"phi": given}, known_mask={"phi": half}).x["phi"]
    assert torch.equal(kept[:, [0, 2]], given[[0, 2]].expand(8, 2, 2))
    torch.testing.assert_close(kept.norm(dim=-1), torch.ones(8, 4))
    data = {"phi": pairs_of(torch.rand(8, 4)), "kind": torch.zeros(8, 4, dtype=torch.int64)}
    for loss in (model.loss(data), model.loss(data, n_steps=4), model.reconstruction_loss(data)):
        assert bool(torch.isfinite(loss).all())


def test_steering_stays_on_the_circle() -> None:
    """A linear function adds its gradient to the natural parameter, exactly for one von Mises distribution."""
    model = VonMisesMixture([[0.5]], [[3.0]])
    wanted = torch.tensor([0.0, 2.0], dtype=torch.float64)
    u = torch.tensor([[[0.9, 0.1]]], dtype=torch.float64)
    level = model.flow.noise_level(0.9, 1, 2, u)
    plain = model.output(u, level)
    steered = Steering(lambda x: (x[:, 0] * wanted).sum(-1))._steered(model.output, model.flow, u, level)
    # w_hat + Cov[x | u] grad f, Tweedie's formula.
    p = density(plain)
    centred = pairs_of(CIRCLE) - plain.mean[0, 0]
    covariance = (p[:, None, None] * centred[:, :, None] * centred[:, None, :]).sum(0) * WIDTH
    torch.testing.assert_close(steered.mean[0, 0], plain.mean[0, 0] + covariance @ wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(steered.nearest(steered.mean).norm(dim=-1), torch.ones(1, 1, dtype=torch.float64))


def test_the_head_is_stored(tmp_path) -> None:
    model = BFN(bfn.networks.MLP(2, width=8), ContinuousFlow(0.05), "angle", (2,))
    assert bfn.load(model.save(tmp_path)).head == model.head
