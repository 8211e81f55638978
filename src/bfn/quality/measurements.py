"""Settings of a sampler: how one is said, and how several are crossed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
from bfn.core.model import BFN, Model
from bfn.core.plain import to_plain
from bfn.core.sampling import BatchedSamples, sample_in_batches
from bfn.core.solver import Solver
from bfn.core.table import Table
from bfn.quality.judge import Judge, Measure

USUAL = {
    "continuous": ("auto", "bfn", "bfn-solver++1", "bfn-solver++2", "sde-bfn-solver++2"),
    "discrete": ("auto", "bfn", "sde-bfn-solver1", "sde-bfn-solver2", "bfn-solver1", "bfn-solver2"),
    "joint": ("auto", "bfn", "fast-ode"),
}
"""What is compared where nothing else is asked for, by the kind of data: the default, the original sampler, the
paper's."""


@dataclass(frozen=True)
class Setting:
    """How to sample: the arguments of ``bfn.sample`` of the same names.

    t_start: the paper's eta. order: another order of the same solver, where it has one.
    """

    solver: str | Solver | Table
    nfe: int
    t_start: float | None = None
    g: float | None = None
    grid: str | Grid | None = None
    order: int | None = None
    guidance: float | None = None

    @property
    def name(self) -> str:
        """The solver's name."""
        if isinstance(self.solver, Table):
            return "a table"
        return self.solver if isinstance(self.solver, str) else self.solver.name

    @property
    def sampler(self) -> str:
        """The setting in words, but for the number of calls."""
        words = {"eta": self.t_start, "g": self.g, "grid": self.grid, "order": self.order, "guidance": self.guidance}
        given = [f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"
                 for word, value in words.items() if value is not None]  # fmt: skip
        return ", ".join([self.name, *given])

    @property
    def label(self) -> str:
        """The setting in words."""
        return f"{self.sampler}, {self.nfe} calls"

    def arguments(self, flow: Flow) -> dict[str, Any]:
        """For ``model.sample``, and but for the guidance for ``bfn.core.solver.plan``."""
        solver = self.solver
        if self.order is not None:
            if isinstance(solver, Table):
                raise UserError(f"order={self.order}: a table has the order it was made with; leave it out")
            solver = replace(_at_work(solver, flow, self.nfe), order=self.order)
        return {"solver": solver, "nfe": self.nfe, "t_start": self.t_start, "g": self.g, "grid": self.grid}

    def asdict(self) -> dict[str, Any]:
        """For JSON: what is set."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: str(value) if isinstance(value, Grid) else value for key, value in given.items()}
        return {**{key: value for key, value in plain.items() if value is not None}, "solver": self.name}


def _at_work(solver: str | Solver, flow: Flow, nfe: int) -> Solver:
    """The solver that does the work, of joint data that on the leading part; a UserError unless it takes all parts."""
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
    """Solvers x calls, x t_start on grids that need one, as the paper's does, x g for solvers with a dial."""
    if not names or not nfe:
        raise UserError("nothing to compare: expected at least one solver and one number of calls")
    for value in (value for value in t_start if not 0 < value < 1):
        raise UserError(f"t_start={value:g}: expected a time between 0 and 1, such as 0.001")
    given = grids.parse(grid) if isinstance(grid, str) else grid
    found: list[Setting] = []
    for name, calls in product(dict.fromkeys(names), dict.fromkeys(nfe)):
        solver = _at_work(name, flow, max(1, calls))
        on = given or solver.grid
        starts = t_start if on.stops_short or on.needs_start else ()
        dials = g if solver.has_dial else ()
        found += [Setting(name, calls, start, dial, grid, guidance=guidance)
                  for start, dial in product(starts or (None,), dials or (None,))]  # fmt: skip
    for what, values, used in (("t_start", t_start, [s.t_start for s in found]), ("g", g, [s.g for s in found])):
        if values and all(value is None for value in used):
            raise UserError(f"{what}={values[0]:g}: none of {', '.join(dict.fromkeys(names))} takes it; leave it out")
    return found


def default_store() -> Path:
    """The store that commands share."""
    return home() / "measured.jsonl"


def read(store: Path) -> dict[str, dict[str, Any]]:
    """Lines by their keys; one that is not whole, as a run leaves it that was killed while writing, counts as none."""
    if not store.exists():
        return {}
    lines: dict[str, dict[str, Any]] = {}
    for text in store.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "key" in line:
            lines[line["key"]] = line
    return lines


