"""The command ``bfn compare``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

import bfn
from bfn.cli import INTERRUPTED, common, complain
from bfn.core.errors import UserError
from bfn.core.registry import registry

if TYPE_CHECKING:
    from bfn.quality import Comparison, Judge, Record, Setting


DEFAULT_N = 200
"""Number of samples, except for rows of a table."""
MOST_ROWS = 10_000
"""Maximum number of rows that are drawn by default: as many as the model was trained on."""
TABLE_BATCH = 4096
PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Files:
    """Files for the results.

    Args:
        json: file for all measurements.
        markdown: file for the tables.
        plot: file for a plot of the main measure, .png, .svg or .pdf.
    """

    json: Annotated[Path | None, common.FILE] = None
    markdown: Annotated[Path | None, common.FILE] = None
    plot: Annotated[Path | None, common.FILE] = None

    def check(self) -> None:
        """Raise an error for files that cannot be written, before anything is measured."""
        for option, path in vars(self).items():
            if path is not None and path.is_dir():
                raise UserError(f"--{option} {path}: is a directory: expected a file")
        if self.plot is not None:
            if self.plot.suffix not in PICTURES:
                raise UserError(f"--plot {self.plot}: expected a .png, .svg or .pdf file")
            import matplotlib  # noqa: F401  reports a missing package

    def write(self, comparison: Comparison) -> None:
        """Print the tables, the main measure with its intervals and the advice, and write the files."""
        from bfn import viz
        from bfn._utils.files import atomic_write

        main = comparison.main
        for measure in comparison.measures:
            rows = common.table(*comparison.cells(measure, intervals=measure == main))
            print(f"{measure.label}\n{rows}\n")
        print(f"best by {main.label} (95 % intervals):")
        for advice in comparison.advice:
            print(f"  {advice.sentence(main)}")
        if self.json is not None:
            atomic_write(self.json, json.dumps(comparison.asdict(), indent=2) + "\n")
        if self.markdown is not None:
            atomic_write(self.markdown, comparison.markdown())
        if self.plot is not None:
            viz.save(viz.quality(comparison.records, main, real=comparison.real[main.key]), self.plot)
        written = [path for path in vars(self).values() if path is not None]
        if written:
            print(f"\n{common.written_to(written)}")


NO_FILES = Files()


def compare(
    model: common.ModelName,
    solvers: common.Names = (),
    nfe: common.Counts = (5, 10, 20),
    n: int | None = None,
    t_start: Annotated[tuple[float, ...], arg(metavar="TIME [TIME ...]")] = (),
    g: Annotated[tuple[float, ...], arg(metavar="NUMBER [NUMBER ...]")] = (),
    grid: Annotated[str | None, common.NAME] = None,
    guidance: Annotated[float | None, arg(metavar="SCALE")] = None,
    metric: Annotated[str | None, common.NAME] = None,
    data: common.Data = None,
    train: Annotated[Path | None, common.FILE] = None,
    features: Annotated[Path | None, common.FILE] = None,
    repeats: int = 1,
    seed: common.Seed = 0,
    batch: Annotated[int | None, common.BATCH] = None,
    files: Files = NO_FILES,
    store: Annotated[Path | None, common.FILE] = None,
    blind: Annotated[Path | None, common.DIRECTORY] = None,
    score: Annotated[Path | None, arg(metavar="ANSWERS")] = None,
    network: common.Network = None,
    device: common.Device = "auto",
) -> int:
    """Measure solvers at several numbers of calls on a model, and recommend one.

    All solvers start from the same noise. Measurements are stored, so a stopped command continues where it was.

    Example: bfn compare digits --solvers bfn bfn-solver++2 auto --nfe 5 10 20 --n 200 --json quality.json

    Example: bfn compare mnist --solvers bfn-solver++2 sde-bfn-solver++2 --t-start 0.05 0.01 0.001 --plot quality.png

    Example: bfn compare runs/people --data held-out.csv --train people.csv --nfe 10 20 50 --markdown people.md

    On several GPUs or cores: torchrun --nproc_per_node 2 -m bfn -- compare digits --n 1000

    A blind study for people: bfn compare mnist --blind pairs --solvers bfn auto --nfe 10 --n 40, and after they have
    answered: bfn compare mnist --blind pairs --score pairs/answers.csv

    Args:
        solvers: names of solvers, see bfn solvers; by default auto, the original sampler and those of the paper.
        nfe: numbers of network calls per sample.
        n: samples per figure, or pairs of a blind study; by default 200, for tables the number of training rows.
        t_start: starts of the grid (the paper's eta), all of them for solvers on a grid that needs one.
        g: stochasticities from 0 to inf, all of them for solvers with this dial.
        grid: grid for all solvers instead of their own, as for bfn sample.
        guidance: scale of classes and other conditions, for models that have some.
        metric: table, molecules, text, mnist, pixels, inception, values, or second (the second judge, which no solver
            was tuned on); by default the one that fits the model's data.
        train: for a table, the rows that the model was trained on; --data are then held-out rows.
        features: TorchScript file of Inception for that metric, instead of the installed one; its code is run.
        repeats: number of seeds; the intervals are then those of the mean over seeds.
        store: file that measurements are read from and added to; by default one in the cache.
        blind: directory for shuffled pairs of two solvers' samples, for people to judge; the key is stored beside it.
        score: file of people's answers to count.
    """
    from bfn import quality
    from bfn._utils.pieces import Processes

    if score is not None:
        print(registry("study").find("score")(score, blind))
        return 0
    common.check_positive(n=n, repeats=repeats, batch=batch)
    files.check()
    source = common.load(model, device, network)
    batch = batch or (TABLE_BATCH if common.is_table(source) else 100)
    _check_guidance(source, guidance)
    settings = quality.crossed(
        source.flow, solvers or _default_solvers(source), nfe, t_start=t_start, g=g, grid=grid, guidance=guidance
    )
    if blind is not None:
        print(registry("study").find("write")(source, settings, blind, n or DEFAULT_N, seed, batch, common.shown()))
        return 0
    judge, n, notes = _judge(source, metric, data, features, train, n)
    options: dict[str, Any] = {
        "name": model, "notes": notes, "store": store or quality.default_store(), "repeats": repeats, "seed": seed,
        "batch": batch, "progress": common.shown(), "processes": Processes.here(),
    }  # fmt: skip
    comparison, exit_code = _measure(source, settings, judge, n, options)
    if comparison is not None and Processes.here().main:
        files.write(comparison)
    return exit_code


def _default_solvers(model: bfn.BFN) -> Sequence[str]:
    """Return the names of the solvers that are compared by default."""
    from bfn import quality

    part, *others = model.flow.parts.values()
    return quality.USUAL["joint" if others else part.kind]


def _check_guidance(model: bfn.BFN, guidance: float | None) -> None:
    """Raise a UserError for guidance of a model without conditions."""
    if guidance is not None and model.info.classes is None and not model.info.conditions:
        raise UserError(f"--guidance {guidance:g}: this model knows no classes nor other conditions; leave it out")


def _judge(
    model: bfn.BFN, metric: str | None, data: str | None, features: Path | None, train: Path | None, n: int | None
) -> tuple[Judge, int, list[str]]:
    """Return the judge, the number of samples, and notes on measures that are left out."""
    from bfn import quality

    of_rows = common.is_table(model)
    if train is not None and not of_rows:
        raise UserError(f"--train {train}: only tables are judged beside their training rows; leave it out")
    judge = quality.judge_for(model, metric, data, features=features, n=n or DEFAULT_N, train=train)
    n = n or (min(MOST_ROWS, int(model.info.card.get("rows", MOST_ROWS))) if of_rows else DEFAULT_N)
    if metric is not None:
        return judge, n, []
    judge, problems = judge.suited(n)  # the default metric leaves out measures that need more than n samples
    notes = [f"{problem}; it is left out" for problem in problems]
    for note in notes:
        complain(f"warning: {note}")
    return judge, n, notes


def _measure(
    model: bfn.BFN, settings: list[Setting], judge: Judge, n: int, options: dict[str, Any]
) -> tuple[Comparison | None, int]:
    """Compare the settings. Returns the comparison, after an interrupt of what is measured, and the exit code."""
    from bfn import quality

    records: list[Record] = []
    try:
        return quality.compare(model, settings, judge, n, on_record=records.append, **options), 0
    except KeyboardInterrupt:
        done = f"{len(records)} of {len(settings)} settings are measured and kept in {options['store']}"
        complain(f"interrupted: {done}; the same command goes on from there")
    if not records:
        return None, INTERRUPTED
    return quality.summarise(records, judge, n, name=options["name"], notes=options["notes"]), INTERRUPTED
