"""What samples are judged by.

A judge is a list of parts, each with one or a few measures; all see the same samples, and real data go through the
same code, so every figure can be read beside what a real sample of the same size gets. All intervals are at 95 %:
bootstrap for Frechet distances, divergences and entropies; Wilson's for shares of samples; the clustered standard
error for shares of words, since words of one text err together.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm

from bfn import metrics
from bfn.data import Alphabet, Images, Text, concatenate, load
from bfn.files import home
from bfn.metrics.classifier import check_finite
from bfn.sampling import Predictor

METRICS = {
    "text": "spelling, n-grams and words of text, against held-out text",
    "mnist": "the bundled classifier's features and verdict on 28 x 28 digits",
    "pixels": "Frechet distance of images pooled to 8 x 8, class by nearest neighbours",
    "inception": "Frechet distance on Inception's features: the FID",
    "values": "Frechet distance of the data as they are, for vectors",
}
"""What ``judge_for`` can be asked for, and what it is."""

POOLED = 8
"""Side that images are pooled to for the Frechet distance of pixels: 64 features a channel, so that some hundreds of
samples are enough."""
NEIGHBOURS = 5
"""Real images that vote on the class of a sample."""
COPY_NEIGHBOURS, COPY_LEVEL, COPY_SAMPLES, COPY_CALIBRATION = 50, 0.01, 300, 1000
REFERENCE_CHARACTERS = 2_000_000
INCEPTION_BATCH = 50
ENOUGH = 10
"""Held-out samples a feature that make a reference; of smaller sets every other sample, held out or not, is taken."""


@dataclass(frozen=True)
class Measured:
    """A figure and its 95 % interval (NaN where there is none)."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def overlaps(self, other: Measured) -> bool:
        """Whether the intervals share a point; a figure without an interval is its own."""
        bounds = [(m.value, m.value) if math.isnan(m.low) else (m.low, m.high) for m in (self, other)]
        return bounds[0][0] <= bounds[1][1] and bounds[1][0] <= bounds[0][1]


@dataclass(frozen=True)
class Measure:
    """What a figure means and how it is written.

    better: whether a "low" or a "high" figure is better, or one near that of "real" data.
    scale, unit, digits: 100, "%" and 1 write 0.5 as "50.0 %". headline: whether samplers can be ranked by it.
    highest: the largest value there is; the smallest is 0 for all measures.
    """

    key: str
    label: str
    better: Literal["low", "high", "real"]
    unit: str = ""
    scale: float = 1.0
    digits: int = 2
    headline: bool = True
    highest: float = math.inf

    def number(self, value: float) -> str:
        """The figure alone, without its unit; small ones with more digits, so that as many are left of them."""
        scaled = abs(self.scale * value)
        small = math.isfinite(scaled) and 0 < scaled < 10 ** (1 - self.digits)
        digits = self.digits - 1 - math.floor(math.log10(scaled)) if small else self.digits
        return f"{self.scale * value:.{min(digits, 6)}f}"

    def show(self, measured: Measured) -> str:
        """The figure with its interval and unit."""
        interval = "" if math.isnan(measured.low) else f" [{self.number(measured.low)}, {self.number(measured.high)}]"
        return f"{self.number(measured.value)}{interval}{self.unit and ' ' + self.unit}"

    def loss(self, value: float, real: float = math.nan) -> float:
        """The figure so that lower is better."""
        return {"low": value, "high": -value, "real": abs(value - real)}[self.better]


def _share(key: str, label: str, better: Literal["low", "high"], *, headline: bool = True) -> Measure:
    return Measure(key, label, better, "%", 100, 1, headline, highest=1.0)


class Part(ABC):
    """Some measures that are taken together."""

    @property
    @abstractmethod
    def measures(self) -> tuple[Measure, ...]:
        """What it gives."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the part, its constants and its reference: equal keys give equal figures on equal samples."""

    @property
    def by_construction(self) -> Mapping[str, Measured]:
        """Figures that real data have by the way the measure is made."""
        return {}

    def problem(self, n: int) -> str | None:
        """Why n samples cannot be judged, in one line."""
        return None

    @abstractmethod
    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        """Figures of samples, as ``Judge.view`` makes them; labels: classes that were asked for."""


