"""Cells written out: tables beside the paper's figures, the ceiling, the ordering, our own solvers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bfn import solvers
from bfn.paper.cells import BEYOND, Cell, main_measure, plain, run_cells
from bfn.paper.paper import Column, PaperTable
from bfn.paper.reports import Options, Section, markdown_table
from bfn.paper.subjects import Subject
from bfn.paper.verdicts import judge_pair, summary, verdicts
from bfn.quality.judges import Judge, Measure, Measured
from bfn.quality.measuring import Record


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
    ours = BEYOND if options.beyond is None else options.beyond
    lines += _beyond_lines(cells, main, table, ours, limits.get("ode") if subject.exact is not None else None)
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
        from bfn.paper.pictures import quality_picture

        curves = [(c.row.label, c.column, c.record.measures[main.key]) for c in cells]
        quality_picture(curves, table, main, limits, path)

    return Section(subject.name, subject.title, "\n".join(lines), results, {f"{subject.name}.png": draw})


def with_lines(section: Section, lines: Sequence[str]) -> Section:
    """The section with more text at its end."""
    return dataclasses.replace(section, markdown="\n".join([section.markdown, "", *lines])) if lines else section


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


def _beyond_lines(
    cells: Sequence[Cell], main: Measure, table: PaperTable, names: Sequence[str], truth: Measured | None = None
) -> list[str]:
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
        ours = {name: value for name, value in here.items() if name in names and name not in table.solvers}
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


def _noisy(cell: Cell) -> bool:
    return cell.row.name == "tuned" or solvers.get(cell.row.name).stochastic
