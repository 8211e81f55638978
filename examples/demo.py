"""Images and text from the bundled models: the original sampler beside the default one, at the same number of calls.

    python examples/demo.py --out demo

For each model two rows of samples from the same seed are drawn, and written as one picture (images) or as lines (text).
"""

import argparse
import sys
import time
from pathlib import Path

import torch

from bfn import render, storage
from bfn.files import atomic_write

MODELS = ("mnist", "digits", "text8")
SOLVERS = {"bfn": "the original sampler, bfn", "auto": "the default, auto"}


def main() -> int:
    """Run the demo; 0 if at least one model was there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the files (default: demo)")
    parser.add_argument("--models", nargs="+", default=MODELS, help="bundled models or directories of models")
    parser.add_argument("--nfe", type=int, default=10, help="network calls a sample (default: 10)")
    parser.add_argument("--n", type=int, default=40, help="images a model; of text a tenth of it (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if min(options.n, options.nfe) < 1:
        parser.error(f"--n {options.n} --nfe {options.nfe}: expected at least 1 of each")

    start = time.perf_counter()
    print(f"{options.nfe} network calls a sample, seed {options.seed}; the files go to {options.out}/")
    missing = []
    for name in options.models:
        try:
            storage.locate(name)
        except storage.StorageError:
            missing.append(name)
        else:
            show(name, options.out, options.nfe, options.n, options.seed)
    if missing:
        print(f"\nnot there: {', '.join(missing)} (bundled: {', '.join(storage.bundled()) or 'none'}); ")
        print("bfn train --recipe NAME --out DIR trains one, --models DIR shows it")
    print(f"\n{len(options.models) - len(missing)} models in {time.perf_counter() - start:.1f} s")
    return 0 if len(missing) < len(options.models) else 1


def show(name: str, out: Path, nfe: int, n: int, seed: int) -> None:
    """Sample one model with each solver, the same seed and classes, and write what came out."""
    model, config = storage.load(name), storage.read_config(name)
    alphabet, n_labels, stem = config["alphabet"], config["n_labels"], Path(name).name
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
        files.append(render.write_picture(out / f"{stem}.png", render.side_by_side(pictures, stem)))
    else:
        lines = []
        for caption, x in zip(captions, drawn, strict=True):
            lines += [caption, *(f"  {line}" for line in render.lines(x, alphabet)), ""]
        print("\n" + "\n".join(lines))
        atomic_write(out / f"{stem}.txt", "\n".join(lines))
        files.append(out / f"{stem}.txt")
    files.append(render.write_animation(out / f"{stem}-forming.gif", recorder.frames()))
    print(f"  wrote {', '.join(map(str, files))} (the last: how samples of auto form)")


if __name__ == "__main__":
    sys.exit(main())
