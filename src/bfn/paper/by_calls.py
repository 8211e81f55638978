"""The paper's tables of quality over the number of calls: tables 3, 5 and 6."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bfn.paper import printed
from bfn.paper.grid_start import ETAS, best_etas, tuning_n
from bfn.paper.judged_model import JudgedModel
from bfn.paper.measurements import (
    Measurement,
    Sampler,
    Wanted,
    beyond,
    main_measure,
    measure_all,
    over_calls,
    samplers_named,
    samples_at,
)
from bfn.paper.ordering import judge_pair
from bfn.paper.printed import Column
from bfn.paper.quality_tables import quality_section, with_lines
from bfn.paper.report import Options, Section
from bfn.quality import Measure

__all__ = ["cs_ablation", "fid_nfe", "grid_lines", "sa_nfe"]


def fid_nfe(judged: JudgedModel, options: Options) -> Section:
    """Table 5: the original sampler against the paper's three, each at its best eta, over the number of calls."""
    table = printed.printed_table("fid-nfe")
    calls = options.nfe or (5, 10, 20, 50)
    original, *rest = samplers_named(dict.fromkeys(("bfn", *table.solvers)))
    ours = beyond(judged, [original, *rest], calls, options)
    etas, notes = best_etas(judged, rest, calls, options)
    wanted = over_calls([original], calls)
    wanted += [Wanted(sampler, Column(nfe), etas[sampler.label, nfe]) for sampler in rest for nfe in calls]
    measured, more = measure_all(judged, [*wanted, *ours], options, options.seed)
    n_tuning = samples_at(tuning_n(judged, options), calls[0], judged.least)
    choices = ", ".join(f"{eta:g}" for eta in ETAS)
    intro = [
        f"Each of the paper's solvers starts at its best eta of {choices} for that number of calls, chosen on "
        f"{n_tuning} samples of another seed than the figures here."
    ]
    section = quality_section(judged, table, measured, options, notes=[*intro, *notes, *more])
    return with_lines(section, grid_lines(measured, main_measure(judged.judge, measured)))


def grid_lines(measured: Sequence[Measurement], main: Measure) -> list[str]:
    """Where a solver of the ODE does not beat the original sampler, whether the ODE or the grid is to blame."""
    lines = []
    for column in dict.fromkeys(each.column for each in measured):
        here = {m.label: m.record.measures[main.key] for m in measured if m.column == column}
        lost = [name for name in ("bfn-solver++1", "bfn-solver++2")
                if name in here and judge_pair(here[name], here["bfn"], main) != "agrees"]  # fmt: skip
        if lost and "fast-ode" in here:
            names = " and ".join(f"`{name}`" for name in lost)
            told = {
                "agrees": "beats it: it is the grid and the rule that cost them, not the ODE",
                "opposite": "loses to it too: here the ODE itself is worse than fresh noise",
                "not told apart": "is not told apart from it either",
            }[judge_pair(here["fast-ode"], here["bfn"], main)]
            lines.append(
                f"- {column.nfe} calls: {names} did not beat the original sampler ({main.show(here['bfn'])}). The same "
                f"ODE from t = 0 on another grid, `fast-ode` ({main.show(here['fast-ode'])}), {told}."
            )
    return ["### Where ODE solvers did not beat the original sampler", "", *lines] if lines else []


def sa_nfe(judged: JudgedModel, options: Options) -> Section:
    """Table 6: spelling accuracy over the number of calls; beside it the original sampler without drawn classes."""
    table = printed.printed_table("sa-nfe")
    calls = options.nfe or (10, 20, 50, 100)
    samplers = samplers_named(dict.fromkeys(("bfn", "sde-bfn-solver1", *table.solvers)))
    wanted = [*over_calls(samplers, calls), *beyond(judged, samplers, calls, options)]
    measured, notes = measure_all(judged, wanted, options, options.seed)
    # The paper's own row for the original sampler without drawn classes is in another table.
    undrawn = tuple(f for f in printed.printed_table("cs-ablation").figures if f.solver == "sde-bfn-solver1")
    both = dataclasses.replace(table, figures=table.figures + undrawn)
    return quality_section(judged, both, measured, options, notes=notes, ceiling=True)


def cs_ablation(judged: JudgedModel, options: Options) -> Section:
    """Table 3: the original sampler with and without drawn classes.

    Without them on the paper's grid, as SDE-BFN-Solver1, and also on the original's own, where nothing else differs.
    """
    table = printed.printed_table("cs-ablation")
    calls = options.nfe or (10, 20, 50, 100)
    own = Sampler("sde-bfn-solver1 on the original's grid", "sde-bfn-solver1", {"grid": "uniform"})
    wanted = over_calls(samplers_named(["bfn", "sde-bfn-solver1"]), calls)
    wanted += [Wanted(own, Column(nfe), t_start=0.0) for nfe in calls]
    measured, notes = measure_all(judged, wanted, options, options.seed)
    section = quality_section(judged, table, measured, options, notes=notes)
    main = main_measure(judged.judge, measured)
    value = {(each.label, each.nfe): each.record.measures[main.key] for each in measured}
    lines = ["### Without drawn classes, all else equal", ""]
    told = {"agrees": "better without", "opposite": "worse without", "not told apart": "not told apart"}
    for nfe in calls:
        outcome = judge_pair(value[own.label, nfe], value["bfn", nfe], main)
        ours = f"{main.show(value[own.label, nfe])} against {main.show(value['bfn', nfe])}"
        lines.append(f"- {nfe} calls: {told[outcome]} ({ours}).")
    return with_lines(section, lines)
