"""What all pictures share: where they are drawn, and how they look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bfn.errors import UserError
from bfn.files import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["colour", "on", "save"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Told apart by colour-blind readers too (Okabe and Ito)."""


def on(axes: Axes | None, title: str | None = None, size: tuple[float, float] = (5.2, 3.8)) -> Axes:
    """The axes given, or those of a new figure that no window system knows of; frame and grid made quiet.

    A figure of its own, without pyplot: nothing global is touched, and servers can draw in several threads.
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
    """The index-th colour, in turn."""
    return COLOURS[index % len(COLOURS)]


def save(axes: Axes, path: Path | str) -> None:
    """Write the figure of these axes, atomically, in the format that the file's name says."""
    figure = axes.get_figure(root=True)
    if figure is None:
        raise UserError("axes without a figure: nothing to write")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix[1:] or "png")
