"""Comparison of samplers: draw samples with several settings, judge them, and say which setting is best.

settings = crossed(model.flow, ["bfn", "auto"], [5, 10])
comparison = compare(model, settings, judge_for(model), n=200)
print(comparison.markdown())
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn import solvers
from bfn._utils.estimate import Estimate, mean_estimate
from bfn._utils.files import flush, home
from bfn._utils.pieces import ALONE, Processes, digest
from bfn._utils.progress import Progress, Shown
from bfn.core import grids
from bfn.core.conditions import conditions_in_turn
from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.grids import Grid
from bfn.core.model import Model
from bfn.core.samples import Samples
from bfn.core.sampling import Request, Step
from bfn.core.solver import Solver
from bfn.core.table import Table
from bfn.quality.judge import Judge, Measure
from bfn.storage.models import identify

USUAL = {
    "continuous": ("auto", "bfn", "bfn-solver++1", "bfn-solver++2", "sde-bfn-solver++2"),
    "discrete": ("auto", "bfn", "sde-bfn-solver1", "sde-bfn-solver2", "bfn-solver1", "bfn-solver2"),
    "joint": ("auto", "bfn", "fast-ode"),
}
"""Solvers that are compared by default, by kind of data: the default solver, the original sampler, the paper's."""

VERSIONS = {"torch": torch.__version__, "python": platform.python_version()}

BETTER = {"low": "Lower is better.", "high": "Higher is better.", "real": "Nearer to real data is better."}


# --- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Arguments of :func:`bfn.sample` that are compared.

    Attributes:
        solver, nfe, t_start, g, grid, guidance: as for ``bfn.sample``; ``t_start`` is the paper's eta.
    """

    solver: str | Solver | Table
    nfe: int
    t_start: float | None = None
    g: float | None = None
    grid: str | Grid | None = None
    guidance: float | None = None

    @property
    def name(self) -> str:
        """Name of the solver."""
        if isinstance(self.solver, Table):
            return "a table"
        return self.solver if isinstance(self.solver, str) else self.solver.name

    @property
    def sampler(self) -> str:
        """The solver and its options in words, without the number of calls."""
        words = {"eta": self.t_start, "g": self.g, "grid": self.grid, "guidance": self.guidance}
        options = [
            f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"
            for word, value in words.items()
            if value is not None
        ]
        return ", ".join([self.name, *options])

    @property
    def label(self) -> str:
        """The setting in words."""
        return f"{self.sampler}, {self.nfe} calls"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``bfn.solvers.plan``, which are those of ``bfn.sample`` without the guidance."""
        return {"solver": self.solver, "nfe": self.nfe, "t_start": self.t_start, "g": self.g, "grid": self.grid}

    def asdict(self) -> dict[str, Any]:
        """Return the options that are set, as plain values for JSON."""
        given = {key: value for key, value in vars(self).items() if value is not None}
        plain = {key: str(value) if isinstance(value, Grid) else value for key, value in given.items()}
        return {**plain, "solver": self.name}


def _leading_solver(solver: str | Solver, flow: Flow, nfe: int) -> Solver:
    """Return the solver of the leading part of the data. Raises UserError unless the solver takes all parts."""
    resolved = {name: solvers.get(solver, part.kind).resolve(part, nfe) for name, part in flow.parts.items()}
    return resolved[flow.leading_part]


def crossed(
    flow: Flow,
    names: Sequence[str],
    nfe: Sequence[int],
    *,
    t_start: Sequence[float] = (),
    g: Sequence[float] = (),
    grid: str | Grid | None = None,
    guidance: float | None = None,
) -> list[Setting]:
    """Return the settings of all solvers at all numbers of calls.

    Args:
        flow: flow of the model.
        names: names of solvers.
        nfe: numbers of network calls.
        t_start: starts of the grid, all of them for solvers on a grid that needs one.
        g: stochasticities, all of them for solvers with this dial.
        grid: grid for all solvers instead of their own.
        guidance: scale of the conditions.
    """
    if not names or not nfe:
        raise UserError("nothing to compare: expected at least one solver and one number of calls")
    for value in (value for value in t_start if not 0 < value < 1):
        raise UserError(f"t_start={value:g}: expected a time between 0 and 1, such as 0.001")
    own_grid = grids.parse(grid) if isinstance(grid, str) else grid
    found: list[Setting] = []
    for name, calls in product(dict.fromkeys(names), dict.fromkeys(nfe)):
        solver = _leading_solver(name, flow, max(1, calls))
        used = own_grid or solver.grid
        starts = t_start if used.stops_short or used.needs_start else ()
        pairs = product(starts or (None,), (g if solver.has_dial else ()) or (None,))
        found += [Setting(name, calls, start, dial, grid, guidance=guidance) for start, dial in pairs]
    _check_taken(found, names, t_start=t_start, g=g)
    return found


