"""What a judge is made of: parts for images, for text, and for any data with features.

All intervals are at 95 %: bootstrap for Frechet distances, divergences and entropies; Wilson's for shares of samples;
that of texts for shares of words, since words of one text err together.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, Self

import torch
from torch import Tensor

from bfn.data import Tokenizer
from bfn.estimate import Estimate, bootstrap_estimates, mean_estimate, share_estimate
from bfn.pieces import digest
from bfn.quality.classifier import N_CLASSES, classify
from bfn.quality.features import extract
from bfn.quality.frechet import FeatureStatistics, expected_bias, frechet_estimate
from bfn.quality.judge import JudgePart, Measure
from bfn.quality.nearest import nearest
from bfn.quality.ngrams import TextItems, character_ngrams, entropy, ngram_counts, word_counts
from bfn.quality.spelling import spelling_accuracy, spelling_estimate

__all__ = ["Digits", "Frechet", "NearCopies", "NearestClasses", "Texts"]

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
