"""Heads for data on a grid of values: real numbers in bins, clipped numbers, and two classes.

An image of 256 grey levels is continuous data with 256 values. The discretised head of the original paper (Graves et
al. 2023, section 5) makes use of this: the network predicts a normal distribution, or a mixture, for the noise, and so
for the data. The mass in each bin of [-1, 1] is the probability of the bin's centre. The outermost bins include the
tails.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bfn._utils.arguments import check_whole
from bfn.core.errors import UserError
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.heads import Categorical, Head, NoiseHead, Output, Point
from bfn.core.schedules import FIRST_TIME

LOG_SCALE_RANGE = (-10.0, 10.0)
"""Range that log standard deviations of the noise are clipped to, as in the released code."""

SCALE_RANGE = (1e-3, 10.0)
"""Range that standard deviations of the data are clipped to, as in the released code: below it the mass of a bin has no
gradient."""

EDGES_AT_ONCE = 16
"""Number of bin edges that the mean sums over together, so that its memory does not grow with the number of bins."""


def bin_index(x: Tensor, n_bins: int) -> Tensor:
    """Return the bin of [-1, 1] that x is in, 0 to n_bins - 1; values outside are in the outermost bins."""
    return ((x + 1) * (n_bins / 2)).floor().clamp(0, n_bins - 1).long()


def bin_centre(index: Tensor, n_bins: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the centre of a bin, (2 index + 1) / n_bins - 1."""
    return (2 * index.to(dtype) + 1) / n_bins - 1


def quantise(x: Tensor, n_bins: int) -> Tensor:
    """Return the centre of the bin that x is in.

    >>> quantise(torch.tensor([-1.0, 0.1, 3.0]), 4)
    tensor([-0.7500,  0.2500,  0.7500])
    """
    return bin_centre(bin_index(x, n_bins), n_bins, x.dtype)


def log_bin_mass(index: Tensor, mean: Tensor, scale: Tensor, n_bins: int) -> Tensor:
    """Return the log of the mass of N(mean, scale^2) in bins of [-1, 1], float64; the outermost include the tails.

    With the edges z of the bin in standard units, log[Phi(z_hi) - Phi(z_lo)] is computed on the side on which both
    terms are small (Phi(-z) = 1 - Phi(z)). So it neither cancels nor underflows for bins far from the mean.
    """
    index, mean, scale = index.double(), mean.double(), scale.double()
    z_low = (2 * index / n_bins - 1 - mean) / scale
    z_high = (2 * (index + 1) / n_bins - 1 - mean) / scale
    first, last = index == 0, index == n_bins - 1
    mirrored = ((z_low + z_high > 0) & ~first) | last
    log_inner = torch.special.log_ndtr(torch.where(mirrored, -z_low, z_high))
    log_outer = torch.special.log_ndtr(torch.where(mirrored, -z_high, z_low))
    log_outer = log_outer.masked_fill(first | last, -torch.inf)
    return torch.add(log_inner, torch.log(-torch.expm1(log_outer - log_inner)))


