"""Sample images, text and molecules from the bundled models with the original and with the default solver.

    python examples/demo.py --out demo

For each model, both solvers use the same number of network calls and the same seed. Images are written as one picture
and texts as lines. If a distilled model is bundled (``digits-1`` for ``digits``, ``mnist-1`` for ``mnist``), the script
also shows its samples with one network call.
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
from bfn.quality.molecules import is_of_molecules, report_molecules
from bfn.storage import models as storage
from bfn.viz.pictures import Recorder, lines, molecule_sheet, sheet, side_by_side, write_animation, write_picture

MODELS = ("mnist", "digits", "text8", "qm9")
STUDENTS = {"digits": "digits-1", "mnist": "mnist-1"}
"""Distilled models, by the name of their teacher."""
SOLVERS = {"bfn": "the original sampler, bfn", "auto": "the default, auto"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if at least one model was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the files (default: demo)")
    parser.add_argument("--models", nargs="+", default=MODELS, help="names of bundled models, or folders of models")
    parser.add_argument("--nfe", type=int, default=10, help="number of network calls (default: 10)")
    parser.add_argument("--n", type=int, default=40, help="images for each model; a tenth as many texts (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.n, options.nfe) < 1:
        parser.error(f"--n {options.n} --nfe {options.nfe}: expected at least 1 of each")

    start = time.perf_counter()
    print(f"{options.nfe} network calls, seed {options.seed}; files are written to {options.out}/")
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
        print(f"\nmissing: {', '.join(missing)}; to train one: bfn train --recipe NAME --out DIR, then --models DIR")
    shown = len(options.models) - len(missing)
    print(f"\n{shown} of {len(options.models)} models shown in {time.perf_counter() - start:.1f} s")
    return 0 if shown else 1


def show(name: str, model: BFN, out: Path, nfe: int, n: int, seed: int) -> None:
    """Sample a model with each solver, with the same seed and classes, and write the samples."""
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
    print(f"  wrote {', '.join(map(str, files))} (the last shows samples of auto as they form)")


def draw_molecules(
    name: str, model: BFN, out: Path, captions: Sequence[str], drawn: Sequence[tuple[Tensor, Tensor | None]]
) -> list[Path]:
    """Draw the valid molecules of each solver side by side. Prints a line if RDKit is not installed."""
    sheets = []
    try:
        for caption, (x, present) in zip(captions, drawn, strict=True):
            report = report_molecules(model, x, present, {})
            print(f"  {caption}: {'; '.join(report.lines())}")
            if report.molecules.valid:
                sheets.append((caption, molecule_sheet(report.molecules.valid)))
    except ImportError as error:
        print(f"  molecules are not drawn: {error}")
        return []
    return [write_picture(out / f"{name}.png", side_by_side(sheets, name))] if sheets else []


if __name__ == "__main__":
    sys.exit(main())
