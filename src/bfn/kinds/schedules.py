"""Schedules that are learned from a model: any increasing curve as a table, and curves of even information.

flow = model.even_flow(x)                       # the model's flow, on schedules measured on data x
flow = bfn.ContinuousFlow(schedule=model.info.error_curve.even_schedule(model.flow))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from bfn._utils.pieces import evaluating
from bfn.core.conditions import ConditionTensors
from bfn.core.control import Model
from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.info import ErrorCurve
from bfn.core.losses import noised_output
from bfn.core.schedules import (
    SCHEDULES,
    ExponentialSchedule,
    LogarithmicSchedule,
    QuadraticSchedule,
    Schedule,
    Time,
    as_float64,
    stratified_times,
)
from bfn.core.solver import LEAST_T_START

__all__ = [
    "SCHEDULES", "ExponentialSchedule", "LogarithmicSchedule", "QuadraticSchedule", "Schedule", "TabulatedSchedule",
    "Time", "as_float64", "error_curves", "even_flow", "stratified_times",
]  # fmt: skip


@dataclass(frozen=True)
class TabulatedSchedule(Schedule):
    """Any increasing curve, given by its values at some times and interpolated by monotone cubics.

    The cubics have the slopes of a cubic spline, limited where it would not increase (Fritsch and Carlson, 1980), so
    that the accuracy and its slope have no jumps. Times outside [0, 1] count as the nearer end.

    Args:
        times: increasing, from 0 to 1.
        betas: the accuracy at each, increasing from 0.

    >>> TabulatedSchedule((0, 0.5, 1), (0, 1, 4)).beta(0.25)
    tensor(0.2500, dtype=torch.float64)
    """

    times: tuple[float, ...]
    betas: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("times", "betas"):
            try:
                object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
            except (TypeError, ValueError) as error:
                raise UserError(f"{name}: expected a list of numbers ({error})") from None
        times, betas = self.times, self.betas
        if len(times) != len(betas) or len(times) < 2:
            raise UserError(f"{len(times)} times, {len(betas)} betas: expected as many, at least two")
        if times[0] != 0 or times[-1] != 1:
            raise UserError(f"times from {times[0]:g} to {times[-1]:g}: expected a table from 0 to 1")
        if betas[0] != 0 or not math.isfinite(betas[-1]):
            raise UserError(f"betas from {betas[0]:g} to {betas[-1]:g}: expected them from 0 to a finite accuracy")
        for name, values in (("times", times), ("betas", betas)):
            for i, (before, after) in enumerate(pairwise(values), 1):
                if not before < after:
                    raise UserError(f"{name}[{i}]={after:g} after {before:g}: {name} must increase")

    @cached_property
    def _pieces(self) -> Tensor:
        """Pieces of the curve, (7, pieces): both times, both accuracies, and c0, c1, c2 of the slope.

        The slope is c0 (1-x)^2 + 2 c1 x (1-x) + c2 x^2 for x in [0, 1]. No coefficient is negative, so that nothing
        cancels when it is evaluated or integrated.
        """
        from scipy.interpolate import CubicSpline

        t, beta = torch.tensor([self.times, self.betas], dtype=torch.float64)
        secant = beta.diff() / t.diff()
        lower = torch.minimum(*_at_knots(secant))
        # A curve may start flat, as t^2 does; anywhere else its inverse would lose all precision.
        least = torch.cat((lower.new_zeros(1), lower[1:] / 4))
        slope = torch.from_numpy(CubicSpline(t.numpy(), beta.numpy())(t.numpy(), 1)).clamp(least, 3 * lower)
        # Below 3 the middle coefficient is positive.
        slope = slope * torch.minimum(*_at_knots((2.75 * secant / (slope[:-1] + slope[1:])).clamp(max=1)))
        middle = 3 * secant - slope[:-1] - slope[1:]
        return torch.stack((t[:-1], t[1:], beta[:-1], beta[1:], slope[:-1], middle, slope[1:]))

    def _piece(self, values: Tensor, row: int) -> Tensor:
        """Return the pieces, (7, ...), in which times (row 0) or accuracies (row 2) lie."""
        pieces = self._pieces.to(values.device)
        return pieces[:, torch.searchsorted(pieces[row].contiguous(), values.detach().contiguous(), right=True) - 1]

    def beta(self, t: Time) -> Tensor:
        t = as_float64(t).clamp(0, 1)
        piece = self._piece(t, 0)
        return piece[2] + _rise(piece, piece[0], t)

    def slope(self, t: Time) -> Tensor:
        t = as_float64(t).clamp(0, 1)
        piece = self._piece(t, 0)
        return _slope(piece, _place(piece, t))

    def increment(self, t_start: Time, t_end: Time) -> Tensor:
        start, end = as_float64(t_start).clamp(0, 1), as_float64(t_end).clamp(0, 1)
        low, high = torch.minimum(start, end), torch.maximum(start, end)
        first, last = self._piece(low, 0), self._piece(high, 0)
        # The rest of the first piece, the whole pieces between, and the beginning of the last one.
        total = _rise(first, low, torch.minimum(high, first[1]))
        beyond = last[2] - first[3] + _rise(last, last[0], high)
        total = total + torch.where(last[0] > first[0], beyond, 0.0)
        return torch.where(start <= end, total, -total)

    def inverse(self, beta: Time) -> Tensor:
        beta = as_float64(beta).clamp(0, self.betas[-1])
        piece = self._piece(beta, 2)
        width, target = piece[1] - piece[0], (beta - piece[2]) / (piece[1] - piece[0])
        with torch.no_grad():
            # Near its start a piece is about c0 x + c1 x^2 + c2 x^3 / 3. Newton's method starts from the least root of
            # the three terms; where a step leaves the bracket, the bracket is halved instead.
            powers = zip((1, 1, 3), piece[4:], (1, 2, 3), strict=True)
            roots = [(a * target / c).nan_to_num(1.0) ** (1 / power) for a, c, power in powers]
            x = torch.stack(roots).amin(0).clamp(max=1)
            low, high = torch.zeros_like(x), torch.ones_like(x)
            for _ in range(100):
                over = x * _mean_slope(piece, torch.zeros_like(x), x) - target
                low, high = torch.where(over < 0, x, low), torch.where(over > 0, x, high)
                step = x - over / _slope(piece, x)
                step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
                before, x = x, torch.where(over == 0, x, step)
                if bool(((x - before).abs() <= 1e-16 * x).all()):
                    break
        # One more step, through which gradients reach beta.
        over = x * _mean_slope(piece, torch.zeros_like(x), x) - target
        return piece[0] + width * (x - over / _slope(piece, x).clamp(min=1e-300))


def _at_knots(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of the pieces before and after each knot; the first and the last knot have only one piece."""
    return torch.cat((values[:1], values)), torch.cat((values, values[-1:]))


