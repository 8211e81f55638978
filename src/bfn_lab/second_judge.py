"""The second judge: features and text models that no solver was tuned or calibrated by.

Solvers are tuned and calibrated by other features (``bfn.tuning``), on training data. Figures of the second judge are
therefore independent of the tuning. It judges images by features of another network, trained on other images (for
images that it was not made for, the same network with random weights); text by the bits per symbol of an n-gram model
of held-out text; and vectors by the distances of their projections. ``tools/train_judge.py`` trains the networks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bfn import Model, quality
from bfn.exact import BackoffTables, count_backoff

JUDGES = Path(__file__).parent / "judges"
"""Folder of trained networks, one file for each data set, named after it."""

CONTEXT = 5
"""Number of symbols before each symbol that the n-gram model of text uses."""

N_SUMMARY, N_FEATURES = 24, 48
N_PROJECTIONS, QUANTILES = 64, 200


class JudgeNetwork(nn.Module):
    """A classifier with strided 3 x 3 convolutions: images (batch, channels, h, w) in [-1, 1] -> class logits.

    It has no pooling and no normalisation over the batch, and so shares nothing with the bundled classifier. One half
    of its features are strengths of patterns of a few pixels, the other half is what the classes are recognised by.
    """

    def __init__(self, channels: int = 1, side: int = 28, n_classes: int = 10) -> None:
        super().__init__()
        strides, widths = ((2, 2, 2), (20, 24, 48)) if side > 8 else ((1, 2, 2), (20, 24, 40))
        layers: list[nn.Module] = []
        for n_in, n_out, stride in zip((channels, *widths), widths, strides, strict=False):
            layers.append(nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1), nn.GroupNorm(4, n_out), nn.GELU()))
            side = -(-side // stride)
        self.layers, self.summary = nn.ModuleList(layers), nn.Linear(widths[-1] * side * side, N_SUMMARY)
        self.head = nn.Linear(N_SUMMARY, n_classes)
        self.n_features = widths[1] + N_SUMMARY

    def _activations(self, images: Tensor) -> tuple[Tensor, Tensor]:
        first, second, third = self.layers
        patterns = second(first(images.float()))
        return patterns, self.summary(third(patterns).flatten(1))

    def features(self, images: Tensor) -> Tensor:
        """Return features, (batch, n_features)."""
        patterns, summary = self._activations(images)
        return torch.cat((patterns.mean((2, 3)), summary), 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return class logits."""
        logits: Tensor = self.head(nn.functional.gelu(self._activations(images)[1]))
        return logits


def judge_features(name: str, shape: tuple[int, ...]) -> JudgeNetwork:
    """Load the network that judges images of a data set, or make one with random weights if there is none.

    Args:
        name: name of the data set.
        shape: shape of the images, (channels, h, w).
    """
    path = JUDGES / f"{name}.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20_260)
        network = JudgeNetwork(shape[0], min(shape[1:]))
    if path.is_file():
        network.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    return network.eval()


