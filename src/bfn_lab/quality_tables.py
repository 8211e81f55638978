"""Tables of measurements beside the paper's, and comparisons with the order of solvers in the paper.

Two solvers differ if their 95 % intervals do not overlap. Otherwise the order is undecided; it is never called a tie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bfn import Model, solvers, viz
from bfn.quality import Estimate, Judge, Measure, Record, Setting, draw, markdown_table
from bfn_lab import report as printed
from bfn_lab.measuring import BEYOND, JudgedModel, Measurement, main_measure, measure_all, over_calls, samplers_named
from bfn_lab.report import Column, Options, PrintedTable, Section, chapter

Outcome = Literal["agrees", "opposite", "not told apart"]
Values = Mapping[tuple[str, Column], Estimate]
"""Figures by solver and column."""

RESOLUTION = {"FID": 0.03, "SA, %": 0.008}
"""Relative difference below which two printed figures have no order, by measure.

The paper has no intervals. The share of correct words among the 45,000 words of 1,000 texts is known to about half a
percentage point; FIDs of 10,000 images vary by one or two percent.
"""


@dataclass(frozen=True)
class Pair:
    """Two solvers whose order is printed, and whether the measurements have the same order.

    Attributes:
        better, worse: names of the solvers, as printed.
        at, printed_at: column of the measurements, and of the paper.
        printed, measured: figures of both.
        outcome: whether the orders agree.
        reason: why the order is undecided, if it is known.
    """

    better: str
    worse: str
    at: Column
    printed_at: Column
    printed: tuple[float, float]
    measured: tuple[Estimate, Estimate]
    outcome: Outcome
    reason: str = ""

    def sentence(self, measure: Measure) -> str:
        """Return the result in one line."""
        ours = " against ".join(measure.show(value) for value in self.measured)
        paper = f"{self.printed[0]:g} against {self.printed[1]:g}"
        verdict = {
            "agrees": f"`{self.better}` is better than `{self.worse}`",
            "opposite": f"`{self.better}` is worse than `{self.worse}`",
            "not told apart": f"`{self.better}` and `{self.worse}` are not distinguishable",
        }[self.outcome]
        return f"{verdict}: {ours} (paper: {paper})" + (f"; {self.reason}" if self.reason else "")


def compare_pairs(
    table: PrintedTable, measured: Values, measure: Measure, ceiling: Mapping[str, Estimate] | None = None
) -> list[Pair]:
    """Compare the order of all pairs of solvers with that of the paper, at each column of the measurements.

    At fewer calls than the paper has, its smallest number of calls is compared with.

    Args:
        table: the printed table.
        measured: the figures.
        measure: the measure.
        ceiling: figure of the model at very many calls, by solver. Solvers that have reached it can no longer differ.
    """
    found = []
    for column in dict.fromkeys(column for _, column in measured):
        printed_at = nearest(table, column)
        if printed_at is None:
            continue
        printed = {f.solver: f.value for f in table.figures if f.column == printed_at and f.solver is not None}
        here = [solver for solver in printed if (solver, column) in measured]
        for pair in combinations(here, 2):
            first, second = (printed[solver] for solver in pair)
            if abs(first - second) <= RESOLUTION.get(table.measure, 0.0) * max(first, second):
                continue
            better, worse = sorted(pair, key=printed.__getitem__, reverse=table.better == "higher")
            values = measured[better, column], measured[worse, column]
            outcome = judge_pair(*values, measure)
            reason = _reason(outcome, (better, worse), values, ceiling or {})
            numbers = printed[better], printed[worse]
            found.append(Pair(better, worse, column, printed_at, numbers, values, outcome, reason))
    return found


def judge_pair(better: Estimate, worse: Estimate, measure: Measure) -> Outcome:
    """Return whether the first is better than the second, by their intervals."""
    if better.overlaps(worse):
        return "not told apart"
    return "agrees" if (better.value < worse.value) == (measure.better == "low") else "opposite"


def nearest(table: PrintedTable, column: Column) -> Column | None:
    """Return the printed column with the nearest number of calls; None if the table lacks the eta or has step sizes."""
    if column.nfe is None:
        return None
    nfe = column.nfe
    fitting = [c for c in table.columns if c.nfe is not None and c.eta == column.eta]
    return min(fitting, key=lambda c: abs((c.nfe or 0) - nfe), default=None)


def _reason(outcome: Outcome, pair: Sequence[str], values: Sequence[Estimate], ceiling: Mapping[str, Estimate]) -> str:
    """Return why the order of two solvers is undecided, if both have reached the limit of the model."""
    limits = [ceiling.get(solver) for solver in pair]
    at_ceiling = all(limit is not None and limit.overlaps(value) for limit, value in zip(limits, values, strict=True))
    explained = outcome == "not told apart" and at_ceiling
    return "both at the limit" if explained else ""


def summary(found: Sequence[Pair], measure: Measure) -> list[str]:
    """Return a table of the number of pairs at each column, and one of the pairs without the paper's order."""
    rows = []
    for column in dict.fromkeys(v.at for v in found):
        here = [v for v in found if v.at == column]
        counts = [sum(v.outcome == outcome for v in here) for outcome in ("agrees", "opposite", "not told apart")]
        rows.append([_calls(column), f"{here[0].printed_at.nfe}", f"{len(here)}", *map(str, counts)])
    header = ["calls", "calls in the paper", "pairs", "same order", "opposite order", "not distinguishable"]
    lines = [*markdown_table(header, rows)]
    others = [v for v in found if v.outcome != "agrees"]
    if others:
        words = {"opposite": "opposite order", "not told apart": "not distinguishable"}
        body = [
            [
                _calls(v.at),
                f"`{v.better}`", f"{v.printed[0]:g}", measure.show(v.measured[0]),
                f"`{v.worse}`", f"{v.printed[1]:g}", measure.show(v.measured[1]),
                words[v.outcome] + (f", {v.reason}" if v.reason else ""),
            ]
            for v in others
        ]  # fmt: skip
        header = [
            "calls", "better in the paper", "printed", "measured",
            "worse in the paper", "printed", "measured", "result",
        ]  # fmt: skip
        lines += ["", f"<details><summary>The pairs without the paper's order ({len(others)})</summary>", ""]
        lines += [*markdown_table(header, body), "", "</details>"]
    return lines


