"""What an experiment is run on: a bundled model, an exact model of real data, or a published checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from bfn import data
from bfn.errors import UserError
from bfn.exact import ExactModel, NGram, Points
from bfn.interop import load_official
from bfn.model import BFN, Model, load
from bfn.quality import Judge, judge_for

__all__ = ["BUNDLED", "Form", "JudgedModel", "Place", "exact", "official", "stored"]

Form = Literal["images", "text"]
Place = Literal["bundled", "exact", "official"]

BUNDLED: Mapping[Form, tuple[str, ...]] = {"images": ("mnist", "digits"), "text": ("text8-plain",)}
"""The bundled models that stand for CIFAR-10 and for the paper's text8 model, a plain transformer too."""
OFFICIAL: Mapping[Form, str] = {"images": "cifar10_continuous_256bins", "text": "text8_discrete"}
"""What a checkpoint is taken for where its configuration is not named."""
JUDGED_BY: Mapping[str, tuple[str, str]] = {"images": ("inception", "cifar10"), "text": ("text", "text8")}
"""Metric and real data by which the paper judged its models."""
DRAWN: Mapping[str, int] = {"images": 10_000, "text": 1000}
"""Samples that the paper drew for each figure."""
POINTS = 10_000
"""Training images in the exact model: each call compares every sample with all of them."""
LENGTH = 64
"""Symbols of a text of the exact n-gram model."""


@dataclass(frozen=True)
class JudgedModel:
    """A model with its judge, and what the model does not know itself.

    identity: names the model in the store of measurements; None where its weights do.
    n: samples to draw where the user names no number; at many calls fewer, but not below ``least``.
    batch: samples that go through the network at a time.
    """

    name: str
    title: str
    model: Model
    judge: Judge
    n: int
    least: int = 100
    batch: int = 100
    identity: str | None = None

    @property
    def exact(self) -> ExactModel | None:
        """The model, if it has exact answers."""
        return self.model if isinstance(self.model, ExactModel) else None


def stored(name: str, forms: Sequence[Form]) -> JudgedModel:
    """A bundled model, or one in a directory; refused if its samples are of none of the forms."""
    model = load(name)
    _check_form(name, model, forms)
    title = f"the model `{Path(name).name}` ({_parameters(model):,} parameters)"
    return JudgedModel(Path(name).name, title, model, judge_for(model), n=1000)


def exact(form: Form, context: int = 2) -> JudgedModel:
    """An exact model of real data: no model error, so that the solvers' own differences show."""
    return {"images": exact_points, "text": lambda: exact_ngram(context)}[form]()


def exact_points(n_points: int = POINTS) -> JudgedModel:
    """The first training images of MNIST and nothing between them."""
    images = data.load("mnist", "train")
    if not isinstance(images, data.Images):
        raise TypeError("mnist: expected images")
    model = Points(images[:n_points].to_float(), dtype=torch.float32)
    model.info.value_range = (-1.0, 1.0)
    title = f"the exact model of {n_points:,} MNIST images (`bfn.exact.Points`)"
    judge = judge_for(model, "mnist", "mnist")
    return JudgedModel("points", title, model, judge, n=250, batch=250, identity=f"points-mnist-{n_points}")


def exact_ngram(context: int) -> JudgedModel:
    """The chain of text8's training part whose next symbol depends on the last few."""
    text = data.load("text8", "train")
    if not isinstance(text, data.Text):
        raise TypeError("text8: expected text")
    model = NGram.from_text(text.to_classes(), context, LENGTH, dtype=torch.float32)
    model.info.alphabet = data.TEXT8.symbols
    title = f"the exact model of text8 by contexts of {context} symbols (`bfn.exact.NGram`, {LENGTH} symbols a text)"
    return JudgedModel(
        f"ngram-{context}", title, model, judge_for(model, "text", "text8"), n=500 if context < 3 else 128, batch=64,
        identity=f"ngram-text8-{context}-{LENGTH}",
    )  # fmt: skip


def official(checkpoint: Path, forms: Sequence[Form], settings: str | Mapping[str, Any] | None = None) -> JudgedModel:
    """A published checkpoint, judged as the paper judged it: FID by Inception, or spelling accuracy.

    settings: its configuration, as ``load_official`` takes it; that of the paper for the first of the forms if None.
    """
    chosen = settings or OFFICIAL[forms[0]]
    name = chosen if isinstance(chosen, str) else checkpoint.stem
    model = load_official(checkpoint, chosen)
    _check_form(name, model, forms)
    n = DRAWN[model.form]
    title = f"the published checkpoint `{checkpoint.name}` as `{name}`"
    # As many as the paper drew, at all numbers of calls.
    return JudgedModel(name, title, model, judge_for(model, *JUDGED_BY[model.form]), n=n, least=n)


def _check_form(name: str, model: BFN, forms: Sequence[Form]) -> None:
    if model.form not in forms:
        fitting = [known for form in forms for known in BUNDLED[form]]
        raise UserError(
            f"{name}: a model of {model.form}, and this experiment is about {' or '.join(forms)}; "
            f"{' or '.join(fitting)} would do"
        )


def _parameters(model: BFN) -> int:
    return sum(p.numel() for p in model.parameters())
