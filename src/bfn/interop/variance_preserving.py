"""Diffusion models as models of this library, by an exact change of variables.

A variance-preserving model is trained on x_t = alpha x + sigma eps, alpha^2 + sigma^2 = 1. Divided by sigma,

    u = x_t / sigma = s x + eps,        s = alpha / sigma

this is the state of a continuous Bayesian flow with the schedule beta = alpha^2 / sigma^2, the model's signal-to-noise
ratio. Nothing is approximated: DPM-Solver++ 2M is the rule "bfn-solver++2" here, and every other solver can be used.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, Flow, NoiseLevel, Shape
from bfn.core.heads import Head, Output, Point, unknown_scale
from bfn.core.model import BFN
from bfn.core.schedules import Schedule, Time, as_float64

__all__ = ["VariancePreservingHead", "VariancePreservingSchedule", "variance_preserving"]


TINY_SNR = 2.0**-24
"""Smallest alpha^2; smaller ones are raised to it, so that schedules that end in pure noise have a finite log s."""


@dataclass(frozen=True)
class VariancePreservingSchedule(Schedule):
    """The schedule beta = alpha^2 / (1 - alpha^2) of n discrete noise levels; log s is linear between them.

    Unlike in other schedules of this library, beta(0) is not exactly 0.

    Args:
        alphas_cumprod: alpha^2 at each timestep, decreasing, as diffusion models store it. Timestep k is the time
            t = 1 - k / (n - 1).
    """

    alphas_cumprod: tuple[float, ...] = field(repr=False)

    def __post_init__(self) -> None:
        values = self.alphas_cumprod
        if len(values) < 2:
            raise UserError(f"alphas_cumprod of {len(values)} values: expected at least 2 noise levels")
        if not all(0 <= value < 1 for value in values) or any(after >= before for before, after in pairwise(values)):
            raise UserError("alphas_cumprod: expected decreasing values within [0, 1), timestep 0 the largest")

    @cached_property
    def _log_s(self) -> Tensor:
        """Return log s at equal steps of t from 0 to 1."""
        alpha_2 = torch.tensor(self.alphas_cumprod[::-1], dtype=torch.float64).clamp(min=TINY_SNR)
        return (alpha_2 / (1 - alpha_2)).log() / 2

    def _at(self, t: Time) -> tuple[Tensor, Tensor]:
        """Return log s and its slope at t."""
        t = as_float64(t)
        known, intervals = self._log_s.to(t.device), len(self.alphas_cumprod) - 1
        i = (t * intervals).floor().long().clamp(0, intervals - 1)
        rise = known[i + 1] - known[i]
        return known[i] + (t * intervals - i) * rise, rise * intervals

    def beta(self, t: Time) -> Tensor:
        return torch.exp(2 * self._at(t)[0])

    def slope(self, t: Time) -> Tensor:
        log_s, rate = self._at(t)
        return 2 * rate * torch.exp(2 * log_s)

    def inverse(self, beta: Time) -> Tensor:
        log_s = as_float64(beta).log() / 2
        known, intervals = self._log_s.to(log_s.device), len(self.alphas_cumprod) - 1
        i = torch.searchsorted(known, log_s.contiguous()).clamp(1, intervals) - 1
        share = (log_s - known[i]) / (known[i + 1] - known[i])
        return ((i + share) / intervals).clamp(0, 1)

    def increment(self, t_start: Time, t_end: Time) -> Tensor:
        start, end = self._at(t_start)[0], self._at(t_end)[0]
        return torch.exp(2 * start) * torch.expm1(2 * (end - start))


@dataclass(frozen=True)
class VariancePreservingHead(Head):
    """Head of a network that takes x_t = u / sqrt(1 + s^2), as diffusion models do.

    Args:
        predicts: "epsilon", "sample" or "v_prediction", v = alpha eps - sigma x (Salimans and Ho 2022), so that
            x = alpha x_t - sigma v.
    """

    predicts: str = "epsilon"

    kind: ClassVar[str] = "continuous"

    def __post_init__(self) -> None:
        if self.predicts not in ("epsilon", "sample", "v_prediction"):
            raise UserError(f"predicts={self.predicts!r}: expected 'epsilon', 'sample' or 'v_prediction'")

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Tensor:
        return u * unknown_scale(level)

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        sigma = unknown_scale(level)
        if self.predicts == "epsilon":
            x_hat = (u - raw) / level.s
        else:
            x_hat = raw if self.predicts == "sample" else u * (level.s * sigma * sigma) - raw * sigma
        return Point(x_hat, sigma)


class Timesteps(nn.Module):
    """Call a network of (x_t, timestep) with the time t of this library: timestep = (1 - t) last.

    Args:
        network: ``network(x_t, timestep) -> output``, or with a label as third argument.
        last: the last timestep, that of pure noise.
    """

    def __init__(self, network: Callable[..., Tensor], last: int) -> None:
        super().__init__()
        self.network, self.last = network, last

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Return the network's output on inputs (batch, ...), times (batch,) and labels (batch,), if any."""
        timestep = (1 - t) * self.last
        return self.network(inputs, timestep) if label is None else self.network(inputs, timestep, label)


def variance_preserving(
    network: Callable[..., Tensor], alphas_cumprod: Tensor, data_shape: Shape, predicts: str = "epsilon"
) -> BFN:
    """Return a diffusion model as a model of this library, for all solvers of continuous data.

    Args:
        network: ``network(x_t, timestep) -> output``, for timesteps from len(alphas_cumprod) - 1 (noise) to 0 (data),
            which need not be whole numbers.
        alphas_cumprod: (n,), alpha^2 at each timestep.
        data_shape: shape of one sample.
        predicts: "epsilon", "sample" or "v_prediction".
    """
    levels = tuple(torch.as_tensor(alphas_cumprod).double().tolist())
    flow = ContinuousFlow(schedule=VariancePreservingSchedule(levels))
    return BFN(Timesteps(network, len(levels) - 1), flow, VariancePreservingHead(predicts), data_shape)
