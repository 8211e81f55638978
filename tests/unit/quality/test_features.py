"""Extractors of features, and statistics that are kept in a file."""

import torch

from bfn.quality.features import cached_statistics, pooled_pixels
from bfn.quality.frechet import FeatureStatistics


def test_statistics_of_a_reference_are_computed_once(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return FeatureStatistics.of(torch.eye(3))

    path = tmp_path / "reference.safetensors"
    first, second = (cached_statistics(path, make, name="mine") for _ in range(2))
    assert len(calls) == 1
    assert torch.equal(first.covariance, second.covariance)


def test_large_images_are_pooled_and_small_ones_are_not():
    assert pooled_pixels(torch.ones(3, 3, 32, 32)).shape == (3, 192)
    small = torch.rand(2, 1, 4, 4)
    assert torch.equal(pooled_pixels(small), small.flatten(1))
