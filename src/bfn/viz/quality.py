"""Quality over the number of calls: what was measured, with its intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, ScalarFormatter

from bfn.errors import UserError
from bfn.viz.style import colour, on

if TYPE_CHECKING:
    from bfn.paper import Measure, Measured, Record

DODGE = 1.02
"""Points at the same calls stand apart by this factor, so that their intervals can be told apart."""
MARKERS = "osD^vP*X"
LINES = ("-", "--", ":", "-.")


def quality(
    records: Sequence[Record], measure: Measure, axes: Axes | None = None, real: Measured | None = None
) -> Axes:
    """One measure over network calls, a line a sampler, bars for the intervals, a band for real data.

    records, measure: of :mod:`bfn.paper`. real: what real data of the same size get.
    """
    if not records:
        raise UserError("no records: nothing to draw")
    axes = on(axes, size=(8.0, 4.2))
    samplers = list(dict.fromkeys(record.setting.sampler for record in records))
    for index, sampler in enumerate(samplers):
        own = sorted((r for r in records if r.setting.sampler == sampler), key=lambda r: r.setting.nfe)
        shift = DODGE ** (index - (len(samplers) - 1) / 2)
        figures = [record.measures[measure.key] for record in own]
        axes.errorbar(
            [record.setting.nfe * shift for record in own], [measure.scale * figure.value for figure in figures],
            yerr=list(zip(*(_reach(figure, measure.scale) for figure in figures), strict=True)),
            color=colour(index), marker=MARKERS[index % len(MARKERS)], linestyle=LINES[index // 8 % len(LINES)],
            markersize=4, linewidth=1.4, elinewidth=1.0, capsize=2, label=sampler,
        )  # fmt: skip
    if real is not None:
        axes.axhline(measure.scale * real.value, color="#555555", linewidth=1, linestyle="--", label="real data")
        if not math.isnan(real.low):
            axes.axhspan(measure.scale * real.low, measure.scale * real.high, color="#555555", alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted({float(record.setting.nfe) for record in records})))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.set_xlabel("network calls")
    if measure.better == "low" and all(record.measures[measure.key].value > 0 for record in records):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter())
    towards = {"low": "lower is better", "high": "higher is better", "real": "nearer to real data is better"}
    axes.set_ylabel(f"{measure.label}{measure.unit and f', {measure.unit}'}")
    axes.set_title(towards[measure.better].capitalize(), fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return axes


def _reach(figure: Measured, scale: float) -> tuple[float, float]:
    """How far the interval reaches below and above; nowhere if there is none."""
    if math.isnan(figure.low):
        return 0.0, 0.0
    return scale * max(0.0, figure.value - figure.low), scale * max(0.0, figure.high - figure.value)
