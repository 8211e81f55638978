"""The losses of exact models are what they claim: a KL divergence, and with the posterior the log-probability.

Statistical tests compare means at 4 standard errors: false-alarm rate 6e-5 each for a new seed; seeds are fixed.
"""

from itertools import pairwise
from math import sqrt

import pytest
import torch

from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet

N = 40_000


def mixture() -> tuple[GaussianMixture, torch.Tensor]:
    means, stds, weights = [[-0.8, 0.3], [0.5, 0.5], [0.1, -0.9]], [0.2, 0.4, 0.1], [0.5, 0.2, 0.3]
    return GaussianMixture(means, stds=stds, weights=weights, sigma_1=0.2), torch.tensor([[-0.2, 0.3]]).double()


def strings() -> tuple[StringSet, torch.Tensor]:
    support = torch.tensor([[0, 1, 2], [0, 1, 1], [2, 2, 2], [1, 0, 2]])
    weights = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    return StringSet(support, weights, n_classes=3, beta_1=0.8), support[:1]


CASES = pytest.mark.parametrize("make", [mixture, strings])


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / sqrt(len(values))


def final_state(model, x, generator):
    eps = torch.randn(len(x), *model.flow.state_shape(model.data_shape), generator=generator, dtype=torch.float64)
    level = model.flow.noise_level(1.0, len(x), eps.ndim - 1, like=eps)
    return model.flow.noised(x, level.s, eps), level


@CASES
def test_loss_is_the_kl_divergence_at_the_data_end(make, generator):
    """E_t loss = KL(q(u|x) || p(u)) at t = 1: 4 standard errors of the difference."""
    model, x = make()
    x = x.expand(N, -1)
    loss, loss_error = mean_and_error(model.loss(x, generator=generator) * x.shape[1])
    u, level = final_state(model, x, generator)
    kl, kl_error = mean_and_error(model.log_sender(u, x, level) - model.log_evidence(u, level))
    assert abs(loss - kl) < 4 * sqrt(loss_error**2 + kl_error**2)
    assert kl > 10 * kl_error  # the comparison is of numbers that are not 0
    assert loss_error < 0.02 * kl


@CASES
def test_n_step_loss_falls_to_the_continuous_one(make, generator):
    """On average over the data (not for each x); few steps are nested in more."""
    model, _ = make()
    x = model.sample_data(N, generator)
    results = [mean_and_error(model.loss(x, n_steps=n, generator=generator)) for n in (1, 2, 4)]
    results.append(mean_and_error(model.loss(x, generator=generator)))
    for (more, more_error), (less, less_error) in pairwise(results):
        assert more - less > 4 * sqrt(more_error**2 + less_error**2)
    many, many_error = mean_and_error(model.loss(x, n_steps=100, generator=generator))
    limit, limit_error = results[-1]
    assert abs(many - limit) < 4 * sqrt(many_error**2 + limit_error**2)


def test_bayes_holds_state_by_state(generator):
    """log q(u|x) - log p(u) - log p(x|u) = -log p(x) for every single u."""
    model, x = strings()
    x = x.expand(50, -1)
    u, level = final_state(model, x, generator)
    left = model.log_sender(u, x, level) - model.log_evidence(u, level) - model.posterior(u, level)[:, 0].log()
    torch.testing.assert_close(left, -model.log_prob(x), atol=1e-12, rtol=1e-12)


def test_loss_of_one_gaussian_in_closed_form(generator):
    """KL(N(s x, 1) || N(s m, 1 + s^2 v)) a dimension, without Monte Carlo on that side."""
    mean, std = torch.tensor([[0.3, -0.1]], dtype=torch.float64), 0.5
    model = GaussianMixture(mean, stds=torch.tensor([std], dtype=torch.float64), sigma_1=0.1)
    x = torch.tensor([[0.9, 0.2]], dtype=torch.float64)
    beta = float(model.flow.schedule.beta(1.0))
    v = 1 + beta * std**2
    expected = float(((1 + beta * (x - mean).square()) / v - 1).mean() / 2) + 0.5 * torch.tensor(v).log().item()
    loss, error = mean_and_error(model.loss(x.expand(N, -1), generator=generator))
    assert abs(loss - expected) < 4 * error
    assert error < 0.02 * expected
