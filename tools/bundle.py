"""Measure a trained run and put it into the package: weights in float16, and a card with what was measured.

    python tools/bundle.py mnist ~/runs/mnist
    python tools/bundle.py mnist                  # the bundled one measured anew, after a change of the default solver

The measures are those of ``bfn compare``: spelling and n-grams of text, the Frechet distance and the classes of images,
at 5 and 10 calls. All for the default solver, the original sampler and a solver of the paper for the kind of data.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

import bfn
from bfn.quality import Judge, Record, Setting, judge_for, measure
from bfn.training import read_log

BUNDLED = Path(bfn.__file__).parent / "bundled"
PAPER: dict[str, dict[str, Any]] = {
    "discrete": {"solver": "bfn-solver2"},
    "continuous": {"solver": "sde-bfn-solver++2", "t_start": 1e-3},
}
SEED = 1234


def verdict_of(judge: Judge, record: Record) -> dict[str, str]:
    """Measures in words, with what real data get beside the main one."""
    verdict = {of.label: of.show(record.measures[of.key]) for of in judge.measures}
    main = judge.measures[0]
    verdict[main.label] += f" (real data {main.show(judge.real(record.n)[main.key])})"
    return verdict


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path, nargs="?", help="a finished run; without it, the bundled model of that name")
    parser.add_argument("--n", type=int, default=500, help="samples for each figure")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nfe", type=int, nargs="+", default=[5, 10], help="numbers of calls to measure at")
    parser.add_argument("--note", help="what a reader of the card should know of the run")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    source = options.run or BUNDLED / options.name
    model = bfn.load(source)
    judge = judge_for(model)
    quality: dict[str, str] = {}
    measured: list[dict[str, Any]] = []
    n = options.n
    for nfe in options.nfe:
        samplers: list[dict[str, Any]] = [{"solver": "auto"}, {"solver": "bfn"}, PAPER[model.flow.kind]]
        for settings in samplers:
            (record,) = measure(model, [Setting(nfe=nfe, **settings)], judge, n, seed=SEED)
            verdict = verdict_of(judge, record)
            measured.append({**settings, "nfe": nfe, "samples": n, **verdict})
            print(measured[-1], flush=True)
            if settings["solver"] == "auto":
                quality |= {f"{what} at {nfe} calls": value for what, value in verdict.items()}
    card = dict(model.info.card)
    if options.run:
        evaluated = [entry for entry in read_log(options.run) if entry["kind"] == "eval"]
        card["held-out bits a dimension"] = {k: v for k, v in evaluated[-1].items() if k.endswith(("bits", "error"))}
    card["quality"], card["measured"] = quality, measured
    card["seed of the samples"] = SEED
    if options.note:
        card["note"] = options.note
    card["parameters"] = sum(p.numel() for p in model.parameters())
    model.info.card = card
    folder = model.save(BUNDLED / options.name, dtype="float16")
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
