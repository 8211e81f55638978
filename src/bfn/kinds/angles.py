"""Angles: numbers on a circle, as pairs (cos, sin) of a continuous flow, and the head whose outputs lie on it.

A pair x has length 1, so that what the state u = s x + eps says of it is the density of a von Mises distribution,

    p(u | x)  proportional in x to  exp(s u . x)          (the term s^2 |x|^2 / 2 is the same everywhere on the circle)

and Bayes' rule adds natural parameters: a von Mises prior exp(h . x) becomes exp((h + s u) . x). Its mean lies inside
the disc, at A(|h + s u|) = I_1 / I_0 of the way to the circle, and this is what the flow needs along the way. Only the
sample itself, at the end, is moved onto the circle.
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
    """Angles in radians (...) -> points of the circle (..., 2).

    >>> pairs_of(torch.tensor([0.0, torch.pi]))
    tensor([[ 1.0000e+00,  0.0000e+00],
            [-1.0000e+00, -8.7423e-08]])
    """
    return torch.stack((angles.cos(), angles.sin()), -1)


def angles_of(pairs: Tensor) -> Tensor:
    """Pairs (..., 2), of any length above 0, -> angles in (-pi, pi], (...): the inverse of :func:`pairs_of`."""
    return torch.atan2(pairs[..., 1], pairs[..., 0])


def mean_length(concentration: Tensor) -> Tensor:
    """A(c) = I_1(c) / I_0(c), the length of the mean of a von Mises distribution."""
    ratio: Tensor = torch.special.i1e(concentration) / torch.special.i0e(concentration)
    return ratio


def concentration_of(length: Tensor) -> Tensor:
    """The inverse of A by Newton's method, float64; lengths from 1 up count as just below it."""
    r = length.double().clamp(max=1 - 1e-9)
    c = r * (2 - r * r) / (1 - r * r)  # right to a few per cent everywhere (Banerjee et al. 2005)
    for _ in range(6):
        a = mean_length(c)
        slope = 1 - a * a - torch.where(c > 1e-6, a / c.clamp(min=1e-6), 0.5)
        c = (c - (a - r) / slope.clamp(min=1e-18)).clamp(min=0)
    return c


def log_i0e(concentration: Tensor) -> Tensor:
    """log I_0(c) - c, which stays small."""
    small: Tensor = torch.special.i0e(concentration).log()
    return small


