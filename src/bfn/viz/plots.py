"""Plots with matplotlib: solvers, paths of samples, error curves, measured quality and columns of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bfn._utils.estimate import Estimate
from bfn._utils.files import atomic
from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.info import ErrorCurve
from bfn.core.model import Model
from bfn.core.samples import Samples
from bfn.core.sampling import Step, sample
from bfn.core.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Measure = Any
"""A ``bfn.quality.Measure``; the judges are a room above this one."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Colours of Okabe and Ito, which colour-blind readers can distinguish."""


def on(axes: Axes | None, title: str | None = None, size: tuple[float, float] = (5.2, 3.8)) -> Axes:
    """Return the given axes, or those of a new figure, in the style of all plots.

    The figure is made without pyplot, so no global state changes and servers can draw in several threads.

    Args:
        axes: axes to draw on; new ones if None.
        title: title of the axes.
        size: size of a new figure in inches.
    """
    from matplotlib.figure import Figure

    if axes is None:
        axes = Figure(figsize=size, layout="constrained", dpi=120).add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, alpha=0.25, linewidth=0.6)
    if title:
        axes.set_title(title, fontsize=11, loc="left")
    return axes


def colour(index: int) -> str:
    """Return the colour of that index; colours repeat."""
    return COLOURS[index % len(COLOURS)]


def save(axes: Axes, path: Path | str) -> None:
    """Write the figure of the axes atomically, in the format of the file's suffix."""
    figure = axes.get_figure(root=True)
    if figure is None:
        raise UserError("axes without a figure: nothing to write")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix[1:] or "png")


DODGE = 1.02
"""Factor between points with the same number of calls, so that their intervals do not overlap."""
MARKERS = "osD^vP*X"
LINES = ("-", "--", ":", "-.")


def loss_by_t(curves: Mapping[str, ErrorCurve], axes: Axes | None = None) -> Axes:
    """Plot the squared error of the prediction over t, one line for each model.

    >>> import bfn
    >>> axes = loss_by_t({"digits": bfn.load("digits").info.error_curve})
    """
    if not curves:
        raise UserError("no curves: expected at least one error curve by its name")
    axes = on(axes)
    for i, (name, curve) in enumerate(curves.items()):
        axes.plot(curve.t, curve.squared_error, color=colour(i), linewidth=1.6, label=name)
    axes.set(yscale="log", xlabel="t (0 nothing known, 1 data)", ylabel="squared error of the prediction")
    axes.legend(frameon=False)
    return axes


def table(table: Table, axes: Axes | None = None) -> Axes:
    """Plot the weight of each prediction in each step as a share of their sum, and a dot for each step with noise.

    Row i is the step after call i, column j the prediction of call j. A first-order solver is a diagonal; solvers of
    higher order and correctors also use earlier predictions, some with negative weights.
    """
    steps = table.rows[:-1]
    if not steps:
        raise UserError("a table of one call has no step to draw; use nfe of at least 2")
    shares = np.zeros((len(steps), len(steps)))
    for i, row in enumerate(steps):
        weights = row.b[: i + 1]
        shares[i, i + 1 - len(weights) : i + 1] = np.divide(weights[::-1], sum(row.b) or 1.0)
    axes = on(axes)
    axes.grid(False)
    top = np.abs(shares).max()
    image = axes.imshow(shares, cmap="RdBu_r", vmin=-top, vmax=top, aspect="equal")
    loudest = max((row.c for row in steps), default=0.0)
    for i, row in enumerate(steps):
        if row.c:
            axes.scatter(len(steps) - 0.1, i, s=70 * row.c / loudest, color="#000000", clip_on=False)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label="share of the step")
    axes.set(xlabel="prediction of call", ylabel="step after call")
    return axes


def nodes(flow: Flow, tables: dict[str, Table], axes: Axes | None = None) -> Axes:
    """Plot the levels s = sqrt(beta) at which solvers call the network, one line for each solver, on a log scale."""
    axes = on(axes)
    least = min(s for t in tables.values() for s in flow.schedule.s_of(t.times) if s > 0)
    for i, one in enumerate(tables.values()):
        at = [max(s, least / 2) for s in flow.schedule.s_of(one.times)]
        axes.plot(at, [i] * len(at), "o-", color=colour(i), markersize=5, linewidth=1)
    axes.set_yticks(range(len(tables)), list(tables))
    axes.set(xscale="log", xlabel="s = sqrt(beta); the leftmost dot may be s = 0")
    axes.invert_yaxis()
    return axes


