"""Angles as pairs (cos, sin) of a continuous flow, and the head that predicts von Mises distributions.

A pair x has length 1, so the likelihood of the state u = s x + eps is a von Mises density in x:

    p(u | x)  is proportional to  exp(s u . x)          (the term s^2 |x|^2 / 2 is constant on the circle)

Bayes' rule adds natural parameters: a von Mises prior exp(h . x) becomes the posterior exp((h + s u) . x). Its mean
lies inside the disc, at the distance A(|h + s u|) from the centre with A = I_1 / I_0. Solvers use this mean; only the
sample at the end is moved onto the circle.
"""

from dataclasses import dataclass
from functools import cached_property
from math import log, pi
from typing import ClassVar

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.heads import Head, Output, beyond


def pairs_of(angles: Tensor) -> Tensor:
    """Return the points (cos, sin) of angles in radians, (...) -> (..., 2).

    >>> pairs_of(torch.tensor([0.0, torch.pi]))
    tensor([[ 1.0000e+00,  0.0000e+00],
            [-1.0000e+00, -8.7423e-08]])
    """
    return torch.stack((angles.cos(), angles.sin()), -1)


def angles_of(pairs: Tensor) -> Tensor:
    """Return the angles in (-pi, pi] of pairs of any length, (..., 2) -> (...); the inverse of ``pairs_of``."""
    return torch.atan2(pairs[..., 1], pairs[..., 0])


def mean_length(concentration: Tensor) -> Tensor:
    """Return A(c) = I_1(c) / I_0(c), the length of the mean of a von Mises distribution."""
    return torch.div(torch.special.i1e(concentration), torch.special.i0e(concentration))


def concentration_of(length: Tensor) -> Tensor:
    """Return the concentration for a length of the mean, by Newton's method, float64. Lengths above 1 count as 1."""
    r = length.double().clamp(max=1 - 1e-9)
    c = r * (2 - r * r) / (1 - r * r)  # within a few per cent (Banerjee et al. 2005)
    for _ in range(6):
        a = mean_length(c)
        slope = 1 - a * a - torch.where(c > 1e-6, a / c.clamp(min=1e-6), 0.5)
        c = (c - (a - r) / slope.clamp(min=1e-18)).clamp(min=0)
    return c


def log_i0e(concentration: Tensor) -> Tensor:
    """Return log I_0(c) - c."""
    return torch.log(torch.special.i0e(concentration))


