"""Likelihoods against exact densities and probabilities, and the properties of each setting."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import ProductOfCategoricals, StringSet
from bfn.kinds.discretised import DiscretisedHead, quantise
from bfn.likelihood import log_likelihood
from bfn.likelihood.bounds import receiver_variance
from exact_models import seeded


def mixture(dims: int, components: int, std: float, generator: torch.Generator) -> GaussianMixture:
    means = torch.rand(components, dims, generator=generator, dtype=torch.float64) * 2 - 1
    return GaussianMixture(means, stds=torch.full((components,), std))


def strings(beta_1: float) -> StringSet:
    generator = seeded()
    words = torch.randint(0, 4, (12, 6), generator=generator)
    weights = torch.softmax(torch.randn(12, generator=generator, dtype=torch.float64), 0)
    return StringSet(words, n_classes=4, beta_1=beta_1, weights=weights)


def smoothed(model: GaussianMixture, x: Tensor) -> Tensor:
    """Return the log-density of u / s at the data end: data with normal noise of standard deviation 1/s."""
    level = model.flow.noise_level(1.0, len(x), 1, like=x)
    return model.log_evidence(level.s * x, level) + x.shape[1] * math.log(level.s)


@pytest.mark.parametrize(("dims", "components", "std"), [(1, 3, 0.1), (2, 5, 0.15), (2, 8, 0.05), (5, 6, 0.2)])
def test_the_ode_gives_the_exact_density_of_mixtures(dims: int, components: int, std: float) -> None:
    """Within 1e-3 nats at 100 calls."""
    generator = seeded(dims + components)
    model = mixture(dims, components, std, generator)
    x = model.sample_data(60, generator)
    result = model.log_likelihood(x, nfe=100)
    assert float((result.log_prob - model.log_prob(x)).abs().mean()) < 1e-3
    assert (result.is_bound, result.is_density, result.n_dims) == (False, True, dims)
    assert bool((result.error == 0).all())
    bits = -model.log_prob(x).mean() / dims / math.log(2)
    assert result.bits.value == pytest.approx(float(bits), abs=2e-3)
    assert result.nats.value == pytest.approx(result.bits.value * dims * math.log(2))
    single = log_likelihood(model.to(torch.float32), x.float(), nfe=100)
    assert float((single.log_prob - model.log_prob(x)).abs().mean()) < 2e-3


def test_gaussian_data_are_integrated_exactly_by_five_calls() -> None:
    """N(0, 1/4) is integrated exactly by the fewest calls, both with fixed and with adaptive steps."""
    model = GaussianMixture(torch.zeros(1, 3), stds=torch.tensor([0.5]))
    x = torch.randn(20, 3, generator=seeded(), dtype=torch.float64)
    for settings in ({"nfe": 5}, {"tolerance": 1e-9}):
        torch.testing.assert_close(model.log_likelihood(x, **settings).log_prob, smoothed(model, x), rtol=0, atol=1e-9)


def test_fixed_steps_are_of_fourth_order() -> None:
    generator = seeded(1)
    model = mixture(2, 4, 0.25, generator)
    x = model.sample_data(50, generator)
    exact = smoothed(model, x)
    errors = [float((model.log_likelihood(x, nfe=n + 1).log_prob - exact).abs().mean()) for n in (80, 160, 320)]
    slopes = [math.log2(a / b) for a, b in pairwise(errors)]
    assert min(slopes) > 3.5, slopes


def test_adaptive_steps_keep_the_tolerance_and_do_not_depend_on_the_batch() -> None:
    generator = seeded(2)
    model = mixture(3, 4, 0.15, generator)
    x = model.sample_data(24, generator)
    exact = smoothed(model, x)
    calls = []
    for tolerance in (1e-1, 1e-3, 1e-5):
        result = model.log_likelihood(x, tolerance=tolerance)
        assert float((result.log_prob - exact).abs().mean()) < tolerance
        calls.append(float(result.nfe.double().mean()))
    assert calls == sorted(calls)
    alone = model.log_likelihood(x[:4], tolerance=1e-5, batch=1)
    torch.testing.assert_close(alone.log_prob, result.log_prob[:4], rtol=0, atol=1e-10)
    assert torch.equal(alone.nfe, result.nfe[:4])


class Counted(nn.Module):
    """Counts the samples that go through it."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0
        self.layer = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, inputs: Tensor, t: Tensor) -> Tensor:
        self.samples += len(inputs)
        return self.dropout(self.layer(inputs))


@pytest.mark.parametrize("predicts", ["data", "noise", "preconditioned"])
@pytest.mark.parametrize("settings", [{"nfe": 7}, {"tolerance": 0.5}, {"method": "bound", "nfe": 7},
                                      {"method": "n-step", "nfe": 7}])  # fmt: skip
