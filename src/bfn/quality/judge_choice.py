"""The judge that fits a model's data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn._utils.files import home
from bfn._utils.pieces import digest
from bfn._utils.progress import over
from bfn.core.errors import UserError, did_you_mean
from bfn.core.model import Model
from bfn.core.registry import Registry, registry
from bfn.data.encoding import read_model_data
from bfn.data.loading import from_card
from bfn.quality.features import (
    POOLED,
    Extractor,
    InceptionFeatures,
    cached_statistics,
    check_finite,
    extract,
    gather_statistics,
    load_classifier,
    pooled_pixels,
)
from bfn.quality.frechet import FeatureStatistics
from bfn.quality.judge import (
    COPY_NEIGHBOURS,
    Digits,
    Frechet,
    Judge,
    JudgePart,
    NearCopies,
    NearestClasses,
    ReferenceData,
    Texts,
    read_images,
    read_texts,
    read_values,
)
from bfn.quality.molecule_report import is_of_molecules
from bfn.quality.molecules import molecule_parts, read_molecules
from bfn.quality.second_judge import NGramBits, Projections, judge_features
from bfn.quality.table_report import table_judge

INCEPTION_BATCH = 50
N_CLASSIFIER_FEATURES, N_JUDGE_FEATURES = 64, 48


def judge_for(
    model: Model,
    metric: str | None = None,
    data: str | Path | Tensor | None = None,
    *,
    features: Path | str | None = None,
    n: int | None = None,
    train: Any = None,
) -> Judge:
    """The judge that fits a model's data, or the one that is asked for.

    metric: a name of ``METRICS``. data: what to compare with, as ``bfn.data.load`` takes it, or a tensor of real data
        as the model takes them; the set that the model was trained on, as its info says, if None.
    features: a TorchScript file with Inception, for that metric; its code is run.
    n: samples to judge; too few for Inception's features are told of before all real images went through it.
    train: of a table, the rows that the model was trained on; ``data`` are then held-out ones (:func:`table_parts`).
    """
    if model.info.columns is not None and metric in (None, "table") and not isinstance(data, Tensor):
        return table_judge(model, data, train)
    own = model.info.trained_on.get("name")
    source = data if data is not None or own is None else from_card(own)
    name = metric_for(model, metric, source)
    if features is not None and name != "inception":
        raise UserError(f"features={str(features)!r}: only metric 'inception' reads features from a file")
    if source is None:
        raise UserError("the model's card does not say what it was trained on: say what real data to compare with")
    if isinstance(source, Tensor) and len(source) < 4:
        raise UserError(f"{len(source)} real samples: expected at least 4, half of them to compare with")
    chosen = _inception_metric(features, n) if name == "inception" else METRICS[name]

    def prepare(x: Any) -> Tensor:
        return chosen.prepare(model, x)

    real = ReferenceData.halves(prepare(source)) if isinstance(source, Tensor) else chosen.read(model, source)
    return Judge(name, tuple(chosen.parts(model, real)), real.held_out, real.held_out_labels, prepare)


def features_for(metric: str, device: torch.device | str = "cpu") -> Extractor:
    """The differentiable features that the Frechet distance of a metric is taken on, for values on that device."""
    if metric == "mnist":
        return load_classifier().to(device).features
    known: dict[str, Extractor] = {"pixels": pooled_pixels, "values": partial(torch.flatten, start_dim=1)}
    return known[metric]


def metric_for(model: Model, metric: str | None, source: object) -> str:
    """The metric that is asked for, checked against the form of the data; the one that fits best if None."""
    fitting = [name for name, known in METRICS.items() if known.fits(model)]
    chosen = metric or ("mnist" if source == "mnist" and "mnist" in fitting else fitting[0])
    if chosen not in METRICS:
        raise UserError(f"metric={chosen!r}: expected one of {', '.join(METRICS)}{did_you_mean(chosen, METRICS)}")
    if chosen not in fitting:
        what = "text" if model.form == "text" else f"{model.flow.kind} of shape {tuple(model.data_shape)}"
        raise UserError(f"metric={chosen!r} does not fit data that are {what}: take one of {', '.join(fitting)}")
    return chosen


def _values(model: Model, x: Any) -> Tensor:
    """Samples as floats, (n, *data_shape); of joint data (n, D), numbers as they are and each class as 0 or 1."""
    if isinstance(model.data_shape, Mapping):
        x = model.flow.pack(x, model.data_shape)
        check_finite(x)
        scale, shift = model.flow.message_map
        return (model.flow.message(x) - shift) / scale
    if tuple(x.shape[1:]) != tuple(model.data_shape):
        raise UserError(f"samples of shape {tuple(x.shape)}: expected (n, {', '.join(map(str, model.data_shape))})")
    values = model.flow.values(x)
    check_finite(values)
    return values


def _classes(model: Model, x: Tensor) -> Tensor:
    """Samples of text as they are."""
    if x.ndim != 2 or x.is_floating_point():
        raise UserError(f"samples of shape {tuple(x.shape)} and {x.dtype}: expected (n, length) classes of text")
    return x


def _vectors(model: Model, source: str | Path) -> ReferenceData:
    if model.info.scaling or Path(source).suffix != ".npy":
        return ReferenceData.halves(_values(model, read_model_data(model, source, "all").x))
    return ReferenceData.halves(_values(model, read_values(Path(source))))


@dataclass(frozen=True)
class Metric:
    """A way to judge samples.

    summary: one line for people. fits: whether it is for samples of a model. parts: of the judge, from real data.
    read: real data from what a user names. prepare: what the parts take, from data as the model gives them.
    """

    summary: str
    fits: Callable[[Model], bool]
    parts: Callable[[Model, ReferenceData], Sequence[JudgePart]]
    read: Callable[[Model, str | Path], ReferenceData] = _vectors
    prepare: Callable[[Model, Any], Tensor] = _values


def _text_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    tokenizer = model.info.text_tokenizer
    if tokenizer is None:
        raise UserError(f"a model of {model.form}: texts are judged of models of text; take another metric")
    return [Texts.against(tokenizer, tokenizer.decode(real.reference))]


def _digit_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    frechet = _frechet("mnist", "Frechet distance", real)
    return [frechet, Digits(model.info.classes is not None), *_near_copies(real)]


def _pixel_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    side = min(POOLED, *real.reference.shape[-2:])
    return _with_classes(model, real, _frechet("pixels", f"Frechet distance of {side} x {side} pixels", real))


def _value_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    return _with_classes(model, real, _frechet("values", "Frechet distance", real))


def _second_parts(model: Model, real: ReferenceData) -> list[JudgePart]:
    """By which nothing is tuned: other features of images, other counts of text, projections of vectors."""
    if model.form == "text":
        return [NGramBits.of(real.reference, model.flow.n_values or 0), *_text_parts(model, real)]
    if model.form != "images":
        return [Projections(real.reference)]
    network = judge_features(str(model.info.trained_on.get("name")), tuple(model.data_shape))
    plain = extract(real.reference, network.features)
    mean, std = plain.mean(0), plain.std(0).clamp(min=1e-6)

    def features(images: Tensor) -> Tensor:
        """In units of the data's own deviations: else what tells the classes apart drowns all else."""
        scaled: Tensor = (network.features(images) - mean) / std
        return scaled

    statistics = FeatureStatistics.of(extract(real.reference, features))
    return [Frechet(features, statistics, "Frechet distance by the second judge"), *_near_copies(real)]


