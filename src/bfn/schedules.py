"""Schedules: the accuracy beta(t) that has been gathered about the data by time t.

Time runs from ``t = 0`` (nothing is known) to ``t = 1`` (the data). A schedule is an increasing function with
``beta(0) = 0``; the paper's gamma, rho and log-SNR all follow from it:

    s = sqrt(beta)      gamma = beta / (1 + beta)      log SNR = log beta

Everything here is float64, since coefficients of solvers are differences of these numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import UserError

__all__ = [
    "SCHEDULES",
    "ExponentialSchedule",
    "QuadraticSchedule",
    "Schedule",
    "Time",
    "as_float64",
    "stratified_times",
]

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
        return [float(value) for value in self.s(torch.tensor(times, dtype=torch.float64))]

    def time_of_s(self, s: Time) -> Tensor:
        """The inverse of :meth:`s`."""
        return self.inverse(as_float64(s).square())


@dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """beta(t) = sigma_1^(-2t) - 1, the schedule for continuous data (paper, eq. bg-cbfn: gamma = 1 - sigma_1^(2t))."""

    sigma_1: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma_1 < 1:
            raise UserError(f"sigma_1={self.sigma_1}: expected a standard deviation in (0, 1), such as 1e-3")

    @property
    def _rate(self) -> Tensor:
        return -2 * as_float64(self.sigma_1).log()

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


SCHEDULES: dict[str, type[Schedule]] = {"exponential": ExponentialSchedule, "quadratic": QuadraticSchedule}
"""Schedules by the name that a stored config has."""
