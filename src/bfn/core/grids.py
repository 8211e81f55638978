"""Time grids: the times of the network calls.

A grid is a small object whose ``Grid.times`` turns (flow, intervals, t_start) into ``intervals + 1`` increasing
float64 times. ``parse`` makes one from a name such as "karras:5".
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import PartFlow
from bfn.core.info import ErrorCurve
from bfn.core.registry import Registry, registry

__all__ = [
    "GRIDS", "Grid", "Information", "Karras", "Log1p", "Log1pEarly", "LogSNR", "Paper", "Power", "Uniform",
    "check_times", "parse",
]  # fmt: skip


@dataclass(frozen=True)
class Grid(ABC):
    """A rule for times. Its dataclass fields are the numbers that may follow its name: "power:2:0.9".

    Attributes:
        name: name for ``parse``.
        stops_short: the last interval is not stepped, as in the released code: its first point is the last call.
        needs_start: the rule has no point at t = 0.
        in_t: the times are the same for every schedule, so that parts of joint data may share them.
    """

    name: ClassVar[str]
    stops_short: ClassVar[bool] = False
    needs_start: ClassVar[bool] = False
    in_t: ClassVar[bool] = False

    @abstractmethod
    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        """Return the times, (intervals + 1,), float64."""

    def with_curve(self, curve: ErrorCurve | None) -> Grid:
        """Return the grid for a model with this error curve. Most grids do not depend on it."""
        return self

    def __call__(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        """Check t_start and return the times."""
        if not 0 <= t_start < 1:
            raise UserError(f"t_start={t_start}: expected a time in [0, 1)")
        if self.needs_start and t_start == 0:
            raise UserError(f"t_start=0: the grid {str(self)!r} has no point there; give a small time such as 1e-3")
        return self.times(flow, intervals, t_start)

    def __str__(self) -> str:
        """Return the name that ``parse`` reads."""
        numbers = [getattr(self, key) for key in _numbers(type(self))]
        while numbers and numbers[-1] is None:
            numbers.pop()
        return ":".join([self.name, *("" if number is None else f"{number:g}" for number in numbers)])


@dataclass(frozen=True)
class Uniform(Grid):
    """Equal steps in t from t_start to t_end, 1 if None."""

    t_end: float | None = None

    name: ClassVar[str] = "uniform"
    in_t: ClassVar[bool] = True

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        return torch.linspace(t_start, _end(self.t_end, t_start), intervals + 1, dtype=torch.float64)


@dataclass(frozen=True)
class Paper(Grid):
    """Equal steps in t from t_start to 1. The last step is not taken."""

    name: ClassVar[str] = "paper"
    stops_short: ClassVar[bool] = True
    in_t: ClassVar[bool] = True

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        return torch.linspace(t_start, 1, intervals + 1, dtype=torch.float64)


@dataclass(frozen=True)
class LogSNR(Grid):
    """Equal steps in log s, half the log signal-to-noise ratio, from t_start to 1."""

    name: ClassVar[str] = "log-snr"
    needs_start: ClassVar[bool] = True

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        return _evenly(flow, intervals, t_start, torch.log, torch.exp)


@dataclass(frozen=True)
class Karras(Grid):
    """Equal steps in sigma^(1/rho) for sigma = 1/s, from t_start to 1 (Karras et al. 2022, eq. 5); rho = 7 if None."""

    rho: float | None = None

    name: ClassVar[str] = "karras"
    needs_start: ClassVar[bool] = True

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        rho = self.rho or 7.0
        return _evenly(flow, intervals, t_start, lambda s: s ** (-1 / rho), lambda root: root**-rho)


@dataclass(frozen=True)
class Log1p(Grid):
    """Steps of (i / intervals)^exponent in log(1 + s / scale), from t_start to s_end.

    The steps are equal in s at low s and equal in log s beyond the scale, where the data begin to be resolved. By
    default s_end = calls^2 / 4, where the last prediction of an exact model is as good as the steps before it. With few
    calls, going to s(1) would spend them on details below a thousandth of the data's scale.

    Args:
        s_end: last s.
        scale: 1/2 if None.
        exponent: 1 if None.
    """

    s_end: float | None = None
    scale: float | None = None
    exponent: float | None = None

    name: ClassVar[str] = "log1p"

    def end(self, calls: int) -> float:
        """Return the last s for a flow without an end."""
        return max(2.0, calls**2 / 4) if self.s_end is None else self.s_end

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        scale = self.scale or 0.5
        start = float(flow.schedule.s(t_start))
        end = min(float(flow.schedule.s(1.0)), max(2 * start, self.end(intervals + 1)))
        first, last = math.log1p(start / scale), math.log1p(end / scale)
        ramp = torch.linspace(0, 1, intervals + 1, dtype=torch.float64) ** (self.exponent or 1.0)
        warped = first + (last - first) * ramp
        times = flow.schedule.time_of_s(scale * torch.expm1(warped))
        times[0] = t_start
        return times.clamp(max=1.0)


@dataclass(frozen=True)
class Log1pEarly(Log1p):
    """``Log1p`` to s = 2.5 sqrt(calls), beyond which a trained network's errors are larger than the details.

    This follows the best ends for the bundled models: s = 6 with 5 calls, 8 with 10, and 15 to 20 with 50.
    """

    name: ClassVar[str] = "log1p-early"

    def end(self, calls: int) -> float:
        return 2.5 * math.sqrt(calls) if self.s_end is None else self.s_end


@dataclass(frozen=True)
class Power(Grid):
    """Steps with s - s_start = (i / intervals)^exponent up to t_end; 1.25 below 6 calls and 1.1 from 6 on if None."""

    exponent: float | None = None
    t_end: float | None = None

    name: ClassVar[str] = "power"

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        exponent = self.exponent or (1.25 if intervals < 5 else 1.1)
        t_end = _end(self.t_end, t_start)
        start, end = float(flow.schedule.s(t_start)), float(flow.schedule.s(t_end))
        ramp = torch.linspace(0, 1, intervals + 1, dtype=torch.float64) ** exponent
        return _with_ends(flow.schedule.time_of_s(start + (end - start) * ramp), t_start, t_end)


@dataclass(frozen=True)
class Information(Grid):
    """Equal shares of the information, int beta'/(2 kappa) E||w - w_hat||^2 dt, between t_start and 1."""

    curve: ErrorCurve | None = None

    name: ClassVar[str] = "information"

    def with_curve(self, curve: ErrorCurve | None) -> Grid:
        return replace(self, curve=self.curve or curve)

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        if self.curve is None:
            raise UserError(
                "grid='information': the model has no error curve; training stores one, or set "
                "model.info.error_curve = bfn.losses.error_curve(model, x)"
            )
        return self.curve.equal_shares(flow, intervals, t_start)