def test_calls_are_counted_and_the_network_is_in_evaluation_mode(predicts: str, settings: dict) -> None:
    network = Counted()
    model = bfn.BFN(network, bfn.ContinuousFlow(sigma_1=0.1), predicts, (3,)).train()
    x = torch.randn(5, 3, generator=seeded())
    results = [model.log_likelihood(x, generator=seeded(), **settings) for _ in range(2)]
    assert network.samples == 2 * int(results[0].nfe.sum())
    # With dropout they would differ.
    assert torch.equal(results[0].log_prob, results[1].log_prob)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_random_probes_are_unbiased_and_give_their_error() -> None:
    """The mean over many probes is the exact divergence, within 4 of the standard errors that are returned."""
    generator = seeded(3)
    model = mixture(4, 3, 0.2, generator)
    x = model.sample_data(8, generator)
    exact = model.log_likelihood(x, nfe=30, divergence="exact").log_prob
    result = model.log_likelihood(x, nfe=30, divergence="hutchinson", probes=64, generator=generator)
    assert bool((result.error > 0).all())
    assert float(((result.log_prob - exact) / result.error).abs().max()) < 4
    single = model.log_likelihood(x, nfe=30, divergence="hutchinson", generator=generator)
    assert bool(single.error.isnan().all())
    model = strings(4.0)
    x = model.strings[:6]
    exact = model.log_likelihood(x, nfe=12, generator=seeded(1), divergence="exact").log_prob
    # The noise at the data end is drawn first, so the states are the same.
    result = model.log_likelihood(x, nfe=12, generator=seeded(1), divergence="hutchinson", probes=64)
    assert float(((result.log_prob - exact) / result.error).abs().max()) < 4


def test_one_probe_is_exact_for_independent_classes() -> None:
    """The Jacobian has only the diagonal blocks that the estimate corrects for."""
    probs = torch.softmax(torch.randn(5, 3, generator=seeded(), dtype=torch.float64), -1)
    model = ProductOfCategoricals(probs, beta_1=3.0)
    x = model.sample_data(10, seeded())
    one = model.log_likelihood(x, nfe=60, divergence="hutchinson", generator=seeded(1))
    torch.testing.assert_close(one.log_prob, model.log_prob(x), rtol=0, atol=1e-4)


def test_the_bound_of_the_ode_is_tight_and_has_little_noise_for_classes() -> None:
    """Within 0.01 nats of log p; the standard deviation is at most a fifth of that of the loss with as many calls."""
    model = strings(4.0)
    x = model.strings[:6].repeat(10, 1)
    ode = model.log_likelihood(x, nfe=40, generator=seeded(1))
    loss = model.log_likelihood(x, "bound", 40, generator=seeded(1))
    exact = model.log_prob(x)
    error = ode.log_prob - exact
    assert float(error.abs().mean()) < 0.01
    assert float(error.std()) < float((loss.log_prob - exact).std()) / 5
    assert (ode.is_bound, ode.is_density) == (True, False)
    parts = {name: part.value for name, part in ode.parts.items()}
    assert parts["total"] == pytest.approx(parts["transmission"] + parts["reconstruction"], abs=1e-9)
    # The loss is unbiased, and its error has the right size.
    assert float((loss.log_prob - exact).mean().abs()) < 4 * float(loss.log_prob.std()) / math.sqrt(len(x))
    assert float(loss.error.square().mean().sqrt()) == pytest.approx(float((loss.log_prob - exact).std()), rel=0.4)


def test_importance_weights_tighten_the_bound() -> None:
    """With a low accuracy at the data end the classes are not independent there, so the bound of one draw has a gap."""
    model = strings(0.7)
    x = model.strings[:6].repeat(16, 1)
    exact = model.log_prob(x)
    gaps = []
    for draws in (1, 4, 12):
        result = model.log_likelihood(x, nfe=12, importance=draws, generator=seeded(4))
        assert bool((result.nfe == 12 * draws).all())
        gaps.append(float((exact - result.log_prob).mean()))
    assert gaps[0] > 1.2 * gaps[1]
    assert gaps[1] > gaps[2] > 0
    noisy = model.log_likelihood(x, nfe=12, importance=4, divergence="hutchinson", probes=2, generator=seeded(5))
    error = exact - noisy.log_prob
    assert float(error.mean()) > -3 * float(error.std()) / math.sqrt(len(x))


def bin_mass(model: GaussianMixture, x: Tensor, levels: int) -> Tensor:
    """Return log P of the bin around x in one dimension, with the noise that is left at the data end."""
    std = (model.variances[:, 0] + 1 / float(model.flow.schedule.beta(1.0))).sqrt()
    edge = 1 / (levels - 1)
    normal = torch.distributions.Normal(model.means[:, 0], std)
    return ((normal.cdf(x + edge) - normal.cdf(x - edge)) * model.log_weights.exp()).sum(1).log()


