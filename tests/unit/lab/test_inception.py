"""Features of Inception: resizing and rounding as FID defines them, and statistics that are gathered in batches."""

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
    assert torch.equal(resize_tensorflow(image.mT, 4), resize_tensorflow(image, 4).mT)
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


def test_statistics_of_a_torchscript_file_do_not_depend_on_batches(tmp_path) -> None:
    x = images(25)
    torch.jit.script(Pooled()).save(str(tmp_path / "network.pt"))
    extractor = InceptionFeatures.load(tmp_path / "network.pt")
    streamed = gather_statistics([x[:7], x[7:]], extractor, name="pooled", batch_size=4)
    whole = FeatureStatistics.of(extract(x, InceptionFeatures(Pooled())))
    assert (streamed.n, streamed.extractor) == (25, "pooled")
    torch.testing.assert_close(streamed.mean, whole.mean)
    torch.testing.assert_close(streamed.covariance, whole.covariance)
