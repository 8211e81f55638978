"""Compare synthetic rows: ours at 5 to 50 calls, CTGAN, TVAE and Gaussian copula of sdv, and independent columns.

    python benchmarks/tables.py run --tables german --work /tmp/tables --peers .peers/bin/python
    python benchmarks/tables.py speed                 # time of sampling beside that of the network, and of writing
    python benchmarks/tables.py page                  # prints tables from docs/results/tables.json

All methods get the same rows and the same judge. Results are kept in ``--work`` and in the JSON file, so that an
interrupted run can be continued. Peers run in an environment of their own with their defaults, see
benchmarks/tables_peers.py; those that train by epochs get the number of epochs, at most 300 and at least one, that fits
into the processor time of ours. ``benchmarks/table_imputation.py`` measures imputation.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import bfn
from bfn._utils.estimate import Estimate
from bfn._utils.files import atomic_write
from bfn.quality.comparison import pool
from bfn.quality.table_report import TableQuality
from bfn.tables.synthesizer import write_rows

TABLES = {"adult": "income", "magic": "class", "diamonds": "price", "german": "class", "contraceptive": "class"}
CALLS = (5, 10, 20, 50)
PEERS = ("ctgan", "tvae", "copula")
RESULTS = Path("docs/results/tables.json")


def read_results(path: Path = RESULTS) -> dict[str, dict]:
    return json.loads(path.read_text()) if path.exists() else {}


def keep(key: str, values: dict, path: Path = RESULTS) -> None:
    found = {**read_results(path), key: values}
    atomic_write(path, json.dumps(dict(sorted(found.items())), indent=1) + "\n")


def divided(name: str, seed: int, work: Path, peers: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training rows and held-out rows: the standard division, or two thirds at random."""
    folder = work / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if name in bfn.data.SOURCES:
        parts = [bfn.data.read_table(name, part) for part in ("train", "test")]
    else:
        path = work / f"{name}.parquet"
        if not path.exists():
            subprocess.run([peers, "benchmarks/tables_peers.py", "export", name, str(path)], check=True)
        whole = pd.read_parquet(path)
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed)).numpy()
        cut = 2 * len(whole) // 3
        parts = [whole.iloc[rows].reset_index(drop=True) for rows in (order[:cut], order[cut:])]
    parts[0].to_parquet(folder / "train.parquet")
    return parts[0], parts[1]


def synthesizer(name: str, seed: int, train: pd.DataFrame, work: Path) -> tuple[bfn.TableSynthesizer, float]:
    """Ours with its defaults, trained once, and the processor seconds it took."""
    folder = work / f"{name}-{seed}" / "ours"
    if not (folder / "seconds").exists():
        start = time.process_time()
        bfn.TableSynthesizer(seed=seed, progress=False).fit(train).save(folder)
        (folder / "seconds").write_text(str(time.process_time() - start))
    return bfn.TableSynthesizer.load(folder), float((folder / "seconds").read_text())


def rows_of(
    method: str, name: str, seed: int, train: pd.DataFrame, args: argparse.Namespace
) -> tuple[pd.DataFrame, dict]:
    """As many rows as there are training rows, and what they took."""
    if method == "independent":
        generator = torch.Generator().manual_seed(seed)
        orders = {column: torch.randperm(len(train), generator=generator).numpy() for column in train}
        return pd.DataFrame({column: train[column].to_numpy()[order] for column, order in orders.items()}), {}
    model, seconds = synthesizer(name, seed, train, args.work)
    if method.startswith("ours"):
        calls = int(method.split("-")[1])
        start = time.perf_counter()
        rows = model.sample(len(train), nfe=calls, seed=seed)
        return rows, {"fit_seconds": seconds, "sample_seconds": time.perf_counter() - start}
    folder = args.work / f"{name}-{seed}"
    out, facts = folder / f"{method}.parquet", folder / f"{method}.json"
    if not facts.exists():
        minutes = max(1.0, seconds / 60)
        command = [args.peers, "benchmarks/tables_peers.py", "fit", method, str(folder / "train.parquet"), str(out)]
        done = subprocess.run([*command, str(len(train)), str(minutes), str(seed)], check=True, capture_output=True)
        facts.write_text(done.stdout.decode().splitlines()[-1])
    return pd.read_parquet(out), json.loads(facts.read_text())


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    for name in args.tables:
        for seed in args.seeds:
            train, held_out = divided(name, seed, args.work, args.peers)
            quality = TableQuality.of(train, held_out, TABLES[name], seed)
            key = f"{name}|real|{seed}"
            if key not in read_results():
                keep(key, _record(name, "real", seed, quality.real, {}, (len(train), len(held_out))))
            for method in args.methods:
                key = f"{name}|{method}|{seed}"
                if key in read_results():
                    continue
                rows, facts = rows_of(method, name, seed, train, args)
                figures = quality.figures(rows)
                keep(key, _record(name, method, seed, figures, facts, (len(train), len(held_out))))
                shown = ", ".join(f"{what} {figure.value:.3f}" for what, figure in figures.items())
                print(f"{key}: {shown}; {facts}", flush=True)