@dataclass(frozen=True)
class VonMises(Output):
    """A mixture of von Mises distributions for each angle.

    Log-densities and divergences belong to angles. Each number of a pair gets half of the value, so that the sum over
    the numbers of a sample is the sum over its angles.

    Attributes:
        natural: concentration times direction, (batch, ..., components, 2).
        log_weights: (batch, ..., components).
    """

    natural: Tensor
    log_weights: Tensor

    @property
    def is_density(self) -> bool:
        return True

    @classmethod
    def single(cls, natural: Tensor) -> "VonMises":
        """Make one von Mises distribution for each angle from natural parameters, (batch, ..., 2)."""
        return cls(natural.unsqueeze(-2), natural.new_zeros(*natural.shape[:-1], 1))

    @cached_property
    def mean(self) -> Tensor:
        """A(c) times the direction, inside the disc."""
        # A(c) / c is 1/2 at c = 0; the clamp keeps the gradient finite there.
        c = torch.linalg.vector_norm(self.natural, dim=-1, keepdim=True).clamp(min=1e-6)
        return torch.sum(self.log_weights.exp().unsqueeze(-1) * self.natural * (mean_length(c) / c), -2)

    @property
    def mode(self) -> Tensor:
        """The direction of the component that is highest at its own centre, on the circle."""
        centres = self.nearest(self.natural)
        heights = torch.stack([self._log_density(x) for x in centres.unbind(-2)], -1)
        return _component(centres, heights.argmax(-1))

    def nearest(self, prediction: Tensor) -> Tensor:
        """Return the pairs divided by their lengths; a pair of length 0 becomes the angle 0."""
        length = prediction.norm(dim=-1, keepdim=True)
        return torch.where(length > 0, prediction / length.clamp(min=1e-30), prediction.new_tensor([1.0, 0.0]))

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a component and then an angle from it, as pairs on the circle."""
        uniform = torch.rand((*self.log_weights.shape[:-1], 1), generator=generator, device=self.natural.device)
        ends = self.log_weights.exp().cumsum(-1)
        k = (ends < uniform * ends[..., -1:]).sum(-1).clamp_(max=ends.shape[-1] - 1)
        natural = _component(self.natural, k).double()
        angles = angles_of(natural) + _angles_about_zero(natural.norm(dim=-1), generator)
        return pairs_of(angles).to(self.natural.dtype)

    def log_prob(self, x: Tensor) -> Tensor:
        return self._shared(self._log_density(x), x)

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> Output:
        """Return one von Mises distribution with this mean; a mean outside the disc is moved to its edge."""
        length = mean.norm(dim=-1, keepdim=True)
        factor = concentration_of(length) / length.double().clamp(min=1e-30)
        return VonMises.single(mean * torch.where(length > 1e-9, factor, 2.0).to(mean.dtype))

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> Output:
        """Apply guidance to the natural parameters, like to the logits of classes."""
        return VonMises(beyond(self.natural, scales), self.log_weights.chunk(len(scales) + 1)[0])

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Estimate the divergence from one message y.

        The receiver's density of y is the sender's density at x = 0 times I_0(|h + y|) / I_0(|h|):

        log N(y; sender) - log receiver = y . x - log sum_m weight_m I_0(|h_m + y|) / I_0(|h_m|)
        """
        alpha = accuracy[..., :1].double()
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device).double()
        y = alpha * x.double() + alpha.sqrt() * eps
        h = self.natural.double()
        before, after = h.norm(dim=-1), (h + y.unsqueeze(-2)).norm(dim=-1)
        log_ratio = after - before + log_i0e(after) - log_i0e(before)
        receiver = torch.logsumexp(self.log_weights.double() + log_ratio, -1)
        return self._shared((y * x).sum(-1) - receiver, x)

    def _log_density(self, x: Tensor) -> Tensor:
        """Return the log-density of the angles of pairs x, (batch, ...), float64."""
        h = self.natural.double()
        c = h.norm(dim=-1)
        # c (cos d - 1) = - c |x - direction|^2 / 2 loses no digits if c is large.
        distance = (x.double().unsqueeze(-2) - self.nearest(h)).square().sum(-1)
        component = -c * distance / 2 - log_i0e(c) - log(2 * pi)
        return torch.logsumexp(self.log_weights.double() + component, -1)

    @staticmethod
    def _shared(values: Tensor, x: Tensor) -> Tensor:
        return (values / 2).unsqueeze(-1).expand(x.shape).to(x.dtype)


def _component(pairs: Tensor, index: Tensor) -> Tensor:
    """Return one component of each angle, (..., components, 2) -> (..., 2)."""
    return pairs.gather(-2, index[..., None, None].expand(*index.shape, 1, 2)).squeeze(-2)


def _angles_about_zero(concentration: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw von Mises angles around 0 by rejection from wrapped Cauchy distributions (Best and Fisher 1979), float64."""
    c = concentration.double().clamp(min=1e-8).flatten()
    root = 1 + (1 + 4 * c * c).sqrt()
    rho = (root - (2 * root).sqrt()) / (2 * c)
    r = torch.where(c < 1e-5, 1 / c + c, (1 + rho * rho) / (2 * rho.clamp(min=1e-300)))
    angles, left = torch.zeros_like(c), torch.arange(len(c), device=c.device)
    while len(left):  # at least two of three proposals are accepted
        first, second, sign = torch.rand((3, len(left)), generator=generator, dtype=torch.float64, device=c.device)
        z = (pi * first).cos()
        f = ((1 + r[left] * z) / (r[left] + z)).clamp(-1, 1)
        height = c[left] * (r[left] - f)
        accepted = (height / second.clamp(min=1e-300)).log() + 1 - height >= 0
        angles[left[accepted]] = (f.acos() * torch.where(sign < 0.5, -1.0, 1.0))[accepted]
        left = left[~accepted]
    return angles.view_as(concentration)


@dataclass(frozen=True)
class AngleHead(Head):
    """The network predicts the natural parameters of a von Mises distribution for each angle.

    The evidence s u of the angle's own state is added to them. A network that returns 0 is therefore exact for uniform
    and independent angles, and else has to learn only the prior and the dependence on other variables.

    Data and output of the network are pairs, (batch, ..., 2), see ``pairs_of``.
    """

    kind: ClassVar[str] = "continuous"

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the state, which must be pairs."""
        if not state_shape or state_shape[-1] != 2:
            raise UserError(f"data_shape={state_shape}: angles are pairs (cos, sin); expected a last dimension of 2")
        return state_shape

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        return VonMises.single(raw + u * level.s)
