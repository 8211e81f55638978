"""Time grids: where the network is called. Pure functions in float64.

A grid turns (flow, intervals, t_start) into ``intervals + 1`` increasing times from t_start to the data end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from bfn.flows import Flow
from bfn.schedules import as_float64


@dataclass(frozen=True)
class Grid:
    """A named rule for the times.

    stops_short: the last interval is not stepped, as in the released code: its first point is the last call.
    needs_start: the rule has no point at t = 0.
    """

    name: str
    summary: str
    rule: Callable[[Flow, int, float], Tensor]
    stops_short: bool = False
    needs_start: bool = False

    def __call__(self, flow: Flow, intervals: int, t_start: float) -> Tensor:
        """(intervals + 1,) float64 times."""
        if not 0 <= t_start < 1:
            raise ValueError(f"t_start={t_start}: expected a time in [0, 1)")
        if self.needs_start and t_start == 0:
            raise ValueError(f"t_start=0: the grid {self.name!r} has no point there; give a small time such as 1e-3")
        return self.rule(flow, intervals, t_start)


def uniform(flow: Flow, intervals: int, t_start: float) -> Tensor:
    """Equal steps in t."""
    return torch.linspace(t_start, 1, intervals + 1, dtype=torch.float64)


def _between(flow: Flow, warped: Tensor, unwarp: Callable[[Tensor], Tensor], t_start: float) -> Tensor:
    """Times whose s = unwarp(warped), both ends set exactly."""
    times = flow.schedule.time_of_s(unwarp(warped))
    times[0], times[-1] = t_start, 1.0
    return times


def log_snr(flow: Flow, intervals: int, t_start: float) -> Tensor:
    """Equal steps in log s, half the log signal-to-noise ratio."""
    start, end = flow.schedule.s(t_start).log(), flow.schedule.s(1.0).log()
    return _between(flow, torch.linspace(float(start), float(end), intervals + 1, dtype=torch.float64), torch.exp, t_start)


GRIDS: dict[str, Grid] = {
    grid.name: grid
    for grid in (
        Grid("paper", "uniform in t from t_start, the last interval not stepped", uniform, stops_short=True),
        Grid("uniform", "uniform in t from t_start to the data end", uniform),
        Grid("log-snr", "uniform in log s from t_start to the data end", log_snr, needs_start=True),
    )
}


def get(name: str) -> Grid:
    """The grid of that name."""
    if name not in GRIDS:
        near = get_close_matches(name, GRIDS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"grid={name!r}: expected one of {', '.join(GRIDS)}, or a tensor of times{hint}")
    return GRIDS[name]


def check_times(times: Tensor) -> Tensor:
    """A user's own times as float64, refused if they are not increasing within [0, 1]."""
    times = as_float64(times).cpu()
    if times.ndim != 1 or times.numel() == 0:
        raise ValueError(f"grid of shape {tuple(times.shape)}: expected a vector of times")
    if not bool(torch.isfinite(times).all()) or float(times[0]) < 0 or float(times[-1]) > 1:
        raise ValueError(f"grid from {float(times[0])} to {float(times[-1])}: expected times within [0, 1]")
    backward = (times[1:] <= times[:-1]).nonzero()
    if len(backward):
        i = int(backward[0])
        raise ValueError(f"grid: time {float(times[i + 1])} follows {float(times[i])}: expected increasing times")
    return times
