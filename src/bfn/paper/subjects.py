"""What an experiment is run on: a bundled model, an exact model of real data, or a published checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from bfn import data, storage
from bfn.errors import UserError
from bfn.exact import ExactModel, NGram, Points
from bfn.interop import configuration, load_official
from bfn.model import BFN, Model, load
from bfn.quality.judges import Judge, judge_for

Kind = Literal["continuous", "discrete"]
Place = Literal["bundled", "exact", "official"]

BUNDLED: Mapping[str, tuple[str, ...]] = {"continuous": ("mnist", "digits"), "discrete": ("text8",)}
"""The bundled models that stand for CIFAR-10 and for the paper's text8 model."""
OFFICIAL: Mapping[str, str] = {"continuous": "cifar10_continuous_256bins", "discrete": "text8_discrete"}
"""What a checkpoint is taken for where its configuration is not named."""
POINTS = 10_000
"""Training images in the exact model: each call compares every sample with all of them."""
LENGTH = 64
"""Symbols of a text of the exact n-gram model."""


@dataclass(frozen=True)
class Subject:
    """A model with its judge.

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
    n_labels: int = 0
    alphabet: str | None = None
    identity: str | None = None

    @property
    def exact(self) -> ExactModel | None:
        """The model, if it has exact answers."""
        return self.model if isinstance(self.model, ExactModel) else None


def kind_of(name: str) -> str:
    """The kind of data of a stored or bundled model, by its config alone."""
    return storage.make_flow(storage.read_config(name)["flow"]).kind


def stored(name: str, kind: Kind) -> Subject:
    """A bundled model, or one in a directory."""
    model, config = load(name), storage.read_config(name)
    _check_kind(name, model, kind, config.get("alphabet"))
    parameters = sum(p.numel() for p in model.parameters())
    title = f"the model `{Path(name).name}` ({parameters:,} parameters)"
    return Subject(
        Path(name).name,
        title,
        model,
        judge_for(model, config),
        n=1000,
        n_labels=int(config.get("n_labels") or 0),
        alphabet=config.get("alphabet"),
    )


def exact(kind: Kind, context: int = 2) -> Subject:
    """An exact model of real data: no model error, so that the solvers' own differences show."""
    return exact_points() if kind == "continuous" else exact_ngram(context)


def exact_points(n_points: int = POINTS) -> Subject:
    """The first training images of MNIST and nothing between them."""
    images = data.load("mnist", "train")
    if not isinstance(images, data.Images):
        raise TypeError("mnist: expected images")
    model = Points(images[:n_points].to_float(), dtype=torch.float32)
    title = f"the exact model of {n_points:,} MNIST images (`bfn.exact.Points`)"
    return Subject(
        "points", title, model, judge_for(model, None, "mnist", "mnist"), n=250, batch=250,
        identity=f"points-mnist-{n_points}",
    )  # fmt: skip


def exact_ngram(context: int) -> Subject:
    """The chain of text8's training part whose next symbol depends on the last few."""
    text = data.load("text8", "train")
    if not isinstance(text, data.Text):
        raise TypeError("text8: expected text")
    model = NGram.from_text(text.to_classes(), context, LENGTH, dtype=torch.float32)
    symbols = text.alphabet.symbols
    title = f"the exact model of text8 by contexts of {context} symbols (`bfn.exact.NGram`, {LENGTH} symbols a text)"
    return Subject(
        f"ngram-{context}", title, model, judge_for(model, {"alphabet": symbols}, "text", "text8"),
        n=500 if context < 3 else 128, batch=64, alphabet=symbols, identity=f"ngram-text8-{context}-{LENGTH}",
    )  # fmt: skip


def official(checkpoint: Path, kinds: Sequence[Kind], settings: str | Mapping[str, Any] | None = None) -> Subject:
    """A published checkpoint, judged as the paper judged it: FID by Inception, or spelling accuracy.

    settings: its configuration, as ``load_official`` takes it; that of the paper for the first of the kinds if None.
    """
    chosen = settings or OFFICIAL[kinds[0]]
    name = chosen if isinstance(chosen, str) else checkpoint.stem
    described = configuration(chosen)
    model = load_official(checkpoint, chosen)
    kind: Kind = "continuous" if model.flow.kind == "continuous" and "continuous" in kinds else kinds[-1]
    _check_kind(name, model, kind, described.alphabet)
    metric, source = ("inception", "cifar10") if kind == "continuous" else ("text", "text8")
    judge = judge_for(model, {"alphabet": described.alphabet}, metric, source)
    title = f"the published checkpoint `{checkpoint.name}` as `{name}`"
    # As many as the paper drew, at all numbers of calls.
    n = 10_000 if kind == "continuous" else 1000
    return Subject(name, title, model, judge, n=n, least=n, alphabet=described.alphabet)


def _check_kind(name: str, model: BFN, kind: Kind, alphabet: Any) -> None:
    if model.flow.kind != kind:
        raise UserError(
            f"{name}: a model of {model.flow.kind} data, and this experiment is about {kind} data; "
            f"{' or '.join(BUNDLED[kind])} would do"
        )
    if kind == "discrete" and not alphabet:
        raise UserError(f"{name}: a model without an alphabet, and this experiment is about text; text8 would do")
