"""``bfn compare``."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from bfn.cli.common import Device, Loaded, ModelName, Seed, check_positive, load, table
from bfn.errors import UserError

if TYPE_CHECKING:
    from bfn.paper import Judge, Record, Setting
    from bfn.quality.compare import Comparison

INTERRUPTED = 130
FILE = arg(metavar="FILE")


def compare(
    model: ModelName,
    solvers: Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]")] = (),
    nfe: Annotated[tuple[int, ...], arg(metavar="N [N ...]")] = (5, 10, 20),
    n: int = 200,
    t_start: Annotated[tuple[float, ...], arg(metavar="TIME [TIME ...]")] = (),
    g: Annotated[tuple[float, ...], arg(metavar="NUMBER [NUMBER ...]")] = (),
    grid: Annotated[str | None, arg(metavar="NAME")] = None,
    guidance: Annotated[float | None, arg(metavar="SCALE")] = None,
    metric: Annotated[str | None, arg(metavar="NAME")] = None,
    data: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    features: Annotated[Path | None, FILE] = None,
    repeats: int = 1,
    seed: Seed = 0,
    batch: int = 100,
    json: Annotated[Path | None, FILE] = None,
    markdown: Annotated[Path | None, FILE] = None,
    plot: Annotated[Path | None, FILE] = None,
    store: Annotated[Path | None, FILE] = None,
    blind: Annotated[Path | None, arg(metavar="DIR")] = None,
    score: Annotated[Path | None, arg(metavar="ANSWERS")] = None,
    device: Device = "auto",
) -> int:
    """Measure solvers at several numbers of calls on one model, and say which to use.

    All start from the same noise. What is measured is kept: a command that is stopped goes on where it was.

    Example: bfn compare digits --solvers bfn bfn-solver++2 auto --nfe 5 10 20 --n 200 --json quality.json

    Example: bfn compare mnist --solvers bfn-solver++2 sde-bfn-solver++2 --t-start 0.05 0.01 0.001 --plot quality.png

    For people to judge: bfn compare mnist --blind pairs --solvers bfn auto --nfe 10 --n 40, and when they have
    answered: bfn compare mnist --blind pairs --score pairs/answers.csv

    Args:
        solvers: their names, which bfn solvers lists; the default, the original and the paper's if left out.
        nfe: numbers of network calls to spend on each sample.
        n: samples for each figure; or pairs to show.
        t_start: where the grid starts, the paper's eta: all of these on grids that need one, as the paper's does.
        g: stochasticity, 0 to inf: all of these for solvers that have this dial.
        grid: a grid for all solvers instead of their own, by name as bfn sample takes it.
        guidance: scale by which the classes count, for class-conditional models.
        metric: text, mnist, pixels, inception or values; the one that fits the model's data if left out.
        data: real data to compare with: a standard set or a path; the set that the model was trained on if left out.
        features: TorchScript file of Inception for that metric, instead of the installed one; its code is run.
        repeats: seeds to measure with; intervals are then those of the mean over them.
        batch: samples that are drawn at a time.
        json: write everything that was measured there.
        markdown: write the tables there.
        plot: write a picture of the main measure there, .png, .svg or .pdf.
        store: what was measured is taken from this file and added to it; one in the cache if left out.
        blind: write shuffled pairs of two solvers' samples there, for people to judge; the key is kept beside it.
        score: count the answers of people.
    """
    if score is not None:
        return _score(score, blind)
    check_positive(n=n, repeats=repeats, batch=batch)
    _check_files(json, markdown, plot)
    loaded = load(model, device)
    settings = _settings(loaded, solvers, nfe, t_start, g, grid, guidance)
    if blind is not None:
        return _blind(loaded, settings, blind, n, seed, batch)
    judge, notes = _judge(loaded, metric, data, features, n)
    for note in notes:
        print(f"bfn: warning: {note}; it is left out", file=sys.stderr)
    options = {"repeats": repeats, "seed": seed, "batch": batch, "n_labels": loaded.n_labels, "progress": True}
    comparison, done = _measure(loaded, settings, judge, n, model, notes, store, options)
    if comparison is not None:
        print(_report(comparison))
        _write(comparison, json, markdown, plot)
    return 0 if done else INTERRUPTED


def _check_files(json: Path | None, markdown: Path | None, plot: Path | None) -> None:
    """Tell before an hour of measuring what could not be written after it."""
    for name, path in (("json", json), ("markdown", markdown), ("plot", plot)):
        if path is not None and path.is_dir():
            raise UserError(f"--{name} {path}: is a directory: expected a file")
    if plot is not None:
        if plot.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"--plot {plot}: expected a .png, .svg or .pdf file")
        import matplotlib  # noqa: F401  told before hours of measuring, not after


def _settings(
    loaded: Loaded, names: tuple[str, ...], nfe: tuple[int, ...], t_start: tuple[float, ...], g: tuple[float, ...],
    grid: str | None, guidance: float | None,
) -> list[Setting]:  # fmt: skip
    from bfn.quality.compare import USUAL, crossed

    if guidance is not None and not loaded.n_labels:
        raise UserError(f"--guidance {guidance:g}: this model knows no classes; leave it out")
    flow = loaded.model.flow
    settings = crossed(flow, names or USUAL[flow.kind], nfe, t_start=t_start, g=g, grid=grid, guidance=guidance)
    for setting in settings:
        setting.table_key(loaded.model)
    return settings


def _judge(
    loaded: Loaded, metric: str | None, data: str | None, features: Path | None, n: int
) -> tuple[Judge, list[str]]:
    """The judge; one that was not asked for leaves out what n samples are too few for."""
    from bfn.paper import judge_for

    judge = judge_for(loaded.model, loaded.config, metric, data, features=features, n=n)
    if metric is None:
        return judge.suited(n)
    judge.check(n)
    return judge, []


def _measure(
    loaded: Loaded, settings: list[Setting], judge: Judge, n: int, name: str, notes: list[str], store: Path | None,
    options: dict[str, Any],
) -> tuple[Comparison | None, bool]:  # fmt: skip
    """The comparison, and whether it is whole; after an interrupt, that of the settings that were finished."""
    from bfn.paper import default_store
    from bfn.quality.compare import summarise
    from bfn.quality.measuring import measure

    kept = store or default_store()
    records: list[Record] = []
    try:
        measure(loaded.model, settings, judge, n, store=kept, on_record=records.append, **options)
    except KeyboardInterrupt:
        left = f"{len(records)} of {len(settings)} settings are measured and kept in {kept}"
        print(f"bfn: interrupted: {left}; the same command goes on from there", file=sys.stderr)
        if not records:
            return None, False
    comparison = summarise(records, judge, n, name=name, notes=[f"{note}; it is left out" for note in notes])
    return comparison, len(records) == len(settings)


def _report(comparison: Comparison) -> str:
    """Tables for people, the main measure with its intervals, and the advice."""
    main = comparison.main
    parts = []
    for of in comparison.measures:
        header, rows = comparison.cells(of, intervals=of == main)
        parts.append(f"{of.label}\n{table(header, rows)}")
    advice = "\n".join(f"  {advice.sentence(main)}" for advice in comparison.advice)
    return "\n\n".join([*parts, f"best by {main.label} (95 % intervals):\n{advice}"])


def _write(comparison: Comparison, json: Path | None, markdown: Path | None, plot: Path | None) -> None:
    from bfn.files import atomic, atomic_write

    if json is not None:
        atomic_write(json, json_format.dumps(comparison.asdict(), indent=2) + "\n")
    if markdown is not None:
        atomic_write(markdown, comparison.markdown())
    if plot is not None:
        from bfn.viz import quality

        axes = quality(comparison.records, comparison.main, real=comparison.real[comparison.main.key])
        figure = axes.get_figure(root=True)
        with atomic(plot) as temporary:
            if figure is not None:
                figure.savefig(temporary, format=plot.suffix[1:])
    written = [str(path) for path in (json, markdown, plot) if path is not None]
    if written:
        print(f"\nwritten to {', '.join(written)}")


def _blind(loaded: Loaded, settings: list[Setting], folder: Path, n: int, seed: int, batch: int) -> int:
    from bfn.cli.common import progress_bar
    from bfn.quality.blind import key_path, write_pairs
    from bfn.quality.measuring import clip_for, draw

    if len(settings) != 2:
        raise UserError(f"--blind: {len(settings)} settings: give two solvers and one --nfe, or one solver at two")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--blind {folder}: exists and is not an empty folder; give another")
    if loaded.form == "numbers":
        raise UserError(f"--blind: samples of shape {loaded.model.data_shape} are neither images nor text")
    clip = clip_for(loaded.model)
    with progress_bar(sum(s.nfe for s in settings) * n, "sampling", "call") as bar:
        samples = [
            draw(loaded.model, setting, n, seed, batch, loaded.n_labels, clip, bar.update)[0] for setting in settings
        ]
    write_pairs(folder, settings, samples, seed=seed, alphabet=loaded.alphabet, levels=loaded.levels)
    print(
        f"{n} pairs written to {folder}: read pairs.md, fill in answers.csv, then bfn compare ... --blind {folder} "
        f"--score {folder / 'answers.csv'}; the key, not to be looked at before, is {key_path(folder)}"
    )
    return 0


def _score(answers: Path, folder: Path | None) -> int:
    from bfn.quality.blind import key_path, score

    print(score(answers, key_path(folder or answers.parent)).sentence())
    return 0
