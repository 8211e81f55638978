"""What a judge is made of: parts for images, for text, and for any data with features."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bfn import quality as metrics
from bfn.data import Alphabet
from bfn.likelihood import nats_to_bits
from bfn.quality.judge import Part, digest
from bfn.quality.measure import Measure, Measured

POOLED = 8
"""Side that images are pooled to for the Frechet distance of pixels: 64 features a channel, so that some hundreds of
samples are enough."""
NEIGHBOURS = 5
"""Real images that vote on the class of a sample."""
COPY_NEIGHBOURS, COPY_LEVEL, COPY_SAMPLES, COPY_CALIBRATION = 50, 0.01, 300, 1000


@dataclass(frozen=True, eq=False)
class Frechet(Part):
    """Frechet distance of features from those of a reference.

    n_resamples: of the bootstrap; 0 for the interval of the linearised distance, where there are many features.
    """

    extractor: Callable[[Tensor], Tensor]
    reference: metrics.FeatureStatistics
    label: str = "Frechet distance"
    n_resamples: int = 200
    batch_size: int = 500

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (Measure("frechet", self.label, "low", digits=2),)

    @property
    def key(self) -> str:
        return digest("frechet", self.label, str(self.n_resamples), self.reference.mean, self.reference.covariance)

    def problem(self, n: int) -> str | None:
        d = self.reference.n_features
        if n > d:
            return None
        bias = metrics.expected_bias(self.reference.covariance, n, self.reference.n)
        return (
            f"n={n}: the Frechet distance of {d} features needs more than {d} samples, else their covariance is "
            f"singular; it would come out about {bias:.3g} too large"
        )

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        features = metrics.extract(x, self.extractor, batch_size=self.batch_size)
        result = metrics.frechet_result(
            features, self.reference, generator=_generator(), n_resamples=self.n_resamples
        )  # fmt: skip
        return {"frechet": _measured(result.distance, result.interval)}


@dataclass(frozen=True, eq=False)
class Digits(Part):
    """What the bundled classifier makes of 28 x 28 digits."""

    conditional: bool

    @property
    def measures(self) -> tuple[Measure, ...]:
        asked = (_share("asked_class", "asked class", "high"),) if self.conditional else ()
        return (
            _share("recognised", "recognised with confidence above 0.9", "high"),
            *asked,
            Measure("confidence", "mean confidence", "high", digits=3, highest=1.0),
            Measure("class_entropy", "class entropy", "high", "bits"),
        )

    @property
    def key(self) -> str:
        return f"digits-1-{self.conditional}"

    def problem(self, n: int) -> str | None:
        return None if n > 1 else f"n={n}: an interval needs at least 2 samples"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        probabilities = metrics.classify(x)
        report = metrics.digit_report(probabilities)
        best, predicted = probabilities.double().max(-1)
        error = metrics.normal_quantile() * best.std().item() / math.sqrt(len(best))

        def class_entropy(index: Tensor) -> float:
            shares = torch.bincount(predicted[index], minlength=10).double() / len(index)
            return nats_to_bits(torch.special.entr(shares).sum().item())

        balance = metrics.bootstrap_interval(class_entropy, len(x), generator=_generator())
        confidence = report.mean_confidence
        return {
            "recognised": _measured(report.confident_share, report.confident_interval),
            **_asked(predicted, labels if self.conditional else None),
            "confidence": Measured(confidence, max(0.0, confidence - error), min(1.0, confidence + error)),
            "class_entropy": _measured(report.class_entropy, balance),
        }


@dataclass(frozen=True, eq=False)
class Neighbours(Part):
    """Whether the class of the nearest real images is the one that was asked for."""

    images: Tensor
    labels: Tensor

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (_share("asked_class", f"asked class, by {NEIGHBOURS} nearest neighbours", "high"),)

    @property
    def key(self) -> str:
        return digest("neighbours", str(NEIGHBOURS), self.images.mean(0), self.labels)

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        _, nearest = _nearest(x.flatten(1), self.images, NEIGHBOURS)
        return _asked(self.labels[nearest].mode(-1).values, labels)


@dataclass(frozen=True, eq=False)
class Copies(Part):
    """Share of samples that are nearly copies of training images.

    The distance in pixels to the nearest training image is divided by the mean distance to the 50 nearest, as Carlini
    et al. (2023) do, since a blurred sample is near to many images and a copy of none. A ratio that only 1 % of
    held-out images fall short of counts as a near-copy, so real data get 1 %.
    """

    train: Tensor
    held_out: Tensor

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (_share("near_copies", "near-copies of training images", "low", headline=False),)

    @property
    def key(self) -> str:
        constants = (COPY_NEIGHBOURS, COPY_LEVEL, COPY_SAMPLES, COPY_CALIBRATION)
        return digest("copies", str(constants), self.train.mean(0), self.held_out.mean(0))

    @property
    def by_construction(self) -> Mapping[str, Measured]:
        return {"near_copies": Measured(COPY_LEVEL)}

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        ratios = self._ratios(x[:COPY_SAMPLES])
        n_copies = int((ratios < self._threshold).sum())
        return {"near_copies": _measured(n_copies / len(ratios), metrics.wilson_interval(n_copies, len(ratios)))}

    @cached_property
    def _threshold(self) -> float:
        return self._ratios(self.held_out[-COPY_CALIBRATION:]).quantile(COPY_LEVEL).item()

    def _ratios(self, x: Tensor) -> Tensor:
        distances, _ = _nearest(x.flatten(1), self.train, COPY_NEIGHBOURS)
        return distances[:, 0] / distances.mean(1).clamp(min=1e-12)


@dataclass(frozen=True, eq=False)
class Spelling(Part):
    """Spelling accuracy, n-grams and words of text."""

    alphabet: Alphabet
    ngrams: Counter[str]
    words: Counter[str]
    n: int = 4

    @classmethod
    def of(cls, alphabet: Alphabet, reference: Sequence[str], n: int = 4) -> Spelling:
        """Against the counts of real text."""
        return cls(alphabet, metrics.ngram_counts(reference, n), metrics.word_counts(reference), n)

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (
            _share("spelling", "spelling accuracy", "high"),
            Measure("ngram_divergence", f"{self.n}-gram divergence", "low", "bits", digits=3, highest=1.0),
            Measure("word_divergence", "word divergence", "low", "bits", digits=3, highest=1.0),
            Measure("ngram_entropy", f"{self.n}-gram entropy", "real", "bits"),
            Measure("word_entropy", "word entropy", "real", "bits"),
        )

    @cached_property
    def key(self) -> str:
        return digest("spelling", self.alphabet.symbols, str(self.n), str(sorted(self.ngrams.items())))

    def problem(self, n: int) -> str | None:
        return None if n > 1 else f"n={n}: an interval needs at least 2 texts"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        texts = self.alphabet.decode(x)
        found = {"spelling": _spelled(metrics.spelling_result(texts))}
        bags = {
            "ngram": metrics.Bag.of([metrics.character_ngrams(text, self.n) for text in texts], self.ngrams),
            "word": metrics.Bag.of([text.split() for text in texts], self.words),
        }
        for name, bag in bags.items():
            values = bag.statistics(torch.arange(len(texts))).tolist()
            intervals = metrics.bootstrap_intervals(bag.statistics, len(texts), generator=_generator())
            for what, value, interval in zip(("divergence", "entropy"), values, intervals, strict=True):
                found[f"{name}_{what}"] = _measured(value, interval)
        return {measure.key: found[measure.key] for measure in self.measures}


def pooled(images: Tensor) -> Tensor:
    """Images (n, channel, height, width) averaged down to at most 8 x 8, as features (n, d)."""
    height, width = images.shape[-2:]
    return F.adaptive_avg_pool2d(images, (min(POOLED, height), min(POOLED, width))).flatten(1)


def _nearest(x: Tensor, others: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances (n, k) and indices (n, k) of the k nearest of others (m, d) to each of x (n, d), some at a time."""
    squares = others.square().sum(1)
    pieces = [
        (part.square().sum(1, keepdim=True) + squares - 2 * part @ others.T).topk(k, largest=False)
        for part in torch.split(x, 100)
    ]
    values, indices = (torch.cat(column) for column in zip(*pieces, strict=True))
    return values.clamp(min=0).sqrt(), indices


