"""Heads for data on a grid of values: real numbers cut into bins, and classes of which there are two.

An image of 256 grey levels is continuous data that takes 256 values. The *discretised* head of the original paper
(Graves et al. 2023, section 5) uses that: the network predicts a normal (or a mixture of normals) for the noise, which
makes one over the data, and the mass that falls into each bin of [-1, 1] becomes the probability of the bin's centre.
The outermost bins also take the tails.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bfn._utils.arguments import check_real
from bfn.core.errors import UserError
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.heads import Categorical, Head, NoiseHead, Output, Point
from bfn.core.schedules import FIRST_TIME

LOG_SCALE_RANGE = (-10.0, 10.0)
"""Log standard deviations of the noise are cut to this, as in the released code."""

SCALE_RANGE = (1e-3, 10.0)
"""Standard deviations over the data are cut to this, as in the released code: below it a bin's mass has no gradient."""

EDGES_AT_ONCE = 16
"""How many bin edges the mean sums over at a time, so that its memory does not grow with the number of bins."""


def bin_index(x: Tensor, n_bins: int) -> Tensor:
    """The bin of [-1, 1] that x falls into, 0..n_bins-1; what lies outside belongs to the outermost bins."""
    return ((x + 1) * (n_bins / 2)).floor().clamp(0, n_bins - 1).long()


def bin_centre(index: Tensor, n_bins: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The centre of a bin: (2 index + 1) / n_bins - 1."""
    return (2 * index.to(dtype) + 1) / n_bins - 1


def quantise(x: Tensor, n_bins: int) -> Tensor:
    """The centre of the bin that x falls into: the values on which a discretised head puts its mass.

    >>> quantise(torch.tensor([-1.0, 0.1, 3.0]), 4)
    tensor([-0.7500,  0.2500,  0.7500])
    """
    return bin_centre(bin_index(x, n_bins), n_bins, x.dtype)


def log_bin_mass(index: Tensor, mean: Tensor, scale: Tensor, n_bins: int) -> Tensor:
    """Log of the mass that N(mean, scale^2) has in bins of [-1, 1], tails included in the outermost; float64.

    With z the bin's edges in standard units, log[Phi(z_hi) - Phi(z_lo)] is taken on the side where both are small
    (Phi(-z) = 1 - Phi(z)), so it neither cancels nor underflows however far out the bin lies.
    """
    index, mean, scale = index.double(), mean.double(), scale.double()
    z_low = (2 * index / n_bins - 1 - mean) / scale
    z_high = (2 * (index + 1) / n_bins - 1 - mean) / scale
    first, last = index == 0, index == n_bins - 1
    mirrored = ((z_low + z_high > 0) & ~first) | last
    log_inner = torch.special.log_ndtr(torch.where(mirrored, -z_low, z_high))
    log_outer = torch.special.log_ndtr(torch.where(mirrored, -z_high, z_low))
    log_outer = log_outer.masked_fill(first | last, -torch.inf)
    log_mass: Tensor = log_inner + torch.log(-torch.expm1(log_outer - log_inner))
    return log_mass


@dataclass(frozen=True)
class Discretised(Output):
    """A mixture of normals over [-1, 1] cut into bins: means, scales and log-weights (batch, ..., components)."""

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
        index = torch.arange(self.n_bins, device=self.means.device)
        return self._log_mass(index)

    @property
    def mode(self) -> Tensor:
        """The centre of the likeliest bin: (batch, ...). The original sampler's last step returns it."""
        return bin_centre(self.log_probs.argmax(-1), self.n_bins, self.means.dtype)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """A component, a normal draw from it, rounded to the bin's centre."""
        means, scales = self.means, self.scales
        if means.shape[-1] > 1:
            gumbel = -torch.empty_like(means).exponential_(generator=generator).log()
            component = (self.log_weights + gumbel).argmax(-1, keepdim=True)
            means, scales = means.gather(-1, component), scales.gather(-1, component)
        eps = torch.randn(means.shape, generator=generator, dtype=means.dtype, device=means.device)
        return quantise(means + scales * eps, self.n_bins).squeeze(-1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-probability of the bin that x falls into, like x."""
        return self._log_mass(bin_index(x, self.n_bins).unsqueeze(-1)).squeeze(-1).to(self.means.dtype)

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One message y = x + eps / sqrt(alpha): -eps^2 / 2 - log sum_k p_k exp(-alpha (y - c_k)^2 / 2), like x."""
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device).double()
        root = accuracy.double().sqrt()
        centres = bin_centre(torch.arange(self.n_bins, device=x.device), self.n_bins, torch.float64)
        distance = (root * x.double() + eps).unsqueeze(-1) - root.unsqueeze(-1) * centres
        log_receiver = torch.logsumexp(self.log_probs - distance.square() / 2, -1)
        return (-eps.square() / 2 - log_receiver).to(x.dtype)

    def _log_mass(self, index: Tensor) -> Tensor:
        """Log-probability of bins ``index``, (batch, ..., number of bins asked for)."""
        mass = log_bin_mass(index.unsqueeze(-2), self.means.unsqueeze(-1), self.scales.unsqueeze(-1), self.n_bins)
        return torch.logsumexp(self.log_weights.double().unsqueeze(-1) + mass, -2)


@dataclass(frozen=True)
class DiscretisedHead(Head):
    """The network predicts a normal, or a mixture, for the noise; over the data it is cut into bins.

    Output of the network: (batch, *data_shape, 2) with mean and log standard deviation of the noise, or
    (batch, *data_shape, 3 n_components) with the mixture's logits, means and log standard deviations in three blocks.
    """

    n_bins: int = 256
    n_components: int = 1

    kind: ClassVar[str] = "continuous"
    starts_at_zero: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_real("n_bins", self.n_bins)
        check_real("n_components", self.n_components)
        if self.n_bins < 2:
            raise UserError(f"n_bins={self.n_bins}: expected at least 2 bins, such as 256")
        if self.n_components < 1:
            raise UserError(f"n_components={self.n_components}: expected at least 1 normal")

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The data's shape with 2 or 3 n_components numbers a variable."""
        return (*state_shape, 2 if self.n_components == 1 else 3 * self.n_components)

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        """N(eps; m, d^2) for the noise is N(x; (u - m) / s, (d / s)^2) for the data; N(0, 1) where nothing is known."""
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
    """Noise prediction whose x_hat is cut to [-1, 1], in losses as well as in sampling, as the released code has it."""

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        """As for a noise prediction, then clipped."""
        point = super().output(flow, raw, u, level)
        return replace(point, x_hat=point.mean.clamp(-1, 1)) if isinstance(point, Point) else point


@dataclass(frozen=True)
class LogitHead(Head):
    """Two classes from one number a variable, the logit of class 1: output (batch, *data_shape)."""

    kind: ClassVar[str] = "discrete"

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The data's shape: one number a variable."""
        if state_shape[-1] != 2:
            raise UserError(f"n_classes={state_shape[-1]}: one logit tells 2 classes apart; use predicts='logits'")
        return state_shape[:-1]

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        """Softmax of (0, logit) is (1 - sigmoid(logit), sigmoid(logit))."""
        return Categorical(torch.stack([torch.zeros_like(raw), raw], -1))
