"""Metrics, and the judge that fits a model's data.

A metric says how real data are read and which parts judge them. The metrics of this library are in ``BUILT_IN``;
an installed package adds its own by the entry point ``"metric.mine" = "my_package.metrics:MINE"``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from bfn._utils.estimate import Estimate, bootstrap_estimates, mean_estimate, share_estimate
from bfn._utils.pieces import digest
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.core.registry import Registry, registry
from bfn.data.loading import read_model_data
from bfn.data.tokenizers import Tokenizer
from bfn.quality import features, judge, metrics
from bfn.quality.frechet import FeatureStatistics, frechet_estimate
from bfn.quality.judge import Judge, JudgePart, Measure, ReferenceData, generator
from bfn.quality.molecules import is_of_molecules, molecule_parts, read_molecules
from bfn.quality.table_report import table_judge

N_CLASSIFIER_FEATURES = 64


# --- reading and preparing data ---------------------------------------------------------------------------------------


def as_values(model: Model, x: Any) -> Tensor:
    """Return samples as floats, (n, *data_shape). Joint data become (n, D): numbers as they are, classes one-hot."""
    if isinstance(model.data_shape, Mapping):
        x = model.flow.pack(x, model.data_shape)
        features.check_finite(x)
        scale, shift = model.flow.message_map
        return (model.flow.message(x) - shift) / scale
    if tuple(x.shape[1:]) != tuple(model.data_shape):
        raise UserError(f"samples of shape {tuple(x.shape)}: expected (n, {', '.join(map(str, model.data_shape))})")
    values = model.flow.values(x)
    features.check_finite(values)
    return values


def as_classes(model: Model, x: Tensor) -> Tensor:
    """Return samples of text as they are, (n, length)."""
    if x.ndim != 2 or x.is_floating_point():
        raise UserError(f"samples of shape {tuple(x.shape)} and {x.dtype}: expected (n, length) classes of text")
    return x


def read_vectors(model: Model, source: str | Path) -> ReferenceData:
    """Read numbers, from an .npy file or in any form that ``bfn train`` takes."""
    of_files = model.info.scaling or Path(source).suffix != ".npy"
    x = read_model_data(model, source, "all").x if of_files else judge.read_values(Path(source))
    return ReferenceData.halves(as_values(model, x))


# --- parts ------------------------------------------------------------------------------------------------------------

CONFIDENT = 0.9
"""Probability above which the classifier has recognised a digit."""

ENGLISH, MOST_LOOKED_UP = 0.5, 200
"""Share of correct words above which real text counts as English, and maximum number of texts that are looked up."""

NEIGHBOURS = 5
"""Number of real images that vote on the class of a sample."""

COPY_NEIGHBOURS = 50
"""Number of nearest training images whose mean distance the distance of the nearest one is compared with."""

COPY_SHARE = 0.01
"""Share of held-out images that count as near-copies."""

COPY_SAMPLES, COPY_CALIBRATION = 300, 1000
"""Maximum number of samples that are compared, and of held-out images that set the threshold."""


@dataclass(frozen=True, eq=False)
class Frechet(JudgePart):
    """Frechet distance of features from those of a reference.

    Args:
        extractor: function from samples to features.
        reference: statistics of the reference.
        label: name of the measure.
        n_resamples: number of resamples of the bootstrap; 0 for the interval of the linearised distance, which suits
            large numbers of features.
        batch_size: number of samples that go through the extractor together.
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
        return self.reference.problem(n)

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        found = features.extract(x, self.extractor, batch_size=self.batch_size)
        figure = frechet_estimate(found, self.reference, generator=generator(), n_resamples=self.n_resamples)
        return {"frechet": figure}


