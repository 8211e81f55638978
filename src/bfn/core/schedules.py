"""Schedules: the accuracy beta(t) that has been gathered about the data by time t.

Time runs from ``t = 0`` (nothing is known) to ``t = 1`` (the data). A schedule is an increasing function with
``beta(0) = 0``; the paper's gamma, rho and log-SNR all follow from it:

    s = sqrt(beta)      gamma = beta / (1 + beta)      log SNR = log beta

Everything here is float64, since coefficients of solvers are differences of these numbers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from bfn._utils.arguments import check_real
from bfn.core.errors import UserError
from bfn.core.registry import Registry, registry

__all__ = [
    "FIRST_TIME",
    "SCHEDULES",
    "ExponentialSchedule",
    "LogarithmicSchedule",
    "QuadraticSchedule",
    "Schedule",
    "TabulatedSchedule",
    "Time",
    "as_float64",
    "stratified_times",
]


FIRST_TIME = 1e-6
"""Below this time a noise prediction says nothing of the data (0/0 at t = 0), as in the released code."""

Time = float | Tensor
"""A time or a tensor of times in [0, 1]."""


def as_float64(value: Time) -> Tensor:
    """The value as a float64 tensor (on its own device)."""
    return torch.as_tensor(value, dtype=torch.float64)


def stratified_times(n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
    """n times in [0, 1), one in each stratum of width 1/n with one shared random shift: each is uniform by itself."""
    shift = torch.rand((), generator=generator, dtype=torch.float64, device=device)
    return (torch.arange(n, dtype=torch.float64, device=device) / n + shift) % 1


class Schedule(ABC):
    """beta(t), its slope, its inverse, and increments of it that do not cancel."""

    registry: ClassVar[str] = "schedule"

    @abstractmethod
    def beta(self, t: Time) -> Tensor:
        """Accuracy at time t, float64."""

    @abstractmethod
    def slope(self, t: Time) -> Tensor:
        """d beta / d t, float64."""

    @abstractmethod
    def inverse(self, beta: Time) -> Tensor:
        """The time at which the accuracy is ``beta``, float64."""

    @abstractmethod
    def increment(self, t_start: Time, t_end: Time) -> Tensor:
        """beta(t_end) - beta(t_start), to full relative precision for nearby times."""

    def s(self, t: Time) -> Tensor:
        """sqrt(beta(t)): the signal-to-noise amplitude of the whitened evidence u = s w + sqrt(kappa) eps."""
        return self.beta(t).sqrt()

    def s_of(self, times: Sequence[float]) -> list[float]:
        """:meth:`s` of several times, as numbers: what a solver's table is made from."""
        values: list[float] = self.s(torch.tensor(times, dtype=torch.float64)).tolist()
        return values

    @cached_property
    def s_first(self) -> float:
        """:meth:`s` at :data:`FIRST_TIME`."""
        return float(self.s(FIRST_TIME))

    def time_of_s(self, s: Time) -> Tensor:
        """The inverse of :meth:`s`."""
        return self.inverse(as_float64(s).square())


@dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """beta(t) = sigma_1^(-2t) - 1, the schedule for continuous data (paper, eq. bg-cbfn: gamma = 1 - sigma_1^(2t))."""

    sigma_1: float

    def __post_init__(self) -> None:
        check_real("sigma_1", self.sigma_1)
        if not 0 < self.sigma_1 < 1:
            raise UserError(f"sigma_1={self.sigma_1}: expected a standard deviation in (0, 1), such as 1e-3")

    @property
    def _rate(self) -> float:
        return -2 * math.log(self.sigma_1)

    def beta(self, t: Time) -> Tensor:
        return torch.expm1(self._rate * as_float64(t))

    def slope(self, t: Time) -> Tensor:
        return self._rate * torch.exp(self._rate * as_float64(t))

    def inverse(self, beta: Time) -> Tensor:
        return torch.log1p(as_float64(beta)) / self._rate

    def increment(self, t_start: Time, t_end: Time) -> Tensor:
        start = as_float64(t_start)
        return torch.exp(self._rate * start) * torch.expm1(self._rate * (as_float64(t_end) - start))


@dataclass(frozen=True)
class QuadraticSchedule(Schedule):
    """beta(t) = beta_1 t^2, the schedule for discrete data (paper, eq. bg-dbfn)."""

    beta_1: float

    def __post_init__(self) -> None:
        check_real("beta_1", self.beta_1)
        if not 0 < self.beta_1 < float("inf"):
            raise UserError(f"beta_1={self.beta_1}: expected a positive, finite final accuracy, such as 0.75**2")

    def beta(self, t: Time) -> Tensor:
        return self.beta_1 * as_float64(t).square()

    def slope(self, t: Time) -> Tensor:
        return 2 * self.beta_1 * as_float64(t)

    def inverse(self, beta: Time) -> Tensor:
        return (as_float64(beta) / self.beta_1).sqrt()

    def increment(self, t_start: Time, t_end: Time) -> Tensor:
        start, end = as_float64(t_start), as_float64(t_end)
        return self.beta_1 * (end - start) * (end + start)

    def s(self, t: Time) -> Tensor:
        return as_float64(self.beta_1).sqrt() * as_float64(t)


