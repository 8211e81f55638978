"""The paper's tables of quality over the number of calls: solvers down, calls across."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bfn.paper import paper
from bfn.paper.cells import Cell, Row, beyond, main_measure, plain, run_cells, samples_at
from bfn.paper.etas import ETAS, best_etas, tuning_n
from bfn.paper.paper import Column
from bfn.paper.quality import quality_section, with_lines
from bfn.paper.reports import Options, Section
from bfn.paper.subjects import Subject
from bfn.paper.verdicts import judge_pair
from bfn.quality.judges import Measure


def fid_nfe(subject: Subject, options: Options) -> Section:
    """Table 5: the original sampler against the paper's three, each at its best eta, over the number of calls."""
    table = paper.table("fid-nfe")
    calls = options.nfe or (5, 10, 20, 50)
    original, rest = plain(["bfn"]), [row for row in plain(table.solvers) if row.name != "bfn"]
    ours = beyond(subject, [*original, *rest], calls, options)
    etas, notes = best_etas(subject, rest, calls, options)
    wanted = [(row, Column(nfe), row.at(nfe)) for row in original for nfe in calls]
    wanted += [(row, Column(nfe), row.at(nfe, etas[row.label, nfe])) for row in rest for nfe in calls]
    wanted += ours
    cells, more = run_cells(subject, wanted, options, options.seed)
    n_tuning = samples_at(tuning_n(subject, options), calls[0], subject.least)
    choices = ", ".join(f"{eta:g}" for eta in ETAS)
    intro = [
        f"Each of the paper's solvers starts at its best eta of {choices} for that number of calls, chosen on "
        f"{n_tuning} samples of another seed than the figures here."
    ]
    section = quality_section(subject, table, cells, options, notes=[*intro, *notes, *more])
    return with_lines(section, grid_lines(cells, main_measure(subject.judge, cells)))


def grid_lines(cells: Sequence[Cell], main: Measure) -> list[str]:
    """Where a solver of the ODE does not beat the original sampler, whether the ODE or the grid is to blame."""
    lines = []
    for column in dict.fromkeys(cell.column for cell in cells):
        here = {c.row.label: c.record.measures[main.key] for c in cells if c.column == column}
        lost = [name for name in ("bfn-solver++1", "bfn-solver++2")
                if name in here and judge_pair(here[name], here["bfn"], main) != "agrees"]  # fmt: skip
        if lost and "fast-ode" in here:
            names = " and ".join(f"`{name}`" for name in lost)
            told = {
                "agrees": "beats it: it is the grid uniform in t that costs them, not the ODE",
                "opposite": "loses to it too: here the ODE itself is worse than fresh noise",
                "not told apart": "is not told apart from it either",
            }[judge_pair(here["fast-ode"], here["bfn"], main)]
            lines.append(
                f"- {column.nfe} calls: {names} did not beat the original sampler ({main.show(here['bfn'])}). The same "
                f"ODE from t = 0 on another grid, `fast-ode` ({main.show(here['fast-ode'])}), {told}."
            )
    return ["### Why the ODE solvers did not win", "", *lines] if lines else []


def sa_nfe(subject: Subject, options: Options) -> Section:
    """Table 6: spelling accuracy over the number of calls; beside it the original sampler without drawn classes."""
    table = paper.table("sa-nfe")
    calls = options.nfe or (10, 20, 50, 100)
    rows = [*plain(["bfn", "sde-bfn-solver1"]), *(row for row in plain(table.solvers) if row.name != "bfn")]
    wanted = [(row, Column(nfe), row.at(nfe)) for row in rows for nfe in calls]
    wanted += beyond(subject, rows, calls, options)
    cells, notes = run_cells(subject, wanted, options, options.seed)
    # The paper's own row for the original sampler without drawn classes is in another table.
    both = dataclasses.replace(
        table,
        figures=table.figures + tuple(f for f in paper.table("cs-ablation").figures if f.solver == "sde-bfn-solver1"),
    )
    return quality_section(subject, both, cells, options, notes=notes, ceiling=True)


def cs_ablation(subject: Subject, options: Options) -> Section:
    """Table 3: the original sampler with and without drawn classes.

    Without them on the paper's grid, as SDE-BFN-Solver1, and also on the original's own, where nothing else differs.
    """
    table = paper.table("cs-ablation")
    calls = options.nfe or (10, 20, 50, 100)
    own = Row("sde-bfn-solver1 on the original's grid", "sde-bfn-solver1", {"grid": "uniform"})
    wanted = [(row, Column(nfe), row.at(nfe)) for row in plain(["bfn", "sde-bfn-solver1"]) for nfe in calls]
    wanted += [(own, Column(nfe), own.at(nfe, 0.0)) for nfe in calls]
    cells, notes = run_cells(subject, wanted, options, options.seed)
    section = quality_section(subject, table, cells, options, notes=notes)
    main = main_measure(subject.judge, cells)
    value = {(c.row.label, c.record.setting.nfe): c.record.measures[main.key] for c in cells}
    lines = ["### Without drawn classes, all else equal", ""]
    told = {"agrees": "better without", "opposite": "worse without", "not told apart": "not told apart"}
    for nfe in calls:
        outcome = judge_pair(value[own.label, nfe], value["bfn", nfe], main)
        ours = f"{main.show(value[own.label, nfe])} against {main.show(value['bfn', nfe])}"
        lines.append(f"- {nfe} calls: {told[outcome]} ({ours}).")
    return with_lines(section, lines)
