"""Plots of tables: columns of real and synthetic rows side by side, and how alike pairs of columns are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bfn.estimate import Estimate
from bfn.viz.style import colour, on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bfn.quality import Measure

__all__ = ["pair_trends", "scales", "table_columns"]

MOST_LEVELS, PIECES, ACROSS = 12, 30, 4


def table_columns(real: Any, rows: Any, shapes: Mapping[str, float]) -> Figure:
    """A small picture a column: shares of its levels, or a histogram, of real rows and of others."""
    from matplotlib.figure import Figure

    names = list(shapes)
    down = -(-len(names) // ACROSS)
    figure = Figure(figsize=(3.2 * ACROSS, 2.3 * down), layout="constrained", dpi=100)
    grid = figure.subplots(down, ACROSS, squeeze=False).flat
    for axes, name in zip(grid, names, strict=False):
        on(axes)
        axes.set_title(f"{name}  ({shapes[name]:.3f})", fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
        own = [table[name].dropna() for table in (real, rows)]
        numbers = all(values.dtype.kind in "if" for values in own)
        (_histograms if numbers and own[0].nunique() > MOST_LEVELS else _levels)(axes, own)
    for axes in list(grid)[len(names) :]:
        axes.set_visible(False)
    for axes in figure.axes[len(names) :]:
        axes.set_visible(False)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def _histograms(axes: Axes, own: Sequence[Any]) -> None:
    low, high = np.quantile(own[0], [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1, PIECES + 1)
    for i, (values, label) in enumerate(zip(own, ("real", "synthetic"), strict=True)):
        counts = np.histogram(values, edges)[0] / max(len(values), 1)
        axes.stairs(
            counts, edges, color=colour(i), fill=i == 0, alpha=0.35 if i == 0 else 1.0, linewidth=1.4, label=label
        )


def _levels(axes: Axes, own: Sequence[Any]) -> None:
    shares = [values.astype(str).value_counts(normalize=True) for values in own]
    levels = list(shares[0].index[:MOST_LEVELS])
    places = np.arange(len(levels))
    for i, (share, label) in enumerate(zip(shares, ("real", "synthetic"), strict=True)):
        heights = [float(share.get(level, 0.0)) for level in levels]
        axes.bar(places + 0.4 * i - 0.2, heights, 0.4, color=colour(i), alpha=0.45 if i == 0 else 0.9, label=label)
    axes.set_xticks(places, [level[:10] for level in levels], rotation=40, ha="right")


def pair_trends(names: Sequence[str], trends: Mapping[tuple[int, int], float], axes: Axes | None = None) -> Axes:
    """The trend of every pair of columns: 1, as in the real table, to the worst that there is."""
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
    """A line a measure, with a mark for each of several sets of rows and bars for their intervals."""
    axes = on(axes, size=(8.0, 0.45 * len(measures) + 1.2))
    for i, (name, figures) in enumerate(ends.items()):
        for k, measure in enumerate(measures):
            figure = figures.get(measure.key)
            if figure is None or np.isnan(figure.value):
                continue
            reach = [[0.0], [0.0]]
            if not np.isnan(figure.low):
                reach = [[max(0.0, figure.value - figure.low)], [max(0.0, figure.high - figure.value)]]
            axes.errorbar(
                [figure.value], [k + 0.18 * (i - 1)], xerr=reach, color=colour(i), marker="osD^v"[i % 5], markersize=5,
                linestyle="", elinewidth=1.2, capsize=2, label=name if k == 0 else None,
            )  # fmt: skip
    axes.set_yticks(range(len(measures)), [measure.label for measure in measures], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(-0.02, 1.02)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 1.16), ncols=3)
    return axes