@dataclass(frozen=True, eq=False)
class Judge:
    """Parts that see the same samples.

    view: makes of samples, as a model gives them, what the parts take, and refuses what they cannot.
    held_out: real data, viewed, that are in no reference; labels: their classes, where there are any.
    """

    name: str
    parts: tuple[Part, ...]
    view: Callable[[Tensor], Tensor]
    held_out: Tensor
    labels: Tensor | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All measures, the main one first."""
        return tuple(measure for part in self.parts for measure in part.measures)

    @property
    def key(self) -> str:
        """Names the judge and its references."""
        return f"{self.name}-{_digest(*(part.key for part in self.parts))}"

    def __call__(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Measured]:
        """Figures of samples x, (n, *data_shape), as a model gives them; labels: (n,), the classes asked for."""
        if len(x) == 0:
            raise ValueError("no samples: expected at least 1")
        return self._judge(self.view(x.cpu()), None if labels is None else labels.cpu())

    def real(self, n: int) -> dict[str, Measured]:
        """Figures of n real samples, or of as many as are held out."""
        index = torch.arange(self.n_real(n)) * len(self.held_out) // self.n_real(n)
        figures = self._judge(self.held_out[index], None if self.labels is None else self.labels[index])
        return {**figures, **{key: value for part in self.parts for key, value in part.by_construction.items()}}

    def n_real(self, n: int) -> int:
        """How many real samples ``real(n)`` judges."""
        return min(n, len(self.held_out))

    def check(self, n: int) -> None:
        """Refuse a number of samples that is too small for a part."""
        for part in self.parts:
            if (problem := part.problem(n)) is not None:
                raise ValueError(problem)

    def suited(self, n: int) -> tuple[Judge, list[str]]:
        """The judge without the parts that n samples are too few for, and why; an error if none ranks samplers."""
        problems = [problem for part in self.parts if (problem := part.problem(n)) is not None]
        kept = tuple(part for part in self.parts if part.problem(n) is None)
        if not any(measure.headline for part in kept for measure in part.measures):
            raise ValueError(problems[0])
        return replace(self, parts=kept), problems

    def _judge(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        return {key: value for part in self.parts for key, value in part(x, labels).items()}


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
        return _digest("frechet", self.label, str(self.n_resamples), self.reference.mean, self.reference.covariance)

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
            return metrics.nats_to_bits(torch.special.entr(shares).sum().item())

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
        return _digest("neighbours", str(NEIGHBOURS), self.images.mean(0), self.labels)

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
        return _digest("copies", str(constants), self.train.mean(0), self.held_out.mean(0))

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
        return _digest("spelling", self.alphabet.symbols, str(self.n), str(sorted(self.ngrams.items())))

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


@dataclass(frozen=True, eq=False)
class Real:
    """Real data as floats: what to compare with, and what to hold beside it.

    train, unseen: training data, and data that are not among them; empty where that is not known.
    """

    reference: Tensor
    held_out: Tensor
    reference_labels: Tensor | None = None
    held_out_labels: Tensor | None = None
    train: Tensor = field(default_factory=lambda: torch.empty(0))
    unseen: Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def halves(cls, x: Tensor) -> Real:
        """Of one tensor: every other one is the reference."""
        return cls(x[::2], x[1::2])


def judge_for(
    model: Predictor,
    config: Mapping[str, Any] | None = None,
    metric: str | None = None,
    data: str | Path | Tensor | None = None,
    *,
    features: Path | str | None = None,
    n: int | None = None,
) -> Judge:
    """The judge that fits a model's data, or the one that is asked for.

    config: as ``bfn.storage.read_config`` gives it: its alphabet, number of classes and card are used.
    metric: a name of ``METRICS``. data: what to compare with, as ``bfn.data.load`` takes it, or a tensor of real data
        as the model takes them; the set that the model was trained on, as its card says, if None.
    features: a TorchScript file with Inception, for that metric; its code is run.
    n: samples to judge; too few for Inception's features are told of before all real images went through it.
    """
    config = config or {}
    alphabet, conditional = config.get("alphabet"), bool(config.get("n_labels"))
    trained_on = ((config.get("card") or {}).get("settings") or {}).get("data") or {}
    source = trained_on.get("name") if data is None else data
    fitting = _fitting(model, alphabet)
    chosen = metric or ("mnist" if source == "mnist" and "mnist" in fitting else fitting[0])
    if chosen not in METRICS:
        raise ValueError(f"metric={chosen!r}: expected one of {', '.join(METRICS)}")
    if chosen not in fitting:
        what = "text" if alphabet else f"{model.flow.kind} of shape {tuple(model.data_shape)}"
        raise ValueError(f"metric={chosen!r} does not fit data that are {what}: take one of {', '.join(fitting)}")
    if features is not None and chosen != "inception":
        raise ValueError(f"features={str(features)!r}: only metric 'inception' reads features from a file")
    if source is None:
        raise ValueError("the model's card does not say what it was trained on: say what real data to compare with")
    if isinstance(source, Tensor) and len(source) < 4:
        raise ValueError(f"{len(source)} real samples: expected at least 4, half of them to compare with")
    if chosen == "text":
        return _text_judge(model, Alphabet(str(alphabet)), source)
    view = _View(tuple(model.data_shape), getattr(model.flow, "n_classes", None))
    if isinstance(source, Tensor):
        real = Real.halves(view(source))
    elif chosen == "values":
        real = Real.halves(view(_read_values(Path(source))))
    else:
        real = _read_images(chosen, source, view, trained_on)
    return _image_judge(chosen, real, view, conditional, _frechet(chosen, real, features, n))


def _fitting(model: Predictor, alphabet: str | None) -> list[str]:
    """Metrics that fit the data, the most general last."""
    shape = tuple(model.data_shape)
    if alphabet is not None:
        return ["text"]
    if len(shape) == 3 and shape[0] in (1, 3):
        return ["pixels", "inception", *(["mnist"] if shape == (1, 28, 28) else []), "values"]
    return ["values"]


@dataclass(frozen=True)
class _View:
    """Samples as floats in [-1, 1], (n, *shape): classes are spread evenly over it."""

    shape: tuple[int, ...]
    n_classes: int | None

    def __call__(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"samples of shape {tuple(x.shape)}: expected (n, {', '.join(map(str, self.shape))})")
        floats = x.float() if self.n_classes is None else x.float() * (2 / (self.n_classes - 1)) - 1
        check_finite(floats)
        return floats


def _text_judge(model: Predictor, alphabet: Alphabet, source: str | Path | Tensor) -> Judge:
    length = model.data_shape[0]

    def view(x: Tensor) -> Tensor:
        if x.ndim != 2 or x.is_floating_point():
            raise ValueError(f"samples of shape {tuple(x.shape)} and {x.dtype}: expected (n, length) classes of text")
        return x

    if isinstance(source, Tensor):
        reference, held_out = view(source)[::2], view(source)[1::2]
    else:
        read = [load(source, part, alphabet=alphabet) for part in ("test", "validation")]
        if not all(isinstance(text, Text) for text in read):
            raise ValueError(f"{source}: images, and the model is one of text")
        test, validation = (cast(Text, text) for text in read)
        most = max(1, min(len(test), REFERENCE_CHARACTERS) // length)
        reference, held_out = test.tiles(length, most), validation.tiles(length)
    return Judge("text", (Spelling.of(alphabet, alphabet.decode(reference)),), view, held_out)


def _read_images(metric: str, source: str | Path, view: _View, trained_on: Mapping[str, Any]) -> Real:
    """The parts of an image set: held-out images are the reference, where there are enough of them a feature.

    The FID is by custom a distance from the training images.
    """
    loaded = {part: load(source, part) for part in ("train", "validation", "test")}
    if not all(isinstance(part, Images) for part in loaded.values()):
        raise ValueError(f"{source}: text, and the model's data are of shape {view.shape}")
    parts = {name: cast(Images, part) for name, part in loaded.items()}
    if parts["train"].data_shape != view.shape:
        raise ValueError(
            f"{source}: images of shape {parts['train'].data_shape}, and the model's data are {view.shape}"
        )
    binary = view.n_classes == 2 and parts["train"].levels > 2
    options = {"binarise": True, **trained_on} if binary else trained_on
    train, validation, test = (parts[name].prepared(options) for name in ("train", "validation", "test"))
    seen = concatenate(train, validation)
    n_features = 64 if metric == "mnist" else min(math.prod(view.shape), view.shape[0] * POOLED**2)
    if metric == "inception":
        reference, held_out, unseen = seen, test, test
    elif len(test) >= ENOUGH * n_features:
        reference, held_out, unseen = test, validation, validation
    else:
        every = concatenate(seen, test)
        reference, held_out = every[::2], every[1::2]
        unseen = concatenate(validation, test)
    return Real(
        reference.to_float(), held_out.to_float(), reference.labels, held_out.labels,
        train.to_float(), unseen.to_float(),
    )  # fmt: skip


def _read_values(path: Path) -> Tensor:
    """Vectors of an .npy file."""
    if path.suffix != ".npy":
        raise ValueError(f"{path}: expected an .npy file with real data, (n, ...), to compare with")
    array = np.load(path, allow_pickle=False)
    if array.ndim < 2 or len(array) < 4 or array.dtype.kind not in "fiub":
        raise ValueError(f"{path}: an array of {array.dtype} and shape {array.shape}: expected numbers (n >= 4, ...)")
    return torch.from_numpy(array)


def _image_judge(metric: str, real: Real, view: _View, conditional: bool, frechet: Frechet) -> Judge:
    parts: list[Part] = [frechet]
    if metric == "mnist":
        parts.append(Digits(conditional))
    elif conditional and real.reference_labels is not None:
        parts.append(Neighbours(real.reference.flatten(1), real.reference_labels))
    if len(real.train) >= COPY_NEIGHBOURS and len(real.unseen):
        parts.append(Copies(real.train.flatten(1), real.unseen))
    return Judge(metric, tuple(parts), view, real.held_out, real.held_out_labels)


def _frechet(metric: str, real: Real, features: Path | str | None, n: int | None) -> Frechet:
    if metric == "mnist":
        extractor = metrics.mnist_features()
        return Frechet(extractor, metrics.FeatureStatistics.of(metrics.extract(real.reference, extractor)))
    if metric == "inception":
        return _inception(real.reference, metrics.InceptionFeatures.load(features), str(features), n)
    if metric == "pixels":
        side = min(POOLED, *real.reference.shape[-2:])
        label = f"Frechet distance of {side} x {side} pixels"
        return Frechet(pooled, metrics.FeatureStatistics.of(pooled(real.reference)), label)
    flat = real.reference.flatten(1)
    return Frechet(lambda x: x.flatten(1), metrics.FeatureStatistics.of(flat))


def _inception(reference: Tensor, inception: metrics.InceptionFeatures, file: str, n: int | None) -> Frechet:
    """The FID; statistics of the reference are gathered once and kept in the cache."""
    name = f"inception-{inception.preprocessing}"

    def frechet(images: Tensor, what: str) -> Frechet:
        def gather() -> metrics.FeatureStatistics:
            pieces = tqdm(
                torch.split(images, INCEPTION_BATCH), desc=what, unit="batch", delay=1, leave=False, disable=None
            )
            return metrics.gather_statistics(pieces, inception, name=name)

        path = home() / "features" / f"{name}-{_digest(images, file)}.safetensors"
        statistics = metrics.cached_statistics(path, gather, name=name)
        return Frechet(inception, statistics, "FID", n_resamples=0, batch_size=INCEPTION_BATCH)

    if n is not None:
        # Some of the images tell the number of features, and the bias well enough.
        problem = frechet(reference[:INCEPTION_BATCH], "a first look").problem(n)
        if problem is not None:
            raise ValueError(problem)
    return frechet(reference, "real images through Inception")


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


def _digest(*parts: str | Tensor) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part.contiguous().numpy().tobytes())
        sha.update(b"\0")
    return sha.hexdigest()[:16]