@dataclass(frozen=True)
class Mean(Grid):
    """Weighted mean of the times that the parts of joint data have alone. It has no name for ``parse``."""

    grids: tuple[Grid, ...]
    flows: tuple[PartFlow, ...]
    weights: tuple[float, ...]

    name: ClassVar[str] = "mean"

    def times(self, flow: PartFlow, intervals: int, t_start: float) -> Tensor:
        own = [grid(part, intervals, t_start) for grid, part in zip(self.grids, self.flows, strict=True)]
        return torch.stack(own, -1) @ torch.tensor(self.weights, dtype=torch.float64) / sum(self.weights)

    def __str__(self) -> str:
        """Describe the grid."""
        return "the mean of " + " and ".join(dict.fromkeys(map(str, self.grids)))


def _evenly(
    flow: PartFlow, intervals: int, t_start: float, warp: Callable[[Tensor], Tensor], unwarp: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return times equally spaced in warp(s) from t_start to 1."""
    start, end = (float(warp(flow.schedule.s(t))) for t in (t_start, 1.0))
    warped = torch.linspace(start, end, intervals + 1, dtype=torch.float64)
    return _with_ends(flow.schedule.time_of_s(unwarp(warped)), t_start)


def _with_ends(times: Tensor, t_start: float, t_end: float = 1.0) -> Tensor:
    """Return the times with both ends set exactly; a single time is the start."""
    times[-1], times[0] = t_end, t_start
    return times


GRIDS: Registry[type[Grid]] = registry("grid")
"""Grids by the name that ``sample(grid=...)`` takes."""


def parse(name: str) -> Grid:
    """Return the grid of that name, such as "karras" or "karras:5".

    >>> parse("power:1.5:0.8")
    Power(exponent=1.5, t_end=0.8)
    """
    if not isinstance(name, str):
        raise UserError(f"grid={name!r}: expected a name, such as 'uniform'")
    base, *numbers = name.split(":")
    if base not in GRIDS:
        hint = did_you_mean(base, GRIDS)
        raise UserError(f"grid={name!r}: expected one of {', '.join(GRIDS)}, or a tensor of times{hint}")
    takes = _numbers(GRIDS[base])
    if len(numbers) > len(takes):
        raise UserError(f"grid={name!r}: {base!r} takes {' and '.join(takes) or 'no number'} after its name")
    given = {key: _positive(number, name) for key, number in zip(takes, numbers, strict=False) if number}
    return GRIDS[base](**given)


def _numbers(grid: type[Grid]) -> list[str]:
    """Return the names of the numbers that may follow the grid's name."""
    return [field.name for field in dataclasses.fields(grid) if field.name != "curve"]


def _end(t_end: float | None, t_start: float) -> float:
    """Check and return the last time of a grid, 1 if None."""
    t_end = 1.0 if t_end is None else t_end
    if not t_start < t_end <= 1:
        raise UserError(f"t_end={t_end:g}: expected a time after t_start={t_start:g} and up to 1")
    return t_end


def _positive(number: str, name: str) -> float:
    """Read a positive number of the name of a grid."""
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"grid={name!r}: expected a positive number after the colon, not {number!r}")
    return value


def check_times(times: Sequence[float] | Tensor, grid: Grid | None = None) -> Tensor:
    """Return the times as float64, checked to be increasing and within [0, 1].

    Args:
        times: the times.
        grid: the grid that made them, for messages.
    """
    try:
        times = torch.as_tensor(times, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"grid={times!r:.60}: expected a vector of times") from None
    if times.ndim != 1 or times.numel() == 0:
        raise UserError(f"grid of shape {tuple(times.shape)}: expected a vector of times")
    if not (times[0] >= 0 and times[-1] <= 1 and (times[1:] > times[:-1]).all()):
        name = "grid" if grid is None else f"grid {str(grid)!r} of {len(times)} times"
        raise UserError(f"{name}: {_first_wrong_time(times)}")
    return times


def _first_wrong_time(times: Tensor) -> str:
    """Say which time of a grid is outside of [0, 1] or does not increase."""
    outside = (~((times >= 0) & (times <= 1))).nonzero()
    if len(outside):
        return f"time {float(times[outside[0]])}: expected times within [0, 1]"
    i = int((times[1:] <= times[:-1]).nonzero()[0])
    return f"time {float(times[i + 1])} follows {float(times[i])}: expected increasing times"