def _record(name: str, method: str, seed: int, figures: dict, facts: dict, sizes: tuple[int, int]) -> dict:
    plain = {what: figure.asdict() for what, figure in figures.items()}
    return {"table": name, "method": method, "seed": seed, "rows": sizes, **facts, "figures": plain}


def speed(args: argparse.Namespace) -> None:
    """Processor seconds of rows of the bundled model, of its network alone, of writing: the least of some, in turn."""
    torch.set_num_threads(1)
    model = bfn.load("adult")
    synthesizer, network = bfn.TableSynthesizer.of(model), model.network
    n, calls = 4096, 20
    inputs, t = torch.rand(1024, network.vector.in_features), torch.full((1024,), 0.5)
    rows = synthesizer.sample(n, nfe=calls)

    def network_alone() -> None:
        with torch.inference_mode():
            for _ in range(calls * n // 1024):
                network(inputs, t)

    work = {
        "network": network_alone,
        "sampling": lambda: synthesizer.sample(n, nfe=calls),
        "csv": lambda: write_rows(args.work / "rows.csv", [rows], rows),
        "parquet": lambda: write_rows(args.work / "rows.parquet", [rows], rows),
    }
    least = dict.fromkeys(work, float("inf"))
    for _ in range(args.repeats):
        for name, act in work.items():
            start = time.process_time()
            act()
            least[name] = min(least[name], time.process_time() - start)
    found = {"rows": n, "calls": calls, "repeats": args.repeats, "seconds": least}
    keep("speed", {"table": "speed", "method": "speed", **found})
    print(found, least["network"] / least["sampling"])


def speed_lines(found: dict[str, dict]) -> list[str]:
    """Return the table of speed."""
    if "speed" not in found:
        return []
    seconds = found["speed"]["seconds"]
    rows = [f"| {name} | {value:.3f} | {seconds['network'] / value:.3f} |" for name, value in seconds.items()]
    return ["", "## Speed", "", "| part | processor seconds | speed over that of the network |", "|---|---|---|", *rows]


LABELS = {
    "real": "real rows", **{f"ours-{calls}": f"bfn, {calls} calls" for calls in CALLS},
    "ctgan": "CTGAN", "tvae": "TVAE", "copula": "Gaussian copula", "independent": "independent columns",
}  # fmt: skip
COLUMNS = {
    "two_sample": "two-sample, training rows", "two_sample_held_out": "two-sample, held-out rows",
    "learned": "train on synthetic, test on real", "trend": "trend", "shape": "shape",
    "alpha_precision": "alpha-precision", "beta_recall": "beta-recall", "nearer_to_training": "nearer to training",
    "copies": "copies",
}  # fmt: skip


def page(args: argparse.Namespace) -> None:
    """Print the tables of all results."""
    found = read_results()
    lines: list[str] = []
    for name in TABLES:
        runs = [run for run in found.values() if run["table"] == name and run["method"] in LABELS]
        if not runs:
            continue
        seeds = sorted({run["seed"] for run in runs})
        sizes = runs[0]["rows"]
        title = f"### {name.capitalize()}, {sizes[0]:,} training rows, {sizes[1]:,} held-out rows, seeds {seeds}"
        lines += ["", title, ""]
        header = ["", *COLUMNS.values(), "training"]
        lines += [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        for method, label in LABELS.items():
            own = [run for run in runs if run["method"] == method]
            if own:
                lines.append(f"| {' | '.join([label, *(_cell(own, what) for what in COLUMNS), _training(own)])} |")
    from table_imputation import section

    lines += section(found) + speed_lines(found)
    print("\n".join(lines))


def pooled(runs: list[dict], what: str) -> Estimate | None:
    """Return a figure over the seeds."""
    figures = [run["figures"].get(what) for run in runs]
    if any(figure is None for figure in figures):
        return None
    return pool([Estimate(*(np.nan if x is None else x for x in figure.values())) for figure in figures], 1.0)


def _cell(runs: list[dict], what: str) -> str:
    figure = pooled(runs, what)
    if figure is None or np.isnan(figure.value):
        return ""
    interval = "" if np.isnan(figure.low) else f" [{figure.low:.3f}, {figure.high:.3f}]"
    return f"{figure.value:.3f}{interval}"


def _training(runs: list[dict]) -> str:
    seconds = [run.get("fit_seconds") for run in runs]
    if None in seconds:
        return ""
    epochs = runs[0].get("epochs")
    return f"{np.mean(seconds) / 60:.1f} min" + (f", {epochs} epochs" if epochs else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    one.add_argument("--methods", nargs="+", default=["independent", *(f"ours-{calls}" for calls in CALLS), *PEERS])
    one.add_argument("--seeds", nargs="+", type=int, default=[0])
    one.add_argument("--work", type=Path, default=Path("/tmp/bfn-tables"))
    one.add_argument("--peers", default=".peers/bin/python")
    one.set_defaults(act=run)
    fast = commands.add_parser("speed")
    fast.add_argument("--repeats", type=int, default=5)
    fast.add_argument("--work", type=Path, default=Path("/tmp/bfn-tables"))
    fast.set_defaults(act=speed)
    commands.add_parser("page").set_defaults(act=page)
    args = parser.parse_args()
    args.act(args)


if __name__ == "__main__":
    main()
