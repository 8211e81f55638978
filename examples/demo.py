"""Images, text and molecules from the bundled models: the original sampler beside the default, at as many calls.

    python examples/demo.py --out demo

For each model two sets of samples from the same seed are drawn, and written as one picture (images) or as lines (text);
a third, of one call, where the model has a bundled student: ``digits-1`` of ``digits``, ``mnist-1`` of ``mnist``.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

import bfn
from bfn._utils.files import atomic_write
from bfn.core.model import BFN
from bfn.quality.molecule_report import is_of_molecules, report_molecules
from bfn.storage import models as storage
from bfn.viz.pictures import Recorder, lines, molecule_sheet, sheet, side_by_side, write_animation, write_picture

MODELS = ("mnist", "digits", "text8", "qm9")
STUDENTS = {"digits": "digits-1", "mnist": "mnist-1"}
"""Distilled models, by the model they learned from."""
SOLVERS = {"bfn": "the original sampler, bfn", "auto": "the default, auto"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if at least one model was there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the files (default: demo)")
    parser.add_argument("--models", nargs="+", default=MODELS, help="bundled models or directories of models")
    parser.add_argument("--nfe", type=int, default=10, help="network calls a sample (default: 10)")
    parser.add_argument("--n", type=int, default=40, help="images a model; of text a tenth of it (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.n, options.nfe) < 1:
        parser.error(f"--n {options.n} --nfe {options.nfe}: expected at least 1 of each")

    start = time.perf_counter()
    print(f"{options.nfe} network calls a sample, seed {options.seed}; the files go to {options.out}/")
    missing = []
    for name in options.models:
        try:
            model = bfn.load(name)
        except storage.StorageError as error:
            print(f"\n{name}: MISSING: {error}")
            missing.append(name)
        else:
            show(Path(name).name, model, options.out, options.nfe, options.n, options.seed)
    if missing:
        print(f"\nmissing: {', '.join(missing)}; bfn train --recipe NAME --out DIR trains one, --models DIR shows it")
    shown = len(options.models) - len(missing)
    print(f"\n{shown} of {len(options.models)} models shown in {time.perf_counter() - start:.1f} s")
    return 0 if shown else 1


def show(name: str, model: BFN, out: Path, nfe: int, n: int, seed: int) -> None:
    """Sample one model with each solver, the same seed and classes, and write what came out."""
    text, classes = model.form == "text", model.info.classes
    n = max(1, n // 10) if text else n
    molecules = is_of_molecules(model)
    n = 3 * n if molecules else n
    label = None if classes is None else classes.in_turn(n)
    drawn, captions, recorder = [], [], None
    print(f"\n{name}: {n} samples of shape {tuple(model.data_shape)}")
    runs = [(words, model, solver, nfe) for solver, words in SOLVERS.items()]
    if name in STUDENTS:
        runs.insert(1, (f"distilled, {STUDENTS[name]}", bfn.load(STUDENTS[name]), "auto", 1))
    for words, source, solver, calls in runs:
        recorder = Recorder(source, 4 if text else 16)
        start = time.perf_counter()
        samples = source.sample(n, solver, calls, label=label, seed=seed, on_step=recorder)
        drawn.append((samples.x, samples.present))
        recorder.present = samples.present
        captions.append(f"{words}: {samples.nfe} call{'s' if samples.nfe > 1 else ''}")
        print(f"  {captions[-1]}, {time.perf_counter() - start:.2f} s")

    files = []
    if text:
        shown = []
        for caption, (x, present) in zip(captions, drawn, strict=True):
            shown += [caption, *(f"  {line}" for line in lines(model, x, present)), ""]
        print("\n" + "\n".join(shown))
        atomic_write(out / f"{name}.txt", "\n".join(shown))
        files.append(out / f"{name}.txt")
        files += draw_molecules(name, model, out, captions, drawn) if molecules else []
    else:
        columns = None if classes is None else len(classes)
        sheets = [
            (caption, sheet(model.flow.values(x), columns)) for caption, (x, _) in zip(captions, drawn, strict=True)
        ]
        files.append(write_picture(out / f"{name}.png", side_by_side(sheets, name)))
    files.append(write_animation(out / f"{name}-forming.gif", recorder.frames()))
    print(f"  wrote {', '.join(map(str, files))} (the last: how samples of auto form)")


def draw_molecules(
    name: str, model: BFN, out: Path, captions: Sequence[str], drawn: Sequence[tuple[Tensor, Tensor | None]]
) -> list[Path]:
    """The valid molecules of each solver side by side; only a line where RDKit is not installed."""
    sheets = []
    try:
        for caption, (x, present) in zip(captions, drawn, strict=True):
            report = report_molecules(model, x, present, {})
            print(f"  {caption}: {'; '.join(report.lines())}")
            if report.molecules.valid:
                sheets.append((caption, molecule_sheet(report.molecules.valid)))
    except ImportError as error:
        print(f"  not drawn, not judged: {error}")
        return []
    return [write_picture(out / f"{name}.png", side_by_side(sheets, name))] if sheets else []


if __name__ == "__main__":
    sys.exit(main())
