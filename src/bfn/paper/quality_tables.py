"""Measurements written out: tables beside the paper's figures, the ceiling, the ordering, our own solvers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bfn import solvers
from bfn.estimate import Estimate
from bfn.paper.judged_model import JudgedModel
from bfn.paper.measurements import BEYOND, Measurement, main_measure, measure_all, over_calls, samplers_named
from bfn.paper.ordering import compare_pairs, judge_pair, summary
from bfn.paper.printed import Column, PrintedTable
from bfn.paper.report import Options, Section
from bfn.quality import Judge, Measure, Record, markdown_table

__all__ = ["ceilings", "quality_section", "with_lines"]


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
    """The measurements as tables, a plot, and what they say about the paper's ordering."""
    main = main_measure(judged.judge, measured)
    limits, limit_records, limit_lines = ceilings(judged, options) if ceiling else ({}, [], [])
    lines = [*notes, *([""] if notes else []), *_tables(judged.judge, table, measured, main)]
    values = {(m.label, m.column): m.record.measures[main.key] for m in measured}
    by_label = _limit_of_each(judged, measured, limits)
    if limit_lines:
        lines += ["", "### The ceiling", "", *limit_lines]
        lines += ["", *_gap_table(measured, by_label, main)] if by_label else []
    found = compare_pairs(table, values, main, by_label) if pairs else []
    if found:
        lines += ["", "### Against the paper's ordering", "", *summary(found, main)]
    ours = BEYOND if options.beyond is None else options.beyond
    lines += _beyond_lines(measured, main, table, ours, limits.get("ode") if judged.exact is not None else None)
    results = {
        "measure": dataclasses.asdict(main),
        "cells": [{"row": m.label, **m.record.asdict()} for m in measured],
        "ceiling": [record.asdict() for record in limit_records],
        "real": {
            n: {key: value.asdict() for key, value in figures.items()}
            for n, figures in _real(judged.judge, measured).items()
        },
        "verdicts": [
            {"better": p.better, "worse": p.worse, "nfe": p.at.nfe, "eta": p.at.eta, "outcome": p.outcome}
            for p in found
        ],
    }

    def draw(path: Path) -> None:
        from bfn.paper.plots import quality_plot

        curves = [(m.label, m.column, m.record.measures[main.key]) for m in measured]
        quality_plot(curves, table, main, limits, path)

    return Section(judged.name, judged.title, "\n".join(lines), results, {f"{judged.name}.png": draw})


def with_lines(section: Section, lines: Sequence[str]) -> Section:
    """The section with more text at its end."""
    return dataclasses.replace(section, markdown="\n".join([section.markdown, "", *lines])) if lines else section


def ceilings(judged: JudgedModel, options: Options) -> tuple[dict[str, Estimate], list[Record], list[str]]:
    """What the model gives at very many calls, by the kind of solver: "sde" and "ode"; exactly, where that is known."""
    if judged.exact is not None:
        n = options.n or judged.n
        x = judged.exact.sample_data(n, torch.Generator().manual_seed(options.seed))
        judge, _ = judged.judge.suited(n)
        figures = judge(x)
        value = figures[judge.measures[0].key]
        shown = ", ".join(f"{m.label} {m.show(figures[m.key])}" for m in judge.measures)
        lines = [
            f"Exact samples of the model ({n} of them) get: {shown}.",
            "A sampler whose figures are better than these, beyond the intervals, no longer draws from the model.",
        ]
        return {"sde": value, "ode": value}, [], lines
    if not options.ceiling:
        return {}, [], ["No ceiling was measured: `--ceiling 1000` does."]
    fitting = solvers.names(judged.model.flow.kind)
    second = next(name for name in ("bfn-solver++2", "bfn-solver2") if name in fitting)
    wanted = over_calls(samplers_named(["bfn", second]), [options.ceiling])
    measured, _ = measure_all(judged, wanted, options, options.seed)
    main = main_measure(judged.judge, measured)
    values = [each.record.measures[main.key] for each in measured]
    lines = [
        f"The ceiling, {options.ceiling:,} calls with {each.record.n} samples: `{each.label}` {main.show(value)}."
        for each, value in zip(measured, values, strict=True)
    ]
    return dict(zip(("sde", "ode"), values, strict=True)), [each.record for each in measured], lines


