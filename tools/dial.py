"""Measure the settings of the multistep rule on a model, over dial, order, grid and coordinate, and print a table.

    python tools/dial.py text8-plain --nfe 5 10 --dials 4 10 --grids uniform power:1:0.75 --coordinates s beta --n 200

Every combination is measured, and beside them ``fast-sde``, which is ``auto`` without tuned tables, and with --paper
the paper's solvers, all with the same start and noise, by the measures of ``bfn compare``. Options that are left out
are those of ``fast-sde``.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

import bfn
from bfn import grids, solvers
from bfn.quality import Setting, judge_for, markdown_table, measure
from bfn.solvers import Multistep
from bfn_lab.trajectories import PAPER

STARTS = (1e-3, 1e-4)
"""Starts of the paper's solvers."""


def settings_of(model: bfn.BFN, nfe: int, options: argparse.Namespace) -> Iterator[tuple[str, Setting]]:
    """Yield the name and the setting of every sampler."""
    if options.paper:
        for solver in map(solvers.get, PAPER):
            starts = (None,) if solver.from_prior else STARTS
            if model.flow.kind in solver.kinds and solver.name != "bfn-solver2-singlestep":
                yield from ((f"{solver.name}, t_start {t}", Setting(solver.name, nfe, t_start=t)) for t in starts)
    yield "**fast-sde**", Setting("fast-sde", nfe)
    base = solvers.get("fast-sde", model.flow.kind).resolve(model.flow, nfe, model.info)
    if not isinstance(base, Multistep):
        raise TypeError(f"{base}: expected a multistep rule")
    orders, dials = options.orders or [base.order], options.dials or [base.g]
    on = [grids.parse(name) for name in options.grids or ()] or [base.grid]
    coordinates, quiets = options.coordinates or [base.coordinate], options.quiet or [base.quiet]
    for order, g, grid, coordinate, quiet in product(orders, dials, on, coordinates, quiets):
        solver = replace(base, order=order, g=g, grid=grid, coordinate=coordinate, quiet=quiet)
        if solver != base:
            late = f", first {quiet} steps at g = 0" if quiet else ""
            yield f"order {order}, g = {g:g}{late}, {grid}, in {coordinate}", Setting(solver, nfe)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--nfe", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=9001)
    parser.add_argument("--orders", type=int, nargs="+")
    parser.add_argument("--dials", type=float, nargs="+")
    parser.add_argument("--grids", nargs="+")
    parser.add_argument("--coordinates", nargs="+")
    parser.add_argument("--quiet", type=int, nargs="+", help="first steps at g = 0")
    parser.add_argument("--paper", action="store_true", help="also the paper's solvers")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = bfn.load(options.name)
    judge = judge_for(model)
    rows: list[list[str]] = []
    for nfe in options.nfe:
        for name, setting in settings_of(model, nfe, options):
            (record,) = measure(model, [setting], judge, options.n, seed=options.seed)
            rows.append([str(nfe), name, *(of.show(record.measures[of.key]) for of in judge.measures)])
    lines = markdown_table(["calls", "sampler", *(of.label for of in judge.measures)], rows)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
