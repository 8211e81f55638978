"""Which solver to use at which number of calls: settings crossed, measured, put into tables, and advice drawn."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bfn import grids, solvers
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.model import Model
from bfn.quality.judges import Judge, Measure, Measured
from bfn.quality.measuring import Record, Setting, as_json, measure

USUAL = {
    "continuous": ("auto", "bfn", "bfn-solver++1", "bfn-solver++2", "sde-bfn-solver++2"),
    "discrete": ("auto", "bfn", "sde-bfn-solver1", "sde-bfn-solver2", "bfn-solver1", "bfn-solver2"),
}
"""What is compared where nothing else is asked for: the default, the original sampler, the paper's."""


def crossed(
    flow: Flow,
    names: Sequence[str],
    nfe: Sequence[int],
    *,
    t_start: Sequence[float] = (),
    g: Sequence[float] = (),
    grid: str | None = None,
    guidance: float | None = None,
) -> list[Setting]:
    """Solvers x calls, x t_start on grids that need one, as the paper's does, x g for solvers with a dial."""
    if not names or not nfe:
        raise UserError("nothing to compare: expected at least one solver and one number of calls")
    for value in (value for value in t_start if not 0 < value < 1):
        raise UserError(f"t_start={value:g}: expected a time between 0 and 1, such as 0.001")
    found: list[Setting] = []
    for name, calls in product(dict.fromkeys(names), dict.fromkeys(nfe)):
        # The model's own table brings its grid and dial: there is nothing to cross.
        plain = name == "tuned"
        solver = None if plain else solvers.get(name, flow.kind).resolve(flow, max(1, calls))
        on = None if solver is None else grids.get(grid or solver.grid)
        starts = t_start if on is not None and (on.name == "paper" or on.needs_start) else ()
        dials = g if solver is not None and solver.has_dial else ()
        found += [Setting(name, calls, start, dial, None if plain else grid, guidance=guidance)
                  for start, dial in product(starts or (None,), dials or (None,))]  # fmt: skip
    for what, values, used in (("t_start", t_start, [s.t_start for s in found]), ("g", g, [s.g for s in found])):
        if values and all(value is None for value in used):
            raise UserError(f"{what}={values[0]:g}: none of {', '.join(dict.fromkeys(names))} takes it; leave it out")
    return found


@dataclass(frozen=True)
class Advice:
    """The best sampler at a number of calls, and those whose intervals overlap with its own, best first."""

    nfe: int
    best: Record
    level: tuple[Record, ...]

    def sentence(self, main: Measure) -> str:
        """In words."""
        beaten = "" if not self.level else f"; not told apart from it: {_list(r.setting.sampler for r in self.level)}"
        return f"{self.nfe} calls: {self.best.setting.sampler}, {main.show(self.best.measures[main.key])}{beaten}"


@dataclass(frozen=True)
class Comparison:
    """What was measured of one model, beside what real data get.

    notes: what a reader should know, such as a measure that was left out and why.
    """

    model: str
    metric: str
    measures: tuple[Measure, ...]
    records: tuple[Record, ...]
    real: Mapping[str, Measured]
    n_real: int
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> Measure:
        """The measure by which samplers are ranked."""
        return next(measure for measure in self.measures if measure.headline)

    @property
    def advice(self) -> list[Advice]:
        """For each number of calls, the best, and those not told apart from it by their 95 % intervals."""
        main, real = self.main, self.real[self.main.key].value
        found = []
        for nfe in self._calls:
            here = [record for record in self.records if record.setting.nfe == nfe]
            best, *others = sorted(here, key=lambda record: main.loss(record.measures[main.key].value, real))
            level = [r for r in others if r.measures[main.key].overlaps(best.measures[main.key])]
            found.append(Advice(nfe, best, tuple(level)))
        return found

    def cells(self, of: Measure, *, intervals: bool = True) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table of one measure: samplers down, calls across, real data last."""
        found = {(r.setting.sampler, r.setting.nfe): r.measures[of.key] for r in self.records}

        def show(value: Measured | None) -> str:
            return "" if value is None else of.show(value) if intervals else of.show(Measured(value.value))

        rows = [[sampler, *(show(found.get((sampler, nfe))) for nfe in self._calls)] for sampler in self._samplers]
        real = [f"real data, {self.n_real} samples", show(self.real[of.key]), *[""] * (len(self._calls) - 1)]
        return ["", *(f"{nfe} calls" for nfe in self._calls)], [*rows, real]

    def markdown(self) -> str:
        """A report: how it was measured, a table a measure, the advice."""
        first = self.records[0]
        seeds = f"seed {first.seeds[0]}" if len(first.seeds) == 1 else f"seeds {first.seeds[0]} to {first.seeds[-1]}"
        lines = [
            f"# Samplers of {self.model} compared",
            "",
            f"{first.n} samples a cell and seed, {seeds}; 95 % intervals; judged by `{self.metric}`; "
            f"torch {torch.__version__}, Python {platform.python_version()}. Every sampler starts from the same noise.",
            *(f"\n{note}." for note in self.notes),
            "",
            f"Best by {self.main.label}:",
            "",
            *(f"- {advice.sentence(self.main)}" for advice in self.advice),
        ]
        for of in self.measures:
            better = {"low": "lower is better", "high": "higher is better", "real": "nearer to real data is better"}
            lines += [
                "",
                f"## {of.label}",
                "",
                f"{better[of.better].capitalize()}.",
                "",
                *markdown_table(*self.cells(of)),
            ]
        return "\n".join(lines) + "\n"

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        fields = ("key", "label", "better", "unit", "scale")
        return {
            "model": self.model,
            "metric": self.metric,
            "measures": [{name: getattr(of, name) for name in fields} for of in self.measures],
            "main": self.main.key,
            "real": {"n": self.n_real, "measures": as_json(self.real)},
            "records": [record.asdict() for record in self.records],
            "advice": [
                {"nfe": a.nfe, "best": a.best.setting.asdict(), "level": [r.setting.asdict() for r in a.level]}
                for a in self.advice
            ],
            "notes": list(self.notes),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
        }

    @property
    def _calls(self) -> list[int]:
        return sorted({record.setting.nfe for record in self.records})

    @property
    def _samplers(self) -> list[str]:
        return list(dict.fromkeys(record.setting.sampler for record in self.records))


def compare(
    model: Model,
    settings: Sequence[Setting],
    judge: Judge,
    n: int,
    *,
    name: str = "the model",
    notes: Sequence[str] = (),
    store: Path | None = None,
    on_record: Callable[[Record], None] | None = None,
    **options: Any,
) -> Comparison:
    """Measure all settings, and real data beside them. options: those of :func:`bfn.quality.measuring`."""
    records = measure(model, settings, judge, n, store=store, on_record=on_record, **options)
    return summarise(records, judge, n, name=name, notes=notes)


def summarise(
    records: Sequence[Record], judge: Judge, n: int, *, name: str = "the model", notes: Sequence[str] = ()
) -> Comparison:
    """Records of one judge and number of samples, with what real data get."""
    return Comparison(name, judge.name, judge.measures, tuple(records), judge.real(n), judge.n_real(n), tuple(notes))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def _list(words: Any) -> str:
    return "; ".join(words)
