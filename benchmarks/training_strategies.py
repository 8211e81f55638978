"""Compare ways to train with the paper's setting: 8 x 8 digits, one network, one number of steps.

    python benchmarks/training_strategies.py [--steps N] [--seeds 0 1] [--only NAME ...] [--out DIR] [--page FILE]

Each strategy is the recipe `digits` with another head, weighting or optimiser. Measured are the Frechet distance in
pixel space (64 dimensions) of class-conditional samples from all real digits, the share of samples that a
nearest-neighbour classifier assigns to the requested class, and the continuous-time bound on held-out digits. Finished
trainings and measurements are not repeated, and interrupted trainings are continued. Writes results.json and results.md
into DIR; with --page docs/training.md, puts the table into that page, between its marks.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

import bfn
from bfn import data, training
from bfn._utils.estimate import share_estimate
from bfn._utils.files import atomic_write
from bfn.likelihood.bits import bits_estimate
from bfn.quality.comparison import markdown_table
from bfn.quality.frechet import FeatureStatistics, expected_bias, frechet_distance, frechet_estimate

EDM = {"name": "edm", "mean": -1.2, "std": 1.2}
STRATEGIES: dict[str, dict[str, Any]] = {
    "paper": {"head": "noise", "weighting": "bound"},
    "importance": {"head": "noise", "weighting": "importance"},
    "data-min-snr": {"head": "data", "weighting": "min-snr"},
    "noise-min-snr": {"head": "noise", "weighting": "min-snr"},
    "preconditioned-bound": {"head": "preconditioned", "weighting": "bound"},
    "preconditioned-edm": {"head": "preconditioned", "weighting": EDM},
    "preconditioned-edm-muon": {"head": "preconditioned", "weighting": EDM, "optimiser": "muon"},
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "bfn-solver++2": {"solver": "bfn-solver++2", "t_start": 1e-2},
    "auto": {"solver": "auto"},
}
MARKS = ("<!-- strategies -->\n", "<!-- end of strategies -->\n")
N_SPLITS = 50
N_BOUNDS = 32


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digits(*parts: data.Part) -> tuple[Tensor, Tensor]:
    """Parts of the digits, (n, 1, 8, 8) in [-1, 1], and their classes."""
    loaded = [data.load("digits", part) for part in parts]
    return torch.cat([part.to_float() for part in loaded]), torch.cat([part.labels for part in loaded])


def real_digits() -> tuple[Tensor, Tensor]:
    """All digits, (n, 64), and their classes."""
    x, label = digits("all")
    return x.flatten(1), label


def classifier() -> KNeighborsClassifier:
    return KNeighborsClassifier(n_neighbors=3)


def reference(n_samples: int) -> dict[str, Any]:
    """Measure real digits in the same way."""
    x, label = real_digits()
    draw, half = generator(0), len(x) // 2
    splits = []
    for _ in range(N_SPLITS):
        order = torch.randperm(len(x), generator=draw)
        splits.append(frechet_distance(x[order[:half]], x[order[half:]]))
    covariance = FeatureStatistics.of(x).covariance
    distances = torch.tensor(splits, dtype=torch.float64)
    return {
        "n_real": len(x),
        "half_against_half": float(distances.mean()),
        "half_against_half_std": float(distances.std()),
        "n_half": half,
        "n_splits": N_SPLITS,
        "expected_bias_halves": expected_bias(covariance, half, len(x) - half),
        "expected_bias_samples": expected_bias(covariance, n_samples, len(x)),
        "classifier_cross_validated": float(cross_val_score(classifier(), x.numpy(), label.numpy(), cv=10).mean()),
    }


def bound_bits(model: bfn.BFN) -> dict[str, float | None]:
    """The continuous-time bound on held-out digits, bits a dimension; its error is that of times and noise."""
    x, label = digits("validation", "test")
    draw = generator(1)
    with torch.no_grad():
        nats = torch.stack([model.loss(x, generator=draw, label=label).mean() for _ in range(N_BOUNDS)])
    return {**bits_estimate(nats).asdict(), "n_images": len(x)}


def sample_quality(model: bfn.BFN, n: int, nfe: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Frechet distance and recognised share of n samples, n / 10 of each class; noise is the same for all models."""
    x_real, label_real = real_digits()
    label = model.info.classes.in_turn(n)
    start = time.process_time()
    x = model.sample(n, nfe=nfe, label=label, generator=generator(2), **settings).x.flatten(1)
    seconds = time.process_time() - start
    found = torch.from_numpy(classifier().fit(x_real.numpy(), label_real.numpy()).predict(x.numpy()))
    return {
        "frechet": frechet_estimate(x, x_real, generator=generator(3)).asdict(),
        "recognised": share_estimate(int((found == label).sum()), n).asdict(),
        "cpu_seconds": seconds,
    }