def against_calls(
    curves: Mapping[str, Mapping[float, Estimate]], label: str, axes: Axes | None = None, real: Estimate | None = None
) -> Axes:
    """Plot a metric over network calls, one line for each sampler, with intervals and a band for real data.

    Args:
        curves: estimates by sampler and number of calls.
        label: name of the metric.
        axes: axes to draw on; new ones if None.
        real: the metric of as many real data.

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
    axes.set(xscale="log", xlabel="network calls", ylabel=label)
    axes.xaxis.set_major_locator(FixedLocator(sorted({float(n) for figures in curves.values() for n in figures})))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return axes


def quality(records: Sequence[Any], measure: Measure, axes: Axes | None = None, real: Estimate | None = None) -> Axes:
    """Plot a measure over network calls like ``against_calls``, with its better direction as the title.

    Args:
        records: measured quality, see ``bfn.quality``.
        measure: the measure to plot.
        axes: axes to draw on; new ones if None.
        real: the measure of as many real data.
    """
    from matplotlib.ticker import ScalarFormatter

    if not records:
        raise UserError("no records: nothing to draw")
    curves: dict[str, dict[float, Estimate]] = {}
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
    """Return the distances of the interval's ends from the value; 0 if there is no interval."""
    if math.isnan(figure.low):
        return 0.0, 0.0
    return max(0.0, figure.value - figure.low), max(0.0, figure.high - figure.value)


@dataclass(frozen=True)
class Paths:
    """A recorded run of a sampler.

    Attributes:
        flow: of the model.
        times: of the M network calls, (M,).
        u: states, (M, n, ...).
        samples: the samples at the end.
    """

    flow: Flow
    times: Tensor
    u: Tensor
    samples: Samples

    @property
    def inputs(self) -> Tensor:
        """Inputs of the network: mu or theta, (M, n, ...)."""
        levels = self.flow.schedule.s_of(self.times.tolist())
        return torch.stack([self.flow.network_input(u, s) for u, s in zip(self.u, levels, strict=True)])


def record(model: Model, n: int, **settings: Any) -> Paths:
    """Draw n samples like ``bfn.sample``, and record all states."""
    steps: list[Step] = []
    samples = sample(model, n, on_step=steps.append, **settings)
    times = torch.tensor([step.t for step in steps], dtype=torch.float64)
    return Paths(model.flow, times, torch.stack([step.u for step in steps]), samples)


def plane(paths: Paths, axes: Axes | None = None, model: Any = None, index: int = 0) -> Axes:
    """Plot paths of two-dimensional continuous data: mu from the origin to the sample.

    Args:
        paths: a recorded run.
        axes: axes to draw on; new ones if None.
        model: an exact model whose data are drawn below the paths.
        index: index of the colour.
    """
    inputs = paths.inputs.double().cpu()
    if not paths.flow.parts[""].has_range or inputs.shape[2:] != (2,):
        raise UserError(f"paths of shape {tuple(inputs.shape)}: expected (calls, n, 2) of continuous data")
    axes = on(axes)
    if model is not None:
        ground = model.sample_data(2000, torch.Generator().manual_seed(0)).cpu()
        axes.scatter(ground[:, 0], ground[:, 1], s=3, color="#bbbbbb", alpha=0.5, linewidths=0, zorder=0)
    ends = paths.samples.x.double().cpu()
    ways = torch.cat([inputs, ends[None]])
    axes.plot(ways[..., 0], ways[..., 1], color=colour(index), linewidth=0.8, alpha=0.6)
    axes.scatter(ends[:, 0], ends[:, 1], s=12, color=colour(index), zorder=3)
    axes.set_aspect("equal", adjustable="datalim")
    return axes


def simplex(paths: Paths, variable: int = 0, axes: Axes | None = None) -> Axes:
    """Plot paths of one variable of three classes in the triangle of probabilities, with one class at each corner."""
    theta = paths.inputs.double().cpu()
    if paths.flow.parts[""].has_range or theta.shape[-1] != 3:
        raise UserError(f"paths of shape {tuple(theta.shape)}: expected three classes of discrete data")
    theta = theta.flatten(2, -2)
    if not 0 <= variable < theta.shape[2]:
        raise UserError(f"variable={variable}: expected one from 0 to {theta.shape[2] - 1}")
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
    ways = theta[:, :, variable] @ corners
    axes = on(axes)
    axes.plot(*torch.cat([corners, corners[:1]]).T, color="#888888", linewidth=1)
    for i in range(ways.shape[1]):
        axes.plot(ways[:, i, 0], ways[:, i, 1], color=colour(i), linewidth=0.9, alpha=0.7)
    axes.scatter(ways[-1, :, 0], ways[-1, :, 1], s=12, color="#000000", zorder=3)
    for k, (x, y) in enumerate(corners.tolist()):
        axes.annotate(f"class {k}", (x, y), xytext=(0, 6 if k == 2 else -14), textcoords="offset points", ha="center")
    axes.set_aspect("equal")
    axes.set_axis_off()
    return axes


