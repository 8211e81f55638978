"""Losses against time: where a model is good, and where the nats are."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from bfn.plot.style import colour, on


def loss_by_t(
    curves: Mapping[str, Mapping[str, Sequence[float]]], axes: Axes | None = None, what: str = "squared_error"
) -> Axes:
    """The squared error of the prediction (or "bound_rms") over t, a line a model.

    curves: by name, what training stores in a model's card under "loss_by_t": lists "t", "squared_error", "bound_rms".

    >>> from bfn import storage
    >>> axes = loss_by_t({"digits": storage.read_config("digits")["card"]["loss_by_t"]})
    """
    axes = on(axes)
    for i, (name, curve) in enumerate(curves.items()):
        if what not in curve:
            raise ValueError(f"what={what!r}: the curve of {name!r} has {', '.join(curve)}")
        values: Any = curve[what]
        axes.plot(curve["t"], values, color=colour(i), linewidth=1.6, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("t (0 nothing known, 1 data)")
    axes.set_ylabel(what.replace("_", " "))
    axes.legend(frameon=False)
    return axes
