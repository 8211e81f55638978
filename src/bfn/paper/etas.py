"""Where the paper's grid starts, its eta: tables 7 and 8, and the choice of the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bfn.paper import paper
from bfn.paper.cells import Cell, Row, main_measure, plain, run_cells
from bfn.paper.paper import Column
from bfn.paper.quality import quality_section, with_lines
from bfn.paper.reports import Options, Section
from bfn.paper.subjects import Subject
from bfn.paper.verdicts import judge_pair
from bfn.quality.judges import Measure, Measured

ETAS = (5e-2, 1e-2, 1e-3, 1e-4)
"""Where the paper's grid may start on images, tuned for every number of calls as the paper did it."""
TUNING_SEED = 1_000_003
"""Added to the seed for choosing eta: the figures reported are of other samples than those it was chosen on."""


def eta_continuous(subject: Subject, options: Options) -> Section:
    """Table 7: where the grid starts, on images."""
    table = paper.table("eta-continuous")
    calls = options.nfe or (5, 10, 20, 50)
    cells, notes = eta_cells(subject, plain(table.solvers), calls, options, ETAS)
    wanted = [(row, Column(nfe), row.at(nfe)) for row in plain(["bfn"]) for nfe in calls]
    originals, _ = run_cells(subject, wanted, options, options.seed + TUNING_SEED, tuning_n(subject, options))
    section = quality_section(subject, table, cells, options, notes=notes)
    main = main_measure(subject.judge, cells)
    lines = ["### Eta decides", "", *eta_lines(cells, originals, main), "", shrinkage(subject)]
    return with_lines(section, lines)


def eta_discrete(subject: Subject, options: Options) -> Section:
    """Table 8: where the grid starts, on text."""
    table = paper.table("eta-discrete")
    calls = options.nfe or (20, 200)
    etas = sorted({c.eta for c in table.columns if c.eta is not None}, reverse=True)
    wanted = [(row, Column(n, e), row.at(n, e)) for n in calls for e in etas for row in plain(table.solvers)]
    cells, notes = run_cells(subject, wanted, options, options.seed, options.n or min(subject.n, 250))
    section = quality_section(subject, table, cells, options, notes=notes, pairs=False)
    main = main_measure(subject.judge, cells)
    lines = ["### Does eta matter?", ""]
    for nfe in calls:
        for row in plain(table.solvers):
            here = [c for c in cells if c.row.label == row.label and c.record.setting.nfe == nfe]
            values = [c.record.measures[main.key] for c in here]
            apart = any(not a.overlaps(b) for a in values for b in values)
            verdict = "some etas differ" if apart else "no two etas are told apart, as in the paper"
            spread = abs(max(v.value for v in values) - min(v.value for v in values)) * main.scale
            lines.append(f"- {nfe} calls, `{row.label}`: {verdict} (spread {spread:.{main.digits}f} {main.unit}).")
    return with_lines(section, lines)


def best_etas(
    subject: Subject, rows: Sequence[Row], calls: Sequence[int], options: Options
) -> tuple[dict[tuple[str, int], float], list[str]]:
    """The eta with the best value of the main measure, by row and calls."""
    cells, notes = eta_cells(subject, rows, calls, options, ETAS)
    chosen: dict[tuple[str, int], tuple[float, Measured]] = {}
    main = main_measure(subject.judge, cells)
    for cell in cells:
        key, value = (cell.row.label, cell.record.setting.nfe), cell.record.measures[main.key]
        if cell.eta is not None and (key not in chosen or _is_better(value, chosen[key][1], main)):
            chosen[key] = cell.eta, value
    return {key: eta for key, (eta, _) in chosen.items()}, notes


def eta_cells(
    subject: Subject, rows: Sequence[Row], calls: Sequence[int], options: Options, etas: Sequence[float]
) -> tuple[list[Cell], list[str]]:
    """Every solver at every eta, on the samples that eta is chosen on."""
    wanted = [(row, Column(nfe, eta), row.at(nfe, eta)) for nfe in calls for eta in etas for row in rows]
    return run_cells(subject, wanted, options, options.seed + TUNING_SEED, tuning_n(subject, options))


def tuning_n(subject: Subject, options: Options) -> int:
    """Samples for choosing eta."""
    n = options.n or subject.n
    return min(n, max(subject.least, n * 2 // 5))


def eta_lines(cells: Sequence[Cell], originals: Sequence[Cell], main: Measure) -> list[str]:
    """At each number of calls, which eta beats the original sampler, by the intervals."""
    lines = []
    for original in originals:
        nfe, reference = original.record.setting.nfe, original.record.measures[main.key]
        here = [cell for cell in cells if cell.record.setting.nfe == nfe]
        for row in dict.fromkeys(cell.row.label for cell in here):
            outcomes: dict[str, list[str]] = {"agrees": [], "opposite": [], "not told apart": []}
            for cell in here:
                if cell.row.label == row:
                    outcomes[judge_pair(cell.record.measures[main.key], reference, main)].append(f"{cell.eta:g}")
            parts = [
                f"{word} at eta {', '.join(etas)}"
                for word, etas in zip(("better", "worse", "not told apart"), outcomes.values(), strict=True)
                if etas
            ]
            lines.append(f"- {nfe} calls, `{row}` against the original sampler ({main.show(reference)}): "
                         f"{'; '.join(parts)}.")  # fmt: skip
    return lines


def shrinkage(subject: Subject) -> str:
    """Why a large eta costs ODE solvers quality: how much of the data's widest direction is left.

    Started at N(0, I) instead of N(0, (1 + s_0^2 v)), a direction of data variance v keeps 1 / sqrt(1 + v s_0^2) of
    its standard deviation along the ODE; an SDE forgets its start.
    """
    real = subject.judge.held_out.flatten(1).double()
    variance = float(torch.linalg.eigvalsh(torch.cov(real.T))[-1])
    kept = [1 / math.sqrt(1 + variance * float(subject.model.flow.schedule.beta(eta))) for eta in ETAS]
    own = (
        "this model's prediction is defined at t = 0, and small etas cost it little"
        if subject.model.starts_at_zero
        else "this model is such a one"
    )
    shares = ", ".join(f"{share:.2f} at eta {eta:g}" for share, eta in zip(kept, ETAS, strict=True))
    return (
        f"Why: the paper's start at eta leaves out what the data add to the state there. Along the direction in which "
        f"real images vary most (variance {variance:.3g}) the ODE then ends with this share of the true standard "
        f"deviation: {shares}. The reverse SDE forgets its start. Too small an eta hurts a network that predicts the "
        f"noise, as the paper's does, since x_hat = (u - eps_hat) / s takes its errors 1 / s times; {own}."
    )


def _is_better(a: Measured, b: Measured, main: Measure) -> bool:
    return (a.value < b.value) == (main.better == "low") and a.value != b.value
