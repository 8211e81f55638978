"""Measure the default solver at every number of calls, by the second judge, and print a table.

    python benchmarks/beyond.py digits --calls 1 2 3 5 10 20 50 --n 500 --seed 90210

For each number of calls, ``auto`` stands beside other solvers, with 95 % intervals, new seeds and all classes in turn.
The last line lists where ``auto`` is worse than itself at fewer calls, or than another solver at the same number,
beyond both intervals.
"""

import argparse
from itertools import combinations

import torch

import bfn
from bfn import solvers
from bfn.quality import Measure, Record, Setting, judge_for, markdown_table, measure

BESIDE = {
    "continuous": ("fast-ode", "fast-sde", "bfn", "sde-bfn-solver++2"),
    "discrete": ("fast-ode", "fast-sde", "bfn", "sde-bfn-solver2"),
}


def worse(a: Record, b: Record, main: Measure, real: float) -> bool:
    """Return True if a is worse than b by the main measure, beyond both intervals."""
    ours, theirs = (record.measures[main.key] for record in (a, b))
    apart = ours.low > theirs.high or ours.high < theirs.low
    return apart and main.loss(ours.value, real) > main.loss(theirs.value, real)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 2, 3, 5, 8, 10, 20, 50, 100])
    parser.add_argument("--solvers", nargs="*", help="solvers beside auto")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=90210)
    parser.add_argument("--metric", default="second")
    parser.add_argument("--no-tables", action="store_true", help="auto without the tables tuned to the model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = bfn.load(options.name)
    if options.no_tables:
        model.info.tables = {}
    judge = judge_for(model, options.metric)
    first, real = judge.measures[0], judge.real(options.n)
    names = ["auto", *(BESIDE[model.flow.kind] if options.solvers is None else options.solvers)]
    found: dict[tuple[str, int], Record] = {}
    rows = []
    for name in names:
        cells = [f"`{name}`"]
        for nfe in options.calls:
            if name not in solvers.names(model.flow.kind):
                raise SystemExit(f"{name}: not for {model.flow.kind} data")
            (found[name, nfe],) = measure(model, [Setting(name, nfe)], judge, options.n, seed=options.seed)
            cells.append(first.show(found[name, nfe].measures[first.key]))
            print(name, nfe, cells[-1], flush=True)
        rows.append(cells)
    lost = [f"auto at {b} calls against {a}" for a, b in combinations(sorted(options.calls), 2)
            if worse(found["auto", b], found["auto", a], first, real[first.key].value)]  # fmt: skip
    lost += [f"auto against {name} at {nfe} calls" for name, nfe in found
             if worse(found["auto", nfe], found[name, nfe], first, real[first.key].value)]  # fmt: skip
    print("worse beyond the intervals:", "; ".join(lost) or "none")
    rows.append(["real data", first.show(real[first.key]), *[""] * (len(options.calls) - 1)])
    print("\n".join(markdown_table([first.label, *(f"{nfe} calls" for nfe in options.calls)], rows)))


if __name__ == "__main__":
    main()
