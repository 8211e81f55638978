"""Put a trained run into the package: weights in float16, the classes of its data, and a card with what was measured.

    python tools/bundle.py mnist ~/runs/mnist
    python tools/bundle.py mnist                  # the bundled one measured anew, after a change of the default solver
    python tools/bundle.py digits-1 ~/digits-1 --nfe 1 2 4      # a distilled one: bfn distill digits --out ~/digits-1
    python tools/bundle.py mnist --facts-only     # its config in the present format, with its data's classes

The measures are those of ``bfn compare``: spelling and n-grams of text, the Frechet distance and the classes of images,
at 5 and 10 calls. All for the default solver, the original sampler and a solver of the paper for the kind of data.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

import bfn
from bfn import data, solvers
from bfn.core.conditions import Classes
from bfn.core.info import ModelInfo, Spread
from bfn.data.loading import read_model_data
from bfn.quality.comparison import Record, Setting, measure
from bfn.quality.judge import Judge
from bfn.quality.judge_choice import judge_for
from bfn.training.checkpoints import read_log

BUNDLED = Path(bfn.__file__).parent / "bundled"
PAPER = ({"solver": "bfn-solver2"}, {"solver": "sde-bfn-solver++2", "t_start": 1e-3})
"""The paper's best at few calls; the one that fits the data is measured."""
SEED = 1234


def classes_of_data(info: ModelInfo) -> Classes | None:
    """The model's classes as the training part of its data has them: names, where it has names, and shares."""
    if info.classes is None:
        return None
    images = data.load(str(info.trained_on["name"]), "train")
    if not isinstance(images, data.Images) or images.n_classes != len(info.classes):
        raise SystemExit(f"{info.trained_on['name']}: expected images of {len(info.classes)} classes")
    return Classes(images.class_names or info.classes.names, images.class_shares())


def in_words(judge: Judge, record: Record) -> dict[str, str]:
    """Measures in words, with what real data get beside the main one."""
    words = {of.label: of.show(record.measures[of.key]) for of in judge.measures}
    main = judge.measures[0]
    words[main.label] += f" (real data {main.show(judge.real(record.n)[main.key])})"
    return words


def measured(model: bfn.BFN, n: int, calls: list[int]) -> list[dict[str, Any]]:
    """Every sampler at every number of calls, as the card keeps it."""
    judge = judge_for(model)
    theirs = next(settings for settings in PAPER if settings["solver"] in solvers.names(model.flow.kind))
    rows = []
    # A distilled model predicts ends of paths, which no solver but the tables of its own takes.
    samplers = (
        [{"solver": "auto"}] if "distilled" in model.info.card else [{"solver": "auto"}, {"solver": "bfn"}, theirs]
    )
    for nfe in calls:
        for settings in samplers:
            (record,) = measure(model, [Setting(nfe=nfe, **settings)], judge, n, seed=SEED)
            rows.append({**settings, "nfe": nfe, "samples": n, **in_words(judge, record)})
            print(rows[-1], flush=True)
    return rows


def card_of(model: bfn.BFN, rows: list[dict[str, Any]], run: Path | None, note: str | None) -> dict[str, Any]:
    """The model's card with what was measured; the default solver's figures once more, by what they are."""
    about = ("solver", "nfe", "samples", "t_start")
    card = {**model.info.card, "measured": rows, "seed of the samples": SEED}
    card["quality"] = {
        f"{what} at {row['nfe']} calls": value
        for row in rows if row["solver"] == "auto" for what, value in row.items() if what not in about
    }  # fmt: skip
    if run is not None:
        last = [entry for entry in read_log(run) if entry["kind"] == "eval"][-1]
        card["held-out bits a dimension"] = {key: value for key, value in last.items() if "_bits" in key}
    if note:
        card["note"] = note
    return {**card, "parameters": sum(p.numel() for p in model.parameters())}


def spread_of_data(model: bfn.BFN) -> Spread | None:
    """Return the spread of the training data if they are numbers."""
    real = read_model_data(model, None, "train", 2000)
    return Spread.of(real.x, real.label) if model.flow.has_range else None


def write_facts(name: str) -> Path:
    """The bundled model stored anew in the present format, with the classes and the spread of its data."""
    model = bfn.load(BUNDLED / name)
    model.info.classes, model.info.spread = classes_of_data(model.info), spread_of_data(model)
    return model.save(BUNDLED / name, dtype="float16")


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path, nargs="?", help="a finished run; without it, the bundled model of that name")
    parser.add_argument("--n", type=int, default=500, help="samples for each figure")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nfe", type=int, nargs="+", default=[5, 10], help="numbers of calls to measure at")
    parser.add_argument("--note", help="what a reader of the card should know of the run")
    parser.add_argument("--facts-only", action="store_true", help="measure nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.facts_only:
        print(write_facts(options.name))
        return
    model = bfn.load(options.run or BUNDLED / options.name)
    model.info.classes, model.info.spread = classes_of_data(model.info), spread_of_data(model)
    model.info.card = card_of(model, measured(model, options.n, options.nfe), options.run, options.note)
    folder = model.save(BUNDLED / options.name, dtype="float16")
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
