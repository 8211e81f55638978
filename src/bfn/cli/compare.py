"""``bfn compare``."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from bfn._utils.pieces import Processes
from bfn._utils.progress import Progress
from bfn.cli.common import (
    BATCH,
    DIRECTORY,
    FILE,
    NAME,
    Counts,
    Data,
    Device,
    ModelName,
    Names,
    Network,
    Seed,
    check_positive,
    load,
    printable,
    shown,
    table,
)
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn.core.model import BFN
    from bfn.quality.comparison import Comparison
    from bfn.quality.measurements import Record, Setting


INTERRUPTED = 130
USUAL_N, MOST_ROWS, TABLE_BATCH = 200, 10_000, 4096
"""Samples where nothing is said: of rows as many as the table had, at most so many; and rows at a time."""
PICTURES = (".png", ".svg", ".pdf")


def compare(
    model: ModelName,
    solvers: Names = (),
    nfe: Counts = (5, 10, 20),
    n: int | None = None,
    t_start: Annotated[tuple[float, ...], arg(metavar="TIME [TIME ...]")] = (),
    g: Annotated[tuple[float, ...], arg(metavar="NUMBER [NUMBER ...]")] = (),
    grid: Annotated[str | None, NAME] = None,
    guidance: Annotated[float | None, arg(metavar="SCALE")] = None,
    metric: Annotated[str | None, NAME] = None,
    data: Data = None,
    train: Annotated[Path | None, FILE] = None,
    features: Annotated[Path | None, FILE] = None,
    repeats: int = 1,
    seed: Seed = 0,
    batch: Annotated[int | None, BATCH] = None,
    json: Annotated[Path | None, FILE] = None,
    markdown: Annotated[Path | None, FILE] = None,
    plot: Annotated[Path | None, FILE] = None,
    store: Annotated[Path | None, FILE] = None,
    blind: Annotated[Path | None, DIRECTORY] = None,
    score: Annotated[Path | None, arg(metavar="ANSWERS")] = None,
    network: Network = None,
    device: Device = "auto",
) -> int:
    """Measure solvers at several numbers of calls on one model, and say which to use.

    All start from the same noise. What is measured is kept: a command that is stopped goes on where it was.

    Example: bfn compare digits --solvers bfn bfn-solver++2 auto --nfe 5 10 20 --n 200 --json quality.json

    Example: bfn compare mnist --solvers bfn-solver++2 sde-bfn-solver++2 --t-start 0.05 0.01 0.001 --plot quality.png

    Example: bfn compare runs/people --data held-out.csv --train people.csv --nfe 10 20 50 --markdown people.md

    On several GPUs or cores: torchrun --nproc_per_node 2 -m bfn -- compare digits --n 1000

    For people to judge: bfn compare mnist --blind pairs --solvers bfn auto --nfe 10 --n 40, and when they have
    answered: bfn compare mnist --blind pairs --score pairs/answers.csv

    Args:
        solvers: their names, which bfn solvers lists; the default, the original and the paper's if left out.
        nfe: numbers of network calls to spend on each sample.
        n: samples for each figure, or pairs to show; 200, or as many rows as a table was trained on, if left out.
        t_start: where the grid starts, the paper's eta: all of these on grids that need one, as the paper's does.
        g: stochasticity, 0 to inf: all of these for solvers that have this dial.
        grid: a grid for all solvers instead of their own, by name as bfn sample takes it.
        guidance: scale by which classes and other conditions count, for models that have some.
        metric: table, molecules, text, mnist, pixels, inception or values; the one that fits the model's data if left
            out.
        train: of a table, the rows that the model was trained on; --data are then rows that it has not seen.
        features: TorchScript file of Inception for that metric, instead of the installed one; its code is run.
        repeats: seeds to measure with; intervals are then those of the mean over them.
        json: write everything that was measured there.
        markdown: write the tables there.
        plot: write a picture of the main measure there, .png, .svg or .pdf.
        store: what was measured is taken from this file and added to it; one in the cache if left out.
        blind: write shuffled pairs of two solvers' samples there, for people to judge; the key is kept beside it.
        score: count the answers of people.
    """
    from bfn import quality

    if score is not None:
        from bfn.quality import blind as pairs

        print(pairs.score(score, pairs.key_path(blind or score.parent)).sentence())
        return 0
    check_positive(n=n, repeats=repeats, batch=batch)
    for option, path in {"json": json, "markdown": markdown, "plot": plot}.items():
        if path is not None and path.is_dir():  # told before an hour of measuring, not after
            raise UserError(f"--{option} {path}: is a directory: expected a file")
    if plot is not None:
        if plot.suffix not in PICTURES:
            raise UserError(f"--plot {plot}: expected a .png, .svg or .pdf file")
        import matplotlib  # noqa: F401  told if it is missing before hours of measuring, not after
    source = load(model, device, network)
    is_table = source.info.columns is not None
    batch = batch or (TABLE_BATCH if is_table else 100)
    if guidance is not None and source.info.classes is None and not source.info.conditions:
        raise UserError(f"--guidance {guidance:g}: this model knows no classes nor other conditions; leave it out")
    settings = quality.crossed(
        source.flow, solvers or quality.USUAL[source.flow.kind], nfe, t_start=t_start, g=g, grid=grid, guidance=guidance
    )
    if blind is not None:
        _write_pairs(source, settings, blind, n or USUAL_N, seed, batch)
        return 0
    if train is not None and not is_table:
        raise UserError(f"--train {train}: only tables are judged beside their training rows; leave it out")
    judge = quality.judge_for(source, metric, data, features=features, n=n or USUAL_N, train=train)
    n = n or (min(MOST_ROWS, int(source.info.card.get("rows", MOST_ROWS))) if is_table else USUAL_N)
    # A metric that was not asked for leaves out what n samples are too few for.
    judge, problems = (judge, []) if metric is not None else judge.suited(n)
    notes = [f"{problem}; it is left out" for problem in problems]
    for note in notes:
        print(printable(f"bfn: warning: {note}"), file=sys.stderr)
    kept = store or quality.default_store()
    records: list[Record] = []
    try:
        comparison = quality.compare(
            source, settings, judge, n, name=model, notes=notes, store=kept, repeats=repeats, seed=seed, batch=batch,
            progress=shown(), processes=Processes.here(), on_record=records.append,
        )  # fmt: skip
    except KeyboardInterrupt:
        left = f"{len(records)} of {len(settings)} settings are measured and kept in {kept}"
        print(f"bfn: interrupted: {left}; the same command goes on from there", file=sys.stderr)
        if records:
            _report(quality.summarise(records, judge, n, name=model, notes=notes), json, markdown, plot)
        return INTERRUPTED
    if Processes.here().main:
        _report(comparison, json, markdown, plot)
    return 0


def _write_pairs(model: BFN, settings: list[Setting], folder: Path, n: int, seed: int, batch: int) -> None:
    """Draw samples of two settings and write them as shuffled pairs for people to judge."""
    from bfn.quality import blind
    from bfn.quality.measurements import draw

    blind.check_pairs(folder, model, settings)
    with Progress(sum(setting.nfe for setting in settings) * n, "sampling", "call", shown()) as bar:
        samples = [draw(model, setting, n, seed, batch, on_calls=bar.update).x for setting in settings]
    blind.write_pairs(folder, model, settings, samples, seed=seed)
    print(
        f"{n} pairs written to {folder}: read pairs.md, fill in answers.csv, then bfn compare ... --blind {folder} "
        f"--score {folder / 'answers.csv'}; the key, not to be looked at before, is {blind.key_path(folder)}"
    )


def _report(comparison: Comparison, json: Path | None, markdown: Path | None, plot: Path | None) -> None:
    """Print tables, the main measure with its intervals, and the advice; write what is asked for."""
    from bfn import viz
    from bfn._utils.files import atomic_write

    main = comparison.main
    for of in comparison.measures:
        print(f"{of.label}\n{table(*comparison.cells(of, intervals=of == main))}\n")
    print(f"best by {main.label} (95 % intervals):")
    for advice in comparison.advice:
        print(f"  {advice.sentence(main)}")
    if json is not None:
        atomic_write(json, json_format.dumps(comparison.asdict(), indent=2) + "\n")
    if markdown is not None:
        atomic_write(markdown, comparison.markdown())
    if plot is not None:
        viz.save(viz.quality(comparison.records, main, real=comparison.real[main.key]), plot)
    written = [str(path) for path in (json, markdown, plot) if path is not None]
    if written:
        print(f"\nwritten to {', '.join(written)}")
