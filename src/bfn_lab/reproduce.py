"""The tables and figures of the paper: each is an experiment, run on available models and written as a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bfn import UserError, solvers
from bfn_lab import measuring as judged_model
from bfn_lab import report as printed
from bfn_lab.by_calls import cs_ablation, efficiency, eta_continuous, eta_discrete, fid_nfe, sa_nfe
from bfn_lab.measuring import Form, JudgedModel, Place
from bfn_lab.quality_tables import samples
from bfn_lab.report import Options, Section, write_report
from bfn_lab.trajectories import cs_trajectories, orders

Run = Callable[[JudgedModel, Options], Section]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name, title: of the experiment.
        forms: forms of the samples of models that it is run on; none if it has its own problems.
        run: makes the section of one model.
        tables: printed tables.
        beyond: whether other solvers may be measured beside the paper's.
    """

    name: str
    title: str
    forms: tuple[Form, ...]
    run: Run | None = None
    tables: tuple[str, ...] = ()
    beyond: bool = False

    def places(self, calls: Sequence[int] = ()) -> list[str]:
        """Return its place in the paper and remarks on the printed figures at those calls, at all calls by default."""
        tables = [printed.printed_table(name) for name in self.tables]
        lines = [f"This page repeats {table.place}." for table in tables]
        remarks = [remark for table in tables for remark in table.remarks]
        shown = [remark for remark in remarks if not calls or remark.nfe is None or remark.nfe in calls]
        return lines + [f"Note on the printed {_where(remark)}: {remark.text}." for remark in shown]


EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "fid-nfe", "Image quality against network calls", ("images",), fid_nfe, ("fid-nfe",), beyond=True
        ),
        Experiment(
            "sa-nfe", "Spelling accuracy against network calls", ("text",), sa_nfe, ("sa-nfe",), beyond=True
        ),
        Experiment(
            "cs-ablation", "The original sampler with and without drawn classes", ("text",), cs_ablation,
            ("cs-ablation",),
        ),
        Experiment(
            "cs-trajectories", "How far drawing classes moves a trajectory", ("text",), cs_trajectories,
            ("cs-trajectories",),
        ),
        Experiment(
            "eta-continuous", "The start of the time grid on images", ("images",), eta_continuous, ("eta-continuous",)
        ),
        Experiment("eta-discrete", "The start of the time grid on text", ("text",), eta_discrete, ("eta-discrete",)),
        Experiment(
            "efficiency", "Bits per character and spelling accuracy", ("text",), efficiency,
            ("efficiency-sa", "efficiency-bpc"),
        ),
        Experiment("samples", "Random samples side by side", ("images", "text"), samples, beyond=True),
        Experiment("orders", "Error against step size on problems with exact answers", ()),
    )
}  # fmt: skip
"""The experiments of ``bfn reproduce``."""

QUICK = Options(n=100, nfe=(5, 10))
"""Options of ``--quick``."""


def experiment(name: str) -> Experiment:
    """Return an experiment by its name."""
    if name not in EXPERIMENTS:
        hint = "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, EXPERIMENTS, 1))
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
    """Run an experiment, write its report folder, and return the path of report.md.

    Args:
        name: name of the experiment.
        out: folder of the report.
        options: options of all experiments.
        on: kinds of models to run on: bundled models, exact models of real data, a published checkpoint.
        models: names or directories of models to use instead of the bundled ones.
        checkpoint: file of a published checkpoint.
        settings: its configuration, for ``load_official``.
        context: number of symbols before each symbol that the exact model of text uses.
        command: the command line, for the report.
    """
    chosen, options, started = experiment(name), options or Options(), time.perf_counter()
    if "official" in on and checkpoint is None:
        raise UserError("official: needs --checkpoint FILE, a published checkpoint such as text8_ema.pt")
    if options.beyond and not chosen.beyond:
        able = ", ".join(other.name for other in EXPERIMENTS.values() if other.beyond)
        raise UserError(f"--solvers {options.beyond[0]}: {name} has the paper's solvers only; {able} take others")
    for solver in options.beyond or ():
        solvers.get(solver)
    if chosen.run is None:
        options = replace(options, store=None)
        sections = orders(options)
    else:
        judged = _judged_models(chosen, on, models, checkpoint, settings, context)
        sections = [chosen.run(one, options) for one in judged]
    intro = [*chosen.places(options.nfe or ()), *([f"```sh\n{command}\n```"] if command else [])]
    spaced = [line for paragraph in intro for line in (paragraph, "")]
    return write_report(out, chosen.title, spaced[:-1], sections, options, started)


def _judged_models(
    chosen: Experiment,
    on: Sequence[Place],
    models: Sequence[str],
    checkpoint: Path | None,
    settings: str | Mapping[str, Any] | None,
    context: int,
) -> Iterator[JudgedModel]:
    """Yield the models one after the other, since some need much memory."""
    if checkpoint is not None:
        yield judged_model.official(checkpoint, chosen.forms, settings)
    if "bundled" in on:
        for name in models or [name for form in chosen.forms for name in judged_model.BUNDLED[form]]:
            yield judged_model.stored(name, chosen.forms)
    if "exact" in on:
        for form in chosen.forms:
            yield judged_model.exact(form, context)


def _where(remark: printed.Remark) -> str:
    if remark.nfe:
        return f"figure of `{remark.solver}` at {remark.nfe} calls"
    return f"row of `{remark.solver}`" if remark.solver else "table"
