"""Models that experiments are run on, with their judges, and the measurement of many settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from bfn import BFN, Model, UserError, data, load, solvers
from bfn.exact import ExactModel, NGram, Points
from bfn.interop import load_official
from bfn.quality import Judge, Measure, Record, Setting, judge_for, measure
from bfn_lab.report import Column, Options

Form = Literal["images", "text"]
Place = Literal["bundled", "exact", "official"]

BUNDLED: Mapping[Form, tuple[str, ...]] = {"images": ("mnist", "digits"), "text": ("text8-plain",)}
"""Bundled models instead of the paper's models of CIFAR-10 and text8; the latter is a plain transformer too."""
OFFICIAL: Mapping[Form, str] = {"images": "cifar10_continuous_256bins", "text": "text8_discrete"}
"""Default configuration of a published checkpoint."""
JUDGED_BY: Mapping[str, tuple[str, str]] = {"images": ("inception", "cifar10"), "text": ("text", "text8")}
"""Metric and real data of the paper."""
DRAWN: Mapping[str, int] = {"images": 10_000, "text": 1000}
"""Number of samples of the paper for each figure."""
POINTS = 10_000
"""Number of training images in the exact model. Each call compares every sample with all of them."""
LENGTH = 64
"""Number of symbols in a text of the exact n-gram model."""


@dataclass(frozen=True)
class JudgedModel:
    """A model with its judge.

    Attributes:
        name, title: for the report.
        model, judge: the model and its judge.
        n: default number of samples at few calls.
        least: minimum number of samples at many calls.
        batch: number of samples that go through the network together.
        identity: name of the model in the store of measurements; None for a hash of its weights.
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
        """The model, if it is an exact one."""
        return self.model if isinstance(self.model, ExactModel) else None


def stored(name: str, forms: Sequence[Form]) -> JudgedModel:
    """Load a bundled model or one in a directory. Raises UserError if its samples have none of the forms."""
    model = load(name)
    _check_form(name, model, forms)
    title = f"The model `{Path(name).name}` ({_parameters(model):,} parameters)"
    return JudgedModel(Path(name).name, title, model, judge_for(model), n=1000)


def exact(form: Form, context: int = 2) -> JudgedModel:
    """Make an exact model of real data, which has no model error, so that differences are due to the solvers."""
    return {"images": exact_points, "text": lambda: exact_ngram(context)}[form]()


def exact_points(n_points: int = POINTS) -> JudgedModel:
    """Make the distribution of the first training images of MNIST."""
    images = data.load("mnist", "train")
    assert isinstance(images, data.Images)
    model = Points(images[:n_points].to_float(), dtype=torch.float32)
    model.info.value_range = (-1.0, 1.0)
    title = f"The exact model of {n_points:,} MNIST images (`bfn.exact.Points`)"
    judge = judge_for(model, "mnist", "mnist")
    return JudgedModel("points", title, model, judge, n=250, batch=250, identity=f"points-mnist-{n_points}")


def exact_ngram(context: int) -> JudgedModel:
    """Make the n-gram model of the training part of text8."""
    text = data.load("text8", "train")
    assert isinstance(text, data.Text)
    model = NGram.from_text(text.to_classes(), context, LENGTH, dtype=torch.float32)
    model.info.alphabet = data.TEXT8.symbols
    about = f"`bfn.exact.NGram`, {LENGTH} symbols per text"
    title = f"The exact model of text8 with contexts of {context} symbols ({about})"
    return JudgedModel(
        f"ngram-{context}", title, model, judge_for(model, "text", "text8"), n=500 if context < 3 else 128, batch=64,
        identity=f"ngram-text8-{context}-{LENGTH}",
    )  # fmt: skip


def official(checkpoint: Path, forms: Sequence[Form], settings: str | Mapping[str, Any] | None = None) -> JudgedModel:
    """Load a published checkpoint with the judge of the paper: FID, or spelling accuracy.

    Args:
        checkpoint: the file.
        forms: forms of samples that the experiment takes.
        settings: its configuration, for ``load_official``; by default that of the paper for the first form.
    """
    chosen = settings or OFFICIAL[forms[0]]
    name = chosen if isinstance(chosen, str) else checkpoint.stem
    model = load_official(checkpoint, chosen)
    _check_form(name, model, forms)
    n = DRAWN[model.form]
    title = f"The published checkpoint `{checkpoint.name}` as `{name}`"
    # The number of the paper at all numbers of calls.
    return JudgedModel(name, title, model, judge_for(model, *JUDGED_BY[model.form]), n=n, least=n)


def _check_form(name: str, model: BFN, forms: Sequence[Form]) -> None:
    if model.form not in forms:
        fitting = [known for form in forms for known in BUNDLED[form]]
        needed = f"{' or '.join(forms)}, such as {' or '.join(fitting)}"
        raise UserError(f"{name}: a model of {model.form}, but this experiment needs {needed}")


def _parameters(model: BFN) -> int:
    return sum(p.numel() for p in model.parameters())


FEW_CALLS = 10
"""Number of calls above which fewer samples are drawn, so that every column has the same cost."""
BEYOND = ("auto", "fast-ode", "fast-sde")
"""Default solvers of this library beside the paper's."""


