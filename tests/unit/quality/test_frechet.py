"""The Frechet distance: closed forms, other implementations, bias, intervals and gradients."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from bfn.quality.features import cached_statistics
from bfn.quality.frechet import (
    FeatureStatistics,
    Gaussian,
    expected_bias,
    frechet_distance,
    frechet_estimate,
    frechet_influence,
)


def gaussian(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_moments(mean: Tensor, covariance: Tensor, n: int = 200) -> Tensor:
    """Features whose sample mean and covariance are exactly these."""
    x = gaussian(n, len(mean), 0)
    x = x - x.mean(0)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(x.T)), x.T, upper=False).T
    return white @ torch.linalg.cholesky(covariance).T + mean


def published_formula(a: Tensor, b: Tensor) -> float:
    """|m_a - m_b|^2 + tr(A + B - 2 (A B)^1/2) by the general matrix square root, as pytorch-fid writes it."""
    cov_a, cov_b = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a, b))
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    return float((a.mean(0) - b.mean(0)).square().sum() + np.trace(cov_a + cov_b - 2 * root))


def test_closed_form_of_commuting_gaussians() -> None:
    # Diagonal covariances: d = |m_a - m_b|^2 + sum (sigma_a - sigma_b)^2
    sigma_a, sigma_b = torch.tensor([[1.0, 2.0, 0.5], [3.0, 0.1, 0.5]], dtype=torch.float64)
    mean_a, mean_b = torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([2.0, 1.0, 1.0]).double()
    a, b = with_moments(mean_a, sigma_a.square().diag()), with_moments(mean_b, sigma_b.square().diag())
    assert frechet_distance(a, b) == pytest.approx(5 + 4 + 1.9**2, rel=1e-10)


@pytest.mark.parametrize("d", [1, 5, 64])
def test_published_formula(d: int) -> None:
    mixing = gaussian(d, d, 5)
    a, b = gaussian(300, d, 1), gaussian(200, d, 2) @ mixing + 0.3
    assert frechet_distance(a, b) == pytest.approx(published_formula(a, b), rel=1e-8)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-8)


def test_equal_sets_have_distance_zero_even_where_singular() -> None:
    x = gaussian(30, 100, 0)
    assert frechet_distance(x, x, allow_singular=True) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(gaussian(300, 20, 0), gaussian(300, 20, 0)) == pytest.approx(0, abs=1e-9)


def test_statistics_of_parts_add_up_to_those_of_all() -> None:
    # A mean of 1e4 would lose half of the digits in a sum of squares.
    x = gaussian(1000, 8, 0) + 1e4
    one, more, rest, last = (FeatureStatistics.of(part, extractor="mine") for part in x.split([1, 499, 300, 200]))
    for statistics in (one + more + rest + last, (one + more) + (rest + last), last + (rest + (more + one))):
        assert (statistics.n, statistics.extractor) == (1000, "mine")
        torch.testing.assert_close(statistics.mean, x.mean(0), rtol=1e-14, atol=0)
        torch.testing.assert_close(statistics.covariance, torch.cov(x.T), rtol=1e-10, atol=1e-12)


def test_float32_features_are_summed_in_float64_and_statistics_are_computed_once(tmp_path) -> None:
    x = (gaussian(1000, 4, 0) * 1e-3 + 100).float()
    made = []

    def make() -> FeatureStatistics:
        made.append(FeatureStatistics.of(x))
        return made[-1]

    first, stored = (cached_statistics(tmp_path / "sub" / "s.safetensors", make, name="mine") for _ in range(2))
    assert len(made) == 1
    assert (stored.n, stored.extractor) == (1000, "mine")
    assert torch.equal(stored.mean, first.mean)
    torch.testing.assert_close(stored.covariance, torch.cov(x.double().T), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("n", "tolerance"), [(40, 0.2), (160, 0.1), (1000, 0.1)])
def test_expected_bias_is_the_distance_of_two_samples_of_one_gaussian(n: int, tolerance: float) -> None:
    d = 40
    scales = torch.linspace(0.2, 2, d, dtype=torch.float64)
    pairs = [(gaussian(n, d, 2 * i) * scales, gaussian(n, d, 2 * i + 1) * scales) for i in range(20)]
    measured = sum(frechet_distance(a, b, allow_singular=True) for a, b in pairs) / len(pairs)
    assert expected_bias(scales.square().diag(), n, n) == pytest.approx(measured, rel=tolerance)


def test_linearised_interval_is_as_wide_as_the_bootstrap_s() -> None:
    reference = FeatureStatistics.of(gaussian(5000, 5, 0))
    features = 0.3 + 1.2 * gaussian(800, 5, 1)
    drawn = frechet_estimate(features, reference, generator=torch.Generator().manual_seed(0), n_resamples=600)
    linear = frechet_estimate(features, reference, generator=torch.Generator(), n_resamples=0)
    assert linear.value == pytest.approx(drawn.value, rel=1e-12)
    width, other = (i.high - i.low for i in (linear, drawn))
    assert width == pytest.approx(other, rel=0.12)


def test_influence_is_the_derivative_of_the_distance() -> None:
    features, reference = 0.3 + gaussian(60, 4, 1), FeatureStatistics.of(gaussian(500, 4, 0))
    influence = frechet_influence(features, reference)
    assert influence.mean().abs() < 1e-9
    # Sample 7 counted once more moves the distance by its influence / n, to first order in 1/n.
    more = torch.cat([features.repeat(2000, 1), features[7:8]])
    change = frechet_distance(more, reference) - frechet_distance(features.repeat(2000, 1), reference)
    assert change * 2000 * 60 == pytest.approx(influence[7].item(), rel=0.02)


def test_the_distance_has_the_gradient_that_influences_have() -> None:
    features = (0.3 + gaussian(60, 4, 1)).requires_grad_()
    reference = FeatureStatistics.of(gaussian(500, 4, 0))
    distance = reference.gaussian.distance(Gaussian.of(features))
    assert distance.item() == pytest.approx(frechet_distance(features, reference), rel=1e-12)
    (slope,) = torch.autograd.grad(distance, features)
    step = 1e-6 * gaussian(60, 4, 3)
    change = frechet_distance(features + step, reference) - frechet_distance(features - step, reference)
    assert change / 2 == pytest.approx((slope * step).sum().item(), rel=1e-5)


def test_the_gradient_is_finite_where_data_do_not_vary() -> None:
    features = gaussian(60, 4, 1)
    features[:, 2] = 0
    features.requires_grad_()
    distance = Gaussian.of(gaussian(60, 4, 0) * torch.tensor([1.0, 1.0, 1.0, 0.0])).distance(Gaussian.of(features))
    (slope,) = torch.autograd.grad(distance, features)
    assert torch.isfinite(slope).all()
