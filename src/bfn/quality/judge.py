"""Judges of samples: parts that see the same samples, each with a few measures.

Real data go through the same code, so every figure can be read beside what a real sample of the same size gets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from bfn._utils.estimate import Estimate, bootstrap_estimates, mean_estimate, share_estimate
from bfn._utils.pieces import digest
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.data.encoding import ModelData, columns_of, read_model_data
from bfn.data.images import Images, concatenate
from bfn.data.loading import load
from bfn.data.records import Records
from bfn.data.text import Text
from bfn.data.tokenizers import Tokenizer
from bfn.quality.features import N_CLASSES, classify, extract
from bfn.quality.frechet import FeatureStatistics, expected_bias, frechet_estimate, nearest
from bfn.quality.text import (
    TextItems,
    character_ngrams,
    entropy,
    ngram_counts,
    spelling_accuracy,
    spelling_estimate,
    word_counts,
)


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

    def show(self, figure: Estimate) -> str:
        """The figure with its interval and unit."""
        interval = "" if math.isnan(figure.low) else f" [{self.number(figure.low)}, {self.number(figure.high)}]"
        return f"{self.number(figure.value)}{interval}{self.unit and ' ' + self.unit}"

    def loss(self, value: float, real: float = math.nan) -> float:
        """The figure so that lower is better."""
        return {"low": value, "high": -value, "real": abs(value - real)}[self.better]


class JudgePart(ABC):
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
    def by_construction(self) -> Mapping[str, Estimate]:
        """Figures that real data have by the way the measure is made."""
        return {}

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]] | None:
        """The other end of the scales, where there is one worth to be named: what it is, and its figures."""
        return None

    def problem(self, n: int) -> str | None:
        """Why n samples cannot be judged, in one line."""
        return None

    def figures_of_real(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        """Figures of held-out real data."""
        return {**self(x, labels), **self.by_construction}

    @abstractmethod
    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        """Figures of samples, as ``Judge.prepare`` makes them; labels: classes that were asked for."""


@dataclass(frozen=True, eq=False)
class Judge:
    """Parts that see the same samples.

    held_out: real data that are in no reference, prepared; labels: their classes, where there are any.
    prepare: makes of samples, as a model gives them, what the parts take, and refuses what they cannot.
    """

    name: str
    parts: tuple[JudgePart, ...]
    held_out: Tensor
    labels: Tensor | None = None
    prepare: Callable[[Any], Tensor] = lambda x: x

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All measures, the main one first."""
        return tuple(measure for part in self.parts for measure in part.measures)

    @property
    def key(self) -> str:
        """Names the judge and its references."""
        return f"{self.name}-{digest(*(part.key for part in self.parts))}"

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]] | None:
        """The other end of the scales, of the first part that has one."""
        return next((part.baseline for part in self.parts if part.baseline is not None), None)

    def __call__(self, x: Any, labels: Tensor | None = None) -> dict[str, Estimate]:
        """Figures of samples x as a model gives them; labels: (n,), the classes that were asked for."""
        prepared = self.prepare(x).cpu()
        if len(prepared) == 0:
            raise UserError("no samples: expected at least 1")
        return self._judge(prepared, None if labels is None else labels.cpu())

    def real(self, n: int) -> dict[str, Estimate]:
        """Figures of n real samples, or of as many as are held out."""
        index = torch.arange(self.n_real(n)) * len(self.held_out) // self.n_real(n)
        x, labels = self.held_out[index], None if self.labels is None else self.labels[index]
        return {key: value for part in self.parts for key, value in part.figures_of_real(x, labels).items()}

    def n_real(self, n: int) -> int:
        """How many real samples ``real(n)`` judges."""
        return min(n, len(self.held_out))

    def check(self, n: int) -> None:
        """Refuse a number of samples that is too small for a part."""
        for problem in self._problems(n):
            raise UserError(problem)

    def suited(self, n: int) -> tuple[Self, list[str]]:
        """The judge without the parts that n samples are too few for, and why; an error if none ranks samplers."""
        problems = self._problems(n)
        kept = tuple(part for part in self.parts if part.problem(n) is None)
        if not any(measure.headline for part in kept for measure in part.measures):
            raise UserError(problems[0])
        return replace(self, parts=kept), problems

    def _problems(self, n: int) -> list[str]:
        return [problem for part in self.parts if (problem := part.problem(n))]

    def _judge(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return {key: value for part in self.parts for key, value in part(x, labels).items()}


ENOUGH = 10
"""Held-out samples a feature that make a reference; of smaller sets every other sample, held out or not, is taken."""
MOST_CHARACTERS = 2_000_000
"""Of real text, to compare with."""


@dataclass(frozen=True, eq=False)
class ReferenceData:
    """Real data, as the judge's parts take them.

    reference: to compare with. held_out: what stands beside the samples.
    train, unseen: training data, and data that are not among them; empty where that is not known.
    """

    reference: Tensor
    held_out: Tensor
    reference_labels: Tensor | None = None
    held_out_labels: Tensor | None = None
    train: Tensor = field(default_factory=lambda: torch.empty(0))
    unseen: Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def halves(cls, x: Tensor) -> Self:
        """Of one tensor: every other one is the reference."""
        return cls(x[::2], x[1::2])


def read_images(model: Model, source: str | Path, n_features: int | None) -> ReferenceData:
    """The parts of an image set: held-out images are the reference, where there are enough for so many features.

    None: the training images are the reference, by custom of the FID.
    """
    shape, parts = tuple(model.data_shape), []
    for name in ("train", "validation", "test"):
        images = load(source, name)
        if not isinstance(images, Images):
            raise UserError(f"{source}: not images, and the model's data are images of shape {shape}")
        if images.data_shape != shape:
            raise UserError(f"{source}: images of shape {images.data_shape}, and the model's data are {shape}")
        parts.append(images.for_model(model.flow.n_values, model.info.trained_on))
    train, validation, test = parts
    seen = concatenate(train, validation)
    if n_features is None:
        reference, held_out, unseen = seen, test, test
    elif len(test) >= ENOUGH * n_features:
        reference, held_out, unseen = test, validation, validation
    else:
        every = concatenate(seen, test)
        reference, held_out, unseen = every[::2], every[1::2], concatenate(validation, test)
    x, beside, copied, new = (some.to_float() for some in (reference, held_out, train, unseen))
    return ReferenceData(x, beside, reference.labels, held_out.labels, copied, new)


def read_texts(model: Model, source: str | Path) -> ReferenceData:
    """Pieces of a text as classes, (n, length): the test part is the reference, the validation part is held out."""
    tokenizer, length = model.info.text_tokenizer, model.data_shape[0]
    columns = columns_of(model.info.trained_on)
    test, validation = (load(source, part, tokenizer=tokenizer, columns=columns) for part in ("test", "validation"))
    if isinstance(test, Records):
        held_out, reference = (read_model_data(model, source, part) for part in ("test", "train"))
        return ReferenceData(*(without_padding(read) for read in (reference, held_out)))
    if not isinstance(test, Text) or not isinstance(validation, Text):
        raise UserError(f"{source}: images, and the model is one of text")
    most = max(1, min(len(test), MOST_CHARACTERS) // length)
    return ReferenceData(test.tiles(length, most), validation.tiles(length))


def without_padding(read: ModelData) -> Tensor:
    """Classes, -1 where there are none."""
    return read.x if read.present is None else read.x.masked_fill(~read.present, -1)


def read_values(path: Path) -> Tensor:
    """Vectors of an .npy file."""
    if path.suffix != ".npy":
        raise UserError(f"{path}: expected an .npy file with real data, (n, ...), to compare with")
    array = np.load(path, allow_pickle=False)
    if array.ndim < 2 or len(array) < 4 or array.dtype.kind not in "fiub":
        raise UserError(f"{path}: an array of {array.dtype} and shape {array.shape}: expected numbers (n >= 4, ...)")
    return torch.from_numpy(array)


CONFIDENT = 0.9
"""Probability above which the classifier has recognised a digit."""
ENGLISH, MOST_LOOKED_UP = 0.5, 200
"""Share of correct words above which text is English, and texts that are looked up for it."""
NEIGHBOURS = 5
"""Real images that vote on the class of a sample."""
COPY_NEIGHBOURS, COPY_SHARE, COPY_SAMPLES, COPY_CALIBRATION = 50, 0.01, 300, 1000
"""Neighbours that a distance is compared with, share of real data that count as near-copies, samples that are looked
at, real data that set the threshold."""


def _share(key: str, label: str, better: Literal["low", "high"], *, headline: bool = True) -> Measure:
    return Measure(key, label, better, "%", 100, 1, headline, highest=1.0)


@dataclass(frozen=True, eq=False)
class Frechet(JudgePart):
    """Frechet distance of features from those of a reference.

    n_resamples: of the bootstrap; 0 for the interval of the linearised distance, where there are many features.
    """

    extractor: Callable[[Tensor], Tensor]
    reference: FeatureStatistics
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
        bias = expected_bias(self.reference.covariance, n, self.reference.n)
        return (
            f"n={n}: the Frechet distance of {d} features needs more than {d} samples, else their covariance is "
            f"singular; it would come out about {bias:.3g} too large"
        )

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        features = extract(x, self.extractor, batch_size=self.batch_size)
        figure = frechet_estimate(features, self.reference, generator=_generator(), n_resamples=self.n_resamples)
        return {"frechet": figure}


@dataclass(frozen=True, eq=False)
class Digits(JudgePart):
    """What the bundled classifier makes of 28 x 28 digits.

    Read confidence beside balance and the Frechet distance: plain noise is taken, with full confidence, for one digit.
    The class entropy is log2 10 = 3.322 bits where all digits come equally often.
    """

    conditional: bool

    @property
    def measures(self) -> tuple[Measure, ...]:
        asked = (_share("asked_class", "asked class", "high"),) if self.conditional else ()
        return (
            _share("recognised", f"recognised with confidence above {CONFIDENT}", "high"),
            *asked,
            Measure("confidence", "mean confidence", "high", digits=3, highest=1.0),
            Measure("class_entropy", "class entropy", "high", "bits"),
        )

    @property
    def key(self) -> str:
        return f"digits-1-{self.conditional}"

    def problem(self, n: int) -> str | None:
        return None if n > 1 else f"n={n}: an interval needs at least 2 samples"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return self.figures(classify(x), labels)

    def figures(self, probabilities: Tensor, labels: Tensor | None = None) -> dict[str, Estimate]:
        """Of the classifier's probabilities, (n, 10)."""
        best, predicted = probabilities.double().max(-1)

        def class_entropy(index: Tensor) -> Tensor:
            return entropy(torch.bincount(predicted[index], minlength=N_CLASSES))[None]

        (balance,) = bootstrap_estimates(class_entropy, len(predicted), generator=_generator())
        return {
            "recognised": share_estimate(int((best > CONFIDENT).sum()), len(best)),
            **_asked(predicted, labels if self.conditional else None),
            "confidence": mean_estimate(best).within(0, 1),
            "class_entropy": balance.within(0),
        }


@dataclass(frozen=True, eq=False)
class NearestClasses(JudgePart):
    """Whether the class of the nearest real images is the one that was asked for."""

    images: Tensor
    labels: Tensor
    measures = (_share("asked_class", f"asked class, by {NEIGHBOURS} nearest neighbours", "high"),)

    @property
    def key(self) -> str:
        return digest("neighbours", str(NEIGHBOURS), self.images.mean(0), self.labels)

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        _, found = nearest(x.flatten(1), self.images, NEIGHBOURS)
        return _asked(self.labels[found].mode(-1).values, labels)


@dataclass(frozen=True, eq=False)
class NearCopies(JudgePart):
    """Share of samples that are nearly copies of training images.

    The distance in pixels to the nearest training image is divided by the mean distance to the 50 nearest, as Carlini
    et al. (2023) do, since a blurred sample is near to many images and a copy of none. A ratio that only 1 % of
    held-out images fall short of counts as a near-copy, so real data get 1 %.
    """

    train: Tensor
    held_out: Tensor
    measures = (_share("near_copies", "near-copies of training images", "low", headline=False),)
    by_construction = MappingProxyType({"near_copies": Estimate(COPY_SHARE)})

    @property
    def key(self) -> str:
        constants = (COPY_NEIGHBOURS, COPY_SHARE, COPY_SAMPLES, COPY_CALIBRATION)
        return digest("copies", str(constants), self.train.mean(0), self.held_out.mean(0))

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        ratios = self._ratios(x[:COPY_SAMPLES])
        return {"near_copies": share_estimate(int((ratios < self._threshold).sum()), len(ratios))}

    @cached_property
    def _threshold(self) -> float:
        return self._ratios(self.held_out[-COPY_CALIBRATION:]).quantile(COPY_SHARE).item()

    def _ratios(self, x: Tensor) -> Tensor:
        distances, _ = nearest(x.flatten(1), self.train, COPY_NEIGHBOURS)
        return distances[:, 0] / distances.mean(1).clamp(min=1e-12)


@dataclass(frozen=True, eq=False)
class Texts(JudgePart):
    """Spelling accuracy, n-grams and words of text, against the counts of real text. -1 stands for no token.

    english: whether real text is: other text is not looked up in a dictionary, and ranked by its n-grams.
    """

    tokenizer: Tokenizer
    ngrams: Counter[str]
    words: Counter[str]
    n: int = 4
    english: bool = True

    @classmethod
    def against(cls, tokenizer: Tokenizer, reference: Sequence[str], n: int = 4) -> Self:
        """With the counts of real texts."""
        english = spelling_accuracy(reference[:MOST_LOOKED_UP]) > ENGLISH
        return cls(tokenizer, ngram_counts(reference, n), word_counts(reference), n, english)

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (
            *([_share("spelling", "spelling accuracy", "high")] if self.english else []),
            Measure("ngram_divergence", f"{self.n}-gram divergence", "low", "bits", digits=3, highest=1.0),
            Measure("word_divergence", "word divergence", "low", "bits", digits=3, highest=1.0),
            Measure("ngram_entropy", f"{self.n}-gram entropy", "real", "bits"),
            Measure("word_entropy", "word entropy", "real", "bits"),
        )

    @cached_property
    def key(self) -> str:
        return digest("spelling", "".join(self.tokenizer.pieces), str(self.n), str(sorted(self.ngrams.items())))

    def problem(self, n: int) -> str | None:
        return None if n > 1 else f"n={n}: an interval needs at least 2 texts"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        texts = self.tokenizer.decode(x.clamp(min=0), None if bool((x >= 0).all()) else x >= 0)
        ngrams = TextItems.of([character_ngrams(text, self.n) for text in texts], self.ngrams)
        words = TextItems.of([text.split() for text in texts], self.words)
        (ngram, ngram_entropy), (word, word_entropy) = (
            [figure.within(0) for figure in bootstrap_estimates(items.statistics, len(texts), generator=_generator())]
            for items in (ngrams, words)
        )
        figures = (*([spelling_estimate(texts)] if self.english else []), ngram, word, ngram_entropy, word_entropy)
        return {measure.key: figure for measure, figure in zip(self.measures, figures, strict=True)}


def _asked(predicted: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
    return {} if labels is None else {"asked_class": share_estimate(int((predicted == labels).sum()), len(labels))}


def _generator() -> torch.Generator:
    """Of the resamples: always the same, so that equal samples get equal intervals."""
    return torch.Generator().manual_seed(0)
