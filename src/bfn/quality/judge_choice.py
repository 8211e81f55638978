"""The judge that fits a model's data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn.data import Alphabet
from bfn.errors import UserError, did_you_mean
from bfn.files import home
from bfn.model import Model
from bfn.quality.classifier import load_classifier
from bfn.quality.features import (
    POOLED,
    Extractor,
    InceptionFeatures,
    cached_statistics,
    check_finite,
    extract,
    gather_statistics,
    pooled_pixels,
)
from bfn.quality.frechet import FeatureStatistics
from bfn.quality.judge import Judge, JudgePart, digest
from bfn.quality.judge_parts import COPY_NEIGHBOURS, Digits, Frechet, NearCopies, NearestClasses, Texts
from bfn.quality.reference_data import ReferenceData, read_images, read_texts, read_values

__all__ = ["METRICS", "features_for", "judge_for", "metric_for"]

METRICS = {
    "text": "spelling, n-grams and words of text, against held-out text",
    "mnist": "the bundled classifier's features and verdict on 28 x 28 digits",
    "pixels": "Frechet distance of images pooled to 8 x 8, class by nearest neighbours",
    "inception": "Frechet distance on Inception's features: the FID",
    "values": "Frechet distance of the data as they are, for vectors",
}
"""What ``judge_for`` can be asked for, and what it is."""

INCEPTION_BATCH = 50


def judge_for(
    model: Model,
    metric: str | None = None,
    data: str | Path | Tensor | None = None,
    *,
    features: Path | str | None = None,
    n: int | None = None,
) -> Judge:
    """The judge that fits a model's data, or the one that is asked for.

    metric: a name of ``METRICS``. data: what to compare with, as ``bfn.data.load`` takes it, or a tensor of real data
        as the model takes them; the set that the model was trained on, as its info says, if None.
    features: a TorchScript file with Inception, for that metric; its code is run.
    n: samples to judge; too few for Inception's features are told of before all real images went through it.
    """
    source = model.info.trained_on.get("name") if data is None else data
    chosen = metric_for(model, metric, source)
    if features is not None and chosen != "inception":
        raise UserError(f"features={str(features)!r}: only metric 'inception' reads features from a file")
    if source is None:
        raise UserError("the model's card does not say what it was trained on: say what real data to compare with")
    if isinstance(source, Tensor) and len(source) < 4:
        raise UserError(f"{len(source)} real samples: expected at least 4, half of them to compare with")
    if chosen == "text":
        return _text_judge(model, source)
    prepare = partial(_values, model)
    if isinstance(source, Tensor):
        real = ReferenceData.halves(prepare(source))
    elif chosen == "values":
        real = ReferenceData.halves(prepare(read_values(Path(source))))
    else:
        real = read_images(model, chosen, source)
    conditional = model.info.classes is not None
    parts: list[JudgePart] = [_frechet(chosen, real.reference, features, n)]
    if chosen == "mnist":
        parts.append(Digits(conditional))
    elif conditional and real.reference_labels is not None:
        parts.append(NearestClasses(real.reference.flatten(1), real.reference_labels))
    if len(real.train) >= COPY_NEIGHBOURS and len(real.unseen):
        parts.append(NearCopies(real.train.flatten(1), real.unseen))
    return Judge(chosen, tuple(parts), real.held_out, real.held_out_labels, prepare)


def features_for(metric: str, device: torch.device | str = "cpu") -> Extractor:
    """The differentiable features that the Frechet distance of a metric is taken on, for values on that device."""
    known: dict[str, Callable[[], Extractor]] = {
        "mnist": lambda: load_classifier().to(device).features,
        "pixels": lambda: pooled_pixels,
        "values": lambda: partial(torch.flatten, start_dim=1),
    }
    return known[metric]()


def metric_for(model: Model, metric: str | None, source: object) -> str:
    """The metric that is asked for, checked against the form of the data; the one that fits best if None."""
    fitting = {
        "text": ["text"],
        "images": ["pixels", "inception", *(["mnist"] if tuple(model.data_shape) == (1, 28, 28) else []), "values"],
        "numbers": ["values"],
    }[model.form]
    chosen = metric or ("mnist" if source == "mnist" and "mnist" in fitting else fitting[0])
    if chosen not in METRICS:
        raise UserError(f"metric={chosen!r}: expected one of {', '.join(METRICS)}{did_you_mean(chosen, METRICS)}")
    if chosen not in fitting:
        what = "text" if model.form == "text" else f"{model.flow.kind} of shape {tuple(model.data_shape)}"
        raise UserError(f"metric={chosen!r} does not fit data that are {what}: take one of {', '.join(fitting)}")
    return chosen


def _values(model: Model, x: Tensor) -> Tensor:
    """Samples as floats, (n, *data_shape)."""
    if tuple(x.shape[1:]) != tuple(model.data_shape):
        raise UserError(f"samples of shape {tuple(x.shape)}: expected (n, {', '.join(map(str, model.data_shape))})")
    values = model.flow.values(x)
    check_finite(values)
    return values


def _classes(x: Tensor) -> Tensor:
    """Samples of text as they are."""
    if x.ndim != 2 or x.is_floating_point():
        raise UserError(f"samples of shape {tuple(x.shape)} and {x.dtype}: expected (n, length) classes of text")
    return x


def _text_judge(model: Model, source: str | Path | Tensor) -> Judge:
    alphabet = Alphabet(model.info.alphabet or "")
    if isinstance(source, Tensor):
        real = ReferenceData.halves(_classes(source))
    else:
        real = read_texts(source, alphabet, model.data_shape[0])
    part = Texts.against(alphabet, alphabet.decode(real.reference))
    return Judge("text", (part,), real.held_out, prepare=_classes)


def _frechet(metric: str, reference: Tensor, features: Path | str | None, n: int | None) -> Frechet:
    if metric == "inception":
        return _inception(reference, InceptionFeatures.load(features), str(features), n)
    extractor, side = features_for(metric), min(POOLED, *reference.shape[-2:])
    label = f"Frechet distance of {side} x {side} pixels" if metric == "pixels" else "Frechet distance"
    return Frechet(extractor, FeatureStatistics.of(extract(reference, extractor)), label)


def _inception(reference: Tensor, inception: InceptionFeatures, file: str, n: int | None) -> Frechet:
    """The FID; statistics of the reference are gathered once and kept in the cache."""
    name = f"inception-{inception.preprocessing}"

    def frechet(images: Tensor, what: str) -> Frechet:
        def gather() -> FeatureStatistics:
            pieces = tqdm(
                torch.split(images, INCEPTION_BATCH), desc=what, unit="batch", delay=1, leave=False, disable=None
            )
            return gather_statistics(pieces, inception, name=name)

        path = home() / "features" / f"{name}-{digest(images, file)}.safetensors"
        statistics = cached_statistics(path, gather, name=name)
        return Frechet(inception, statistics, "FID", n_resamples=0, batch_size=INCEPTION_BATCH)

    if n is not None:
        # Some of the images tell the number of features, and the bias well enough.
        problem = frechet(reference[:INCEPTION_BATCH], "a first look").problem(n)
        if problem is not None:
            raise UserError(problem)
    return frechet(reference, "real images through Inception")