@dataclass(frozen=True, eq=False)
class Digits(JudgePart):
    """Verdicts of the bundled classifier on 28 x 28 digits.

    Read the confidence beside the class entropy and the Frechet distance: the classifier takes plain noise for one
    digit with full confidence. The class entropy is log2 10 = 3.322 bits if all digits are equally frequent.

    Args:
        conditional: whether the model is class-conditional.
    """

    least = 2
    conditional: bool

    @property
    def measures(self) -> tuple[Measure, ...]:
        asked = (Measure.share("asked_class", "asked class", "high"),) if self.conditional else ()
        return (
            Measure.share("recognised", f"recognised with confidence above {CONFIDENT}", "high"),
            *asked,
            Measure("confidence", "mean confidence", "high", digits=3, highest=1.0),
            Measure("class_entropy", "class entropy", "high", "bits"),
        )

    @property
    def key(self) -> str:
        return f"digits-1-{self.conditional}"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return self.figures(features.classify(x), labels)

    def figures(self, probabilities: Tensor, labels: Tensor | None = None) -> dict[str, Estimate]:
        """Return the figures of the classifier's probabilities, (n, 10)."""
        best, predicted = probabilities.double().max(-1)

        def class_entropy(index: Tensor) -> Tensor:
            return metrics.entropy(torch.bincount(predicted[index], minlength=features.N_CLASSES))[None]

        (balance,) = bootstrap_estimates(class_entropy, len(predicted), generator=generator())
        return {
            "recognised": share_estimate(int((best > CONFIDENT).sum()), len(best)),
            **asked_class(predicted, labels if self.conditional else None),
            "confidence": mean_estimate(best).within(0, 1),
            "class_entropy": balance.within(0),
        }


@dataclass(frozen=True, eq=False)
class NearestClasses(JudgePart):
    """Share of samples whose nearest real images are of the class that was asked for.

    Args:
        images: real images, (n, d).
        labels: their classes, (n,).
    """

    images: Tensor
    labels: Tensor
    measures = (Measure.share("asked_class", f"asked class, by {NEIGHBOURS} nearest neighbours", "high"),)

    @property
    def key(self) -> str:
        return digest("neighbours", str(NEIGHBOURS), self.images.mean(0), self.labels)

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        _, found = features.nearest(x.flatten(1), self.images, NEIGHBOURS)
        return asked_class(self.labels[found].mode(-1).values, labels)


