"""Map the stochasticity dial on a model: quality over g and order at several numbers of calls.

    python tools/dial.py text8 --nfe 5 10 20 --n 200 --out docs/results/dial-text8.md

The paper's solvers stand beside it. The same start and noise for all; the measures are those of ``bfn compare``.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bundle import SEED

import bfn
from bfn import solvers, storage
from bfn.experiments import Setting, judge_for
from bfn.experiments.measure import measure
from bfn.files import atomic_write
from bfn.solvers import fast

PAPER: dict[str, tuple[dict[str, Any], ...]] = {
    "discrete": (
        {"solver": "bfn"},
        {"solver": "sde-bfn-solver1"},
        {"solver": "sde-bfn-solver2"},
        {"solver": "bfn-solver1"},
        {"solver": "bfn-solver2"},
    ),
    "continuous": (
        {"solver": "bfn"},
        {"solver": "bfn-solver++2", "t_start": 1e-3},
        {"solver": "bfn-solver++2", "t_start": 1e-2},
        {"solver": "sde-bfn-solver++2", "t_start": 1e-3},
    ),
}
DIALS = (0.0, 1.0, 2.0, 4.0, 10.0, float("inf"))


def settings_of(flow: bfn.Flow, nfe: int, orders: list[int]) -> list[tuple[str, dict[str, Any]]]:
    """Name and settings of every sampler that is measured."""
    found = []
    for settings in PAPER[flow.kind]:
        start = f" from t = {settings['t_start']:g}" if "t_start" in settings else ""
        found.append((f"{settings['solver']}{start}", settings))
    found.append(("fast-ode", {"solver": "fast-ode"}))
    base = fast.fast_sde(flow, nfe)
    found += [(f"order {k}, g = {g:g}", {"solver": replace(base, order=k, g=g)}) for k in orders for g in DIALS]
    chosen = solvers.get("auto").resolve(flow, nfe)
    return [(f"**{name}**" if settings["solver"] == chosen else name, settings) for name, settings in found]


def main() -> None:
    """Measure and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--nfe", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--orders", type=int, nargs="+", default=[2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, config = bfn.load(options.name), storage.read_config(options.name)
    judge = judge_for(model, config)
    lines: list[str] = []
    for nfe in options.nfe:
        for name, settings in settings_of(model.flow, nfe, options.orders):
            setting = Setting(nfe=nfe, **settings)
            (record,) = measure(model, [setting], judge, options.n, seed=SEED, n_labels=config["n_labels"])
            verdict = {of.label: of.show(record.measures[of.key]) for of in judge.measures}
            if not lines:
                lines += [f"| calls | sampler | {' | '.join(verdict)} |", "|---" * (2 + len(verdict)) + "|"]
            lines.append(f"| {nfe} | {name} | {' | '.join(verdict.values())} |")
            print(lines[-1], flush=True)
    text = (
        f"# The dial on the bundled model {options.name}\n\n"
        f"{options.n} samples a row, seed {SEED}, torch {torch.__version__}; bold is what `auto` picks.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    if options.out:
        atomic_write(options.out, text)


if __name__ == "__main__":
    main()
