"""Tables in Markdown."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bfn._utils.estimate import Estimate
from bfn.core.model import Model
from bfn.quality.judge import Judge, Measure
from bfn.quality.measurements import Record, Setting, measure


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table.

    >>> markdown_table(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


BETTER = {"low": "Lower is better.", "high": "Higher is better.", "real": "Nearer to real data is better."}


@dataclass(frozen=True)
class Advice:
    """The best sampler at a number of calls, and those whose intervals overlap with its own, best first."""

    nfe: int
    best: Record
    not_told_apart: tuple[Record, ...]

    def sentence(self, main: Measure) -> str:
        """In words."""
        others = "; ".join(record.setting.sampler for record in self.not_told_apart)
        best = f"{self.nfe} calls: {self.best.setting.sampler}, {main.show(self.best.measures[main.key])}"
        return f"{best}; not told apart from it: {others}" if others else best

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        near = [record.setting.asdict() for record in self.not_told_apart]
        return {"nfe": self.nfe, "best": self.best.setting.asdict(), "not_told_apart": near}


@dataclass(frozen=True)
class Comparison:
    """What was measured of one model, beside what real data get.

    notes: what a reader should know, such as a measure that was left out and why. baseline: the other end of the
    scales by its name, where the judge has one.
    """

    model: str
    metric: str
    measures: tuple[Measure, ...]
    records: tuple[Record, ...]
    real: Mapping[str, Estimate]
    n_real: int
    notes: tuple[str, ...] = ()
    baseline: tuple[str, Mapping[str, Estimate]] | None = None

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
            near = [r for r in others if r.measures[main.key].overlaps(best.measures[main.key])]
            found.append(Advice(nfe, best, tuple(near)))
        return found

    def cells(self, of: Measure, *, intervals: bool = True) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table of one measure: samplers down, calls across, real data last."""
        found = {(r.setting.sampler, r.setting.nfe): r.measures[of.key] for r in self.records}

        def show(value: Estimate | None) -> str:
            return "" if value is None else of.show(value) if intervals else of.show(Estimate(value.value))

        samplers = dict.fromkeys(record.setting.sampler for record in self.records)
        rows = [[sampler, *(show(found.get((sampler, nfe))) for nfe in self._calls)] for sampler in samplers]
        ends = [(f"real data, {self.n_real} samples", self.real), *([] if self.baseline is None else [self.baseline])]
        rows += [[name, show(figures.get(of.key)), *[""] * (len(self._calls) - 1)] for name, figures in ends]
        return ["", *(f"{nfe} calls" for nfe in self._calls)], rows

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
            lines += ["", f"## {of.label}", "", BETTER[of.better], "", *markdown_table(*self.cells(of))]
        return "\n".join(lines) + "\n"

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        fields = ("key", "label", "better", "unit", "scale")
        return {
            "model": self.model,
            "metric": self.metric,
            "measures": [{name: getattr(of, name) for name in fields} for of in self.measures],
            "main": self.main.key,
            "real": {"n": self.n_real, "measures": {key: figure.asdict() for key, figure in self.real.items()}},
            **self._baseline_asdict(),
            "records": [record.asdict() for record in self.records],
            "advice": [advice.asdict() for advice in self.advice],
            "notes": list(self.notes),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
        }

    def _baseline_asdict(self) -> dict[str, Any]:
        if self.baseline is None:
            return {}
        name, figures = self.baseline
        return {"baseline": {"name": name, "measures": {key: figure.asdict() for key, figure in figures.items()}}}

    @property
    def _calls(self) -> list[int]:
        return sorted({record.setting.nfe for record in self.records})


def compare(
    model: Model,
    settings: Sequence[Setting],
    judge: Judge,
    n: int,
    *,
    name: str = "the model",
    notes: Sequence[str] = (),
    **options: Any,
) -> Comparison:
    """Measure all settings, and real data beside them. options: those of :func:`bfn.quality.measurements.measure`."""
    return summarise(measure(model, settings, judge, n, **options), judge, n, name=name, notes=notes)


def summarise(
    records: Sequence[Record], judge: Judge, n: int, *, name: str = "the model", notes: Sequence[str] = ()
) -> Comparison:
    """Records of one judge and number of samples, with what real data get."""
    real = judge.real(n)
    return Comparison(
        name, judge.name, judge.measures, tuple(records), real, judge.n_real(n), tuple(notes), judge.baseline
    )  # fmt: skip
