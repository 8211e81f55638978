"""Integrators of the likelihood's ODE: equal steps, or steps that each sample chooses by itself."""

from collections.abc import Callable

import torch
from torch import Tensor

from bfn.errors import UserError

__all__ = ["Slope", "adams", "dormand_prince"]

Slope = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows, c, y) -> dy/dc of those rows of the batch."""

ADAMS_BASHFORTH = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12))
ADAMS_MOULTON = ((1 / 2, 1 / 2), (5 / 12, 8 / 12, -1 / 12), (9 / 24, 19 / 24, -5 / 24, 1 / 24))


def adams(f: Slope, y: Tensor, slope: Tensor, c: float, c_end: float, nfe: int) -> Tensor:
    """Equal steps, one call each: Adams of order 3, each step redone with order 4 once the next slope is known."""
    rows = torch.arange(len(y), device=y.device)
    h = (c_end - c) / (nfe - 1)
    slopes = [slope]
    for i in range(1, nfe):
        order = min(len(slopes), len(ADAMS_BASHFORTH)) - 1
        predicted = y + h * _mix(ADAMS_BASHFORTH[order], slopes)
        c_new = c_end if i == nfe - 1 else c + i * h
        slopes = [f(rows, y.new_full((len(y),), c_new), predicted), *slopes[: len(ADAMS_BASHFORTH)]]
        y = y + h * _mix(ADAMS_MOULTON[order], slopes)
    return y


# Dormand & Prince (1980), 5(4): stages, and the difference between the two solutions.
NODES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def dormand_prince(
    f: Slope, y: Tensor, slope: Tensor, c_start: float, c_end: float, tolerance: float, max_nfe: int
) -> tuple[Tensor, Tensor]:
    """Steps that each sample chooses by itself, so that a result does not depend on what else is in the batch.

    The error of a step is the norm of that of the state and of the log-densities, which are of one unit: a change of v
    by dv changes log N(v) by v . dv.
    """
    y, slope = y.clone(), slope.clone()
    c, h = y.new_full((len(y),), c_start), y.new_full((len(y),), (c_end - c_start) / 20)
    calls = torch.ones(len(y), dtype=torch.int64, device=y.device)
    rows = torch.arange(len(y), device=y.device)
    # What steps miss adds up: the error in the end is several times that of a step.
    allowed = tolerance / 10
    while len(rows):
        if int(calls.max()) + len(NODES) > max_nfe:
            raise UserError(
                f"tolerance={tolerance:g}: not reached within {max_nfe} calls; take a larger one, more calls (nfe), or "
                "a model in float64"
            )
        left = c_end - c[rows]
        last = h[rows] <= left
        step = torch.where(last, left, h[rows])
        column, slopes = step.unsqueeze(1), [slope[rows]]
        for node, stage in zip(NODES, STAGES, strict=True):
            new = y[rows] + column * _mix(stage, slopes)
            at = torch.where(last & (node == 1), c_end, c[rows] + node * step)
            slopes.append(f(rows, at, new))
        calls[rows] += len(NODES)
        error = (column * _mix(ERROR, slopes)).norm(dim=1)
        good = error <= allowed
        done = rows[good]
        y[done], slope[done], c[done] = new[good], slopes[-1][good], at[good]
        h[rows] = step * (0.9 * (allowed / error.clamp(min=1e-300)) ** 0.2).clamp(0.2, 5)
        rows = rows[~(good & last)]
    return y, calls


def _mix(weights: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
    return torch.stack([w * slope for w, slope in zip(weights, slopes, strict=False)]).sum(0)