def run(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train a strategy and measure it, or as much of it as is not done yet."""
    folder = options.out / f"{name}-steps{options.steps}-seed{seed}"
    asked = {"n_samples": options.samples, "nfe": options.nfe, "samplers": list(SAMPLERS)}
    file = folder / "measured.json"
    if file.is_file():
        measured: dict[str, Any] = json.loads(file.read_text())
        if all(measured.get(key) == value for key, value in asked.items()):
            return measured
    quiet = {"eval_every": 0, "sample_every": 0, "checkpoint_every": 100, "tensorboard": False}
    settings = training.recipe("digits").override(
        {**quiet, **STRATEGIES[name], "steps": options.steps, "seed": seed, "threads": 1}
    )
    whole, start = not folder.exists(), time.process_time()
    if training.train(settings, folder, resume=True, cpu=True, progress=False).stopped_by:
        raise SystemExit(f"{folder}: stopped; run the same command again to go on")
    seconds = time.process_time() - start if whole else None  # unknown if it was stopped in between
    model = bfn.load(folder).to(memory_format=torch.channels_last)  # 1.6 times faster here
    measured = {
        "strategy": name, "seed": seed, "steps": options.steps, **asked,
        "train_cpu_seconds": seconds,
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "bound_bits": bound_bits(model),
        "quality": {key: sample_quality(model, options.samples, options.nfe, how) for key, how in SAMPLERS.items()},
    }  # fmt: skip
    atomic_write(file, json.dumps(measured, indent=2) + "\n")
    return measured


def markdown(rows: list[dict[str, Any]], real: dict[str, Any]) -> str:
    """The table, one line a run."""
    heads = [f"{measure}, `{key}`" for key in SAMPLERS for measure in ("Fréchet distance", "recognised")]
    body = []
    for row in rows:
        parts = STRATEGIES[row["strategy"]]
        weighting = parts["weighting"] if isinstance(parts["weighting"], str) else parts["weighting"]["name"]
        weighting += ", Muon" if "optimiser" in parts else ""
        cells = [row["strategy"], parts["head"], weighting, str(row["seed"])]
        for key in SAMPLERS:
            quality = row["quality"][key]
            cells.append("{value:.2f} ({low:.2f} to {high:.2f})".format(**quality["frechet"]))
            cells.append("{value:.1%} ({low:.1%} to {high:.1%})".format(**quality["recognised"]))
        cells.append("{value:.2f} ({low:.2f} to {high:.2f})".format(**row["bound_bits"]))
        cells.append("" if row["train_cpu_seconds"] is None else f"{row['train_cpu_seconds']:.0f}")
        body.append(cells)
    lines = markdown_table(["strategy", "head", "weighting", "seed", *heads, "bound, bits/dim", "CPU s"], body)
    lines += [
        "",
        f"Real digits: {real['n_half']} against the other {real['n_real'] - real['n_half']}, Fréchet distance "
        f"{real['half_against_half']:.2f} (standard deviation {real['half_against_half_std']:.2f} over "
        f"{real['n_splits']} splits; the numbers of samples alone bring {real['expected_bias_halves']:.2f} there and "
        f"{real['expected_bias_samples']:.2f} in the table); the classifier recognises "
        f"{real['classifier_cross_validated']:.1%} of real digits in ten-fold cross-validation.",
    ]
    return "\n".join(lines) + "\n"


def put(table: str, page: Path) -> None:
    """Replace what a page has between the marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    if not mark:
        raise SystemExit(f"{page}: expected a line {MARKS[0].strip()} and, below it, {MARKS[1].strip()}")
    atomic_write(page, f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--nfe", type=int, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--out", type=Path, default=Path("runs/training-strategies"))
    parser.add_argument("--page", type=Path, help="a Markdown page to put the table into")
    options = parser.parse_args()
    torch.set_num_threads(1)
    real = reference(options.samples)
    rows = []
    for seed in options.seeds:
        for name in options.only:
            rows.append(run(name, seed, options))
            report = markdown(rows, real)
            versions = {"python": platform.python_version(), "torch": torch.__version__, "bfn": bfn.__version__}
            result = {"versions": versions, "real": real, "runs": rows}
            atomic_write(options.out / "results.json", json.dumps(result, indent=2) + "\n")
            atomic_write(options.out / "results.md", report)
    print(report)
    if options.page is not None:
        put(report, options.page)


if __name__ == "__main__":
    main()