def _read_for_second(model: Model, source: str | Path) -> ReferenceData:
    if model.form == "text":
        return read_texts(model, source)
    return read_images(model, source, N_JUDGE_FEATURES) if model.form == "images" else _vectors(model, source)


def _for_second(model: Model, x: Tensor) -> Tensor:
    return _classes(model, x) if model.form == "text" else _values(model, x)


def _with_classes(model: Model, real: ReferenceData, frechet: Frechet) -> list[JudgePart]:
    parts: list[JudgePart] = [frechet]
    if model.info.classes is not None and real.reference_labels is not None:
        parts.append(NearestClasses(real.reference.flatten(1), real.reference_labels))
    return [*parts, *_near_copies(real)]


def _near_copies(real: ReferenceData) -> list[JudgePart]:
    known = len(real.train) >= COPY_NEIGHBOURS and len(real.unseen)
    return [NearCopies(real.train.flatten(1), real.unseen)] if known else []


def _frechet(metric: str, label: str, real: ReferenceData) -> Frechet:
    extractor = features_for(metric)
    return Frechet(extractor, FeatureStatistics.of(extract(real.reference, extractor)), label)


def _inception_metric(features: Path | str | None = None, n: int | None = None) -> Metric:
    def parts(model: Model, real: ReferenceData) -> list[JudgePart]:
        inception = InceptionFeatures.load(features)
        return _with_classes(model, real, _inception(real.reference, inception, str(features), n))

    summary = "Frechet distance on Inception's features: the FID"
    return Metric(summary, _is_images, parts, read=partial(read_images, n_features=None))


