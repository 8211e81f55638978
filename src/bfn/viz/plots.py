"""Plots: a model's error over time, what solver tables do, and measured quality over the number of calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bfn.core.table import Table
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError
from bfn.estimate import Estimate
from bfn.flows import Flow
from bfn.viz.style import colour, on

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bfn.quality import Measure, Record

__all__ = ["against_calls", "loss_by_t", "nodes", "quality", "table"]

DODGE = 1.02
"""Points at the same calls stand apart by this factor, so that their intervals can be told apart."""
MARKERS = "osD^vP*X"
LINES = ("-", "--", ":", "-.")


def loss_by_t(curves: Mapping[str, ErrorCurve], axes: Axes | None = None) -> Axes:
    """The squared error of the prediction over t, a line a model.

    >>> import bfn
    >>> axes = loss_by_t({"digits": bfn.load("digits").info.error_curve})
    """
    if not curves:
        raise UserError("no curves: expected at least one error curve by its name")
    axes = on(axes)
    for i, (name, curve) in enumerate(curves.items()):
        axes.plot(curve.t, curve.squared_error, color=colour(i), linewidth=1.6, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("t (0 nothing known, 1 data)")
    axes.set_ylabel("squared error of the prediction")
    axes.legend(frameon=False)
    return axes


def table(table: Table, axes: Axes | None = None) -> Axes:
    """Weight of each past prediction in each step, as a share of the step's whole; a dot where noise comes in.

    Row i is the step after call i, column j the prediction of call j: a first-order solver is a diagonal, a corrector
    or a higher order reaches back, and weights below zero take back what was too much.
    """
    steps = table.rows[:-1]
    if not steps:
        raise UserError("a table of one call makes no step: nothing to draw; take nfe of at least 2")
    shares = [[0.0] * len(steps) for _ in steps]
    for i, row in enumerate(steps):
        total = sum(row.b) or 1.0
        for j, weight in enumerate(row.b[: i + 1]):
            shares[i][i - j] = weight / total
    axes = on(axes)
    axes.grid(False)
    top = max(abs(value) for line in shares for value in line)
    image = axes.imshow(shares, cmap="RdBu_r", vmin=-top, vmax=top, aspect="equal")
    loudest = max((row.c for row in steps), default=0.0)
    for i, row in enumerate(steps):
        if row.c:
            axes.scatter(len(steps) - 0.1, i, s=70 * row.c / loudest, color="#000000", clip_on=False)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label="share of the step")
    axes.set_xlabel("prediction of call")
    axes.set_ylabel("step after call")
    return axes


def nodes(flow: Flow, tables: dict[str, Table], axes: Axes | None = None) -> Axes:
    """Where solvers call the network, one line each, over log s: the accuracy that has been gathered."""
    axes = on(axes)
    least = min(s for t in tables.values() for s in flow.schedule.s_of(t.times) if s > 0)
    for i, one in enumerate(tables.values()):
        at = [max(s, least / 2) for s in flow.schedule.s_of(one.times)]
        axes.plot(at, [i] * len(at), "o-", color=colour(i), markersize=5, linewidth=1)
    axes.set_yticks(range(len(tables)), list(tables))
    axes.set_xscale("log")
    axes.set_xlabel("s = sqrt(beta); the leftmost dot may be s = 0")
    axes.invert_yaxis()
    return axes


def against_calls(
    curves: Mapping[str, Mapping[int, Estimate]], label: str, axes: Axes | None = None, real: Estimate | None = None
) -> Axes:
    """One figure over network calls, a line a sampler, bars for the intervals, a band for real data.

    curves: figures by the number of calls, by the name of the sampler. real: what real data of the same size get.

    >>> axes = against_calls({"auto": {5: Estimate(0.7, 0.6, 0.8), 10: Estimate(0.9, 0.8, 0.95)}}, "share of successes")
    """
    from matplotlib.ticker import FixedLocator, ScalarFormatter

    if not curves:
        raise UserError("no curves: nothing to draw")
    axes = on(axes, size=(8.0, 4.2))
    for index, (name, figures) in enumerate(curves.items()):
        calls, shift = sorted(figures), DODGE ** (index - (len(curves) - 1) / 2)
        axes.errorbar(
            [n * shift for n in calls], [figures[n].value for n in calls],
            yerr=list(zip(*(_reach(figures[n]) for n in calls), strict=True)),
            color=colour(index), marker=MARKERS[index % len(MARKERS)], linestyle=LINES[index // 8 % len(LINES)],
            markersize=4, linewidth=1.4, elinewidth=1.0, capsize=2, label=name,
        )  # fmt: skip
    if real is not None:
        axes.axhline(real.value, color="#555555", linewidth=1, linestyle="--", label="real data")
        if not math.isnan(real.low):
            axes.axhspan(real.low, real.high, color="#555555", alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted({float(n) for figures in curves.values() for n in figures})))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.set_xlabel("network calls")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return axes


def quality(
    records: Sequence[Record], measure: Measure, axes: Axes | None = None, real: Estimate | None = None
) -> Axes:
    """One measure over network calls, as :func:`against_calls` draws it, with what is better above it.

    records, measure: of :mod:`bfn.quality`. real: what real data of the same size get.
    """
    from matplotlib.ticker import ScalarFormatter

    if not records:
        raise UserError("no records: nothing to draw")
    curves: dict[str, dict[int, Estimate]] = {}
    for record in records:
        figure = record.measures[measure.key].scaled(measure.scale)
        curves.setdefault(record.setting.sampler, {})[record.setting.nfe] = figure
    label = f"{measure.label}{measure.unit and f', {measure.unit}'}"
    axes = against_calls(curves, label, axes, None if real is None else real.scaled(measure.scale))
    if measure.better == "low" and all(record.measures[measure.key].value > 0 for record in records):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter())
    towards = {"low": "lower is better", "high": "higher is better", "real": "nearer to real data is better"}
    axes.set_title(towards[measure.better].capitalize(), fontsize=10, loc="left")
    return axes


def _reach(figure: Estimate) -> tuple[float, float]:
    """How far the interval reaches below and above; nowhere if there is none."""
    if math.isnan(figure.low):
        return 0.0, 0.0
    return max(0.0, figure.value - figure.low), max(0.0, figure.high - figure.value)
