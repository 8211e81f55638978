"""Experiments on quality against network calls: tables 3 and 5 to 8 of the paper, and its comparison of bits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bfn import Model
from bfn.likelihood import bits_estimate, held_out_bits
from bfn.quality import Estimate, Measure, markdown_table
from bfn_lab import measuring
from bfn_lab import report as printed
from bfn_lab.measuring import JudgedModel, Measurement, Sampler, Wanted
from bfn_lab.quality_tables import judge_pair, quality_section, with_lines
from bfn_lab.report import Column, Options, PrintedTable, Section, chapter

ETAS = (5e-2, 1e-2, 1e-3, 1e-4)
"""Starts of the paper's grid on images, of which the best is chosen for each number of calls, as in the paper."""
TUNING_SEED = 1_000_003
"""Added to the seed to choose eta, so that reported figures are of other samples than those of the choice."""


def eta_continuous(judged: JudgedModel, options: Options) -> Section:
    """Measure table 7: the start of the grid on images."""
    table = printed.printed_table("eta-continuous")
    calls = options.nfe or (5, 10, 20, 50)
    measured, notes = _measure_etas(judged, measuring.samplers_named(table.solvers), calls, options)
    originals, _ = measuring.measure_all(
        judged, measuring.over_calls(measuring.samplers_named(["bfn"]), calls), options, options.seed + TUNING_SEED,
        tuning_n(judged, options),
    )  # fmt: skip
    section = quality_section(judged, table, measured, options, notes=notes)
    main = measuring.main_measure(judged.judge, measured)
    lines = chapter("Which eta is better than the original sampler?", _against_original(measured, originals, main))
    return with_lines(section, [*lines, "", *share_left(judged)])


def eta_discrete(judged: JudgedModel, options: Options) -> Section:
    """Measure table 8: the start of the grid on text."""
    table = printed.printed_table("eta-discrete")
    calls = options.nfe or (20, 200)
    etas = sorted({c.eta for c in table.columns if c.eta is not None}, reverse=True)
    samplers = measuring.samplers_named(table.solvers)
    wanted = [Wanted(sampler, Column(nfe, eta)) for nfe in calls for eta in etas for sampler in samplers]
    measured, notes = measuring.measure_all(judged, wanted, options, options.seed, options.n or min(judged.n, 250))
    section = quality_section(judged, table, measured, options, notes=notes, pairs=False)
    main = measuring.main_measure(judged.judge, measured)
    rows = []
    for nfe in calls:
        for sampler in samplers:
            here = [m for m in measured if m.label == sampler.label and m.nfe == nfe]
            values = [m.record.measures[main.key] for m in here]
            apart = any(not a.overlaps(b) for a in values for b in values)
            verdict = "some etas differ" if apart else "not distinguishable"
            spread = (max(v.value for v in values) - min(v.value for v in values)) * main.scale
            in_paper = _printed_spread(table, sampler.solver, nfe)
            rows.append([f"{nfe}", f"`{sampler.label}`", f"{spread:.{main.digits}f} {main.unit}", in_paper, verdict])
    header = ["calls", "solver", "largest difference", "the same in the paper", "result"]
    return with_lines(section, chapter("Does eta matter?", markdown_table(header, rows)))


def best_etas(
    judged: JudgedModel, samplers: Sequence[Sampler], calls: Sequence[int], options: Options
) -> tuple[dict[tuple[str, int], float], list[str]]:
    """Return the eta with the best value of the main measure, by sampler and calls."""
    measured, notes = _measure_etas(judged, samplers, calls, options)
    main = measuring.main_measure(judged.judge, measured)
    chosen: dict[tuple[str, int], tuple[float, Estimate]] = {}
    for each in measured:
        key, value = (each.label, each.nfe), each.record.measures[main.key]
        if each.eta is not None and (key not in chosen or main.loss(value.value) < main.loss(chosen[key][1].value)):
            chosen[key] = each.eta, value
    return {key: eta for key, (eta, _) in chosen.items()}, notes


