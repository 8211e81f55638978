"""Time grids: where the network is called. Pure functions in float64.

A grid turns (flow, intervals, t_start) into ``intervals + 1`` increasing times from t_start to the data end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bfn.error_curve import ErrorCurve
from bfn.errors import UserError, did_you_mean
from bfn.flows import Flow


@dataclass(frozen=True)
class Grid:
    """A named rule (flow, intervals, t_start) -> times.

    stops_short: the last interval is not stepped, as in the released code: its first point is the last call.
    needs_start: the rule has no point at t = 0.
    takes: names of the rule's own numbers, for a family of grids: "power:2:0.9" is "power" with exponent 2, t_end 0.9.
    needs_curve: the rule is made from the model's error curve.
    """

    name: str
    summary: str
    rule: Callable[..., Tensor]
    stops_short: bool = False
    needs_start: bool = False
    takes: tuple[str, ...] = ()
    needs_curve: bool = False

    def __call__(self, flow: Flow, intervals: int, t_start: float) -> Tensor:
        """(intervals + 1,) float64 times."""
        if not 0 <= t_start < 1:
            raise UserError(f"t_start={t_start}: expected a time in [0, 1)")
        if self.needs_start and t_start == 0:
            raise UserError(f"t_start=0: the grid {self.name!r} has no point there; give a small time such as 1e-3")
        return self.rule(flow, intervals, t_start)


def uniform(flow: Flow, intervals: int, t_start: float) -> Tensor:
    """Equal steps in t."""
    return torch.linspace(t_start, 1, intervals + 1, dtype=torch.float64)


def _between(flow: Flow, warped: Tensor, unwarp: Callable[[Tensor], Tensor], t_start: float) -> Tensor:
    """Times whose s = unwarp(warped), both ends set exactly; a single time is the start."""
    times = flow.schedule.time_of_s(unwarp(warped))
    times[-1], times[0] = 1.0, t_start
    return times


def log_snr(flow: Flow, intervals: int, t_start: float) -> Tensor:
    """Equal steps in log s, half the log signal-to-noise ratio."""
    start, end = flow.schedule.s(t_start).log(), flow.schedule.s(1.0).log()
    return _between(
        flow, torch.linspace(float(start), float(end), intervals + 1, dtype=torch.float64), torch.exp, t_start
    )


def log1p(flow: Flow, intervals: int, t_start: float, s_end: float | None = None, scale: float = 0.5) -> Tensor:
    """Equal steps in log(1 + s/d) to s_end, d = scale = 1/2 about the data's standard deviation.

    Linear in s where little is known, logarithmic beyond. s_end is (calls)^2 / 4 by itself, where an exact model's last
    prediction is as good as the steps before it: at few calls, going to s(1) would spend them on detail below a
    thousandth of the data's scale.
    """
    start = float(flow.schedule.s(t_start))
    wanted = max(2.0, (intervals + 1) ** 2 / 4) if s_end is None else s_end
    end = min(float(flow.schedule.s(1.0)), max(2 * start, wanted))
    warped = torch.linspace(math.log1p(start / scale), math.log1p(end / scale), intervals + 1, dtype=torch.float64)
    times = flow.schedule.time_of_s(scale * torch.expm1(warped))
    times[0] = t_start
    return times.clamp(max=1.0)


def log1p_early(flow: Flow, intervals: int, t_start: float) -> Tensor:
    """:func:`log1p` to s = 2.5 sqrt(calls): beyond it a trained network's errors exceed what is left to resolve.

    The end follows the best ones found on the bundled models, s = 6 at 5 calls, 8 at 10, 15 to 20 at 50.
    """
    return log1p(flow, intervals, t_start, 2.5 * math.sqrt(intervals + 1))


def power(flow: Flow, intervals: int, t_start: float, exponent: float | None = None, t_end: float = 1.0) -> Tensor:
    """s - s_start proportional to (i / intervals)^p up to t_end; p = 1.25 below 6 calls and 1.1 from there."""
    if exponent is None:
        exponent = 1.25 if intervals < 5 else 1.1
    if not t_start < t_end <= 1:
        raise UserError(f"t_end={t_end:g}: expected a time after t_start={t_start:g} and up to 1")
    start, end = float(flow.schedule.s(t_start)), float(flow.schedule.s(t_end))
    ramp = torch.linspace(0, 1, intervals + 1, dtype=torch.float64) ** exponent
    times = flow.schedule.time_of_s(start + (end - start) * ramp)
    times[-1], times[0] = t_end, t_start
    return times


def karras(flow: Flow, intervals: int, t_start: float, rho: float = 7.0) -> Tensor:
    """Equal steps in sigma^(1/rho) of the noise level sigma = 1/s, down to the data end (Karras et al. 2022, eq. 5)."""
    start, end = (float(flow.schedule.s(t)) ** (-1 / rho) for t in (t_start, 1.0))
    return _between(
        flow, torch.linspace(start, end, intervals + 1, dtype=torch.float64), lambda root: root**-rho, t_start
    )


def information(flow: Flow, intervals: int, t_start: float, curve: ErrorCurve | None = None) -> Tensor:
    """Equal shares of the information, beta'/(2 kappa) E||w - w_hat||^2 dt, that the model gets from t_start to 1."""
    if curve is None:
        raise UserError(
            "grid='information': the model has no error curve; training stores one, or set model.error_curve = "
            "bfn.losses.error_curve(model, x)"
        )
    fine = torch.linspace(t_start, 1, 4097, dtype=torch.float64)
    gathered = curve.information(flow, fine)
    if not float(gathered[-1]) > 0:
        raise UserError("grid='information': the model's error curve is 0 everywhere, there is nothing to share")
    shares = gathered[-1] * torch.linspace(0, 1, intervals + 1, dtype=torch.float64)
    i = torch.searchsorted(gathered, shares).clamp(1, len(fine) - 1)
    within = (shares - gathered[i - 1]) / (gathered[i] - gathered[i - 1])
    times = torch.lerp(fine[i - 1], fine[i], within.clamp(0, 1))
    times[-1], times[0] = 1.0, t_start
    return times


