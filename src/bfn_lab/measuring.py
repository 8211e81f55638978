"""What an experiment is run on: a bundled model, an exact model of real data, or a published checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from bfn import data, solvers
from bfn.core.errors import UserError
from bfn.core.model import BFN, Model, load
from bfn.exact.base import ExactModel
from bfn.exact.numbers import Points
from bfn.exact.strings import NGram
from bfn.interop.official import load_official
from bfn.quality.judge import Judge, Measure
from bfn.quality.judge_choice import judge_for
from bfn.quality.comparison import Record, Setting, measure
from bfn_lab.report import Column, Options

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
    title = f"The model `{Path(name).name}` ({_parameters(model):,} parameters)"
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
    title = f"The exact model of {n_points:,} MNIST images (`bfn.exact.Points`)"
    judge = judge_for(model, "mnist", "mnist")
    return JudgedModel("points", title, model, judge, n=250, batch=250, identity=f"points-mnist-{n_points}")


def exact_ngram(context: int) -> JudgedModel:
    """The chain of text8's training part whose next symbol depends on the last few."""
    text = data.load("text8", "train")
    if not isinstance(text, data.Text):
        raise TypeError("text8: expected text")
    model = NGram.from_text(text.to_classes(), context, LENGTH, dtype=torch.float32)
    model.info.alphabet = data.TEXT8.symbols
    title = (
        f"The exact model of text8 with contexts of {context} symbols (`bfn.exact.NGram`, {LENGTH} symbols per text)"
    )
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
    title = f"The published checkpoint `{checkpoint.name}` as `{name}`"
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


FEW_CALLS = 10
"""Up to so many calls all samples are drawn; above it fewer, so that every column costs the same."""
BEYOND = ("auto", "fast-ode", "fast-sde")
"""Our own solvers beside the paper's, if no others are asked for."""


@dataclass(frozen=True)
class Sampler:
    """A solver with settings. label: how the report calls it; solver: our name, by which the paper's row is found."""

    label: str
    solver: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def at(self, nfe: int, t_start: float | None = None) -> Setting:
        """What to measure at that many calls."""
        return Setting(self.solver, nfe, t_start, **self.settings)


@dataclass(frozen=True)
class Wanted:
    """One figure to measure. column: where it stands. t_start: where the grid starts; the column's eta if None."""

    sampler: Sampler
    column: Column
    t_start: float | None = None

    @property
    def nfe(self) -> int:
        """Network calls."""
        return self.column.nfe or 0

    @property
    def setting(self) -> Setting:
        """What to measure."""
        return self.sampler.at(self.nfe, self.column.eta if self.t_start is None else self.t_start)


@dataclass(frozen=True)
class Measurement:
    """One figure that was measured, with everything else that the judge said of the same samples."""

    sampler: Sampler
    column: Column
    record: Record

    @property
    def label(self) -> str:
        """How the report calls the sampler."""
        return self.sampler.label

    @property
    def nfe(self) -> int:
        """Network calls."""
        return self.record.setting.nfe

    @property
    def eta(self) -> float | None:
        """Where its grid started, if that was set."""
        return self.record.setting.t_start

    def is_stochastic(self, model: Model) -> bool:
        """Whether it draws anything after the start."""
        settings = self.sampler.settings
        return solvers.plan(model, self.sampler.solver, self.nfe, t_start=self.eta, **settings).table.stochastic


def samplers_named(names: Iterable[str]) -> list[Sampler]:
    """Solvers as they come."""
    return [Sampler(name, name) for name in names]


def over_calls(samplers: Iterable[Sampler], calls: Iterable[int]) -> list[Wanted]:
    """Each sampler at each number of calls."""
    columns = [Column(nfe) for nfe in calls]
    return [Wanted(sampler, column) for sampler in samplers for column in columns]


def beyond(judged: JudgedModel, theirs: Sequence[Sampler], calls: Sequence[int], options: Options) -> list[Wanted]:
    """Our own solvers beside the paper's, where they are wanted."""
    known = {sampler.solver for sampler in theirs}
    names = [name for name in (BEYOND if options.beyond is None else options.beyond) if name not in known]
    for name in names:
        for nfe in calls:
            solvers.plan(judged.model, name, nfe)  # what this model cannot do is told before hours of measuring
    return over_calls(samplers_named(names), calls)


def samples_at(n: int, nfe: int, least: int = 100) -> int:
    """How many samples are drawn at that many calls: n up to 10 calls, 10 n / nfe above, but not below ``least``."""
    return n if nfe <= FEW_CALLS else min(n, max(least, n * FEW_CALLS // nfe))


def measure_all(
    judged: JudgedModel, wanted: Sequence[Wanted], options: Options, seed: int, n: int | None = None
) -> tuple[list[Measurement], list[str]]:
    """Measure all, those with equal numbers of samples together; what is in the store already is taken from it.

    Returns also lines on parts of the judgement that so few samples do not allow.
    """
    whole = n or options.n or judged.n
    counts = [samples_at(whole, figure.nfe, judged.least) for figure in wanted]
    found: dict[int, Measurement] = {}
    notes: list[str] = []
    for count in dict.fromkeys(counts):
        here = [i for i, c in enumerate(counts) if c == count]
        judge, said = judged.judge.suited(count)
        notes += [line for line in said if line not in notes]
        records = measure(
            judged.model, [wanted[i].setting for i in here], judge, count, seed=seed,
            batch=options.batch or judged.batch, store=options.store, identity=judged.identity,
            progress=options.progress,
        )  # fmt: skip
        for i, record in zip(here, records, strict=True):
            found[i] = Measurement(wanted[i].sampler, wanted[i].column, record)
    return [found[i] for i in range(len(wanted))], notes


def main_measure(judge: Judge, measured: Sequence[Measurement]) -> Measure:
    """The first measure that all of them have: with few samples a judge leaves some out."""
    shared = [m for m in judge.measures if all(m.key in each.record.measures for each in measured)]
    if not shared:
        raise UserError(f"judge {judge.name!r}: no measure that all numbers of samples allow; give a larger --n")
    return shared[0]
