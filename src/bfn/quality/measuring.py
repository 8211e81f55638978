"""Settings of a sampler, measured: the same start noise for all, repeats, intervals, and a store that is resumed from.

The store is a file of JSON lines that only grows. A line is keyed by all that the figures depend on: the model's
weights, the step table that the setting comes down to, the seed, the number of samples, the judge with its reference.
So a run that was stopped goes on where it was, commands share what they have measured, two names for one sampler are
measured once, and a solver whose definition changes is measured anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from bfn import solvers, storage
from bfn.errors import UserError
from bfn.files import home
from bfn.flows import Flow
from bfn.model import BFN, Model
from bfn.quality import t_interval
from bfn.quality.judges import Judge, Measure, Measured
from bfn.sampling import Step, batches, make_table
from bfn.solvers import Solver

Clip = tuple[float, float] | Literal["auto"] | None


@dataclass(frozen=True)
class Setting:
    """How to sample: the arguments of ``bfn.sample`` of the same names.

    t_start: the paper's eta. order: another order of the same solver, where it has one.
    """

    solver: str | Solver
    nfe: int
    t_start: float | None = None
    g: float | None = None
    grid: str | None = None
    order: int | None = None
    guidance: float | None = None

    @property
    def name(self) -> str:
        """The solver's name."""
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
        """For ``model.sample``."""
        solver: str | Solver = self.solver
        if self.order is not None:
            solver = replace(solvers.get(solver, flow.kind).resolve(flow, self.nfe), order=self.order)
        given: dict[str, Any] = {"t_start": self.t_start, "g": self.g, "grid": self.grid}
        if self.guidance is not None:
            given["guidance"] = self.guidance
        return {"solver": solver, "nfe": self.nfe, **given}

    def table_key(self, model: Model) -> str:
        """Names the step table that the setting comes down to on a model; an error if it makes none."""
        arguments = self.arguments(model.flow)
        arguments.pop("guidance", None)
        table = make_table(
            model.flow, starts_at_zero=model.starts_at_zero, tables=model.tables, curve=model.error_curve, **arguments
        )
        return _digest(repr(table), f"{self.guidance}")

    def asdict(self) -> dict[str, Any]:
        """For JSON: what is set."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**{key: value for key, value in fields.items() if value is not None}, "solver": self.name}


@dataclass(frozen=True)
class Record:
    """What was measured of a setting.

    measures: figures with 95 % intervals; over several seeds their mean (:func:`pool`).
    each: the figures of each seed. seconds: of sampling, all seeds together, when it was done.
    """

    setting: Setting
    n: int
    seeds: tuple[int, ...]
    measures: Mapping[str, Measured]
    seconds: float
    each: tuple[Mapping[str, Measured], ...]

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "setting": self.setting.asdict(),
            "label": self.setting.label,
            "n": self.n,
            "seeds": list(self.seeds),
            "seconds": round(self.seconds, 3),
            "measures": as_json(self.measures),
            "each": [as_json(some) for some in self.each],
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
    n_labels: int = 0,
    clip: Clip = "auto",
    store: Path | None = None,
    identity: str | None = None,
    progress: bool = False,
    on_record: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Draw n samples with each setting, for each of ``repeats`` seeds from ``seed`` on, and have them judged.

    Batch number b of a seed starts from the same noise under every setting. A class-conditional model (``n_labels``)
    draws all classes in turn. clip: of the predicted data; "auto" is (-1, 1) for continuous images, as in the paper.
    store: file to take figures from and add them to. identity: names the model there; one is made from config and
    weights if None. on_record: called with each record as soon as it is whole.
    """
    if n < 1 or repeats < 1 or batch < 1:
        raise UserError(f"n={n}, repeats={repeats}, batch={batch}: expected at least 1 of each")
    if not settings:
        raise UserError("no settings: expected at least 1 to measure")
    judge.check(n)
    bounds = clip_for(model) if clip == "auto" else clip
    common = [f"labels {n_labels}", f"clip {bounds}", f"n {n}", f"batch {batch}", judge.key]
    name = "" if store is None else identity or identify(model)
    # All tables are made before the first sample is drawn: a wrong setting is told at once.
    keys = {s: _digest(name, s.table_key(model), *common) for s in settings}
    known = {} if store is None else _read(store)
    seeds = tuple(range(seed, seed + repeats))
    todo = {f"{keys[s]}-{k}": s.nfe * n for s in settings for k in seeds if f"{keys[s]}-{k}" not in known}
    records = []
    with tqdm(total=sum(todo.values()), disable=None if progress else True, unit="call", unit_scale=True) as bar:
        for setting in settings:
            lines = []
            for k in seeds:
                key = f"{keys[setting]}-{k}"
                if key not in known:
                    bar.set_description(setting.label)
                    start = time.perf_counter()
                    x, labels = draw(model, setting, n, k, batch, n_labels, bounds, bar.update)
                    seconds = time.perf_counter() - start
                    figures = judge(x, labels)
                    known[key] = {
                        "key": key, "model": name, "judge": judge.key, "setting": setting.asdict(), "n": n, "seed": k,
                        "seconds": seconds, "measures": {m: [*some.values()] for m, some in as_json(figures).items()},
                    }  # fmt: skip
                    if store is not None:
                        _append(store, known[key])
                lines.append(known[key])
            record = _pooled(setting, n, seeds, lines, judge.measures)
            records.append(record)
            if on_record is not None:
                on_record(record)
    return records


