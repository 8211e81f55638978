"""Plots of the experiments: what was measured beside what the paper prints, in matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from bfn.estimate import Estimate
from bfn.paper.printed import Column, PrintedTable
from bfn.quality import Measure
from bfn.viz.style import colour, on

__all__ = ["lines_plot", "quality_plot"]

Point = tuple[str, Column, Estimate]


def quality_plot(
    curves: Sequence[Point], table: PrintedTable, measure: Measure, ceiling: Mapping[str, Estimate], path: Path
) -> None:
    """Quality over calls, or over eta where that varies: ours with intervals on the left, the paper's on the right."""
    over_eta = any(column.eta is not None for _, column, _ in curves)
    labels = list(dict.fromkeys(label for label, _, _ in curves))
    figure = Figure(figsize=(9.6, 4.0), layout="constrained", dpi=100)
    left, right = (on(axes) for axes in figure.subplots(1, 2))
    calls = list(dict.fromkeys(column.nfe for _, column, _ in curves))
    for index, label in enumerate(labels):
        for style, nfe in enumerate(calls if over_eta else [None]):
            points = [
                (_x(column), m) for name, column, m in curves if name == label and (nfe is None or column.nfe == nfe)
            ]
            name = f"{label}, {nfe} calls" if over_eta else label
            _line(left, [(x, m) for x, m in points if x is not None], measure, index, name, style)
        for style, nfe in enumerate(dict.fromkeys(c.nfe for c in table.columns) if over_eta else [None]):
            printed = [
                (_x(f.column), Estimate(f.value / measure.scale if measure.unit == "%" else f.value))
                for f in table.figures
                if f.solver == label and (nfe is None or f.column.nfe == nfe)
            ]
            name = f"{label}, {nfe} calls" if over_eta else label
            _line(right, [(x, m) for x, m in printed if x is not None], measure, index, name, style)
    for kind, limit in ceiling.items():
        left.axhline(
            limit.value * measure.scale, color="#555555", linewidth=0.9, linestyle=":" if kind == "sde" else "--"
        )
    for axes, title in ((left, "measured"), (right, f"the paper: {table.measure} on {table.data}")):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("eta, where the grid starts" if over_eta else "network calls")
        axes.set_xscale("log")
        if not over_eta:
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_formatter(NullFormatter())
            columns = [column for _, column, _ in curves] if axes is left else table.columns
            axes.set_xticks(_spread(sorted({c.nfe for c in columns if c.nfe is not None})))
        if measure.better == "low":
            axes.set_yscale("log")
    left.set_ylabel(measure.label + (f", {measure.unit}" if measure.unit else ""))
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, format="png")


def lines_plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], path: Path, *, x: str, y: str, dashed: Sequence[str] = ()
) -> None:
    """Named curves on doubly logarithmic axes; the dashed ones are there to compare with."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained", dpi=100)
    axes = on(figure.add_subplot())
    for index, (name, points) in enumerate(curves.items()):
        style = "--" if name in dashed else "-"
        axes.plot(*zip(*points, strict=True), style, color=colour(index), marker="o", markersize=3, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, format="png")


def _x(column: Column) -> float | None:
    return column.eta if column.eta is not None else column.nfe


def _line(
    axes: Axes, points: Sequence[tuple[float, Estimate]], measure: Measure, index: int, name: str, style: int
) -> None:
    if not points:
        return
    points = sorted(points, key=lambda point: point[0])
    # Points at the same place stand apart by a little, so that their intervals can be told apart.
    xs, ys = [x * 1.015 ** (index - 3) for x, _ in points], [m.value * measure.scale for _, m in points]
    errors = [
        [0.0 if math.isnan(m.low) else max(0.0, sign * (m.value - bound)) * measure.scale for _, m in points
         for bound in [m.low if sign > 0 else m.high]]
        for sign in (1, -1)
    ]  # fmt: skip
    axes.errorbar(
        xs, ys, errors, color=colour(index), linestyle=("-", "--", ":", "-.")[style % 4], marker="o", markersize=3,
        linewidth=1.4, capsize=2, label=name,
    )  # fmt: skip


def _spread(ticks: Sequence[int], ratio: float = 1.2) -> list[int]:
    """Ticks that do not run into each other on a logarithmic axis."""
    kept: list[int] = []
    for tick in ticks:
        if not kept or tick > ratio * kept[-1]:
            kept.append(tick)
    return kept