@dataclass(frozen=True, eq=False)
class NearCopies(JudgePart):
    """Share of samples that are nearly copies of training images.

    The distance to the nearest training image is divided by the mean distance to the 50 nearest ones, as Carlini et al.
    (2023) do, since a blurred sample is near to many images and a copy of none. Samples whose ratio is below that of
    99 % of held-out images count as near-copies, so real data get 1 %.

    Args:
        train: training images, (n, d).
        held_out: images that were not trained on.
    """

    train: Tensor
    held_out: Tensor
    measures = (Measure.share("near_copies", "near-copies of training images", "low", headline=False),)

    @property
    def key(self) -> str:
        constants = (COPY_NEIGHBOURS, COPY_SHARE, COPY_SAMPLES, COPY_CALIBRATION)
        return digest("copies", str(constants), self.train.mean(0), self.held_out.mean(0))

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        ratios = self._ratios(x[:COPY_SAMPLES])
        return {"near_copies": share_estimate(int((ratios < self._threshold).sum()), len(ratios))}

    def figures_of_real(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return {"near_copies": Estimate(COPY_SHARE)}  # by definition

    @cached_property
    def _threshold(self) -> float:
        return self._ratios(self.held_out[-COPY_CALIBRATION:]).quantile(COPY_SHARE).item()

    def _ratios(self, x: Tensor) -> Tensor:
        distances, _ = features.nearest(x.flatten(1), self.train, COPY_NEIGHBOURS)
        return distances[:, 0] / distances.mean(1).clamp(min=1e-12)


@dataclass(frozen=True, eq=False)
class Texts(JudgePart):
    """Spelling accuracy, n-grams and words of texts, compared with counts of real text.

    Args:
        tokenizer: how classes become text; -1 stands for padding.
        ngrams, words: counts of real text.
        n: length of the n-grams.
        english: whether real text is English. Other text is not looked up in a dictionary, and ranked by its n-grams.
    """

    least = 2
    tokenizer: Tokenizer
    ngrams: Counter[str]
    words: Counter[str]
    n: int = 4
    english: bool = True

    @classmethod
    def against(cls, tokenizer: Tokenizer, reference: Sequence[str], n: int = 4) -> Self:
        """Count the n-grams and words of real texts."""
        english = metrics.spelling_accuracy(reference[:MOST_LOOKED_UP]) > ENGLISH
        return cls(tokenizer, metrics.ngram_counts(reference, n), metrics.word_counts(reference), n, english)

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (
            *([Measure.share("spelling", "spelling accuracy", "high")] if self.english else []),
            Measure("ngram_divergence", f"{self.n}-gram divergence", "low", "bits", digits=3, highest=1.0),
            Measure("word_divergence", "word divergence", "low", "bits", digits=3, highest=1.0),
            Measure("ngram_entropy", f"{self.n}-gram entropy", "real", "bits"),
            Measure("word_entropy", "word entropy", "real", "bits"),
        )

    @cached_property
    def key(self) -> str:
        return digest("spelling", "".join(self.tokenizer.pieces), str(self.n), str(sorted(self.ngrams.items())))

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        texts = self.tokenizer.decode(x.clamp(min=0), None if bool((x >= 0).all()) else x >= 0)
        ngrams = metrics.TextItems.of([metrics.character_ngrams(text, self.n) for text in texts], self.ngrams)
        words = metrics.TextItems.of([text.split() for text in texts], self.words)
        (ngram, ngram_entropy), (word, word_entropy) = (
            [figure.within(0) for figure in bootstrap_estimates(items.statistics, len(texts), generator=generator())]
            for items in (ngrams, words)
        )
        figures = [ngram, word, ngram_entropy, word_entropy]
        if self.english:
            figures.insert(0, metrics.spelling_estimate(texts))
        return {measure.key: figure for measure, figure in zip(self.measures, figures, strict=True)}


def asked_class(predicted: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
    """Return the share of samples that have the class that was asked for; nothing if none was."""
    return {} if labels is None else {"asked_class": share_estimate(int((predicted == labels).sum()), len(labels))}


# --- metrics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A way to judge samples.

    Attributes:
        summary: one line for people.
        fits: whether it is for samples of a model.
        parts: makes the parts of the judge from real data.
        read: reads real data that a user names.
        prepare: turns data, as the model has them, into what the parts take.
        configure: makes the metric for a file of features and a number of samples, if it takes such a file.
    """

    summary: str
    fits: Callable[[Model], bool]
    parts: Callable[[Model, ReferenceData], Sequence[JudgePart]]
    read: Callable[[Model, str | Path], ReferenceData] = read_vectors
    prepare: Callable[[Model, Any], Tensor] = as_values
    configure: Callable[[Path | str | None, int | None], Metric] | None = None


def features_for(metric: str, device: torch.device | str = "cpu") -> features.Extractor:
    """Return the differentiable features of the Frechet distance of a metric.

    Args:
        metric: "mnist", "pixels" or "values".
        device: device of the values.
    """
    if metric == "mnist":
        return features.load_classifier().to(device).features
    return features.pooled_pixels if metric == "pixels" else torch.nn.Flatten()


def near_copies(real: ReferenceData) -> list[JudgePart]:
    """Return the part that finds near-copies, if the training data are known."""
    known = len(real.train) >= COPY_NEIGHBOURS and len(real.unseen)
    return [NearCopies(real.train.flatten(1), real.unseen)] if known else []


def _frechet(metric: str, label: str, real: ReferenceData) -> Frechet:
    extractor = features_for(metric)
    return Frechet(extractor, FeatureStatistics.of(features.extract(real.reference, extractor)), label)


def parts_with_classes(model: Model, real: ReferenceData, frechet: Frechet) -> list[JudgePart]:
    """Return the Frechet distance with the parts that judge classes and near-copies, if these are known."""
    parts: list[JudgePart] = [frechet]
    if model.info.classes is not None and real.reference_labels is not None:
        parts.append(NearestClasses(real.reference.flatten(1), real.reference_labels))
    return [*parts, *near_copies(real)]


def text_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    """Return the part that judges texts."""
    tokenizer = judge.tokenizer_of(model)
    return [Texts.against(tokenizer, tokenizer.decode(real.reference))]


def _digit_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    frechet = _frechet("mnist", "Frechet distance", real)
    return [frechet, Digits(model.info.classes is not None), *near_copies(real)]


def _pixel_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    side = min(features.POOLED, *real.reference.shape[-2:])
    return parts_with_classes(model, real, _frechet("pixels", f"Frechet distance of {side} x {side} pixels", real))


def _value_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    return parts_with_classes(model, real, _frechet("values", "Frechet distance", real))


def _of_form(form: str) -> Callable[[Model], bool]:
    """Return a function that says whether decoded samples of a model have this form."""
    return lambda model: model.form == form


_is_text = _of_form("text")


def _read_pixels(model: Model, source: str | Path) -> ReferenceData:
    n_pooled = min(math.prod(model.data_shape), model.data_shape[0] * features.POOLED**2)
    return judge.read_images(model, source, n_pooled)


BUILT_IN: dict[str, Metric] = {
    "molecules": Metric(
        "Frechet ChemNet distance, shares that are valid, unique and new, and descriptors of molecules",
        is_of_molecules, molecule_parts, read_molecules, as_classes,
    ),
    "text": Metric(
        "spelling, n-grams and words of text, against held-out text",
        _is_text, text_parts, judge.read_texts, as_classes,
    ),
    "pixels": Metric(
        "Frechet distance of images pooled to 8 x 8, class by nearest neighbours",
        _of_form("images"), _pixel_parts, _read_pixels,
    ),
    "mnist": Metric(
        "the bundled classifier's features and verdict on 28 x 28 digits",
        lambda model: tuple(model.data_shape) == (1, 28, 28), _digit_parts,
        partial(judge.read_images, n_features=N_CLASSIFIER_FEATURES),
    ),
    "values": Metric(
        "Frechet distance of the data as they are, for vectors",
        lambda model: not _is_text(model), _value_parts,
    ),
}  # fmt: skip
"""Metrics of this library, for the registry."""

METRICS: Registry[Metric] = registry("metric")
"""Metrics by name. The first one that fits a model is its default, except that MNIST has its own."""


# --- the choice -------------------------------------------------------------------------------------------------------


def judge_for(
    model: Model,
    metric: str | None = None,
    data: str | Path | Tensor | None = None,
    *,
    features: Path | str | None = None,
    n: int | None = None,
    train: Any = None,
) -> Judge:
    """Return the judge that fits a model's data, or the one that is asked for.

    Args:
        model: the model.
        metric: a name in ``METRICS``, or "table".
        data: real data to compare with: a name or path for ``bfn.data.load``, or a tensor of data as the model takes
            them. By default, the data that the model was trained on, as its info says.
        features: a TorchScript file with Inception, for that metric; its code is run.
        n: number of samples that will be judged. If they are too few for the features of Inception, this is reported
            before all real images go through it.
        train: for a table, the rows that the model was trained on; ``data`` are then held-out rows.
    """
    if model.info.columns is not None and metric in (None, "table") and not isinstance(data, Tensor):
        return table_judge(model, data, train)
    source = judge.data_of(model, data)
    name = metric_for(model, metric, source)
    chosen = METRICS[name]
    if chosen.configure is not None:
        chosen = chosen.configure(features, n)
    elif features is not None:
        raise UserError(f"features={str(features)!r}: only metric 'inception' reads features from a file")
    if source is None:
        raise UserError("the model's card does not say what it was trained on: say what real data to compare with")
    if isinstance(source, Tensor) and len(source) < 4:
        raise UserError(f"{len(source)} real samples: expected at least 4, half of them to compare with")
    prepare = partial(chosen.prepare, model)
    real = ReferenceData.halves(prepare(source)) if isinstance(source, Tensor) else chosen.read(model, source)
    return Judge(name, tuple(chosen.parts(model, real)), real.held_out, real.held_out_labels, prepare)


def metric_for(model: Model, metric: str | None, source: object) -> str:
    """Return the name of the metric that fits a model best, or check the one that is asked for."""
    if metric is None:
        first = next(name for name in METRICS if METRICS[name].fits(model))
        return "mnist" if source == "mnist" and METRICS["mnist"].fits(model) else first
    if not METRICS.find(metric, "metric").fits(model):
        fitting = ", ".join(name for name in METRICS if METRICS[name].fits(model))
        raise UserError(f"metric={metric!r} does not fit samples of shape {tuple(model.data_shape)}: take {fitting}")
    return metric