def _check_taken(settings: Sequence[Setting], names: Sequence[str], **options: Sequence[float]) -> None:
    """Raise a UserError if no solver takes the values of an option."""
    for option, values in options.items():
        if values and all(getattr(setting, option) is None for setting in settings):
            raise UserError(f"{option}={values[0]:g}: none of {', '.join(dict.fromkeys(names))} takes it; leave it out")


def draw(
    model: Model,
    setting: Setting,
    n: int,
    seed: int = 0,
    batch: int = 100,
    *,
    processes: Processes = ALONE,
    on_calls: Callable[[int], object] = lambda samples: None,
) -> Samples:
    """Draw n samples with a setting, of all classes in turn.

    Each batch has two generators, one for noise and one for drawn classes, that depend on the seed and the number of
    the batch alone. Batches therefore start from the same noise under every setting, and solvers that draw noise at
    the same calls share that too, whether they draw classes or not.

    Args:
        model: the model.
        setting: how to sample.
        n: number of samples.
        seed: seed of all batches.
        batch: number of samples that go through the network together.
        processes: processes that share the batches; all of them get all samples.
        on_calls: called after each network call with the number of samples in it.

    Returns:
        The samples. Padding of sequences of classes is -1.
    """
    request = Request.from_options(**vars(setting), condition=conditions_in_turn(model.info, n)).bind(model, n)

    def after_step(step: Step) -> None:
        on_calls(len(step.u))

    drawn = []
    for index, first in processes.own(enumerate(range(0, n, batch))):
        noise, classes = (_generator(model.device, seed, index, what) for what in ("noise", "classes"))
        rows = request.rows(slice(first, min(n, first + batch)))
        drawn.append(rows.draw(generator=noise, class_generator=classes, on_step=after_step))
    samples = Samples.joined(processes.gather(drawn))
    present = samples.present
    if isinstance(present, Tensor) and not samples.x.is_floating_point():
        return replace(samples, x=samples.x.masked_fill(~present, -1))
    return samples


def _generator(device: torch.device, seed: int, batch: int, what: str) -> torch.Generator:
    """Return the generator of a batch."""
    number = hashlib.sha256(f"{seed}\0{batch}\0{what}".encode()).hexdigest()[:15]
    return torch.Generator(device).manual_seed(int(number, 16))


# --- the store of measurements ----------------------------------------------------------------------------------------


def default_store() -> Path:
    """Return the file of measurements that all commands share."""
    return home() / "measured.jsonl"


def read_store(store: Path | None) -> dict[str, dict[str, Any]]:
    """Read the lines of a store by their keys. Damaged lines, which a killed run may leave, are skipped."""
    lines: dict[str, dict[str, Any]] = {}
    if store is not None and store.exists():
        for text in store.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError, KeyError):
                line = json.loads(text)
                lines[line["key"]] = line
    return lines


