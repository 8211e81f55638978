"""The default solver at every number of calls, by the second judge, which took part in no choice.

    python benchmarks/beyond.py digits --calls 1 2 3 5 10 20 50 --n 500 --seed 90210 --out docs/results/beyond-digits.md

For each number of calls ``auto`` beside other solvers, with 95 % intervals, fresh seeds, classes in turn. A line at the
end names where ``auto`` is worse than itself at fewer calls, or than another solver at the same number, beyond both
intervals; "none" is what is asked for.
"""

import argparse
from itertools import combinations
from pathlib import Path

import torch

import bfn
from bfn import solvers
from bfn._utils.files import atomic_write
from bfn.quality.comparison import markdown_table
from bfn.quality.judge import Measure
from bfn.quality.judge_choice import judge_for
from bfn.quality.comparison import Record, Setting, measure

BESIDE = {
    "continuous": ("fast-ode", "fast-sde", "bfn", "sde-bfn-solver++2"),
    "discrete": ("fast-ode", "fast-sde", "bfn", "sde-bfn-solver2"),
}


def worse(a: Record, b: Record, main: Measure, real: float) -> bool:
    """Whether a is worse than b by the main measure, beyond both intervals."""
    ours, theirs = (record.measures[main.key] for record in (a, b))
    apart = ours.low > theirs.high or ours.high < theirs.low
    return apart and main.loss(ours.value, real) > main.loss(theirs.value, real)


def main() -> None:
    """Measure, and say where auto is worse than it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 2, 3, 5, 8, 10, 20, 50, 100])
    parser.add_argument("--solvers", nargs="*", help="beside auto; those of the library that lead by kind if left out")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=90210)
    parser.add_argument("--metric", default="second")
    parser.add_argument("--no-tables", action="store_true", help="auto without the tables tuned to the model")
    parser.add_argument("--out", type=Path)
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
    if options.out:
        command = f"{options.name} --calls {' '.join(map(str, options.calls))} --n {options.n} --seed {options.seed}"
        command += " --no-tables" if options.no_tables else ""
        lines = [
            f"# `auto` at every number of calls: {options.name}", "",
            f"`python benchmarks/beyond.py {command}`: {first.label}, 95 % intervals; real data "
            f"{first.show(real[first.key])}. Worse beyond the intervals: {'; '.join(lost) or 'none'}.", "",
            *markdown_table(["sampler", *(f"{nfe} calls" for nfe in options.calls)], rows),
        ]  # fmt: skip
        atomic_write(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
