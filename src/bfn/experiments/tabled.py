"""The paper's tables of quality: solvers down, calls (and eta) across, each cell measured with its interval."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bfn.experiments import paper
from bfn.experiments.judges import Judge, Measure, Measured
from bfn.experiments.measure import Record, Setting, measure
from bfn.experiments.paper import Column, PaperTable
from bfn.experiments.reports import Options, Section, markdown_table
from bfn.experiments.subjects import Subject
from bfn.experiments.verdicts import judge_pair, summary, verdicts

ETAS = (5e-2, 1e-2, 1e-3, 1e-4)
"""Where the paper's grid may start on images, tuned for every number of calls as the paper did it."""
TUNING_SEED = 1_000_003
"""Added to the seed for choosing eta: the figures reported are of other samples than those it was chosen on."""
FEW_CALLS = 10
"""Up to so many calls all samples are drawn; above it fewer, so that every column costs the same."""
BEYOND = ("auto", "fast-ode", "fast-sde")


@dataclass(frozen=True)
class Row:
    """A sampler. label: how it is called in the report; name: our solver, by which the paper's row is found."""

    label: str
    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def at(self, nfe: int, t_start: float | None = None) -> Setting:
        """What to measure at that many calls."""
        return Setting(self.name, nfe, t_start, **self.settings)


@dataclass(frozen=True)
class Cell:
    """One measured setting."""

    row: Row
    column: Column
    record: Record

    @property
    def eta(self) -> float | None:
        """Where its grid started, if that was set."""
        return self.record.setting.t_start


def plain(names: Iterable[str]) -> list[Row]:
    """Solvers as they come."""
    return [Row(name, name) for name in names]