def draw(
    model: Model,
    setting: Setting,
    n: int,
    seed: int = 0,
    batch: int = 100,
    n_labels: int = 0,
    clip: tuple[float, float] | None = None,
    on_calls: Callable[[int], object] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """n samples and the classes that were asked for, all in turn; each batch has a generator of its own.

    So batches start from noise that depends on the seed and their number alone, whatever the solver draws besides, and
    solvers that draw noise at the same calls share that too, whether they draw classes or not.
    """
    parts: list[Tensor] = []
    labels = torch.arange(n) % n_labels if n_labels else None
    arguments = setting.arguments(model.flow)
    for index, size in enumerate(batches(n, batch)):
        noise, classes = (_generator(model.device, seed, index, what) for what in ("noise", "classes"))
        some = None if labels is None else labels[index * batch : index * batch + size].to(model.device)

        def on_step(_: Step, size: int = size) -> None:
            if on_calls is not None:
                on_calls(size)

        out = model.sample(
            size, label=some, clip=clip, generator=noise, class_generator=classes, on_step=on_step, **arguments
        )
        parts.append(out.x.cpu())
    return torch.cat(parts), labels


def identify(model: Model) -> str:
    """A hash of what a model's predictions depend on: flow, head, network, weights."""
    if not isinstance(model, BFN) or not isinstance(model.network, nn.Module):
        raise UserError(f"{type(model).__name__}: only a stored model names itself; give identity='...' for the store")
    # Not the tuned tables: the key of a setting holds the table it comes down to.
    config = {key: value for key, value in storage.describe(model).items() if key != "tables"}
    sha = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, value in model.network.state_dict().items():
        sha.update(name.encode())
        sha.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def default_store() -> Path:
    """The store that commands share."""
    return home() / "measured.jsonl"


def clip_for(model: Model) -> tuple[float, float] | None:
    """Where predictions are clipped unless something else is asked for: continuous images, as in the paper's code."""
    return (-1.0, 1.0) if model.flow.kind == "continuous" and len(model.data_shape) == 3 else None


def _pooled(
    setting: Setting, n: int, seeds: tuple[int, ...], lines: Sequence[Mapping[str, Any]], measures: Sequence[Measure]
) -> Record:
    each = tuple({key: _figure(values) for key, values in line["measures"].items()} for line in lines)
    highest = {measure.key: measure.highest for measure in measures}
    pooled = {key: pool([some[key] for some in each], highest.get(key, math.inf)) for key in each[0]}
    return Record(setting, n, seeds, pooled, sum(line["seconds"] for line in lines), each)


def pool(figures: Sequence[Measured], highest: float = math.inf) -> Measured:
    """Figures of several seeds as one: their mean, and on each side the wider of two intervals, within [0, highest].

    Student's, of the mean over seeds; and that of the seeds' own intervals, for seeds that agree by chance: no copies
    in two runs of 100 samples do not make it certain that there are none.
    """
    if len(figures) == 1:
        return figures[0]
    values = [figure.value for figure in figures]
    mean, student = math.fsum(values) / len(values), t_interval(values)
    below = math.hypot(*(0.0 if math.isnan(f.low) else f.value - f.low for f in figures)) / len(figures)
    above = math.hypot(*(0.0 if math.isnan(f.high) else f.high - f.value for f in figures)) / len(figures)
    return Measured(mean, max(0.0, min(student.low, mean - below)), min(highest, max(student.high, mean + above)))


def as_json(figures: Mapping[str, Measured]) -> dict[str, dict[str, float | None]]:
    """{"value", "low", "high"} of each figure; JSON knows no NaN."""
    return {
        key: {name: None if math.isnan(value) else value for name, value in dataclasses.asdict(figure).items()}
        for key, figure in figures.items()
    }


def _figure(values: Sequence[float | None]) -> Measured:
    return Measured(*(math.nan if value is None else float(value) for value in values))


def _read(store: Path) -> dict[str, dict[str, Any]]:
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


def _append(store: Path, line: Mapping[str, Any]) -> None:
    """Add a line in one write; one that was left half-written before it is closed first."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _generator(device: torch.device, seed: int, batch: int, what: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(int(_digest(f"{seed}", f"{batch}", what)[:15], 16))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