def _limit_of_each(
    judged: JudgedModel, measured: Sequence[Measurement], limits: Mapping[str, Estimate]
) -> dict[str, Estimate]:
    """The ceiling of each sampler: that of samplers with noise if it ever draws any."""
    if not limits:
        return {}
    noisy = {each.label for each in measured if each.is_stochastic(judged.model)}
    return {each.label: limits["sde" if each.label in noisy else "ode"] for each in measured}


def _real(judge: Judge, measured: Sequence[Measurement]) -> dict[int, dict[str, Estimate]]:
    """What real samples get, by their number: distances depend on it."""
    counts = dict.fromkeys(each.record.n for each in measured)
    return {n: judge.suited(n)[0].real(n) for n in counts}


def _tables(judge: Judge, table: PrintedTable, measured: Sequence[Measurement], main: Measure) -> list[str]:
    """The main measure with intervals beside the paper's figures, then the others."""
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
    real = _real(judge, measured)
    lines = [f"**{main.label}**, better {'lower' if main.better == 'low' else 'higher'}, with 95 % intervals; "
             f"*paper*: {table.measure} on {table.data}, {table.place}.", ""]  # fmt: skip
    lines += markdown_table(["", *(_heading(column) for column in columns)], body)
    sizes = ", ".join(f"{nfe}: {n}" for nfe, n in {each.nfe: each.record.n for each in measured}.items())
    reals = ", ".join(f"{main.show(figures[main.key])} ({n} samples)" for n, figures in real.items())
    lines += ["", f"Samples by calls: {sizes}. Real data get {reals}."]
    others = [m for m in judge.measures if m.key != main.key and all(m.key in e.record.measures for e in measured)]
    for other in others:
        body = [[f"`{label}`", *(_value(found.get((label, column)), other) for column in columns)] for label in labels]
        shown_real = other.show(next(iter(real.values()))[other.key])
        lines += ["", f"<details><summary>{other.label} (real: {shown_real})</summary>", ""]
        lines += [*markdown_table(["", *(_heading(column) for column in columns)], body), "", "</details>"]
    return lines


def _heading(column: Column) -> str:
    return f"{column.nfe} calls" + (f", eta {column.eta:g}" if column.eta is not None else "")


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
    """How far each solver is from what the model gives at very many calls."""
    columns = list(dict.fromkeys(each.column for each in measured))
    found = {(each.label, each.column): each.record.measures[main.key] for each in measured}

    def gap(label: str, column: Column) -> str:
        value, limit = found[label, column], ceiling[label]
        missing = (main.loss(value.value) - main.loss(limit.value)) * main.scale
        return f"{missing:+.{main.digits}f}" + (
            " (reached)" if value.overlaps(limit) else " (beyond)" if missing < 0 else ""
        )

    rows = [[f"`{label}`", *(gap(label, column) for column in columns)] for label in ceiling]
    head = f"Gap to the ceiling ({main.label}); reached: the intervals overlap; beyond: better than it:"
    return [head, "", *markdown_table(["", *(_heading(column) for column in columns)], rows)]


def _beyond_lines(
    measured: Sequence[Measurement],
    main: Measure,
    table: PrintedTable,
    names: Sequence[str],
    truth: Estimate | None = None,
) -> list[str]:
    """Our own solvers against the best of the paper's at the same calls. truth: what exact samples get."""

    def told(value: Estimate, best: Estimate) -> str:
        if truth is not None and judge_pair(value, truth, main) == "agrees":
            return "beyond what exact samples get: it no longer draws from the model"
        return {"agrees": "better", "opposite": "worse", "not told apart": "not told apart"}[
            judge_pair(value, best, main)
        ]

    lines = []
    for column in dict.fromkeys(each.column for each in measured):
        here = {m.label: m.record.measures[main.key] for m in measured if m.column == column}
        ours = {name: value for name, value in here.items() if name in names and name not in table.solvers}
        theirs = {name: value for name, value in here.items() if name in table.solvers}
        if not ours or not theirs:
            continue
        best = min(theirs, key=lambda name: main.loss(theirs[name].value))
        parts = [f"`{name}` ({main.show(value)}) {told(value, theirs[best])}" for name, value in ours.items()]
        against = f"the best of the paper's, `{best}` ({main.show(theirs[best])})"
        lines.append(f"- {column.nfe} calls, against {against}: {'; '.join(parts)}.")
    return ["", "### Beyond the paper", "", *lines] if lines else []
