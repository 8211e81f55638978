"""The paper's tables and figures, one function each, run on models at hand and written as a report folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bfn import solvers
from bfn.errors import UserError, did_you_mean
from bfn.paper import paper, subjects
from bfn.paper.efficiency import efficiency
from bfn.paper.etas import eta_continuous, eta_discrete
from bfn.paper.orders import orders
from bfn.paper.reports import Options, Section, write_report
from bfn.paper.sheets import samples
from bfn.paper.subjects import Kind, Place, Subject
from bfn.paper.tabled import cs_ablation, fid_nfe, sa_nfe
from bfn.paper.trajectories import cs_trajectories

Run = Callable[[Subject, Options], Section]


@dataclass(frozen=True)
class Experiment:
    """One table or figure. kinds: of the models it is run on; none for one that brings its own problems.

    beyond: whether other solvers may be measured beside the paper's.
    """

    name: str
    title: str
    kinds: tuple[Kind, ...]
    run: Run | None = None
    tables: tuple[str, ...] = ()
    beyond: bool = False

    @property
    def places(self) -> list[str]:
        """Where the paper has it, with what is doubtful there."""
        lines = []
        for name in self.tables:
            table = paper.table(name)
            lines.append(f"The paper: {table.place}. \u201c{table.caption}\u201d")
            lines += [f"(Doubtful in it: {_where(remark)}{remark.text}.)" for remark in table.remarks]
        return lines


EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "fid-nfe", "Image quality against network calls", ("continuous",), fid_nfe, ("fid-nfe",), beyond=True
        ),
        Experiment(
            "sa-nfe", "Spelling accuracy against network calls", ("discrete",), sa_nfe, ("sa-nfe",), beyond=True
        ),
        Experiment(
            "cs-ablation", "The original sampler with and without drawn classes", ("discrete",), cs_ablation,
            ("cs-ablation",),
        ),
        Experiment(
            "cs-trajectories", "How far drawing classes moves a trajectory", ("discrete",), cs_trajectories,
            ("cs-trajectories",),
        ),
        Experiment(
            "eta-continuous", "Where the grid starts, on images", ("continuous",), eta_continuous, ("eta-continuous",)
        ),
        Experiment("eta-discrete", "Where the grid starts, on text", ("discrete",), eta_discrete, ("eta-discrete",)),
        Experiment(
            "efficiency", "Bits per character and spelling accuracy", ("discrete",), efficiency,
            ("efficiency-sa", "efficiency-bpc"),
        ),
        Experiment("samples", "Random samples side by side", ("continuous", "discrete"), samples, beyond=True),
        Experiment("orders", "Error against step size on problems with exact answers", ()),
    )
}  # fmt: skip
"""All that ``bfn reproduce`` makes."""

QUICK = Options(n=100, nfe=(5, 10))
"""Enough to see that everything works."""


def experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS)
        raise UserError(f"{name!r}: expected one of {', '.join(EXPERIMENTS)}{hint}")
    return EXPERIMENTS[name]


def reproduce(
    name: str,
    out: Path,
    options: Options | None = None,
    *,
    on: Sequence[Place] = ("bundled", "exact"),
    models: Sequence[str] = (),
    checkpoint: Path | None = None,
    settings: str | Mapping[str, Any] | None = None,
    context: int = 2,
    command: str = "",
) -> Path:
    """Run an experiment and write its report folder; returns the path of report.md.

    on: bundled models, exact models of real data, the checkpoint. models: others than the bundled ones, by name or
    directory. settings: the checkpoint's configuration, as ``load_official`` takes it. context: symbols that the exact
    model of text looks back.
    command: what to type to have the same again, for the report.
    """
    chosen, options, started = experiment(name), options or Options(), time.perf_counter()
    if "official" in on and checkpoint is None:
        raise UserError("official: needs --checkpoint FILE, a published checkpoint such as text8_ema.pt")
    if options.beyond and not chosen.beyond:
        able = ", ".join(other.name for other in EXPERIMENTS.values() if other.beyond)
        raise UserError(f"--solvers {options.beyond[0]}: {name} is of the paper's alone; {able} take others")
    for solver in options.beyond or ():
        if solver != "tuned":
            solvers.get(solver)
    if chosen.run is None:
        options = replace(options, store=None)
        sections = orders(options)
    else:
        sections = [
            chosen.run(subject, options) for subject in _subjects(chosen, on, models, checkpoint, settings, context)
        ]
    intro = [*chosen.places, *([f"Made by `{command}`."] if command else [])]
    spaced = [line for paragraph in intro for line in (paragraph, "")]
    return write_report(out, f"{name}: {chosen.title}", spaced[:-1], sections, options, started)


def _subjects(
    chosen: Experiment,
    on: Sequence[Place],
    models: Sequence[str],
    checkpoint: Path | None,
    settings: str | Mapping[str, Any] | None,
    context: int,
) -> Iterator[Subject]:
    """Made one after the other: some hold much memory."""
    if checkpoint is not None:
        yield subjects.official(checkpoint, chosen.kinds, settings)
    if "bundled" in on:
        for kind in chosen.kinds:
            fitting = [name for name in models if subjects.kind_of(name) == kind]
            if models and not fitting and len(chosen.kinds) > 1:
                continue
            for name in (fitting or models) if models else subjects.BUNDLED[kind]:
                yield subjects.stored(name, kind)
    if "exact" in on:
        for kind in chosen.kinds:
            yield subjects.exact(kind, context)


def _where(remark: paper.Remark) -> str:
    calls = f" at {remark.nfe} calls" if remark.nfe else ""
    return f"`{remark.solver}`{calls}: " if remark.solver else ""