@dataclass(frozen=True)
class VonMises(Output):
    """A mixture of von Mises distributions of each angle.

    natural: concentration times direction, (batch, ..., components, 2). log_weights: (batch, ..., components).
    A density, or a divergence, belongs to an angle: each number of its pair is given half, so that a sum over a
    sample's numbers is the sum over its angles.
    """

    natural: Tensor
    log_weights: Tensor

    @property
    def is_density(self) -> bool:
        return True

    @classmethod
    def single(cls, natural: Tensor) -> "VonMises":
        """One von Mises distribution an angle, (batch, ..., 2)."""
        return cls(natural.unsqueeze(-2), natural.new_zeros(*natural.shape[:-1], 1))

    @cached_property
    def mean(self) -> Tensor:
        """A(c) times the direction, inside the disc."""
        # Down to 0 as A(c) / c = 1/2, with a gradient.
        c = torch.linalg.vector_norm(self.natural, dim=-1, keepdim=True).clamp(min=1e-6)
        mixed: Tensor = (self.log_weights.exp().unsqueeze(-1) * self.natural * (mean_length(c) / c)).sum(-2)
        return mixed

    @property
    def mode(self) -> Tensor:
        """The direction of the component that is highest at its own centre, on the circle."""
        centres = self.nearest(self.natural)
        heights = torch.stack([self._log_density(x) for x in centres.unbind(-2)], -1)
        index = heights.argmax(-1)[..., None, None].expand(*heights.shape[:-1], 1, 2)
        return centres.gather(-2, index).squeeze(-2)

    def nearest(self, prediction: Tensor) -> Tensor:
        """The pairs divided by their lengths; one of length 0 is the angle 0."""
        length = prediction.norm(dim=-1, keepdim=True)
        return torch.where(length > 0, prediction / length.clamp(min=1e-30), prediction.new_tensor([1.0, 0.0]))

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """A component, then an angle of it: pairs on the circle."""
        uniform = torch.rand((*self.log_weights.shape[:-1], 1), generator=generator, device=self.natural.device)
        ends = self.log_weights.exp().cumsum(-1)
        k = (ends < uniform * ends[..., -1:]).sum(-1).clamp_(max=ends.shape[-1] - 1)
        natural = self.natural.gather(-2, k[..., None, None].expand(*k.shape, 1, 2)).squeeze(-2).double()
        turned = angles_of(natural) + _angles_about_zero(natural.norm(dim=-1), generator)
        return pairs_of(turned).to(self.natural.dtype)

    def log_prob(self, x: Tensor) -> Tensor:
        return self._shared(self._log_density(x), x)

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> Output:
        """One von Mises distribution with this mean; a mean outside the disc is moved to just inside it."""
        length = mean.norm(dim=-1, keepdim=True)
        factor = concentration_of(length) / length.double().clamp(min=1e-30)
        return VonMises.single(mean * torch.where(length > 1e-9, factor, 2.0).to(mean.dtype))

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> Output:
        """On the natural parameters, as on the logits of classes."""
        return VonMises(beyond(self.natural, scales), self.log_weights.chunk(len(scales) + 1)[0])

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """From one message y: the receiver's density of it is the sender's at x = 0 times I_0(|h + y|) / I_0(|h|).

        log N(y; sender) - log receiver = y . x - log sum_m weight_m I_0(|h_m + y|) / I_0(|h_m|)
        """
        alpha = accuracy[..., :1].double()
        eps = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device).double()
        y = alpha * x.double() + alpha.sqrt() * eps
        h = self.natural.double()
        before, after = h.norm(dim=-1), (h + y.unsqueeze(-2)).norm(dim=-1)
        gained = after - before + log_i0e(after) - log_i0e(before)
        receiver = torch.logsumexp(self.log_weights.double() + gained, -1)
        return self._shared((y * x).sum(-1) - receiver, x)

    def _log_density(self, x: Tensor) -> Tensor:
        """Of the angles of pairs x, (batch, ...), float64."""
        h = self.natural.double()
        c = h.norm(dim=-1)
        # c (cos d - 1) = - c |x - direction|^2 / 2, whose digits are not lost where c is large.
        apart = (x.double().unsqueeze(-2) - self.nearest(h)).square().sum(-1)
        component = -c * apart / 2 - log_i0e(c) - log(2 * pi)
        return torch.logsumexp(self.log_weights.double() + component, -1)

    @staticmethod
    def _shared(values: Tensor, x: Tensor) -> Tensor:
        return (values / 2).unsqueeze(-1).expand(x.shape).to(x.dtype)


def _angles_about_zero(concentration: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Von Mises angles about 0 by rejection from a wrapped Cauchy distribution (Best and Fisher 1979), float64."""
    c = concentration.double().clamp(min=1e-8).flatten()
    root = 1 + (1 + 4 * c * c).sqrt()
    rho = (root - (2 * root).sqrt()) / (2 * c)
    r = torch.where(c < 1e-5, 1 / c + c, (1 + rho * rho) / (2 * rho.clamp(min=1e-300)))
    angles, left = torch.zeros_like(c), torch.arange(len(c), device=c.device)
    while len(left):  # at least two of three proposals are taken
        first, second, sign = torch.rand((3, len(left)), generator=generator, dtype=torch.float64, device=c.device)
        z = (pi * first).cos()
        f = ((1 + r[left] * z) / (r[left] + z)).clamp(-1, 1)
        height = c[left] * (r[left] - f)
        taken = (height / second.clamp(min=1e-300)).log() + 1 - height >= 0
        angles[left[taken]] = (f.acos() * torch.where(sign < 0.5, -1.0, 1.0))[taken]
        left = left[~taken]
    return angles.view_as(concentration)


@dataclass(frozen=True)
class AngleHead(Head):
    """The network predicts a von Mises distribution of each angle, beside what the angle's own state says.

    Data: pairs (cos, sin), (batch, ..., 2), see :func:`pairs_of`. Output of the network: natural parameters like the
    data, to which s u is added: a network that puts out 0 is right where angles are uniform and independent, and has
    otherwise only the prior and the surroundings to learn, as ``combine`` has it for classes.
    """

    kind: ClassVar[str] = "continuous"

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Pairs."""
        if not state_shape or state_shape[-1] != 2:
            raise UserError(f"data_shape={state_shape}: angles are pairs (cos, sin); expected a last dimension of 2")
        return state_shape

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        return VonMises.single(raw + u * level.s)