GRIDS: dict[str, Grid] = {
    grid.name: grid
    for grid in (
        Grid("paper", "uniform in t from t_start, the last interval not stepped", uniform, stops_short=True),
        Grid("uniform", "uniform in t from t_start to the data end", uniform),
        Grid("log1p", "uniform in log(1 + 2s) to s = calls^2 / 4; log1p:S:D in log(1 + s/D) to s = S", log1p,
             takes=("s_end", "scale")),
        Grid("log1p-early", "the same for trained networks, to s = 2.5 sqrt(calls)", log1p_early),
        Grid("power", "s a power law of the step to the data end; power:P:T the power P to t = T", power,
             takes=("exponent", "t_end")),
        Grid("log-snr", "uniform in log s from t_start to the data end", log_snr, needs_start=True),
        Grid("karras", "uniform in (1/s)^(1/7) to the data end; karras:RHO in (1/s)^(1/RHO)", karras,
             needs_start=True, takes=("rho",)),
        Grid("information", "equal shares of information, from the model's error curve", information, needs_curve=True),
    )
}  # fmt: skip


def get(name: str, curve: ErrorCurve | None = None) -> Grid:
    """The grid of that name, as "karras", "karras:5"; curve: the model's, for a grid that is made from it."""
    base, *numbers = name.split(":")
    if base not in GRIDS:
        hint = did_you_mean(base, GRIDS)
        raise UserError(f"grid={name!r}: expected one of {', '.join(GRIDS)}, or a tensor of times{hint}")
    grid = GRIDS[base]
    if len(numbers) > len(grid.takes):
        raise UserError(f"grid={name!r}: {base!r} takes {' and '.join(grid.takes) or 'no number'} after its name")
    own: dict[str, Any] = {key: _positive(number, name) for key, number in zip(grid.takes, numbers, strict=False)}
    if grid.needs_curve:
        own["curve"] = curve
    return replace(grid, name=name, rule=partial(grid.rule, **own)) if own else grid


def _positive(number: str, name: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"grid={name!r}: expected a positive number after the colon, not {number!r}")
    return value


def check_times(times: Sequence[float] | Tensor, name: str = "grid") -> Tensor:
    """Times as float64, refused if they are not increasing within [0, 1]; name: what to call them in an error."""
    times = torch.as_tensor(times, dtype=torch.float64).cpu()
    if times.ndim != 1 or times.numel() == 0:
        raise UserError(f"{name} of shape {tuple(times.shape)}: expected a vector of times")
    outside = (~((times >= 0) & (times <= 1))).nonzero()
    if len(outside):
        raise UserError(f"{name}: time {float(times[outside[0]])}: expected times within [0, 1]")
    backward = (times[1:] <= times[:-1]).nonzero()
    if len(backward):
        i = int(backward[0])
        raise UserError(f"{name}: time {float(times[i + 1])} follows {float(times[i])}: expected increasing times")
    return times
