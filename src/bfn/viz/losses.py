"""Losses against time: where a model is good."""

from collections.abc import Mapping

from matplotlib.axes import Axes

from bfn.error_curve import ErrorCurve
from bfn.errors import UserError
from bfn.viz.style import colour, on


def loss_by_t(curves: Mapping[str, ErrorCurve], axes: Axes | None = None) -> Axes:
    """The squared error of the prediction over t, a line a model.

    >>> import bfn
    >>> axes = loss_by_t({"digits": bfn.load("digits").error_curve})
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
