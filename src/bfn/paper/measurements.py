"""What is measured for a table of quality: samplers at numbers of calls, each figure with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bfn import solvers
from bfn.errors import UserError
from bfn.model import Model
from bfn.paper.judged_model import JudgedModel
from bfn.paper.printed import Column
from bfn.paper.report import Options
from bfn.quality import Judge, Measure, Record, Setting, measure

__all__ = [
    "BEYOND", "Measurement", "Sampler", "Wanted", "beyond", "main_measure", "measure_all", "over_calls",
    "samplers_named", "samples_at",
]  # fmt: skip

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