def _share(key: str, label: str, better: Literal["low", "high"], *, headline: bool = True) -> Measure:
    return Measure(key, label, better, "%", 100, 1, headline, highest=1.0)


def _spelled(result: metrics.SpellingResult) -> Measured:
    """The clustered error; it is 0 where texts agree in getting all or nothing right: then Wilson's interval."""
    accuracy, half = result.accuracy, metrics.normal_quantile() * result.standard_error
    if half > 0:
        return Measured(accuracy, max(0.0, accuracy - half), min(1.0, accuracy + half))
    if result.n_words == 0:
        return Measured(accuracy, 0.0, 1.0)
    return _measured(accuracy, metrics.wilson_interval(result.n_correct, result.n_words))


def _asked(predicted: Tensor, labels: Tensor | None) -> dict[str, Measured]:
    if labels is None:
        return {}
    right = int((predicted == labels).sum())
    return {"asked_class": _measured(right / len(labels), metrics.wilson_interval(right, len(labels)))}


def _measured(value: float, interval: metrics.Interval) -> Measured:
    """No measure is below 0, though a shifted bootstrap may reach there."""
    return Measured(value, max(0.0, interval.low), interval.high)


def _generator() -> torch.Generator:
    """Of the resamples: always the same, so that equal samples get equal intervals."""
    return torch.Generator().manual_seed(0)
