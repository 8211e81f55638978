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
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.registry import Registry, registry

FIRST_TIME = 1e-6
"""Noise predictions before this time are not used (0/0 at t = 0), as in the released code."""

Time = float | Tensor
"""A time or a tensor of times in [0, 1]."""


def as_float64(value: Time) -> Tensor:
    """Return the value as a float64 tensor on its device."""
    return torch.as_tensor(value, dtype=torch.float64)


def stratified_times(n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
    """Draw n times in [0, 1), one in each interval of width 1/n, with a shared random shift. Each one is uniform."""
    shift = torch.rand((), generator=generator, dtype=torch.float64, device=device)
    return (torch.arange(n, dtype=torch.float64, device=device) / n + shift) % 1


def is_between(low: float, value: Any, high: float) -> bool:
    """Return True if a value is a number, or a tensor with one number, between two others; bools are not numbers."""
    number = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real) and value is not True
    return number and bool(low < value < high)


class Schedule(ABC):
    """An increasing function beta(t), with its slope, its inverse, and differences that do not cancel.

    Times and values may be numbers or tensors; results are float64 tensors.
    """

    registry: ClassVar[str] = "schedule"

    @abstractmethod
    def beta(self, t: Time) -> Tensor:
        """Return the accuracy at time t."""

    @abstractmethod
    def slope(self, t: Time) -> Tensor:
        """Return d beta / d t."""

    @abstractmethod
    def inverse(self, beta: Time) -> Tensor:
        """Return the time at which the accuracy is ``beta``."""

    @abstractmethod
    def increment(self, t_start: Time, t_end: Time) -> Tensor:
        """Return beta(t_end) - beta(t_start), to full relative precision for nearby times too."""

    def s(self, t: Time) -> Tensor:
        """Return sqrt(beta(t)), the amplitude of the signal in the whitened evidence u = s w + sqrt(kappa) eps."""
        return self.beta(t).sqrt()

    def s_of(self, times: Sequence[float]) -> list[float]:
        """Return ``s`` of several times as numbers, for the table of a solver."""
        values: list[float] = self.s(torch.tensor(times, dtype=torch.float64)).tolist()
        return values

    @cached_property
    def s_first(self) -> float:
        """``s`` at ``FIRST_TIME``."""
        return float(self.s(FIRST_TIME))

    def time_of_s(self, s: Time) -> Tensor:
        """Return the time at which ``s`` has this value."""
        return self.inverse(as_float64(s).square())


@dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """beta(t) = sigma_1^(-2t) - 1, the schedule for continuous data (paper, eq. bg-cbfn: gamma = 1 - sigma_1^(2t))."""

    sigma_1: float

    def __post_init__(self) -> None:
        if not is_between(0, self.sigma_1, 1):
            raise UserError(f"sigma_1={self.sigma_1!r:.60}: expected a standard deviation in (0, 1), such as 1e-3")

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
        if not is_between(0, self.beta_1, math.inf):
            raise UserError(f"beta_1={self.beta_1!r:.60}: expected a positive, finite final accuracy, such as 0.75**2")

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

    Args:
        beta_1: accuracy at t = 1.
        rate: r. e^(-r beta) falls linearly in t. ChemBFN (Tao and Abe 2024) has r = K / 4 for K classes with
            beta_1 = 20.4 / K.

    >>> LogarithmicSchedule(beta_1=2.0, rate=1.0).beta(1.0)
    tensor(2., dtype=torch.float64)
    """

    beta_1: float
    rate: float

    def __post_init__(self) -> None:
        for name in ("beta_1", "rate"):
            value = getattr(self, name)
            if not is_between(0, value, math.inf):
                raise UserError(f"{name}={value!r:.60}: expected a positive, finite number")
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


SCHEDULES: Registry[type[Schedule]] = registry("schedule")
"""Schedules by the name that a stored config has."""
