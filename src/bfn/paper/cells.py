"""Cells of a table of quality: a sampler at a number of calls (and an eta), measured with its interval."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bfn.errors import UserError
from bfn.paper.paper import Column
from bfn.paper.reports import Options
from bfn.paper.subjects import Subject
from bfn.quality.judges import Judge, Measure
from bfn.quality.measuring import Record, Setting, measure

FEW_CALLS = 10
"""Up to so many calls all samples are drawn; above it fewer, so that every column costs the same."""
BEYOND = ("auto", "fast-ode", "fast-sde")
"""Our own solvers beside the paper's, if no others are asked for."""


@dataclass(frozen=True)
class Row:
    """A sampler. label: how it is called in the report; name: our solver, by which the paper's row is found."""

    label: str
    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def at(self, nfe: int, t_start: float | None = None) -> Setting:
        """What to measure at that many calls."""
        return Setting(self.name, nfe, t_start, **self.settings)


@dataclass(frozen=True)
class Cell:
    """One measured setting."""

    row: Row
    column: Column
    record: Record

    @property
    def eta(self) -> float | None:
        """Where its grid started, if that was set."""
        return self.record.setting.t_start


def plain(names: Iterable[str]) -> list[Row]:
    """Solvers as they come."""
    return [Row(name, name) for name in names]


def beyond(
    subject: Subject, theirs: Sequence[Row], calls: Sequence[int], options: Options
) -> list[tuple[Row, Column, Setting]]:
    """Our own solvers beside the paper's rows, where they are wanted; equal tables are measured only once."""
    known = {row.name for row in theirs}
    names = [name for name in (BEYOND if options.beyond is None else options.beyond) if name not in known]
    wanted = [(row, Column(nfe), row.at(nfe)) for row in plain(names) for nfe in calls]
    for _, _, setting in wanted:
        setting.table_key(subject.model)  # what this model cannot do is told before hours of measuring
    return wanted


def samples_at(n: int, nfe: int, least: int = 100) -> int:
    """How many samples are drawn at that many calls: n up to 10 calls, 10 n / nfe above, but not below ``least``."""
    return n if nfe <= FEW_CALLS else min(n, max(least, n * FEW_CALLS // nfe))


def run_cells(
    subject: Subject, wanted: Sequence[tuple[Row, Column, Setting]], options: Options, seed: int, n: int | None = None
) -> tuple[list[Cell], list[str]]:
    """Measure all, those with equal numbers of samples together; what is in the store already is taken from it.

    Returns also lines on parts of the judgement that so few samples do not allow.
    """
    whole = n or options.n or subject.n
    counts = [samples_at(whole, setting.nfe, subject.least) for _, _, setting in wanted]
    cells: dict[int, Cell] = {}
    notes: list[str] = []
    for count in dict.fromkeys(counts):
        here = [i for i, c in enumerate(counts) if c == count]
        judge, said = subject.judge.suited(count)
        notes += [line for line in said if line not in notes]
        records = measure(
            subject.model, [wanted[i][2] for i in here], judge, count, seed=seed, batch=options.batch or subject.batch,
            n_labels=subject.n_labels, store=options.store, identity=subject.identity, progress=options.progress,
        )  # fmt: skip
        for i, record in zip(here, records, strict=True):
            cells[i] = Cell(wanted[i][0], wanted[i][1], record)
    return [cells[i] for i in range(len(wanted))], notes


def main_measure(judge: Judge, cells: Sequence[Cell]) -> Measure:
    """The first measure that all cells have: with few samples a judge leaves some out."""
    shared = [m for m in judge.measures if all(m.key in cell.record.measures for cell in cells)]
    if not shared:
        raise UserError(f"judge {judge.name!r}: no measure that all numbers of samples allow; give a larger --n")
    return shared[0]