def _inception(reference: Tensor, inception: InceptionFeatures, file: str, n: int | None) -> Frechet:
    """The FID; statistics of the reference are gathered once and kept in the cache."""
    name = f"inception-{inception.preprocessing}"

    def frechet(images: Tensor, what: str) -> Frechet:
        def gather() -> FeatureStatistics:
            pieces = torch.split(images, INCEPTION_BATCH)
            return gather_statistics(over(pieces, what, "batch"), inception, name=name)

        path = home() / "features" / f"{name}-{digest(images, file)}.safetensors"
        statistics = cached_statistics(path, gather, name=name)
        return Frechet(inception, statistics, "FID", n_resamples=0, batch_size=INCEPTION_BATCH)

    # Some of the images tell the number of features, and the bias well enough.
    if n is not None and (problem := frechet(reference[:INCEPTION_BATCH], "a first look").problem(n)):
        raise UserError(problem)
    return frechet(reference, "real images through Inception")


def _is_images(model: Model) -> bool:
    return model.form == "images"


def _n_pixels(model: Model) -> int:
    pooled: int = min(math.prod(model.data_shape), model.data_shape[0] * POOLED**2)
    return pooled


BUILT_IN: dict[str, Metric] = {
    "molecules": Metric(
        "Frechet ChemNet distance, shares that are valid, unique and new, and descriptors of molecules",
        is_of_molecules, molecule_parts, read_molecules, _classes,
    ),
    "text": Metric(
        "spelling, n-grams and words of text, against held-out text",
        lambda model: model.form == "text", _text_parts, read_texts, _classes,
    ),
    "pixels": Metric(
        "Frechet distance of images pooled to 8 x 8, class by nearest neighbours",
        _is_images, _pixel_parts, lambda model, source: read_images(model, source, _n_pixels(model)),
    ),
    "inception": _inception_metric(),
    "mnist": Metric(
        "the bundled classifier's features and verdict on 28 x 28 digits",
        lambda model: tuple(model.data_shape) == (1, 28, 28), _digit_parts,
        partial(read_images, n_features=N_CLASSIFIER_FEATURES),
    ),
    "values": Metric(
        "Frechet distance of the data as they are, for vectors",
        lambda model: model.form != "text", _value_parts,
    ),
    "second": Metric(
        "the second judge, by which no solver is tuned or calibrated: other features, other text",
        lambda model: True, _second_parts, _read_for_second, _for_second,
    ),
}  # fmt: skip
"""Metrics of this library, for the registry."""

METRICS: Registry[Metric] = registry("metric")
"""What ``judge_for`` can be asked for. The first that fits a model is its default; digits of MNIST have their own."""
