"""Where the paper's grid starts, its eta: tables 7 and 8, and the choice of the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bfn.estimate import Estimate
from bfn.paper import printed
from bfn.paper.judged_model import JudgedModel
from bfn.paper.measurements import (
    Measurement,
    Sampler,
    Wanted,
    main_measure,
    measure_all,
    over_calls,
    samplers_named,
)
from bfn.paper.ordering import judge_pair
from bfn.paper.printed import Column, PrintedTable
from bfn.paper.quality_tables import quality_section, with_lines
from bfn.paper.report import Options, Section
from bfn.quality import Measure

__all__ = ["ETAS", "TUNING_SEED", "best_etas", "eta_continuous", "eta_discrete", "share_left", "tuning_n"]

ETAS = (5e-2, 1e-2, 1e-3, 1e-4)
"""Where the paper's grid may start on images, tuned for every number of calls as the paper did it."""
TUNING_SEED = 1_000_003
"""Added to the seed for choosing eta: the figures reported are of other samples than those it was chosen on."""


def eta_continuous(judged: JudgedModel, options: Options) -> Section:
    """Table 7: where the grid starts, on images."""
    table = printed.printed_table("eta-continuous")
    calls = options.nfe or (5, 10, 20, 50)
    measured, notes = _measure_etas(judged, samplers_named(table.solvers), calls, options)
    originals, _ = measure_all(
        judged, over_calls(samplers_named(["bfn"]), calls), options, options.seed + TUNING_SEED,
        tuning_n(judged, options),
    )  # fmt: skip
    section = quality_section(judged, table, measured, options, notes=notes)
    main = main_measure(judged.judge, measured)
    lines = ["### Which eta beats the original sampler", "", *_against_original(measured, originals, main)]
    return with_lines(section, [*lines, "", share_left(judged)])


def eta_discrete(judged: JudgedModel, options: Options) -> Section:
    """Table 8: where the grid starts, on text."""
    table = printed.printed_table("eta-discrete")
    calls = options.nfe or (20, 200)
    etas = sorted({c.eta for c in table.columns if c.eta is not None}, reverse=True)
    samplers = samplers_named(table.solvers)
    wanted = [Wanted(sampler, Column(nfe, eta)) for nfe in calls for eta in etas for sampler in samplers]
    measured, notes = measure_all(judged, wanted, options, options.seed, options.n or min(judged.n, 250))
    section = quality_section(judged, table, measured, options, notes=notes, pairs=False)
    main = main_measure(judged.judge, measured)
    lines = ["### Does eta matter?", ""]
    for nfe in calls:
        for sampler in samplers:
            here = [m for m in measured if m.label == sampler.label and m.nfe == nfe]
            values = [m.record.measures[main.key] for m in here]
            apart = any(not a.overlaps(b) for a in values for b in values)
            verdict = "some etas differ" if apart else "no two etas are told apart"
            spread = (max(v.value for v in values) - min(v.value for v in values)) * main.scale
            in_paper = _printed_spread(table, sampler.solver, nfe)
            lines.append(
                f"- {nfe} calls, `{sampler.label}`: {verdict} (spread {spread:.{main.digits}f} {main.unit}{in_paper})."
            )
    return with_lines(section, lines)


def best_etas(
    judged: JudgedModel, samplers: Sequence[Sampler], calls: Sequence[int], options: Options
) -> tuple[dict[tuple[str, int], float], list[str]]:
    """The eta with the best value of the main measure, by sampler and calls."""
    measured, notes = _measure_etas(judged, samplers, calls, options)
    main = main_measure(judged.judge, measured)
    chosen: dict[tuple[str, int], tuple[float, Estimate]] = {}
    for each in measured:
        key, value = (each.label, each.nfe), each.record.measures[main.key]
        if each.eta is not None and (key not in chosen or main.loss(value.value) < main.loss(chosen[key][1].value)):
            chosen[key] = each.eta, value
    return {key: eta for key, (eta, _) in chosen.items()}, notes


def tuning_n(judged: JudgedModel, options: Options) -> int:
    """Samples for choosing eta."""
    n = options.n or judged.n
    return min(n, max(judged.least, n * 2 // 5))


def share_left(judged: JudgedModel) -> str:
    """What a start at eta costs ODE solvers by itself: how much of the data's widest direction is left.

    Started at N(0, I) instead of N(0, (1 + s_0^2 v)), a direction of data variance v keeps 1 / sqrt(1 + v s_0^2) of
    its standard deviation along the ODE; an SDE forgets its start.
    """
    real = judged.judge.held_out.flatten(1).double()
    variance = float(torch.linalg.eigvalsh(torch.cov(real.T))[-1])
    kept = [1 / math.sqrt(1 + variance * float(judged.model.flow.schedule.beta(eta))) for eta in ETAS]
    divides = "does not divide by s" if judged.model.starts_at_zero else "divides so"
    shares = ", ".join(f"{share:.2f} at eta {eta:g}" for share, eta in zip(kept, ETAS, strict=True))
    return (
        f"What to expect of the start alone: at eta it leaves out what the data add to the state there. Along the "
        f"direction in which real images vary most (variance {variance:.3g}) the ODE then ends with this share of the "
        f"true standard deviation: {shares}. The reverse SDE forgets its start. A small eta asks much of a network "
        f"that predicts the noise, as the paper's does, since x_hat = (u - eps_hat) / s takes its errors 1 / s times; "
        f"this model {divides}."
    )


def _measure_etas(
    judged: JudgedModel, samplers: Sequence[Sampler], calls: Sequence[int], options: Options
) -> tuple[list[Measurement], list[str]]:
    """Every solver at every eta, on the samples that eta is chosen on."""
    wanted = [Wanted(sampler, Column(nfe, eta)) for nfe in calls for eta in ETAS for sampler in samplers]
    return measure_all(judged, wanted, options, options.seed + TUNING_SEED, tuning_n(judged, options))


def _against_original(measured: Sequence[Measurement], originals: Sequence[Measurement], main: Measure) -> list[str]:
    """At each number of calls, which eta beats the original sampler, by the intervals."""
    lines = []
    for original in originals:
        reference = original.record.measures[main.key]
        here = [each for each in measured if each.nfe == original.nfe]
        for label in dict.fromkeys(each.label for each in here):
            outcomes: dict[str, list[str]] = {"agrees": [], "opposite": [], "not told apart": []}
            for each in here:
                if each.label == label:
                    outcomes[judge_pair(each.record.measures[main.key], reference, main)].append(f"{each.eta:g}")
            parts = [
                f"{word} at eta {', '.join(etas)}"
                for word, etas in zip(("better", "worse", "not told apart"), outcomes.values(), strict=True)
                if etas
            ]
            lines.append(f"- {original.nfe} calls, `{label}` against the original sampler ({main.show(reference)}): "
                         f"{'; '.join(parts)}.")  # fmt: skip
    return lines


def _printed_spread(table: PrintedTable, solver: str, nfe: int) -> str:
    """The paper's own spread over eta at that many calls, where it prints one."""
    values = [f.value for f in table.figures if f.solver == solver and f.column.nfe == nfe]
    return f"; the paper's {max(values) - min(values):.2f}" if values else ""
