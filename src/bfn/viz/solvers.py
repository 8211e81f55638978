"""Solver tables as pictures: where the network is called, and how much each call and the noise weigh."""

from matplotlib.axes import Axes

from bfn.errors import UserError
from bfn.flows import Flow
from bfn.solvers.table import Table
from bfn.viz.style import colour, on


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