@pytest.mark.parametrize(("dequantise", "std"), [("uniform", 0.1), ("noise", 0.001)])
def test_the_probability_of_grey_levels_is_bounded(dequantise: str, std: float) -> None:
    """Uniform draws suit smooth densities; the noise of the flow suits narrow peaks on the grid."""
    levels = 17
    points = torch.tensor([[-0.5], [0.25]], dtype=torch.float64)
    model = GaussianMixture(points, stds=torch.full((2,), std))
    x = points if std < 0.01 else torch.tensor([[-0.5], [0.0], [0.125]], dtype=torch.float64)
    settings = {"nfe": 60, "levels": levels, "dequantise": dequantise}
    exact = bin_mass(model, x, levels)
    many = model.log_likelihood(x, importance=500, generator=seeded(), **settings)
    assert (many.is_bound, many.is_density) == (True, False)
    assert float(((many.log_prob - exact) / many.error.clamp(min=2e-3)).abs().max()) < 4
    repeated = x.repeat(200, 1)
    one = model.log_likelihood(repeated, generator=seeded(), **settings)
    gap = bin_mass(model, repeated, levels) - one.log_prob
    assert 0 < float(gap.mean()) < 0.4


def test_the_best_receiver_variance_reduces_the_excess_tenfold() -> None:
    generator = seeded(7)
    model = mixture(2, 5, 0.15, generator)
    x, others = model.sample_data(2000, generator), model.sample_data(2000, generator)
    level = model.flow.noise_level(1.0, len(x), 1, like=x)
    u = model.flow.noised(x, level.s, torch.randn(x.shape, generator=generator, dtype=torch.float64))
    exact = float((model.log_sender(u, x, level) - model.log_evidence(u, level)).mean())
    variance = receiver_variance(model, others, 10, generator=generator)
    assert tuple(variance.shape) == (10,)
    excess = []
    for chosen in (None, variance):
        result = model.log_likelihood(x, "n-step", 11, variance=chosen, generator=seeded(8))
        excess.append(float((-result.log_prob - result.reconstruction).mean()) - exact)
    # On average over data of the same distribution, the bound is D/2 sum_i log(1 + alpha_i r_i).
    times = torch.arange(11, dtype=torch.float64) / 10
    alpha = model.flow.schedule.beta(times).diff()
    assert excess[1] + exact == pytest.approx(float(torch.log1p(alpha * variance).sum()), rel=0.02)
    assert 0 < excess[1] < excess[0] / 10
    # At t = 0 the prediction is the mean, and the variance that of the data, whatever the size of the batches.
    single, x1 = GaussianMixture([[0.25]], stds=[0.5]), torch.tensor([[3.0], [0.25], [-1.0]])
    for batch in (None, 1, 2):
        first, second = receiver_variance(single, x1, 2, generator=seeded(), batch=batch).tolist()
        assert first == pytest.approx(float((x1 - 0.25).square().mean()))
        assert 0 < second < first
    # A receiver variance of 0 is the usual receiver.
    usual = model.log_likelihood(x[:50], "n-step", 11, generator=seeded(8))
    zero = model.log_likelihood(x[:50], "n-step", 11, variance=torch.zeros(10), generator=seeded(8))
    torch.testing.assert_close(usual.log_prob, zero.log_prob)


@pytest.mark.parametrize(("head", "density"), [("noise", True), (DiscretisedHead(16), False)])
@pytest.mark.parametrize("method", ["ode", "bound", "n-step"])
def test_a_bound_is_of_a_density_if_the_head_is_one(head, density: bool, method: str) -> None:
    """The ODE gives the density at the data end for every head; bounds end with the log-probability of the head."""
    model = bfn.BFN(lambda mu, t: mu if density else torch.stack([mu, mu * 0], -1), bfn.ContinuousFlow(), head, (3,))
    result = model.log_likelihood(quantise(torch.zeros(2, 3), 16), method, 5, generator=seeded())
    assert result.is_density == (density or method == "ode")
    assert result.is_bound == (method != "ode")


def test_sequences_may_be_shorter_than_the_longest_of_the_model() -> None:
    x = torch.randint(3, (5, 2), generator=seeded())
    long, short = (bfn.BFN(lambda theta, t: theta, bfn.DiscreteFlow(3), "logits", (n,)) for n in (6, 2))
    for method in ("ode", "bound", "n-step"):
        found, expected = (log_likelihood(model, x, method, 8, seed=1).log_prob for model in (long, short))
        assert torch.equal(found, expected)