def tuning_n(judged: JudgedModel, options: Options) -> int:
    """Return the number of samples to choose eta."""
    n = options.n or judged.n
    return min(n, max(judged.least, n * 2 // 5))


def share_left(judged: JudgedModel) -> list[str]:
    """Return the share of the standard deviation of the widest direction of the data that a start at eta leaves.

    Started at N(0, I) instead of N(0, (1 + s_0^2 v)), a direction of data variance v keeps 1 / sqrt(1 + v s_0^2) of
    its standard deviation along the ODE; an SDE forgets its start.
    """
    real = judged.judge.held_out.flatten(1).double()
    variance = float(torch.linalg.eigvalsh(torch.cov(real.T))[-1])
    kept = [1 / math.sqrt(1 + variance * float(judged.model.flow.schedule.beta(eta))) for eta in ETAS]
    return chapter(
        "How much standard deviation does a start at eta leave?",
        markdown_table(["eta", *(f"{eta:g}" for eta in ETAS)], [["share", *(f"{share:.2f}" for share in kept)]]),
        "Computed for an ODE and the direction in which real images vary most "
        f"(variance {variance:.3g}). The paper's start at eta leaves out what the data contribute to the state "
        "there; the reverse SDE forgets this error.",
    )


def _measure_etas(
    judged: JudgedModel, samplers: Sequence[Sampler], calls: Sequence[int], options: Options
) -> tuple[list[Measurement], list[str]]:
    """Measure every solver at every eta, on the samples that eta is chosen on."""
    wanted = [Wanted(sampler, Column(nfe, eta)) for nfe in calls for eta in ETAS for sampler in samplers]
    return measuring.measure_all(judged, wanted, options, options.seed + TUNING_SEED, tuning_n(judged, options))


def _against_original(measured: Sequence[Measurement], originals: Sequence[Measurement], main: Measure) -> list[str]:
    """Return a table of the etas that are better than the original sampler, by the intervals."""
    rows = []
    for original in originals:
        reference = original.record.measures[main.key]
        here = [each for each in measured if each.nfe == original.nfe]
        for label in dict.fromkeys(each.label for each in here):
            outcomes: dict[str, list[str]] = {"agrees": [], "opposite": [], "not told apart": []}
            for each in here:
                if each.label == label:
                    outcomes[judge_pair(each.record.measures[main.key], reference, main)].append(f"{each.eta:g}")
            etas = [", ".join(each) for each in outcomes.values()]
            rows.append([f"{original.nfe}", main.show(reference), f"`{label}`", *etas])
    header = ["calls", "`bfn`", "solver", "better at eta", "worse at eta", "not distinguishable at eta"]
    return markdown_table(header, rows)


def _printed_spread(table: PrintedTable, solver: str, nfe: int) -> str:
    """Return the largest difference between the printed figures over eta, if the paper prints them."""
    values = [f.value for f in table.figures if f.solver == solver and f.column.nfe == nfe]
    return f"{max(values) - min(values):.2f} {table.measure.partition(', ')[2]}" if values else ""


def fid_nfe(judged: JudgedModel, options: Options) -> Section:
    """Measure table 5: the original sampler and the paper's three, each at its best eta, against network calls."""
    table = printed.printed_table("fid-nfe")
    calls = options.nfe or (5, 10, 20, 50)
    original, *rest = measuring.samplers_named(dict.fromkeys(("bfn", *table.solvers)))
    ours = measuring.beyond(judged, [original, *rest], calls, options)
    etas, notes = best_etas(judged, rest, calls, options)
    wanted = measuring.over_calls([original], calls)
    wanted += [Wanted(sampler, Column(nfe), etas[sampler.label, nfe]) for sampler in rest for nfe in calls]
    measured, more = measuring.measure_all(judged, [*wanted, *ours], options, options.seed)
    n_tuning = measuring.samples_at(tuning_n(judged, options), calls[0], judged.least)
    choices = ", ".join(f"{eta:g}" for eta in ETAS)
    intro = (
        f"Each solver of the paper starts at the best of these etas for its number of calls: {choices}. The choice "
        f"was made on {n_tuning} samples of another seed."
    )
    section = quality_section(judged, table, measured, options, notes=[intro, *notes, *more])
    return with_lines(section, grid_lines(measured, measuring.main_measure(judged.judge, measured)))


def grid_lines(measured: Sequence[Measurement], main: Measure) -> list[str]:
    """Return for ODE solvers that are not better than the original sampler whether the ODE or the grid is the cause."""
    lines = []
    for column in dict.fromkeys(each.column for each in measured):
        here = {m.label: m.record.measures[main.key] for m in measured if m.column == column}
        lost = [name for name in ("bfn-solver++1", "bfn-solver++2")
                if name in here and judge_pair(here[name], here["bfn"], main) != "agrees"]  # fmt: skip
        if lost and "fast-ode" in here:
            names = " and ".join(f"`{name}`" for name in lost)
            verdict = {
                "agrees": "is better, so the loss comes from the grid and the rule and not from the ODE",
                "opposite": "is worse too, so the ODE itself is worse here than sampling with noise",
                "not told apart": "is not distinguishable from it either",
            }[judge_pair(here["fast-ode"], here["bfn"], main)]
            lines.append(
                f"- At {column.nfe} calls, {names} {'is' if len(lost) == 1 else 'are'} not better than the original "
                f"sampler. `fast-ode`, which solves the same ODE from t = 0 on another grid, {verdict}."
            )
    return chapter("Where are ODE solvers not better than the original sampler?", lines) if lines else []


def sa_nfe(judged: JudgedModel, options: Options) -> Section:
    """Measure table 6: spelling accuracy against network calls, with the original sampler without drawn classes."""
    table = printed.printed_table("sa-nfe")
    calls = options.nfe or (10, 20, 50, 100)
    samplers = measuring.samplers_named(dict.fromkeys(("bfn", "sde-bfn-solver1", *table.solvers)))
    wanted = [*measuring.over_calls(samplers, calls), *measuring.beyond(judged, samplers, calls, options)]
    measured, notes = measuring.measure_all(judged, wanted, options, options.seed)
    # The paper's own row for the original sampler without drawn classes is in another table.
    undrawn = tuple(f for f in printed.printed_table("cs-ablation").figures if f.solver == "sde-bfn-solver1")
    both = dataclasses.replace(table, figures=table.figures + undrawn)
    return quality_section(judged, both, measured, options, notes=notes, ceiling=True)


def cs_ablation(judged: JudgedModel, options: Options) -> Section:
    """Measure table 3: the original sampler with and without drawn classes.

    The sampler without them, SDE-BFN-Solver1, runs on the paper's grid and also on that of the original sampler, where
    nothing else differs.
    """
    table = printed.printed_table("cs-ablation")
    calls = options.nfe or (10, 20, 50, 100)
    own = Sampler("sde-bfn-solver1 on the original's grid", "sde-bfn-solver1", {"grid": "uniform"})
    wanted = measuring.over_calls(measuring.samplers_named(["bfn", "sde-bfn-solver1"]), calls)
    wanted += [Wanted(own, Column(nfe), t_start=0.0) for nfe in calls]
    measured, notes = measuring.measure_all(judged, wanted, options, options.seed)
    section = quality_section(judged, table, measured, options, notes=notes)
    main = measuring.main_measure(judged.judge, measured)
    value = {(each.label, each.nfe): each.record.measures[main.key] for each in measured}
    words = {"agrees": "better without", "opposite": "worse without", "not told apart": "not distinguishable"}
    rows = []
    for nfe in calls:
        pair = value[own.label, nfe], value["bfn", nfe]
        rows.append([f"{nfe}", *(main.show(each) for each in pair), words[judge_pair(*pair, main)]])
    lines = chapter(
        "Is sampling better without drawn classes when all else is equal?",
        markdown_table(["calls", "without drawn classes", "with drawn classes", "result"], rows),
        "Both samplers use the grid of the original sampler here.",
    )
    return with_lines(section, lines)


REPEATS = 4
"""Number of steps from which the n-step loss of a text is estimated."""
TEXTS = 200
"""Maximum number of held-out texts that the bound is measured on."""


def bits(model: Model, x: Tensor, n_steps: int | None, seed: int) -> dict[str, Estimate]:
    """Return bits per character of texts x, (n, length), in parts, by the n-step or the continuous-time loss."""
    generator = torch.Generator(model.device).manual_seed(seed)
    return held_out_bits(model, x, n_steps=n_steps, repeats=REPEATS, generator=generator)


def efficiency(judged: JudgedModel, options: Options) -> Section:
    """Measure the bound at n steps and the spelling accuracy at n calls."""
    accuracy, likelihood = printed.printed_table("efficiency-sa"), printed.printed_table("efficiency-bpc")
    calls = options.nfe or (20, 25, 50)
    wanted = measuring.over_calls(measuring.samplers_named(accuracy.solvers), calls)
    measured, notes = measuring.measure_all(judged, wanted, options, options.seed, options.n or min(judged.n, 250))
    main = measuring.main_measure(judged.judge, measured)
    real = judged.judge.held_out
    n_texts = min(options.n or TEXTS, TEXTS, len(real))
    held_out = real[torch.arange(n_texts) * len(real) // n_texts]
    found = {n: bits(judged.model, held_out, n, options.seed) for n in (*calls, None)}
    rows = []
    for nfe in calls:
        in_paper = likelihood.value("bfn", nfe=nfe)
        own = [f"{len(held_out)}", str(found[nfe]["total"]), f"{in_paper:g}" if in_paper else ""]
        rows.append([f"{nfe}", "", *own, "", ""])
        for each in (each for each in measured if each.nfe == nfe):
            in_paper = accuracy.value(each.sampler.solver, nfe=nfe)
            shown = main.show(each.record.measures[main.key])
            rows.append(["", f"`{each.label}`", f"{each.record.n}", "", "", shown, f"{in_paper:g}" if in_paper else ""])
    rows.append(["continuous time", "", f"{len(held_out)}", str(found[None]["total"]), "", "", ""])
    header = ["steps", "sampler", "texts", "bits per character", "paper", main.label, "paper, %"]
    lines = chapter(
        "How many bits per character, and how many words are spelled correctly?",
        markdown_table(header, rows),
        "Bits per character are the n-step loss plus the reconstruction loss on held-out text, with 95 % intervals; "
        "they belong to the model and are the same for all samplers. The paper's figures for D3PM and OA-ARDM are of "
        "other models.",
    )
    lines += notes
    if judged.exact is not None:
        truth = bits_estimate(-judged.exact.log_prob(held_out.to(judged.exact.device)), held_out.shape[1])
        lines += ["", f"The exact log-probability of the same texts is {truth} bits per character."]
    results = {
        "bits": {
            str(n or "continuous"): {name: value.asdict() for name, value in parts.items()}
            for n, parts in found.items()
        },
        "cells": [each.record.asdict() for each in measured],
    }
    return Section(judged.name, judged.title, "\n".join(lines), results)