MOST_LEVELS, BINS, ACROSS = 12, 30, 4


def table_columns(real: Any, rows: Any, shapes: Mapping[str, float]) -> Figure:
    """Plot for each column of a table the shares of its levels, or a histogram, in real and in synthetic rows.

    Args:
        real: the real table.
        rows: the synthetic table.
        shapes: score of each column, shown in its title.
    """
    from matplotlib.figure import Figure

    names = list(shapes)
    down = -(-len(names) // ACROSS)
    figure = Figure(figsize=(3.2 * ACROSS, 2.3 * down), layout="constrained", dpi=100)
    grid = figure.subplots(down, ACROSS, squeeze=False).flat
    for axes, name in zip(grid, names, strict=False):
        on(axes).set_title(f"{name}  ({shapes[name]:.3f})", fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
        own = [table[name].dropna() for table in (real, rows)]
        numbers = all(values.dtype.kind in "if" for values in own)
        (_histograms if numbers and own[0].nunique() > MOST_LEVELS else _levels)(axes, own)
    for axes in figure.axes[len(names) :]:
        axes.set_visible(False)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def _histograms(axes: Axes, own: Sequence[Any]) -> None:
    low, high = np.quantile(own[0], [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    for i, (values, label) in enumerate(zip(own, ("real", "synthetic"), strict=True)):
        counts, alpha = np.histogram(values, edges)[0] / max(len(values), 1), 1.0 if i else 0.35
        axes.stairs(counts, edges, color=colour(i), fill=not i, alpha=alpha, linewidth=1.4, label=label)


def _levels(axes: Axes, own: Sequence[Any]) -> None:
    shares = [values.astype(str).value_counts(normalize=True) for values in own]
    levels = list(shares[0].index[:MOST_LEVELS])
    places = np.arange(len(levels))
    for i, (share, label) in enumerate(zip(shares, ("real", "synthetic"), strict=True)):
        heights = [float(share.get(level, 0.0)) for level in levels]
        axes.bar(places + 0.4 * i - 0.2, heights, 0.4, color=colour(i), alpha=0.45 if i == 0 else 0.9, label=label)
    axes.set_xticks(places, [level[:10] for level in levels], rotation=40, ha="right")


def pair_trends(names: Sequence[str], trends: Mapping[tuple[int, int], float], axes: Axes | None = None) -> Axes:
    """Plot the trend score of every pair of columns, from 1, as in the real table, to the worst one."""
    matrix = np.full((len(names), len(names)), np.nan)
    for (i, j), value in trends.items():
        matrix[i, j] = matrix[j, i] = value
    size = max(4.0, 0.36 * len(names) + 1.6)
    axes = on(axes, size=(size + 0.8, size))
    axes.grid(False)
    image = axes.imshow(matrix, cmap="viridis", vmin=min(0.8, float(np.nanmin(matrix))), vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label="trend, 1 is best")
    return axes


def scales(measures: Sequence[Measure], ends: Mapping[str, Mapping[str, Estimate]], axes: Axes | None = None) -> Axes:
    """Plot one line for each measure, with a mark and an interval for each set of rows."""
    axes = on(axes, size=(8.0, 0.45 * len(measures) + 1.2))
    for i, (name, figures) in enumerate(ends.items()):
        for k, measure in enumerate(measures):
            figure = figures.get(measure.key)
            if figure is None or np.isnan(figure.value):
                continue
            reach = [[distance] for distance in _reach(figure)]
            axes.errorbar(
                [figure.value], [k + 0.18 * (i - 1)], xerr=reach, color=colour(i), marker="osD^v"[i % 5], markersize=5,
                linestyle="", elinewidth=1.2, capsize=2, label=name if k == 0 else None,
            )  # fmt: skip
    axes.set_yticks(range(len(measures)), [measure.label for measure in measures], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(-0.02, 1.02)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 1.16), ncols=3)
    return axes
