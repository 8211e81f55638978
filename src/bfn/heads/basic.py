"""Heads for a network that predicts noise, data or classes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bfn.arguments import check_real
from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel
from bfn.heads.base import Categorical, Head, Output, Point, unknown_scale
from bfn.schedules import FIRST_TIME
from bfn.sde import message_from_noise

__all__ = ["DataHead", "LogitsHead", "NoiseHead", "PreconditionedHead"]


@dataclass(frozen=True)
class NoiseHead(Head):
    """The network predicts eps: x_hat = (u - eps_hat) / s (paper, eq. cbfn-rep), and 0 before the first time."""

    kind: ClassVar[str] = "continuous"
    starts_at_zero: ClassVar[bool] = False

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        if isinstance(level.s, float):
            told = level.s >= flow.schedule.s_first
            x_hat = message_from_noise(raw, u, level.s, flow.kappa) if told else torch.zeros_like(raw)
        else:
            known = (level.t >= FIRST_TIME).view(-1, *(1,) * (u.ndim - 1))
            x_hat = torch.where(known, message_from_noise(raw, u, torch.where(known, level.s, 1), flow.kappa), 0)
        return Point(x_hat, unknown_scale(level))


@dataclass(frozen=True)
class DataHead(Head):
    """The network predicts x."""

    kind: ClassVar[str] = "continuous"

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        return Point(raw, unknown_scale(level))


@dataclass(frozen=True)
class PreconditionedHead(Head):
    """The network sees unit variance and predicts unit variance at every noise level (Karras et al. 2022, sec. 5).

    With d the standard deviation of the data, x = skip + out F:

        input  u / sqrt(1 + s^2 d^2)        skip  s d^2 u / (1 + s^2 d^2)        out  d / sqrt(1 + s^2 d^2)

    which is theirs with sigma = 1/s, and regular at s = 0.
    """

    data_std: float = 0.5

    kind: ClassVar[str] = "continuous"
    shows_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_real("data_std", self.data_std)
        if not 0 < self.data_std < 1e15:
            raise UserError(f"data_std={self.data_std}: expected the positive standard deviation of the data")

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Tensor:
        return u * (1 + (level.s * self.data_std) ** 2) ** -0.5

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        variance = 1 + (level.s * self.data_std) ** 2
        x_hat = u * (level.s * self.data_std**2 / variance) + raw * (self.data_std * variance**-0.5)
        return Point(x_hat, unknown_scale(level))


@dataclass(frozen=True)
class LogitsHead(Head):
    """The network predicts the logits of each variable's classes."""

    kind: ClassVar[str] = "discrete"

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        return Categorical(raw)
