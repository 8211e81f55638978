"""Gaussian mixtures and points: against numerical integration, each other, and the score."""

from math import pi

import pytest
import torch

from bfn.exact.numbers import GaussianMixture, Points
from exact_models import NUMBERS, random_points, state_at


@pytest.mark.parametrize("t", [0.0, 0.2, 0.6, 1.0])
def test_mixture_agrees_with_integration(t):
    numbers = [[-1.0, 0.2, 0.9], [0.3, 0.1, 0.5], [0.2, 0.5, 0.3]]
    means, stds, weights = torch.tensor(numbers, dtype=torch.float64)
    model = GaussianMixture(means[:, None], stds=stds, weights=weights, sigma_1=0.05)
    x = torch.linspace(-6, 6, 240_001, dtype=torch.float64)
    prior = sum(
        w * torch.exp(-(((x - m) / s) ** 2) / 2) / (s * (2 * pi) ** 0.5)
        for m, s, w in zip(means, stds, weights, strict=True)
    )
    torch.testing.assert_close(model.log_prob(x[::1000, None]), prior[::1000].log(), atol=1e-12, rtol=1e-12)
    u, level = state_at(model, t)
    joint = prior * torch.exp(-((u - level.s * x) ** 2) / 2) / (2 * pi) ** 0.5
    evidence = torch.trapezoid(joint, x)
    torch.testing.assert_close(model.log_evidence(u, level), evidence.log(), atol=1e-9, rtol=1e-9)
    x_hat = torch.trapezoid(joint * x, x) / evidence
    torch.testing.assert_close(model.output(u, level).mean.squeeze(1), x_hat, atol=1e-9, rtol=1e-9)


def test_one_gaussian_is_the_linear_filter(generator):
    root = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    covariance, mean = root @ root.T, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    model = GaussianMixture(mean[None], covariance[None])
    u, level = state_at(model, 0.4)
    gain = level.s * covariance @ torch.linalg.inv(torch.eye(3, dtype=torch.float64) + level.s**2 * covariance)
    expected = mean + (u - level.s * mean) @ gain.T
    torch.testing.assert_close(model.output(u, level).mean, expected, atol=1e-10, rtol=1e-10)
    reference = torch.distributions.MultivariateNormal(mean, covariance)
    torch.testing.assert_close(model.log_prob(u), reference.log_prob(u), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("bandwidth", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("t", [0.0, 1e-12, 1e-3, 0.3, 1.0])
def test_points_are_an_isotropic_mixture(bandwidth, t):
    points = random_points(bandwidth)
    flat = (points.centred + points.centre).reshape(37, 6)
    mixture = GaussianMixture(
        flat, stds=torch.full((37,), bandwidth, dtype=torch.float64), weights=points.log_weights.exp(), flow=points.flow
    )
    u, level = state_at(points, t)
    x_hat = mixture.output(u.flatten(1), level).mean.view_as(u)
    torch.testing.assert_close(points.output(u, level).mean, x_hat, atol=1e-9, rtol=1e-9)
    evidence = mixture.log_evidence(u.flatten(1), level)
    torch.testing.assert_close(points.log_evidence(u, level), evidence, atol=1e-8, rtol=1e-8)
    if bandwidth > 0:
        torch.testing.assert_close(points.log_prob(u), mixture.log_prob(u.flatten(1)), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("chunk", [1, 5, 36, 37, 1000])
def test_chunks_do_not_matter(chunk):
    whole, parts = random_points(), random_points(chunk=chunk)
    u, level = state_at(whole, 0.4)
    torch.testing.assert_close(parts.output(u, level).mean, whole.output(u, level).mean, atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(parts.log_evidence(u, level), whole.log_evidence(u, level), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("t", [0.1, 0.5, 1.0])
def test_float32_keeps_the_digits_of_many_dimensions(t, generator):
    """At sigma_1 = 1e-3 squares of 1e8 cancel to some hundreds."""
    images = torch.rand(50, 1, 28, 28, generator=generator) * 2 - 1
    single, double = Points(images, dtype=torch.float32), Points(images)
    level = single.flow.noise_level(t, 50, 3, like=images)
    u = single.flow.noised(images, level.s, torch.randn(images.shape, generator=generator))
    torch.testing.assert_close(
        single.output(u, level).mean, double.output(u.double(), level).mean.float(), atol=1e-5, rtol=0
    )
    expected = double.log_evidence(u.double(), level).float()
    torch.testing.assert_close(single.log_evidence(u, level), expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS.keys())
def test_samples_have_the_models_moments(make, generator):
    """Means and variances of 40,000 samples within 5 standard errors; false alarms: 20 numbers, 6e-7 each."""
    model, n = make(), 40_000
    x = model.sample_data(n, generator).flatten(1)
    if isinstance(model, Points):
        weights, means = model.log_weights.exp(), model.centred + model.centre
        inner = torch.full_like(means, model.bandwidth**2)
    else:
        weights, means = model.log_weights.exp(), model.means
        inner = (model.axes * model.variances.unsqueeze(1) @ model.axes.mT).diagonal(dim1=1, dim2=2)
    mean = weights @ means
    variance = weights @ (inner + means.square()) - mean.square()
    assert ((x.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    spread = (x - mean).square()
    assert ((spread.mean(0) - variance).abs() < 5 * spread.std(0) / n**0.5).all()