@dataclass(frozen=True)
class Sampler:
    """A solver with settings: ``label`` is its name in reports, ``solver`` its name in this library."""

    label: str
    solver: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def at(self, nfe: int, t_start: float | None = None) -> Setting:
        """Return the setting for a number of calls."""
        return Setting(self.solver, nfe, t_start, **self.settings)


@dataclass(frozen=True)
class Wanted:
    """A figure to measure: its sampler, its column, and the start of its grid, by default the eta of the column."""

    sampler: Sampler
    column: Column
    t_start: float | None = None

    @property
    def nfe(self) -> int:
        """Number of network calls."""
        return self.column.nfe or 0

    @property
    def setting(self) -> Setting:
        """The setting to measure."""
        return self.sampler.at(self.nfe, self.column.eta if self.t_start is None else self.t_start)


@dataclass(frozen=True)
class Measurement:
    """A figure that was measured, with all other figures of the same samples."""

    sampler: Sampler
    column: Column
    record: Record

    @property
    def label(self) -> str:
        """Name of the sampler in reports."""
        return self.sampler.label

    @property
    def nfe(self) -> int:
        """Number of network calls."""
        return self.record.setting.nfe

    @property
    def eta(self) -> float | None:
        """Start of the grid, if it was set."""
        return self.record.setting.t_start

    def is_stochastic(self, model: Model) -> bool:
        """Return True if the sampler draws noise after the first state."""
        settings = self.sampler.settings
        return solvers.plan(model, self.sampler.solver, self.nfe, t_start=self.eta, **settings).table.stochastic


def samplers_named(names: Iterable[str]) -> list[Sampler]:
    """Return samplers with the default settings of solvers."""
    return [Sampler(name, name) for name in names]


def over_calls(samplers: Iterable[Sampler], calls: Iterable[int]) -> list[Wanted]:
    """Return the figures of all samplers at all numbers of calls."""
    columns = [Column(nfe) for nfe in calls]
    return [Wanted(sampler, column) for sampler in samplers for column in columns]


def beyond(judged: JudgedModel, theirs: Sequence[Sampler], calls: Sequence[int], options: Options) -> list[Wanted]:
    """Return the figures of solvers of this library beside the paper's."""
    known = {sampler.solver for sampler in theirs}
    names = [name for name in (BEYOND if options.beyond is None else options.beyond) if name not in known]
    for name in names:
        for nfe in calls:
            solvers.plan(judged.model, name, nfe)  # reports a solver that does not fit before anything is measured
    return over_calls(samplers_named(names), calls)


def samples_at(n: int, nfe: int, least: int = 100) -> int:
    """Return the number of samples at a number of calls: n up to 10 calls, 10 n / nfe above, but at least ``least``."""
    return n if nfe <= FEW_CALLS else min(n, max(least, n * FEW_CALLS // nfe))


def measure_all(
    judged: JudgedModel, wanted: Sequence[Wanted], options: Options, seed: int, n: int | None = None
) -> tuple[list[Measurement], list[str]]:
    """Measure all figures, those with the same number of samples together.

    Returns:
        The measurements, and remarks on measures that need more samples.
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
    """Return the first measure that all have: with few samples a judge leaves some out."""
    shared = [m for m in judge.measures if all(m.key in each.record.measures for each in measured)]
    if not shared:
        raise UserError(f"judge {judge.name!r}: no measure that all numbers of samples allow; give a larger --n")
    return shared[0]