@dataclass(frozen=True)
class LogarithmicSchedule(Schedule):
    """beta(t) = -log(1 - t (1 - e^(-r beta_1))) / r: slow at first, steep at the end, as models of molecules use it.

    rate: r, such as K / 4 of K classes with beta_1 = 20.4 / K (Tao and Abe 2024, ChemBFN), by which e^(-r beta) falls
        evenly in t from 1 to what is left of it at t = 1.

    >>> LogarithmicSchedule(beta_1=2.0, rate=1.0).beta(1.0)
    tensor(2., dtype=torch.float64)
    """

    beta_1: float
    rate: float

    def __post_init__(self) -> None:
        for name in ("beta_1", "rate"):
            value = check_real(name, getattr(self, name))
            if value is None or not 0 < value < float("inf"):
                raise UserError(f"{name}={value}: expected a positive, finite number")
        if not self.rate * self.beta_1 < 600:
            raise UserError(f"rate * beta_1 = {self.rate * self.beta_1:g}: expected less than 600, such as 5")

    @property
    def _fall(self) -> float:
        return math.expm1(-self.rate * self.beta_1)

    def beta(self, t: Time) -> Tensor:
        return -torch.log1p(self._fall * as_float64(t)) / self.rate

    def slope(self, t: Time) -> Tensor:
        return -self._fall / (1 + self._fall * as_float64(t)) / self.rate

    def inverse(self, beta: Time) -> Tensor:
        return torch.expm1(-self.rate * as_float64(beta)) / self._fall

    def increment(self, t_start: Time, t_end: Time) -> Tensor:
        start, end = as_float64(t_start), as_float64(t_end)
        return -torch.log1p(self._fall * (end - start) / (1 + self._fall * start)) / self.rate


@dataclass(frozen=True)
class TabulatedSchedule(Schedule):
    """Any increasing curve, given by its values at some times: a cubic between each two of them that never falls.

    times: increasing, from 0 to 1. betas: the accuracy at each, increasing from 0.

    The cubics have the slopes of a cubic spline, bent where it would not increase (Fritsch and Carlson, 1980), so that
    the accuracy and its slope have no jumps. Times outside [0, 1] count as the nearer end.

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
            wrong = next((i for i, (a, b) in enumerate(pairwise(values), 1) if not a < b), None)
            if wrong is not None:
                raise UserError(f"{name}[{wrong}]={values[wrong]:g} after {values[wrong - 1]:g}: {name} must increase")

    @cached_property
    def _pieces(self) -> Tensor:
        """(7, pieces): both times, both accuracies, and the slope as c0 (1-x)^2 + 2 c1 x (1-x) + c2 x^2, x in [0, 1].

        No coefficient of the slope is negative, so that nothing cancels where it is evaluated or integrated.
        """
        from scipy.interpolate import CubicSpline  # type: ignore[import-untyped]

        t, beta = torch.tensor([self.times, self.betas], dtype=torch.float64)
        secant = beta.diff() / t.diff()
        lower = torch.minimum(*_at_knots(secant))
        # A curve may start flat, as t^2 does; anywhere else its inverse would be lost in rounding.
        least = torch.cat((lower.new_zeros(1), lower[1:] / 4))
        slope = torch.from_numpy(CubicSpline(t.numpy(), beta.numpy())(t.numpy(), 1)).clamp(least, 3 * lower)
        # Up to 3 the middle coefficient is not negative; short of it, it is not 0 either.
        slope = slope * torch.minimum(*_at_knots((2.75 * secant / (slope[:-1] + slope[1:])).clamp(max=1)))
        middle = 3 * secant - slope[:-1] - slope[1:]
        return torch.stack((t[:-1], t[1:], beta[:-1], beta[1:], slope[:-1], middle, slope[1:]))

    def _piece(self, values: Tensor, row: int) -> Tensor:
        """The pieces (7, ...) in which times (row 0) or accuracies (row 2) lie."""
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
        # What is left of the first piece, then the whole ones between and the beginning of the last.
        total = _rise(first, low, torch.minimum(high, first[1]))
        beyond = last[2] - first[3] + _rise(last, last[0], high)
        total = total + torch.where(last[0] > first[0], beyond, 0.0)
        return torch.where(start <= end, total, -total)

    def inverse(self, beta: Time) -> Tensor:
        beta = as_float64(beta).clamp(0, self.betas[-1])
        piece = self._piece(beta, 2)
        width, target = piece[1] - piece[0], (beta - piece[2]) / (piece[1] - piece[0])
        with torch.no_grad():
            # Near its start a piece is about c0 x + c1 x^2 + c2 x^3 / 3: Newton's steps go from the least root of the
            # three; where one leaves the bracket, it is halved instead.
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
    """Values of pieces as those before and after each knot; the first and the last knot have but one."""
    return torch.cat((values[:1], values)), torch.cat((values, values[-1:]))


def _place(piece: Tensor, t: Tensor) -> Tensor:
    """Where in the piece t is, in [0, 1]."""
    return (t - piece[0]) / (piece[1] - piece[0])


def _slope(piece: Tensor, x: Tensor) -> Tensor:
    return piece[4] * (1 - x).square() + 2 * piece[5] * x * (1 - x) + piece[6] * x.square()


def _mean_slope(piece: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """By Simpson's rule, which is exact for a slope that is a quadratic."""
    return (_slope(piece, start) + 4 * _slope(piece, (start + end) / 2) + _slope(piece, end)) / 6


def _rise(piece: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """The gain between two times of one piece."""
    return (end - start) * _mean_slope(piece, _place(piece, start), _place(piece, end))


SCHEDULES: Registry[type[Schedule]] = registry("schedule")
"""Schedules by the name that a stored config has."""