def _calls(column: Column, unit: str = "") -> str:
    return f"{column.nfe}{unit}" + (f", eta {column.eta:g}" if column.eta is not None else "")


def quality_section(
    judged: JudgedModel,
    table: PrintedTable,
    measured: Sequence[Measurement],
    options: Options,
    *,
    notes: Sequence[str] = (),
    ceiling: bool = False,
    pairs: bool = True,
) -> Section:
    """Return the section of a report: tables, a plot, and the comparison with the paper's order."""
    main = main_measure(judged.judge, measured)
    limits, limit_records, limit_lines = ceilings(judged, options) if ceiling else ({}, [], [])
    shown = _tables(judged.judge, table, measured, main)
    lines = chapter("How good are the samples?", *([notes] if notes else []), shown)
    values = {(m.label, m.column): m.record.measures[main.key] for m in measured}
    by_label = _limit_of_each(judged, measured, limits)
    if limit_lines:
        lines += ["", *chapter("How far is each solver from the limit of the model?", limit_lines)]
        lines += ["", *_gap_table(measured, by_label, main)] if by_label else []
    found = compare_pairs(table, values, main, by_label) if pairs else []
    if found:
        lines += ["", *chapter("Do the solvers have the paper's order?", summary(found, main))]
    ours = BEYOND if options.beyond is None else options.beyond
    lines += _beyond_lines(measured, main, table, ours, limits.get("ode") if judged.exact is not None else None)
    real = _real(judged.judge, measured)
    results = {
        "measure": dataclasses.asdict(main),
        "cells": [{"row": m.label, **m.record.asdict()} for m in measured],
        "ceiling": [record.asdict() for record in limit_records],
        "real": {n: {key: value.asdict() for key, value in figures.items()} for n, figures in real.items()},
        "verdicts": [
            {"better": p.better, "worse": p.worse, "nfe": p.at.nfe, "eta": p.at.eta, "outcome": p.outcome}
            for p in found
        ],
    }

    def draw(path: Path) -> None:
        curves = [(m.label, m.column, m.record.measures[main.key]) for m in measured]
        printed.quality_plot(curves, table, main, limits, path)

    return Section(judged.name, judged.title, "\n".join(lines), results, {f"{judged.name}.png": draw})


def with_lines(section: Section, lines: Sequence[str]) -> Section:
    """Return the section with lines added."""
    return dataclasses.replace(section, markdown="\n".join([section.markdown, "", *lines])) if lines else section


