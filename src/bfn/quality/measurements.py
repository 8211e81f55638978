"""Settings of a sampler, measured: the same start noise for all, repeats, intervals, and a store that is resumed from.

A line of the store is keyed by all that the figures depend on: the model's weights, the step table that the setting
comes down to, the seed, the number of samples, the judge with its reference. So a run that was stopped goes on where it
was, commands share what they have measured, two names for one sampler are measured once, and a solver whose definition
changes is measured anew.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bfn import solvers
from bfn.batched_sampling import BatchedSamples, sample_in_batches
from bfn.conditions import conditions_in_turn
from bfn.core.plain import to_plain
from bfn.errors import UserError
from bfn.estimate import Estimate, mean_estimate
from bfn.model import BFN, Model
from bfn.pieces import digest
from bfn.processes import ALONE, Processes
from bfn.progress import Progress, Shown
from bfn.quality import store as stores
from bfn.quality.judge import Judge, Measure
from bfn.quality.settings import Setting

__all__ = ["Record", "draw", "identify", "measure", "pool"]


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
    known = processes.from_main({} if store is None else stores.read(store))
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
                            stores.append(store, line)
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