def save_judge(network: JudgeNetwork, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the weights in float16."""
    save_file({key: value.half().contiguous() for key, value in network.state_dict().items()}, path, dict(metadata))


def digest(*values: object) -> str:
    """Return a short name of constants and tensors."""
    sha = hashlib.sha256()
    for value in values:
        sha.update(value.contiguous().numpy().tobytes() if isinstance(value, Tensor) else str(value).encode())
        sha.update(b"\0")
    return sha.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class NGramBits(quality.JudgePart):
    """Bits per symbol of samples under an interpolated n-gram model of real text.

    Text of a good model costs as many bits as real text: wrong text costs more, monotonous text less.

    Args:
        tables: the n-gram model.
        name: name of the model for the store of measurements.
        end: the symbol that ends texts of different lengths, which costs bits like the others; None for texts of one
            length.
    """

    tables: BackoffTables
    name: str
    end: int | None = None
    least = 2
    measures = (quality.Measure("ngram_bits", "bits per symbol by n-grams", "real", "bits", digits=3),)

    @classmethod
    def of(cls, text: Tensor, n_classes: int) -> NGramBits:
        """Fit the model to real text: classes in a row, (n,), or texts (n, length) with -1 for padding."""
        end = n_classes if bool((text < 0).any()) else None
        if end is not None:
            text, n_classes = _closed(text, end), n_classes + 1
        text = text[text >= 0]
        # The number of an n-gram has at most 63 bits.
        context = max(1, min(CONTEXT, int(63 / log2(n_classes)) - 1))
        tables = count_backoff(text, context, n_classes, smoothing=1.0, min_count=1)
        return cls(tables, digest("ngram-bits", context, text), end)

    @property
    def key(self) -> str:
        return self.name

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, quality.Estimate]:
        base, context = self.tables.n_classes, self.tables.context
        before = 0 if self.end is None else 1  # a text follows the end of another one
        codes = torch.full((len(x),), self.end or 0, dtype=torch.int64)
        bits = torch.zeros(len(x), dtype=torch.float64)
        x = x if self.end is None else _closed(x, self.end)
        for i in range(x.shape[1]):
            symbols = x[:, i].clamp(min=0)
            bits -= self.tables.probability(codes, min(i + before, context), symbols).log2() * (x[:, i] >= 0)
            codes = (codes * base + symbols) % base**context
        return {"ngram_bits": quality.mean_estimate(bits / (x >= 0).sum(1))}


def _closed(x: Tensor, end: int) -> Tensor:
    """Append the end symbol to each text, (n, length + 1), followed by -1."""
    padded = nn.functional.pad(x, (0, 1), value=-1)
    return padded.masked_fill((padded < 0).cumsum(1) == 1, end)


@dataclass(frozen=True, eq=False)
class Projections(quality.JudgePart):
    """Sliced Wasserstein distance: of the quantiles of samples and of data along fixed random directions.

    It is in standard deviations of the data, so that all variables have the same weight.

    Args:
        reference: real data, (n, ...).
    """

    reference: Tensor
    least = 2
    measures = (quality.Measure("sliced_distance", "sliced Wasserstein distance", "low", digits=3),)

    @property
    def key(self) -> str:
        return digest("projections", (N_PROJECTIONS, QUANTILES), self.reference)

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, quality.Estimate]:
        generator = torch.Generator().manual_seed(0)
        scale = self.reference.flatten(1).std(0).clamp(min=1e-9)
        directions = torch.randn(len(scale), N_PROJECTIONS, generator=generator)
        directions = directions / directions.norm(dim=0) / scale[:, None]
        shares = (torch.arange(QUANTILES) + 0.5) / QUANTILES
        real = (self.reference.flatten(1).float() @ directions).quantile(shares, dim=0)
        projected = x.flatten(1).float() @ directions

        def distance(index: Tensor) -> Tensor:
            found: Tensor = (projected[index].quantile(shares, dim=0) - real).square().mean().sqrt()[None]
            return found

        (figure,) = quality.bootstrap_estimates(distance, len(projected), generator=generator, n_resamples=100)
        return {"sliced_distance": figure.within(0)}


def _parts(model: Model, real: quality.ReferenceData) -> list[quality.JudgePart]:
    """Return the parts of the second judge."""
    if model.form == "text":
        return [NGramBits.of(real.reference, model.flow.leading.n_values or 0), *quality.text_parts(model, real)]
    if model.form != "images":
        return [Projections(real.reference)]
    network = judge_features(str(model.info.trained_on.get("name")), tuple(model.data_shape))
    plain = quality.extract(real.reference, network.features)
    mean, std = plain.mean(0), plain.std(0).clamp(min=1e-6)

    def features(images: Tensor) -> Tensor:
        """Return standardised features: without it, those that tell the classes apart would dominate."""
        scaled: Tensor = (network.features(images) - mean) / std
        return scaled

    statistics = quality.FeatureStatistics.of(quality.extract(real.reference, features))
    return [quality.Frechet(features, statistics, "Frechet distance by the second judge"), *quality.near_copies(real)]


def _read(model: Model, source: str | Path) -> quality.ReferenceData:
    if model.form == "images":
        return quality.read_images(model, source, N_FEATURES)
    return (quality.read_texts if model.form == "text" else quality.read_vectors)(model, source)


def _prepare(model: Model, x: Any) -> Tensor:
    return (quality.as_classes if model.form == "text" else quality.as_values)(model, x)


SUMMARY = "the second judge, by which no solver is tuned or calibrated: other features, other text"
SECOND = quality.Metric(SUMMARY, lambda model: True, _parts, _read, _prepare)
"""The metric "second" of ``bfn compare``."""