@dataclass(frozen=True)
class Discretised(Output):
    """A mixture of normal distributions over the bins of [-1, 1].

    Attributes:
        means, scales, log_weights: (batch, ..., components).
        n_bins: number of bins.
    """

    means: Tensor
    scales: Tensor
    log_weights: Tensor
    n_bins: int

    @cached_property
    def mean(self) -> Tensor:
        """sum_k p_k c_k = c_last - width sum_k Phi(edge_k): (batch, ...)."""
        edges = 2 * torch.arange(1, self.n_bins, dtype=self.means.dtype, device=self.means.device) / self.n_bins - 1
        below = torch.zeros_like(self.means)
        for some in torch.split(edges, EDGES_AT_ONCE):
            z = (some - self.means.unsqueeze(-1)) / self.scales.unsqueeze(-1)
            below = below + torch.special.ndtr(z).sum(-1)
        return 1 - 1 / self.n_bins - 2 / self.n_bins * (self.log_weights.exp() * below).sum(-1)

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of all bins: (batch, ..., n_bins), float64."""
        return self._log_mass(torch.arange(self.n_bins, device=self.means.device))

    @property
    def mode(self) -> Tensor:
        """The centre of the most probable bin, (batch, ...), which the original sampler returns."""
        return bin_centre(self.log_probs.argmax(-1), self.n_bins, self.means.dtype)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a component and then a number from it, rounded to the centre of its bin."""
        means, scales = self.means, self.scales
        if means.shape[-1] > 1:
            gumbel = -torch.empty_like(means).exponential_(generator=generator).log()
            component = (self.log_weights + gumbel).argmax(-1, keepdim=True)
            means, scales = means.gather(-1, component), scales.gather(-1, component)
        eps = torch.randn(means.shape, generator=generator, dtype=means.dtype, device=means.device)
        return quantise(means + scales * eps, self.n_bins).squeeze(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-probability of the bin that x is in, like x."""
        return self._log_mass(bin_index(x, self.n_bins).unsqueeze(-1)).squeeze(-1).to(self.means.dtype)

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Estimate the divergence from one message y = x + eps / sqrt(alpha), like x.

        It is -eps^2 / 2 - log sum_k p_k exp(-alpha (y - c_k)^2 / 2).
        """
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device).double()
        root = accuracy.double().sqrt()
        centres = bin_centre(torch.arange(self.n_bins, device=x.device), self.n_bins, torch.float64)
        distance = (root * x.double() + eps).unsqueeze(-1) - root.unsqueeze(-1) * centres
        log_receiver = torch.logsumexp(self.log_probs - distance.square() / 2, -1)
        return (-eps.square() / 2 - log_receiver).to(x.dtype)

    def _log_mass(self, index: Tensor) -> Tensor:
        """Return the log-probability of the bins ``index``, (batch, ..., len(index))."""
        mass = log_bin_mass(index.unsqueeze(-2), self.means.unsqueeze(-1), self.scales.unsqueeze(-1), self.n_bins)
        return torch.logsumexp(self.log_weights.double().unsqueeze(-1) + mass, -2)


@dataclass(frozen=True)
class DiscretisedHead(Head):
    """The network predicts a normal distribution, or a mixture, for the noise; the data are in bins.

    The output of the network has the shape (batch, *data_shape, 2), with the mean and the log standard deviation of the
    noise, or (batch, *data_shape, 3 n_components), with logits, means and log standard deviations in three blocks.

    Args:
        n_bins: number of bins of [-1, 1].
        n_components: number of normal distributions.
    """

    n_bins: int = 256
    n_components: int = 1

    kind: ClassVar[str] = "continuous"
    starts_at_zero: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole("n_bins", self.n_bins, 2, 2**24)
        check_whole("n_components", self.n_components, 1, 2**16)

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the data with 2 or 3 n_components numbers for each variable."""
        return (*state_shape, 2 if self.n_components == 1 else 3 * self.n_components)

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        """Turn N(m, d^2) for the noise into N((u - m) / s, (d / s)^2) for the data; N(0, 1) at t = 0."""
        parts = torch.split(raw, self.n_components, -1)
        noise, log_scale = parts[-2:]
        log_weights = torch.log_softmax(parts[0], -1) if self.n_components > 1 else torch.zeros_like(noise)
        s = torch.as_tensor(level.s, dtype=u.dtype, device=u.device).unsqueeze(-1)
        known = (level.t >= FIRST_TIME).view(-1, *(1,) * (raw.ndim - 1))
        s = torch.where(known, s, 1)
        means = torch.where(known, (u.unsqueeze(-1) - noise) / s, 0)
        scales = torch.where(known, log_scale.clamp(*LOG_SCALE_RANGE).exp() / s, 1)
        return Discretised(means, scales.clamp(*SCALE_RANGE), log_weights, self.n_bins)


@dataclass(frozen=True)
class ClippedNoiseHead(NoiseHead):
    """Noise prediction with x_hat clipped to [-1, 1] in losses and in sampling, as in the released code."""

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        """Return the output of a noise prediction with clipped x_hat."""
        point = super().output(flow, raw, u, level)
        return replace(point, x_hat=point.mean.clamp(-1, 1)) if isinstance(point, Point) else point


@dataclass(frozen=True)
class LogitHead(Head):
    """Two classes from one number for each variable, the logit of class 1. Network output: (batch, *data_shape)."""

    kind: ClassVar[str] = "discrete"

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the data: one number for each variable."""
        if state_shape[-1] != 2:
            raise UserError(f"n_classes={state_shape[-1]}: the head is for 2 classes; use predicts='logits'")
        return state_shape[:-1]

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        """Return the classes with logits (0, logit)."""
        return Categorical(torch.stack([torch.zeros_like(raw), raw], -1))