def _place(piece: Tensor, t: Tensor) -> Tensor:
    """Return the position of t in its piece, in [0, 1]."""
    return (t - piece[0]) / (piece[1] - piece[0])


def _slope(piece: Tensor, x: Tensor) -> Tensor:
    """Return the slope at a position of the piece."""
    return piece[4] * (1 - x).square() + 2 * piece[5] * x * (1 - x) + piece[6] * x.square()


def _mean_slope(piece: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the mean slope between two positions, by Simpson's rule, which is exact for a quadratic."""
    return (_slope(piece, start) + 4 * _slope(piece, (start + end) / 2) + _slope(piece, end)) / 6


def _rise(piece: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the increase of the accuracy between two times of one piece."""
    return (end - start) * _mean_slope(piece, _place(piece, start), _place(piece, end))


@torch.no_grad()
def error_curves(
    model: Model,
    x: Tensor,
    n_times: int = 64,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    times: Mapping[str, Tensor] | None = None,
) -> dict[str, ErrorCurve]:
    """Measure the error curve of each part of the data, by name.

    Args:
        x: packed data, each of which is used at each time.
        times: times of each part, (n_times,), if parts have separate times; equally spaced if None.
    """
    first = 0.0 if model.starts_at_zero else LEAST_T_START
    even = torch.linspace(first, 1, n_times, dtype=torch.float64)
    own = dict.fromkeys(model.flow.parts, even) if times is None else times
    calls = even if times is None else torch.stack([own[name] for name in model.flow.parts], 1)
    errors: dict[str, list[float]] = {name: [] for name in own}
    masks = model.flow.split((conditions or {}).get("present", torch.ones_like(x, dtype=torch.bool)))
    with evaluating(model):
        for t in calls:
            prediction = noised_output(model, x, t.expand(len(x), *t.shape), generator, conditions)[0].mean
            for name, values in model.flow.split(model.flow.errors(x, prediction)).items():
                errors[name].append(float(values[masks[name]].double().mean()))
    return {name: ErrorCurve(tuple(own[name].tolist()), tuple(errors[name])) for name in own}


def even_flow(
    model: Model,
    x: Tensor,
    n_times: int = 64,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    n_rounds: int = 6,
) -> Flow:
    """Return the model's flow with schedules on which information about each part grows evenly in t, for a new model.

    The error of a part depends on the noise level of the others. If parts have separate times, the errors are measured
    again along the schedules just found, n_rounds times; otherwise once, along the schedules of the model.
    """
    flow, times = model.flow, None
    for _ in range(n_rounds if flow.time_shape else 1):
        curves = error_curves(model, x, n_times, generator, conditions, times)
        schedules = {name: curves[name].even_schedule(own) for name, own in flow.parts.items()}
        even = torch.linspace(0, 1, n_times, dtype=torch.float64)
        times = {name: own.schedule.inverse(schedules[name].beta(even)) for name, own in flow.parts.items()}
    return flow.with_schedules(schedules)
