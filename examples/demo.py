"""Images and text from the bundled models: the original sampler beside the default one, at the same number of calls.

    python examples/demo.py --out demo

For each model two rows of samples from the same seed are drawn, and written as one picture (images) or as lines (text).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import bfn
from bfn import BFN, storage
from bfn.files import atomic_write
from bfn.viz import pictures as render

MODELS = ("mnist", "digits", "text8")
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
            model, config = bfn.load(name), storage.read_config(name)
        except storage.StorageError as error:
            print(f"\n{name}: MISSING: {error}")
            missing.append(name)
        else:
            show(Path(name).name, model, config, options.out, options.nfe, options.n, options.seed)
    if missing:
        print(f"\nmissing: {', '.join(missing)}; bfn train --recipe NAME --out DIR trains one, --models DIR shows it")
    shown = len(options.models) - len(missing)
    print(f"\n{shown} of {len(options.models)} models shown in {time.perf_counter() - start:.1f} s")
    return 0 if shown else 1


def show(name: str, model: BFN, config: dict[str, Any], out: Path, nfe: int, n: int, seed: int) -> None:
    """Sample one model with each solver, the same seed and classes, and write what came out."""
    alphabet, n_labels = config["alphabet"], config["n_labels"]
    n = n if alphabet is None else max(1, n // 10)
    label = torch.arange(n) % n_labels if n_labels else None
    drawn, captions, recorder = [], [], None
    print(f"\n{name}: {n} samples of shape {tuple(model.data_shape)}")
    for solver, words in SOLVERS.items():
        recorder = render.Recorder(model.flow, 4 if alphabet else 16, alphabet)
        generator = torch.Generator().manual_seed(seed)
        start = time.perf_counter()
        samples = model.sample(n, solver, nfe, label=label, generator=generator, on_step=recorder)
        drawn.append(samples.x)
        captions.append(f"{words}: {samples.nfe} calls")
        print(f"  {captions[-1]}, {time.perf_counter() - start:.2f} s")

    files = []
    if alphabet is None:
        levels = getattr(model.flow, "n_classes", None)
        columns = n_labels or None
        pictures = [(caption, render.sheet(x, levels, columns)) for caption, x in zip(captions, drawn, strict=True)]
        files.append(render.write_picture(out / f"{name}.png", render.side_by_side(pictures, name)))
    else:
        lines = []
        for caption, x in zip(captions, drawn, strict=True):
            lines += [caption, *(f"  {line}" for line in render.lines(x, alphabet)), ""]
        print("\n" + "\n".join(lines))
        atomic_write(out / f"{name}.txt", "\n".join(lines))
        files.append(out / f"{name}.txt")
    files.append(render.write_animation(out / f"{name}-forming.gif", recorder.frames()))
    print(f"  wrote {', '.join(map(str, files))} (the last: how samples of auto form)")


if __name__ == "__main__":
    sys.exit(main())