def ceilings(judged: JudgedModel, options: Options) -> tuple[dict[str, Estimate], list[Record], list[str]]:
    """Return the limits of the model at very many calls, exact if possible, for "sde" and "ode" solvers."""
    if judged.exact is not None:
        n = options.n or judged.n
        x = judged.exact.sample_data(n, torch.Generator().manual_seed(options.seed))
        judge, _ = judged.judge.suited(n)
        figures = judge(x)
        value = figures[judge.measures[0].key]
        row = ["exact samples of the model", f"{n}", *(m.show(figures[m.key]) for m in judge.measures)]
        lines = [
            *markdown_table(["", "samples", *(m.label for m in judge.measures)], [row]),
            "",
            "The limit is what exact samples get. A solver that is better, beyond the intervals, no longer draws from "
            "the model.",
        ]
        return {"sde": value, "ode": value}, [], lines
    if not options.ceiling:
        return {}, [], ["The limit was not measured; `--ceiling 1000` measures it."]
    fitting = solvers.names(judged.model.flow.leading.kind)
    second = next(name for name in ("bfn-solver++2", "bfn-solver2") if name in fitting)
    wanted = over_calls(samplers_named(["bfn", second]), [options.ceiling])
    measured, _ = measure_all(judged, wanted, options, options.seed)
    main = main_measure(judged.judge, measured)
    values = [each.record.measures[main.key] for each in measured]
    rows = [
        [f"`{each.label}`", f"{options.ceiling:,}", f"{each.record.n}", main.show(value)]
        for each, value in zip(measured, values, strict=True)
    ]
    lines = markdown_table(["solver", "calls", "samples", main.label], rows)
    lines += ["", "The limit of a solver with noise is that of `bfn`, of one without noise that of the other solver."]
    return dict(zip(("sde", "ode"), values, strict=True)), [each.record for each in measured], lines


def _limit_of_each(
    judged: JudgedModel, measured: Sequence[Measurement], limits: Mapping[str, Estimate]
) -> dict[str, Estimate]:
    """Return the limit of each sampler: that of "sde" solvers if it draws noise."""
    if not limits:
        return {}
    noisy = {each.label for each in measured if each.is_stochastic(judged.model)}
    return {each.label: limits["sde" if each.label in noisy else "ode"] for each in measured}


def _real(judge: Judge, measured: Sequence[Measurement]) -> dict[int, dict[str, Estimate]]:
    """Return the figures of real samples by their number, since distances depend on it."""
    counts = dict.fromkeys(each.record.n for each in measured)
    return {n: judge.suited(n)[0].real(n) for n in counts}


def _tables(judge: Judge, table: PrintedTable, measured: Sequence[Measurement], main: Measure) -> list[str]:
    """Return the table of the main measure beside the paper's figures, and one of the other measures."""
    columns = list(dict.fromkeys(each.column for each in measured))
    labels = list(dict.fromkeys(each.label for each in measured))
    found = {(each.label, each.column): each for each in measured}
    tuned = any(each.eta for each in measured) and not any(column.eta for column in columns)
    body = []
    for label in labels:
        body.append([f"`{label}`", *(_shown(found.get((label, column)), main, tuned) for column in columns)])
        printed = [_printed(table, label, column) for column in columns]
        if any(printed):
            body.append(["*paper*", *printed])
    real, sizes = _real(judge, measured), {each.column: each.record.n for each in measured}
    body.append(["real data", *(main.show(real[sizes[column]][main.key]) for column in columns)])
    body.append(["samples", *(f"{sizes[column]}" for column in columns)])
    lines = [f"{main.label[0].upper()}{main.label[1:]} (judge `{judge.name}`), "
             f"{'lower' if main.better == 'low' else 'higher'} is better, "
             f"95 % intervals. Rows marked *paper*: {table.measure} on {table.data}, as printed.", ""]  # fmt: skip
    lines += markdown_table(["", *(_calls(column, " calls") for column in columns)], body)
    others = [m for m in judge.measures if m.key != main.key and all(m.key in e.record.measures for e in measured)]
    if not others:
        return lines
    body = []
    for other in others:
        named = f"{other.label}{other.unit and ', ' + other.unit}"
        for label in labels:
            values = (_value(found.get((label, column)), other) for column in columns)
            body.append([named if label == labels[0] else "", f"`{label}`", *values])
        body.append(["", "real data", *(other.show(real[sizes[column]][other.key]) for column in columns)])
    header = ["measure", "", *(_calls(column, " calls") for column in columns)]
    lines += ["", "<details><summary>Other measures</summary>", "", *markdown_table(header, body), "", "</details>"]
    return lines


def _shown(each: Measurement | None, measure: Measure, tuned: bool) -> str:
    if each is None:
        return ""
    eta = f" (eta {each.eta:g})" if tuned and each.eta else ""
    return measure.show(each.record.measures[measure.key]) + eta


def _value(each: Measurement | None, measure: Measure) -> str:
    return "" if each is None else f"{each.record.measures[measure.key].value * measure.scale:.{measure.digits}f}"


def _printed(table: PrintedTable, solver: str, column: Column) -> str:
    value = table.value(solver, nfe=column.nfe, eta=column.eta)
    doubted = any(f.remarks for f in table.figures if f.solver == solver and f.column == column)
    return "" if value is None else f"{value:g}{' (?)' if doubted else ''}"