def append_to_store(store: Path, line: Mapping[str, Any]) -> None:
    """Add a line to a store in one write. It starts with a line break, which closes a damaged last line."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("ab") as file:
        file.write(b"\n" + json.dumps(line).encode())
        flush(file)


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """The measurements of one setting.

    Attributes:
        setting: the setting.
        n: number of samples for each seed.
        seeds: the seeds.
        measures: figures with 95 % intervals; over several seeds, their mean, see :func:`pool`.
        seconds: time of sampling, all seeds together.
        each: the figures of each seed.
    """

    setting: Setting
    n: int
    seeds: tuple[int, ...]
    measures: Mapping[str, Estimate]
    seconds: float
    each: tuple[Mapping[str, Estimate], ...]

    def asdict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "setting": self.setting.asdict(), "label": self.setting.label, "n": self.n, "seeds": list(self.seeds),
            "seconds": round(self.seconds, 3), "measures": _plain(self.measures),
            "each": [_plain(figures) for figures in self.each],
        }  # fmt: skip


def measure(
    model: Model,
    settings: Sequence[Setting],
    judge: Judge,
    n: int,
    *,
    repeats: int = 1,
    seed: int = 0,
    batch: int = 100,
    store: Path | None = None,
    identity: str | None = None,
    progress: Shown = False,
    processes: Processes = ALONE,
    on_record: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Draw n samples with each setting and judge them.

    Class-conditional models draw all classes in turn. Predictions are clipped to the range of the model's data.

    Args:
        model: the model.
        settings: how to sample.
        judge: what to measure.
        n: number of samples for each setting and seed.
        repeats: number of seeds, from ``seed`` on.
        seed: the first seed.
        batch: number of samples that go through the network together.
        store: file of measurements; those that it has are not made again, new ones are added at once.
        identity: name of the model in the store; by default a hash of its config and weights.
        progress: whether to show progress.
        processes: processes that share the batches. The first one judges, and all get the figures.
        on_record: called with each record as soon as it is complete.
    """
    if n < 1 or repeats < 1 or batch < 1:
        raise UserError(f"n={n}, repeats={repeats}, batch={batch}: expected at least 1 of each")
    if not settings:
        raise UserError("no settings: expected at least 1 to measure")
    judge.check(n)
    # All tables are made before the first sample is drawn, so that a wrong setting is reported at once.
    tables = {s: solvers.plan(model, **s.arguments()).table for s in settings}
    name = "" if store is None else identity or identify(model)
    keys = {s: _key(model, judge, name, s, table, n, batch) for s, table in tables.items()}
    known = processes.from_main(read_store(store))
    seeds = tuple(range(seed, seed + repeats))
    n_calls = sum(s.nfe * n for s in keys for k in seeds if f"{keys[s]}-{k}" not in known)
    records = []
    with Progress(n_calls, "measuring", "call", progress) as bar:

        def on_calls(samples: int) -> None:
            bar.update(samples * processes.count)

        def measured(setting: Setting, k: int, key: str) -> dict[str, Any]:
            bar.describe(setting.label)
            planned, began = Setting(tables[setting], setting.nfe, guidance=setting.guidance), time.perf_counter()
            drawn = draw(model, planned, n, k, batch, processes=processes, on_calls=on_calls)
            if not processes.main:
                return {}
            line = {
                "key": key, "model": name, "judge": judge.key, "setting": setting.asdict(), "n": n, "seed": k,
                "seconds": time.perf_counter() - began,
                "measures": {which: [*some.asdict().values()] for which, some in judge(drawn.x, drawn.label).items()},
            }  # fmt: skip
            if store is not None:
                append_to_store(store, line)
            return line

        for setting in settings:
            own = {k: f"{keys[setting]}-{k}" for k in seeds}
            for k, key in own.items():
                if key not in known:
                    known[key] = processes.from_main(measured(setting, k, key))
            lines = [known[key] for key in own.values()]
            each = tuple({name: _figure(values) for name, values in line["measures"].items()} for line in lines)
            taken = [of for of in judge.measures if of.key in each[0]]
            pooled = {of.key: pool([some[of.key] for some in each], of.highest) for of in taken}
            records.append(Record(setting, n, seeds, pooled, sum(line["seconds"] for line in lines), each))
            if on_record is not None:
                on_record(records[-1])
    return records


def _key(model: Model, judge: Judge, name: str, setting: Setting, table: Table, n: int, batch: int) -> str:
    """Return the key of a measurement in the store, without the seed."""
    facts = (len(model.info.classes or ()), model.info.value_range)
    steps = digest(repr(table), f"{setting.guidance}")
    return digest(name, steps, f"classes and range {facts}", f"n {n}", f"batch {batch}", judge.key)


def pool(figures: Sequence[Estimate], highest: float = math.inf) -> Estimate:
    """Return the mean of the figures of several seeds, with an interval within [0, highest].

    Each end of the interval is the outer one of two: that of Student's interval of the mean over seeds, and that of the
    combined intervals of the seeds. The second one matters where seeds agree by chance: no copies in two runs of 100
    samples do not make it certain that there are none.
    """
    if len(figures) == 1:
        return figures[0]
    values = [figure.value for figure in figures]
    mean, student = math.fsum(values) / len(values), mean_estimate(values)
    below = math.hypot(*(0.0 if math.isnan(f.low) else f.value - f.low for f in figures)) / len(figures)
    above = math.hypot(*(0.0 if math.isnan(f.high) else f.high - f.value for f in figures)) / len(figures)
    return Estimate(mean, max(0.0, min(student.low, mean - below)), min(highest, max(student.high, mean + above)))


def _figure(values: Sequence[float | None]) -> Estimate:
    return Estimate(*(math.nan if value is None else float(value) for value in values))


def _plain(figures: Mapping[str, Estimate]) -> dict[str, dict[str, float | None]]:
    return {key: figure.asdict() for key, figure in figures.items()}


