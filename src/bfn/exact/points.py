"""Finite sets of points, each blurred by the same bandwidth: real data with no model error at all.

With x = m_i + h z the state is u ~ sum_i w_i N(s m_i, v I), v = 1 + s^2 h^2, so

    x_hat = ( sum_i r_i m_i + s h^2 u ) / v,      log r_i = log w_i + ( s u . m_i - s^2 |m_i|^2 / 2 ) / v + const

which is one product of the batch with the points, a softmax, and one product back: attention whose keys and values are
the data. It runs over chunks of points with a running maximum: tens of thousands of images fit in little memory.
"""

from math import log, pi

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.exact.base import ExactModel, draw_components, log_weights
from bfn.flows import ContinuousFlow, NoiseLevel
from bfn.heads import Output, Point, unknown_scale

__all__ = ["Points"]


class Points(ExactModel):
    """Points (N, *data_shape), each a Gaussian of standard deviation ``bandwidth`` (0: the points alone).

    weights: (N,), equal if None. chunk: points worked on at a time, 4 * batch * chunk bytes in float32.
    In float32 the prediction is right to about 1e-5; densities are summed in float64 all the same, since the large
    squares in them cancel.
    """

    centred: Tensor
    centre: Tensor
    log_weights: Tensor

    def __init__(
        self,
        points: Tensor,
        bandwidth: float = 0.0,
        *,
        weights: Tensor | None = None,
        sigma_1: float = 1e-3,
        flow: ContinuousFlow | None = None,
        dtype: torch.dtype = torch.float64,
        chunk: int = 4096,
    ) -> None:
        points = torch.as_tensor(points)
        if points.ndim < 1 or points.numel() == 0:
            raise UserError(f"points of shape {tuple(points.shape)}: expected (n_points, *data_shape), none of them 0")
        if not 0 <= bandwidth < float("inf"):
            raise UserError(f"bandwidth={bandwidth}: expected a finite standard deviation >= 0")
        if chunk < 1:
            raise UserError(f"chunk={chunk}: expected at least 1 point at a time")
        super().__init__(flow or ContinuousFlow(sigma_1), tuple(points.shape[1:]))
        self.flow.check(points, self.data_shape)
        self.bandwidth, self.chunk = float(bandwidth), chunk
        flat = points.reshape(len(points), -1).to(dtype)
        # About their mean the points are short vectors, and the differences of their products lose fewer digits.
        centre = flat.mean(0, dtype=torch.float64).to(dtype)
        self.register_buffer("centre", centre)
        self.register_buffer("centred", flat - centre)
        self.register_buffer("log_weights", log_weights(weights, points, dtype))

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        flat, s, variance = self._state(u, level.s)
        mean, _ = self._attend(flat - s * self.centre, s, variance)
        x_hat = (self.centre + mean + s * self.bandwidth**2 * flat) / variance
        return Point(x_hat.reshape(u.shape).to(self.dtype), unknown_scale(level))

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        flat, s, variance = self._state(u, level.s)
        return self._log_density(flat, s, variance)

    def log_prob(self, x: Tensor) -> Tensor:
        if self.bandwidth == 0:
            raise UserError("bandwidth=0: points alone have no density; give a bandwidth, or ask for log_evidence")
        flat = x.reshape(len(x), -1).to(self.dtype)
        one = flat.new_ones(1, 1)
        return self._log_density(flat, one, one * self.bandwidth**2)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        x = self.centred[draw_components(self.log_weights.exp(), n, generator)] + self.centre
        if self.bandwidth > 0:
            x = x + self.bandwidth * torch.randn(x.shape, generator=generator, dtype=self.dtype, device=self.device)
        return x.reshape(n, *self.data_shape)

    def _state(self, u: Tensor, s: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = u.reshape(len(u), -1).to(self.dtype)
        s = s.reshape(len(s), -1) if isinstance(s, Tensor) else flat.new_full((1, 1), s)
        if s.shape[1] > 1:
            # Levels as far apart as known and unknown data leave float32 no digits.
            flat, s = flat.double(), s.double()
        return flat, s, 1 + (s * self.bandwidth) ** 2

    def _log_density(self, u: Tensor, s: Tensor, variance: Tensor) -> Tensor:
        u, s, variance = u.double() - s.double() * self.centre.double(), s.double(), variance.double()
        _, log_sum = self._attend(u, s, variance, with_mean=False)
        rest = u.square().sum(1, keepdim=True) / variance + u.shape[1] * (log(2 * pi) + variance.log())
        return (log_sum - rest.squeeze(1) / 2).to(self.dtype)

    def _attend(self, u: Tensor, s: Tensor, variance: Tensor, with_mean: bool = True) -> tuple[Tensor, Tensor]:
        """Posterior mean of the centred points, (batch, D), and the log of the sum of their weights, (batch,)."""
        query, penalty = u * (s / variance), s * s / (2 * variance)
        peak = u.new_full((len(u), 1), float("-inf"))
        total = u.new_zeros(len(u), 1)
        mean = torch.zeros_like(u)
        for start in range(0, len(self.centred), self.chunk):
            part = slice(start, start + self.chunk)
            keys, log_weights = self.centred[part].to(u.dtype), self.log_weights[part].to(u.dtype)
            squares = keys.square().sum(1) * penalty if penalty.shape[1] == 1 else penalty @ keys.square().T
            scores = torch.addmm(log_weights, query, keys.T) - squares
            higher = torch.maximum(peak, scores.detach().amax(1, keepdim=True))
            decay, weights = (peak - higher).exp(), (scores - higher).exp()
            total = total * decay + weights.sum(1, keepdim=True)
            if with_mean:
                mean = torch.addmm(mean * decay, weights, keys)
            peak = higher
        return mean / total, (peak + total.log()).squeeze(1)
