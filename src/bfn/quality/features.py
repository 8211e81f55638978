"""Features of images, for the Frechet distance, and the bundled classifier of digits.

An extractor is any function from images (batch, channel, height, width) in [-1, 1] to features (batch, d): that of the
bundled digit classifier (``load_classifier().features``), pixels (``pooled_pixels``), or a module of your own. The
features of Inception come with the plugin ``bfn_lab``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.core.errors import UserError
from bfn.quality.frechet import FeatureStatistics
from bfn.storage.models import read_header, read_weights

Extractor = Callable[[Tensor], Tensor]

POOLED = 8
"""Side that images are pooled to: 64 features for each channel, so that some hundreds of samples are enough."""


# --- extracting features ----------------------------------------------------------------------------------------------


def pooled_pixels(images: Tensor) -> Tensor:
    """Average images (n, channel, height, width) down to at most 8 x 8 and return them as features (n, d)."""
    height, width = images.shape[-2:]
    return F.adaptive_avg_pool2d(images, (min(POOLED, height), min(POOLED, width))).flatten(1)


def extract(images: Tensor, extractor: Extractor, *, batch_size: int = 500) -> Tensor:
    """Return the features (n, d) of images (n, ...), without gradients.

    Args:
        images: images, (n, ...).
        extractor: function from images to features.
        batch_size: number of images that go through the extractor together.
    """
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


def cached_statistics(path: Path | str, make: Callable[[], FeatureStatistics], *, name: str) -> FeatureStatistics:
    """Read the statistics at ``path``, or make them and store them there.

    Args:
        path: the file.
        make: function that computes the statistics.
        name: name of their extractor. A file of another extractor is an error.
    """
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


def check_finite(images: Tensor) -> None:
    """Raise a UserError that counts the images with NaN or infinite pixels, if there are any."""
    if n_bad := int((~images.isfinite()).flatten(1).any(1).sum()):
        raise UserError(
            f"{n_bad} of {len(images)} images hold NaN or infinity: expected numbers in [-1, 1]; "
            "look at the model that made them"
        )


def nearest(x: Tensor, others: Tensor, k: int, batch_size: int = 100) -> tuple[Tensor, Tensor]:
    """Find the k nearest rows of ``others`` (m, d) to each row of x (n, d).

    Returns:
        Distances (n, k) and indices (n, k).
    """
    squares = others.square().sum(1)

    def search(part: Tensor) -> tuple[Tensor, Tensor]:
        distances = torch.addmm(squares, part, others.T, alpha=-2).add_(part.square().sum(1, keepdim=True))
        return distances.min(1, keepdim=True) if k == 1 else distances.topk(k, largest=False)

    pieces = [search(part) for part in torch.split(x, batch_size)]
    values, indices = (torch.cat(column) for column in zip(*pieces, strict=True))
    return values.clamp(min=0).sqrt(), indices


# --- the classifier of digits -----------------------------------------------------------------------------------------

N_CLASSES = 10
FORMAT = "bfn-digit-classifier-1"
"""Name of the file format of classifiers, in the metadata of the file."""

BUNDLED_CLASSIFIER = Path(__file__).parents[1] / "bundled" / "mnist-classifier" / "model.safetensors"


class DigitClassifier(nn.Module):
    """A classifier of MNIST: images (batch, 1, 28, 28) in [-1, 1] -> class logits (batch, 10).

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
        """Return the activations of the last hidden layer, (batch, n_features)."""
        features: Tensor = self.trunk(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Return class logits, (batch, 10)."""
        logits: Tensor = self.head(self.features(images))
        return logits


def _convolution(n_in: int, n_out: int, *, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(n_out), nn.ReLU()


def classify(images: Tensor, classifier: DigitClassifier | None = None, *, batch_size: int = 500) -> Tensor:
    """Return class probabilities (n, 10) of images (n, 1, 28, 28) in [-1, 1], by the bundled classifier by default."""
    check_images(images)
    model = classifier or load_classifier()
    return extract(images, lambda some: model(some.float()).softmax(-1), batch_size=batch_size)


def load_classifier(path: Path | str = BUNDLED_CLASSIFIER) -> DigitClassifier:
    """Load the bundled classifier, or one that ``tools/train_classifier.py`` wrote, in float32 and evaluation mode."""
    if read_header(Path(path)).metadata.get("format") != FORMAT:
        raise UserError(f"{path}: not a digit classifier")
    state = read_weights(Path(path))
    model = DigitClassifier(n_features=state["head.weight"].shape[1])
    model.load_state_dict(state)
    return model.eval()


def check_images(images: Tensor) -> None:
    """Raise a UserError unless these are images of 28 x 28 pixels, (n, 1, 28, 28)."""
    if images.ndim != 4 or images.shape[1:] != (1, 28, 28):
        raise UserError(f"images of shape {tuple(images.shape)}: the MNIST classifier needs (batch, 1, 28, 28)")