# --- comparing --------------------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    >>> markdown_table(["a", "b"], [["1", "2"]])
    ['| a | b |', '| --- | --- |', '| 1 | 2 |']
    """
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


@dataclass(frozen=True)
class Advice:
    """The best sampler at a number of calls.

    Attributes:
        nfe: the number of calls.
        best: the best record.
        not_told_apart: records whose intervals overlap with that of the best one, best first.
    """

    nfe: int
    best: Record
    not_told_apart: tuple[Record, ...]

    def sentence(self, main: Measure) -> str:
        """Return the advice in words."""
        others = "; ".join(record.setting.sampler for record in self.not_told_apart)
        best = f"{self.nfe} calls: {self.best.setting.sampler}, {main.show(self.best.measures[main.key])}"
        return f"{best}; not distinguishable from it: {others}" if others else best

    def asdict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        near = [record.setting.asdict() for record in self.not_told_apart]
        return {"nfe": self.nfe, "best": self.best.setting.asdict(), "not_told_apart": near}


@dataclass(frozen=True)
class Comparison:
    """The measurements of several settings of one model, beside those of real data.

    Attributes:
        model: name of the model.
        metric: name of the judge.
        measures: what was measured.
        records: the measurements.
        real: figures of real data.
        n_real: number of real samples.
        notes: remarks for the reader, such as a measure that was left out and why.
        baseline: name and figures of the other end of the scales, if the judge has one.
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
        """The best sampler at each number of calls, by the 95 % intervals."""
        main, real, advice = self.main, self.real[self.main.key].value, []
        for nfe in self._calls:
            records = [record for record in self.records if record.setting.nfe == nfe]
            best, *others = sorted(records, key=lambda record: main.loss(record.measures[main.key].value, real))
            near = (r for r in others if r.measures[main.key].overlaps(best.measures[main.key]))
            advice.append(Advice(nfe, best, tuple(near)))
        return advice

    def cells(self, of: Measure, *, intervals: bool = True) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of the table of one measure: samplers down, calls across, real data last."""
        found = {(r.setting.sampler, r.setting.nfe): r.measures[of.key] for r in self.records}

        def show(value: Estimate | None) -> str:
            return "" if value is None else of.show(value if intervals else Estimate(value.value))

        samplers = dict.fromkeys(record.setting.sampler for record in self.records)
        rows = [[sampler, *(show(found.get((sampler, nfe))) for nfe in self._calls)] for sampler in samplers]
        ends = [(f"real data, {self.n_real} samples", self.real), *([] if self.baseline is None else [self.baseline])]
        rows += [[name, show(figures.get(of.key)), *[""] * (len(self._calls) - 1)] for name, figures in ends]
        return ["", *(f"{nfe} calls" for nfe in self._calls)], rows

    def markdown(self) -> str:
        """Return a report: how it was measured, the advice, and a table for each measure."""
        first = self.records[0]
        seeds = f"seed {first.seeds[0]}" if len(first.seeds) == 1 else f"seeds {first.seeds[0]} to {first.seeds[-1]}"
        lines = [
            f"# Samplers of {self.model} compared",
            "",
            f"{first.n} samples for each cell and seed, {seeds}; 95 % intervals; judged by `{self.metric}`; "
            f"torch {VERSIONS['torch']}, Python {VERSIONS['python']}. Every sampler starts from the same noise.",
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
        """Return plain values for JSON."""
        keys = ("key", "label", "better", "unit", "scale")
        ends = {"real": {"n": self.n_real, "measures": _plain(self.real)}}
        if self.baseline is not None:
            ends["baseline"] = {"name": self.baseline[0], "measures": _plain(self.baseline[1])}
        return {
            "model": self.model, "metric": self.metric,
            "measures": [{name: getattr(of, name) for name in keys} for of in self.measures], "main": self.main.key,
            **ends, "records": [record.asdict() for record in self.records],
            "advice": [advice.asdict() for advice in self.advice], "notes": list(self.notes),
            "versions": VERSIONS,
        }  # fmt: skip

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
    """Measure all settings, and real data beside them. The options are those of :func:`measure`."""
    return summarise(measure(model, settings, judge, n, **options), judge, n, name=name, notes=notes)


def summarise(
    records: Sequence[Record], judge: Judge, n: int, *, name: str = "the model", notes: Sequence[str] = ()
) -> Comparison:
    """Make the comparison of records of one judge, with the figures of n real samples."""
    return Comparison(
        name, judge.name, judge.measures, tuple(records), judge.real(n), judge.n_real(n), tuple(notes), judge.baseline
    )