def samples_at(n: int, nfe: int, least: int = 100) -> int:
    """How many samples are drawn at that many calls: n up to 10 calls, 10 n / nfe above, but not below ``least``."""
    return n if nfe <= FEW_CALLS else min(n, max(least, n * FEW_CALLS // nfe))


def run_cells(
    subject: Subject, wanted: Sequence[tuple[Row, Column, Setting]], options: Options, seed: int, n: int | None = None
) -> tuple[list[Cell], list[str]]:
    """Measure all, those with equal numbers of samples together; what is in the store already is taken from it.

    Returns also lines on parts of the judgement that so few samples do not allow.
    """
    whole = n or options.n or subject.n
    counts = [samples_at(whole, setting.nfe, subject.least) for _, _, setting in wanted]
    cells: dict[int, Cell] = {}
    notes: list[str] = []
    for count in dict.fromkeys(counts):
        here = [i for i, c in enumerate(counts) if c == count]
        judge, said = subject.judge.suited(count)
        notes += [line for line in said if line not in notes]
        records = measure(
            subject.model, [wanted[i][2] for i in here], judge, count, seed=seed, batch=options.batch or subject.batch,
            n_labels=subject.n_labels, store=options.store, identity=subject.identity, progress=options.progress,
        )  # fmt: skip
        for i, record in zip(here, records, strict=True):
            cells[i] = Cell(wanted[i][0], wanted[i][1], record)
    return [cells[i] for i in range(len(wanted))], notes


def fid_nfe(subject: Subject, options: Options) -> Section:
    """Table 5: the original sampler against the paper's three, each at its best eta, over the number of calls."""
    table = paper.table("fid-nfe")
    calls = options.nfe or (5, 10, 20, 50)
    original, rest = plain(["bfn"]), [row for row in plain(table.solvers) if row.name != "bfn"]
    etas, notes = best_etas(subject, rest, calls, options)
    wanted = [(row, Column(nfe), row.at(nfe)) for row in original for nfe in calls]
    wanted += [(row, Column(nfe), row.at(nfe, etas[row.label, nfe])) for row in rest for nfe in calls]
    wanted += beyond(subject, calls, options)
    cells, more = run_cells(subject, wanted, options, options.seed)
    n_tuning = samples_at(tuning_n(subject, options), calls[0], subject.least)
    intro = [
        f"Each of the paper's solvers starts at its best eta of {_list(ETAS)} for that number of calls, chosen on "
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


def with_lines(section: Section, lines: Sequence[str]) -> Section:
    """The section with more text at its end."""
    return dataclasses.replace(section, markdown="\n".join([section.markdown, "", *lines])) if lines else section


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


def tuning_n(subject: Subject, options: Options) -> int:
    """Samples for choosing eta."""
    n = options.n or subject.n
    return min(n, max(subject.least, n * 2 // 5))


def eta_cells(
    subject: Subject, rows: Sequence[Row], calls: Sequence[int], options: Options, etas: Sequence[float]
) -> tuple[list[Cell], list[str]]:
    """Every solver at every eta, on the samples that eta is chosen on."""
    wanted = [(row, Column(nfe, eta), row.at(nfe, eta)) for nfe in calls for eta in etas for row in rows]
    return run_cells(subject, wanted, options, options.seed + TUNING_SEED, tuning_n(subject, options))


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


def sa_nfe(subject: Subject, options: Options) -> Section:
    """Table 6: spelling accuracy over the number of calls; beside it the original sampler without drawn classes."""
    table = paper.table("sa-nfe")
    calls = options.nfe or (10, 20, 50, 100)
    rows = [*plain(["bfn", "sde-bfn-solver1"]), *(row for row in plain(table.solvers) if row.name != "bfn")]
    wanted = [(row, Column(nfe), row.at(nfe)) for row in rows for nfe in calls]
    wanted += beyond(subject, calls, options)
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


def beyond(subject: Subject, calls: Sequence[int], options: Options) -> list[tuple[Row, Column, Setting]]:
    """Our own solvers, where they are wanted; equal tables are measured only once."""
    names = BEYOND if options.beyond else ()
    return [(row, Column(nfe), row.at(nfe)) for row in plain(names) for nfe in calls]


def ceilings(subject: Subject, options: Options) -> tuple[dict[str, Measured], list[Record], list[str]]:
    """What the model gives at very many calls, by the kind of solver: "sde" and "ode"; exactly, where that is known."""
    if subject.exact is not None:
        n = options.n or subject.n
        x = subject.exact.sample_data(n, torch.Generator().manual_seed(options.seed))
        judge, _ = subject.judge.suited(n)
        figures = judge(x)
        value = figures[judge.measures[0].key]
        shown = ", ".join(f"{m.label} {m.show(figures[m.key])}" for m in judge.measures)
        lines = [
            f"Exact samples of the model ({n} of them) get: {shown}.",
            "A sampler beyond them no longer draws from the model: its samples are likelier than the model's own.",
        ]
        return {"sde": value, "ode": value}, [], lines
    if not options.ceiling:
        return {}, [], ["No ceiling was measured: `--ceiling 1000` does."]
    names = ("bfn", "bfn-solver2") if subject.model.flow.kind == "discrete" else ("bfn", "bfn-solver++2")
    wanted = [(row, Column(options.ceiling), row.at(options.ceiling)) for row in plain(names)]
    cells, _ = run_cells(subject, wanted, options, options.seed)
    main = main_measure(subject.judge, cells)
    values = [cell.record.measures[main.key] for cell in cells]
    lines = [
        f"The ceiling, {options.ceiling:,} calls with {cell.record.n} samples: `{cell.row.label}` {main.show(value)}."
        for cell, value in zip(cells, values, strict=True)
    ]
    return dict(zip(("sde", "ode"), values, strict=True)), [cell.record for cell in cells], lines


def quality_section(
    subject: Subject,
    table: PaperTable,
    cells: Sequence[Cell],
    options: Options,
    *,
    notes: Sequence[str] = (),
    ceiling: bool = False,
    pairs: bool = True,
) -> Section:
    """The cells as tables, a picture, and what they say about the paper's ordering."""
    main = main_measure(subject.judge, cells)
    limits, limit_records, limit_lines = ceilings(subject, options) if ceiling else ({}, [], [])
    lines = [*notes, *([""] if notes else []), *_tables(subject.judge, table, cells, main)]
    values = {(c.row.label, c.column): c.record.measures[main.key] for c in cells}
    by_solver = {c.row.label: limits["sde" if _noisy(c) else "ode"] for c in cells} if limits else {}
    if limit_lines:
        lines += ["", "### The ceiling", "", *limit_lines]
        lines += ["", *_gap_table(cells, by_solver, main)] if by_solver else []
    found = verdicts(table, values, main, by_solver) if pairs else []
    if found:
        lines += ["", "### Against the paper's ordering", "", *summary(found, main)]
    lines += _beyond_lines(cells, main, table, limits.get("ode") if subject.exact is not None else None)
    results = {
        "measure": dataclasses.asdict(main),
        "cells": [{"row": c.row.label, **c.record.asdict()} for c in cells],
        "ceiling": [record.asdict() for record in limit_records],
        "real": {
            n: {key: dataclasses.asdict(value) for key, value in found.items()}
            for n, found in _real(subject.judge, cells).items()
        },
        "verdicts": [
            {"better": v.better, "worse": v.worse, "nfe": v.at.nfe, "eta": v.at.eta, "outcome": v.outcome}
            for v in found
        ],
    }

    def draw(path: Any) -> None:
        from bfn.experiments.pictures import quality_picture

        curves = [(c.row.label, c.column, c.record.measures[main.key]) for c in cells]
        quality_picture(curves, table, main, limits, path)

    return Section(subject.name, subject.title, "\n".join(lines), results, {f"{subject.name}.png": draw})


def main_measure(judge: Judge, cells: Sequence[Cell]) -> Measure:
    """The first measure that all cells have: with few samples a judge leaves some out."""
    shared = [m for m in judge.measures if all(m.key in cell.record.measures for cell in cells)]
    if not shared:
        raise ValueError(f"judge {judge.name!r}: no measure that all numbers of samples allow; give a larger --n")
    return shared[0]


def _real(judge: Judge, cells: Sequence[Cell]) -> dict[int, dict[str, Measured]]:
    """What real samples get, by their number: distances depend on it."""
    counts = dict.fromkeys(cell.record.n for cell in cells)
    return {n: judge.suited(n)[0].real(n) for n in counts}


def _tables(judge: Judge, table: PaperTable, cells: Sequence[Cell], main: Measure) -> list[str]:
    """The main measure with intervals beside the paper's figures, then the others."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = list(dict.fromkeys(cell.row.label for cell in cells))
    found = {(cell.row.label, cell.column): cell for cell in cells}
    tuned = any(cell.eta for cell in cells) and not any(column.eta for column in columns)
    body = []
    for row in rows:
        shown = [_shown(found.get((row, column)), main, tuned) for column in columns]
        body.append([f"`{row}`", *shown])
        printed = [_printed(table, row, column) for column in columns]
        if any(printed):
            body.append(["*paper*", *printed])
    real = _real(judge, cells)
    lines = [f"**{main.label}**, better {'lower' if main.better == 'low' else 'higher'}, with 95 % intervals; "
             f"*paper*: {table.measure} on {table.data}, {table.place}.", ""]  # fmt: skip
    lines += markdown_table(["", *(_heading(column) for column in columns)], body)
    sizes = ", ".join(f"{c.nfe}: {found_n}" for c, found_n in _sizes(cells).items())
    reals = ", ".join(f"{main.show(found[main.key])} ({n} samples)" for n, found in real.items())
    lines += ["", f"Samples by calls: {sizes}. Real data get {reals}."]
    others = [m for m in judge.measures if m.key != main.key and all(m.key in c.record.measures for c in cells)]
    for other in others:
        body = [[f"`{row}`", *(_plain_value(found.get((row, column)), other) for column in columns)] for row in rows]
        shown_real = other.show(next(iter(real.values()))[other.key])
        lines += ["", f"<details><summary>{other.label} (real: {shown_real})</summary>", ""]
        lines += [*markdown_table(["", *(_heading(column) for column in columns)], body), "", "</details>"]
    return lines


def _sizes(cells: Sequence[Cell]) -> dict[Column, int]:
    return {Column(cell.record.setting.nfe): cell.record.n for cell in cells}


def _heading(column: Column) -> str:
    return f"{column.nfe} calls" + (f", eta {column.eta:g}" if column.eta is not None else "")


def _shown(cell: Cell | None, measure: Measure, tuned: bool) -> str:
    if cell is None:
        return ""
    eta = f" (eta {cell.eta:g})" if tuned and cell.eta else ""
    return measure.show(cell.record.measures[measure.key]) + eta


def _plain_value(cell: Cell | None, measure: Measure) -> str:
    return "" if cell is None else f"{cell.record.measures[measure.key].value * measure.scale:.{measure.digits}f}"


def _printed(table: PaperTable, row: str, column: Column) -> str:
    value = table.value(row, nfe=column.nfe, eta=column.eta)
    doubted = any(f.remarks for f in table.figures if f.solver == row and f.column == column)
    return "" if value is None else f"{value:g}{' (?)' if doubted else ''}"


def _gap_table(cells: Sequence[Cell], ceiling: Mapping[str, Measured], main: Measure) -> list[str]:
    """How far each solver is from what the model gives at very many calls."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    found = {(cell.row.label, cell.column): cell.record.measures[main.key] for cell in cells}

    def gap(row: str, column: Column) -> str:
        value, limit = found[row, column], ceiling[row]
        missing = (limit.value - value.value) * (1 if main.better == "high" else -1) * main.scale
        return f"{missing:+.{main.digits}f}" + (
            " (reached)" if value.overlaps(limit) else " (beyond)" if missing < 0 else ""
        )

    rows = [[f"`{row}`", *(gap(row, column) for column in columns)] for row in ceiling]
    head = f"Gap to the ceiling ({main.label}); reached: the intervals overlap; beyond: better than it:"
    return [head, "", *markdown_table(["", *(_heading(column) for column in columns)], rows)]


def _beyond_lines(cells: Sequence[Cell], main: Measure, table: PaperTable, truth: Measured | None = None) -> list[str]:
    """Our own solvers against the best of the paper's at the same calls. truth: what exact samples get."""

    def told(value: Measured, best: Measured) -> str:
        if truth is not None and judge_pair(value, truth, main) == "agrees":
            return "beyond what exact samples get: it no longer draws from the model"
        return {"agrees": "better", "opposite": "worse", "not told apart": "not told apart"}[
            judge_pair(value, best, main)
        ]

    lines = []
    for column in dict.fromkeys(cell.column for cell in cells):
        here = {c.row.label: c.record.measures[main.key] for c in cells if c.column == column}
        ours = {name: value for name, value in here.items() if name in BEYOND}
        theirs = {name: value for name, value in here.items() if name in table.solvers}
        if not ours or not theirs:
            continue
        best = _best(theirs, main)
        parts = [f"`{name}` ({main.show(value)}) {told(value, theirs[best])}" for name, value in ours.items()]
        against = f"the best of the paper's, `{best}` ({main.show(theirs[best])})"
        lines.append(f"- {column.nfe} calls, against {against}: {'; '.join(parts)}.")
    return ["", "### Beyond the paper", "", *lines] if lines else []


def _best(values: Mapping[str, Measured], main: Measure) -> str:
    pick: Callable[..., str] = min if main.better == "low" else max
    return pick(values, key=lambda name: values[name].value)


def _is_better(a: Measured, b: Measured, main: Measure) -> bool:
    return (a.value < b.value) == (main.better == "low") and a.value != b.value


def _noisy(cell: Cell) -> bool:
    return "sde" in cell.row.name or cell.row.name in ("bfn", "auto")


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