def append(store: Path, line: Mapping[str, Any]) -> None:
    """Add a line in one write; one that was left half-written before it is closed first."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
        flush(file)


@dataclass(frozen=True)
class Record:
    """What was measured of a setting.

    measures: figures with 95 % intervals; over several seeds their mean (:func:`pool`).
    each: the figures of each seed. seconds: of sampling, all seeds together, when it was done.
    """

    setting: Setting
    n: int
    seeds: tuple[int, ...]
    measures: Mapping[str, Estimate]
    seconds: float
    each: tuple[Mapping[str, Estimate], ...]

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "setting": self.setting.asdict(),
            "label": self.setting.label,
            "n": self.n,
            "seeds": list(self.seeds),
            "seconds": round(self.seconds, 3),
            "measures": {key: figure.asdict() for key, figure in self.measures.items()},
            "each": [{key: figure.asdict() for key, figure in some.items()} for some in self.each],
        }


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
    """Draw n samples with each setting, for each of ``repeats`` seeds from ``seed`` on, and have them judged.

    Batch number b of a seed starts from the same noise under every setting. A class-conditional model draws all classes
    in turn, and predictions are clipped to the range of the data, as the model's info has them.
    store: file to take figures from and add them to. identity: names the model there; one is made from config and
    weights if None. on_record: called with each record as soon as it is whole. processes: draw batches in turn; the
    first judges and keeps the figures, and all get them.
    """
    if n < 1 or repeats < 1 or batch < 1:
        raise UserError(f"n={n}, repeats={repeats}, batch={batch}: expected at least 1 of each")
    if not settings:
        raise UserError("no settings: expected at least 1 to measure")
    judge.check(n)
    facts = (len(model.info.classes or ()), model.info.value_range)
    common = [f"classes and range {facts}", f"n {n}", f"batch {batch}", judge.key]
    name = "" if store is None else identity or identify(model)
    # All tables are made before the first sample is drawn: a wrong setting is told at once.
    tables = {s: solvers.plan(model, **s.arguments(model.flow)).table for s in settings}
    steps = {s: digest(repr(table), f"{s.guidance}") for s, table in tables.items()}
    keys = {s: digest(name, steps[s], *common) for s in settings}
    known = processes.from_main({} if store is None else read(store))
    seeds = tuple(range(seed, seed + repeats))
    todo = {f"{keys[s]}-{k}": s.nfe * n for s in settings for k in seeds if f"{keys[s]}-{k}" not in known}
    records = []

    def count(samples: int) -> None:
        bar.update(samples * processes.count)

    with Progress(sum(todo.values()), "measuring", "call", progress) as bar:
        for setting in settings:
            lines = []
            for k in seeds:
                key = f"{keys[setting]}-{k}"
                if key not in known:
                    bar.describe(setting.label)
                    planned = Setting(tables[setting], setting.nfe, guidance=setting.guidance)
                    drawn = draw(model, planned, n, k, batch, processes=processes, on_calls=count)
                    line: dict[str, Any] = {}
                    if processes.main:
                        judged = judge(drawn.x, drawn.label)
                        line = {
                            "key": key, "model": name, "judge": judge.key, "setting": setting.asdict(), "n": n,
                            "seed": k, "seconds": drawn.seconds,
                            "measures": {what: [*some.asdict().values()] for what, some in judged.items()},
                        }  # fmt: skip
                        if store is not None:
                            append(store, line)
                    known[key] = processes.from_main(line)
                lines.append(known[key])
            records.append(_pooled(setting, n, seeds, lines, judge.measures))
            if on_record is not None:
                on_record(records[-1])
    return records


def draw(
    model: Model,
    setting: Setting,
    n: int,
    seed: int = 0,
    batch: int = 100,
    *,
    processes: Processes = ALONE,
    on_calls: Callable[[int], object] | None = None,
) -> BatchedSamples:
    """n samples, of all classes in turn; each batch has generators of its own.

    So batches start from noise that depends on the seed and their number alone, whatever the solver draws besides, and
    solvers that draw noise at the same calls share that too, whether they draw classes or not. on_calls: is told, after
    each network call, of how many samples it was.
    """

    def generators(index: int) -> dict[str, Any]:
        names = {"generator": "noise", "class_generator": "classes"}
        return {key: _generator(model.device, seed, index, what) for key, what in names.items()}

    drawn = sample_in_batches(
        model, n, **setting.arguments(model.flow), guidance=setting.guidance, batch=batch, seed=generators,
        condition=conditions_in_turn(model.info, n), processes=processes,
        on_step=None if on_calls is None else lambda step: on_calls(len(step.u)),
    )  # fmt: skip
    # A judge of text sees no token where there is none.
    padded = drawn.present is not None and model.form == "text"
    return replace(drawn, x=drawn.x.masked_fill(~drawn.present, -1)) if padded else drawn


def identify(model: Model) -> str:
    """A hash of what a model's predictions depend on: flow, head, network, weights."""
    if not isinstance(model, BFN) or not isinstance(model.network, nn.Module):
        raise UserError(f"{type(model).__name__}: only a stored model names itself; give identity='...' for the store")
    # Not the info: what matters of it, tables, range and classes, is in the key of what is measured.
    network = getattr(model.network, "config", None)
    config = {"parts": to_plain([model.flow, model.head]), "data_shape": list(model.data_shape), "network": network}
    sha = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, value in model.network.state_dict().items():
        sha.update(name.encode())
        sha.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def _pooled(
    setting: Setting, n: int, seeds: tuple[int, ...], lines: Sequence[Mapping[str, Any]], measures: Sequence[Measure]
) -> Record:
    each = tuple({key: _figure(values) for key, values in line["measures"].items()} for line in lines)
    highest = {measure.key: measure.highest for measure in measures}
    pooled = {key: pool([some[key] for some in each], highest.get(key, math.inf)) for key in each[0]}
    return Record(setting, n, seeds, pooled, sum(line["seconds"] for line in lines), each)


def pool(figures: Sequence[Estimate], highest: float = math.inf) -> Estimate:
    """Figures of several seeds as one: their mean, and on each side the wider of two intervals, within [0, highest].

    Student's, of the mean over seeds; and that of the seeds' own intervals, for seeds that agree by chance: no copies
    in two runs of 100 samples do not make it certain that there are none.
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


def _generator(device: torch.device, seed: int, batch: int, what: str) -> torch.Generator:
    number = hashlib.sha256(f"{seed}\0{batch}\0{what}".encode()).hexdigest()[:15]
    return torch.Generator(device).manual_seed(int(number, 16))
