"""Samples forming: the states along the way, in the plane and on the simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.flows import Flow
from bfn.sampling import Samples, Step, sample
from bfn.viz.style import colour, on

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bfn.exact import ExactModel
    from bfn.model import Model

__all__ = ["Paths", "plane", "record", "simplex"]


@dataclass(frozen=True)
class Paths:
    """A run of the sampler, kept: times (M,), states u (M, n, ...), and the samples it ended in."""

    flow: Flow
    times: Tensor
    u: Tensor
    samples: Samples

    @property
    def inputs(self) -> Tensor:
        """What the network saw: mu or theta, (M, n, ...)."""
        levels = self.flow.schedule.s_of(self.times.tolist())
        return torch.stack([self.flow.network_input(u, s) for u, s in zip(self.u, levels, strict=True)])


def record(model: Model, n: int, **settings: Any) -> Paths:
    """Draw n samples as :func:`bfn.sample` does, and keep the way there."""
    steps: list[Step] = []
    samples = sample(model, n, on_step=steps.append, **settings)
    times = torch.tensor([step.t for step in steps], dtype=torch.float64)
    return Paths(model.flow, times, torch.stack([step.u for step in steps]), samples)


def plane(paths: Paths, axes: Axes | None = None, model: ExactModel | None = None, index: int = 0) -> Axes:
    """Paths of two-dimensional continuous data: mu from the origin to the sample.

    model: an exact model, whose data are drawn beneath. index: the colour, to tell several solvers apart.
    """
    inputs = paths.inputs.double().cpu()
    if not paths.flow.has_range or inputs.shape[2:] != (2,):
        raise UserError(f"paths of shape {tuple(inputs.shape)}: expected (calls, n, 2) of continuous data")
    axes = on(axes)
    if model is not None:
        ground = model.sample_data(2000, torch.Generator().manual_seed(0)).cpu()
        axes.scatter(ground[:, 0], ground[:, 1], s=3, color="#bbbbbb", alpha=0.5, linewidths=0, zorder=0)
    ends = paths.samples.x.double().cpu()
    ways = torch.cat([inputs, ends[None]])
    for i in range(ways.shape[1]):
        axes.plot(ways[:, i, 0], ways[:, i, 1], color=colour(index), linewidth=0.8, alpha=0.6)
    axes.scatter(ends[:, 0], ends[:, 1], s=12, color=colour(index), zorder=3)
    axes.set_aspect("equal", adjustable="datalim")
    return axes


def simplex(paths: Paths, variable: int = 0, axes: Axes | None = None) -> Axes:
    """Paths of one variable of three classes on the triangle of probabilities, a corner a class."""
    theta = paths.inputs.double().cpu()
    if paths.flow.has_range or theta.shape[-1] != 3:
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
