"""The judge that fits a model's data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn import quality as metrics
from bfn.data import Alphabet, Text, load
from bfn.errors import UserError
from bfn.files import home
from bfn.quality.judge import Judge, Part, digest
from bfn.quality.parts import (
    COPY_NEIGHBOURS,
    POOLED,
    Copies,
    Digits,
    Frechet,
    Neighbours,
    Spelling,
    pooled,
)
from bfn.quality.reference import Real, View, read_images, read_values

if TYPE_CHECKING:
    from bfn.model import Model

METRICS = {
    "text": "spelling, n-grams and words of text, against held-out text",
    "mnist": "the bundled classifier's features and verdict on 28 x 28 digits",
    "pixels": "Frechet distance of images pooled to 8 x 8, class by nearest neighbours",
    "inception": "Frechet distance on Inception's features: the FID",
    "values": "Frechet distance of the data as they are, for vectors",
}
"""What ``judge_for`` can be asked for, and what it is."""

REFERENCE_CHARACTERS = 2_000_000
INCEPTION_BATCH = 50


def judge_for(
    model: Model,
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
        raise UserError(f"metric={chosen!r}: expected one of {', '.join(METRICS)}")
    if chosen not in fitting:
        what = "text" if alphabet else f"{model.flow.kind} of shape {tuple(model.data_shape)}"
        raise UserError(f"metric={chosen!r} does not fit data that are {what}: take one of {', '.join(fitting)}")
    if features is not None and chosen != "inception":
        raise UserError(f"features={str(features)!r}: only metric 'inception' reads features from a file")
    if source is None:
        raise UserError("the model's card does not say what it was trained on: say what real data to compare with")
    if isinstance(source, Tensor) and len(source) < 4:
        raise UserError(f"{len(source)} real samples: expected at least 4, half of them to compare with")
    if chosen == "text":
        return _text_judge(model, Alphabet(str(alphabet)), source)
    view = View(tuple(model.data_shape), getattr(model.flow, "n_classes", None))
    if isinstance(source, Tensor):
        real = Real.halves(view(source))
    elif chosen == "values":
        real = Real.halves(view(read_values(Path(source))))
    else:
        real = read_images(chosen, source, view, trained_on)
    return _image_judge(chosen, real, view, conditional, _frechet(chosen, real, features, n))


def _fitting(model: Model, alphabet: str | None) -> list[str]:
    """Metrics that fit the data, the most general last."""
    shape = tuple(model.data_shape)
    if alphabet is not None:
        return ["text"]
    if len(shape) == 3 and shape[0] in (1, 3):
        return ["pixels", "inception", *(["mnist"] if shape == (1, 28, 28) else []), "values"]
    return ["values"]


def _text_judge(model: Model, alphabet: Alphabet, source: str | Path | Tensor) -> Judge:
    length = model.data_shape[0]

    def view(x: Tensor) -> Tensor:
        if x.ndim != 2 or x.is_floating_point():
            raise UserError(f"samples of shape {tuple(x.shape)} and {x.dtype}: expected (n, length) classes of text")
        return x

    if isinstance(source, Tensor):
        reference, held_out = view(source)[::2], view(source)[1::2]
    else:
        read = [load(source, part, alphabet=alphabet) for part in ("test", "validation")]
        if not all(isinstance(text, Text) for text in read):
            raise UserError(f"{source}: images, and the model is one of text")
        test, validation = (cast(Text, text) for text in read)
        most = max(1, min(len(test), REFERENCE_CHARACTERS) // length)
        reference, held_out = test.tiles(length, most), validation.tiles(length)
    return Judge("text", (Spelling.of(alphabet, alphabet.decode(reference)),), view, held_out)


def _image_judge(metric: str, real: Real, view: View, conditional: bool, frechet: Frechet) -> Judge:
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

        path = home() / "features" / f"{name}-{digest(images, file)}.safetensors"
        statistics = metrics.cached_statistics(path, gather, name=name)
        return Frechet(inception, statistics, "FID", n_resamples=0, batch_size=INCEPTION_BATCH)

    if n is not None:
        # Some of the images tell the number of features, and the bias well enough.
        problem = frechet(reference[:INCEPTION_BATCH], "a first look").problem(n)
        if problem is not None:
            raise UserError(problem)
    return frechet(reference, "real images through Inception")