def _gap_table(measured: Sequence[Measurement], ceiling: Mapping[str, Estimate], main: Measure) -> list[str]:
    """Return the table of distances to the limit of the model."""
    columns = list(dict.fromkeys(each.column for each in measured))
    found = {(each.label, each.column): each.record.measures[main.key] for each in measured}

    def gap(label: str, column: Column) -> str:
        value, limit = found[label, column], ceiling[label]
        missing = (main.loss(value.value) - main.loss(limit.value)) * main.scale
        note = " (reached)" if value.overlaps(limit) else " (beyond)" if missing < 0 else ""
        return f"{missing:+.{main.digits}f}{note}"

    rows = [[f"`{label}`", *(gap(label, column) for column in columns)] for label in ceiling]
    head = (
        f"Distance to the limit in {main.label}, positive where the solver is worse. *Reached*: the intervals "
        "overlap. *Beyond*: the solver is better."
    )
    return [head, "", *markdown_table(["", *(_calls(column, " calls") for column in columns)], rows)]


def _beyond_lines(
    measured: Sequence[Measurement],
    main: Measure,
    table: PrintedTable,
    names: Sequence[str],
    truth: Estimate | None = None,
) -> list[str]:
    """Return the table of this library's solvers against the best of the paper's; ``truth`` is of exact samples."""

    def verdict(value: Estimate, best: Estimate) -> str:
        if truth is not None and judge_pair(value, truth, main) == "agrees":
            return "beyond exact samples"
        words = {"agrees": "better", "opposite": "worse", "not told apart": "not distinguishable"}
        return words[judge_pair(value, best, main)]

    rows, labels = [], list[str]()
    for column in dict.fromkeys(each.column for each in measured):
        here = {m.label: m.record.measures[main.key] for m in measured if m.column == column}
        ours = {name: value for name, value in here.items() if name in names and name not in table.solvers}
        theirs = {name: value for name, value in here.items() if name in table.solvers}
        if not ours or not theirs:
            continue
        best = min(theirs, key=lambda name: main.loss(theirs[name].value))
        labels = list(ours)
        shown = [f"{main.show(value)}, {verdict(value, theirs[best])}" for value in ours.values()]
        rows.append([f"{column.nfe}", f"`{best}` {main.show(theirs[best])}", *shown])
    if not rows:
        return []
    header = ["calls", "the paper's best", *(f"`{label}`" for label in labels)]
    return ["", *chapter("Are this library's solvers better than the paper's best?", markdown_table(header, rows))]


CALLS: Mapping[str, tuple[int, ...]] = {"images": (10, 50), "text": (10, 100)}
COUNT: Mapping[str, int] = {"images": 30, "text": 4}

Drawn = dict[tuple[str, int], Tensor]
"""Samples by solver and number of calls."""


def samples(judged: JudgedModel, options: Options) -> Section:
    """Draw a sheet of images, or lines of text, for each solver and number of calls."""
    model = judged.model
    calls, n = options.nfe or CALLS[model.form], options.n or COUNT[model.form]
    names = dict.fromkeys((*_papers_solvers(model), *(BEYOND[:1] if options.beyond is None else options.beyond)))
    drawn: Drawn = {
        (name, nfe): draw(model, Setting(name, nfe), n, options.seed, n).x for name in names for nfe in calls
    }
    results = {"n": n, "samplers": [{"solver": name, "nfe": nfe} for name, nfe in drawn]}
    note = f"All solvers start from the same noise, each on its own grid. These are the first {n} samples of the seed."
    if model.form == "text":
        return Section(judged.name, judged.title, "\n".join([note, *_texts(model, drawn)]), results)
    return Section(judged.name, judged.title, note, results, {f"{judged.name}.png": partial(_sheet, model, drawn)})


def _papers_solvers(model: Model) -> tuple[str, ...]:
    """Return the solvers of the paper's table for this kind of data."""
    tables = [printed.printed_table(name).solvers for name in ("fid-nfe", "sa-nfe")]
    fitting = solvers.names(model.flow.leading.kind)
    return next(names for names in tables if all(name in fitting for name in names))


def _texts(model: Model, drawn: Drawn) -> list[str]:
    lines = []
    for (name, nfe), x in drawn.items():
        lines += ["", f"`{name}`, {nfe} calls", "", "```text", *model.decode(x), "```"]
    return lines


def _sheet(model: Model, drawn: Drawn, path: Path) -> None:
    """Write a picture with a row of sheets for each number of calls."""
    from PIL import Image

    rows = []
    for nfe in dict.fromkeys(nfe for _, nfe in drawn):
        here = {name: model.flow.values(x) for (name, at), x in drawn.items() if at == nfe}
        parts = [(name, viz.sheet(values, columns=5).reduce(2)) for name, values in here.items()]
        rows.append(viz.side_by_side(parts, f"{nfe} calls"))
    page = Image.new(rows[0].mode, (max(row.width for row in rows), sum(row.height for row in rows)), "white")
    top = 0
    for row in rows:
        page.paste(row, (0, top))
        top += row.height
    page.save(path, format="PNG", optimize=True)
