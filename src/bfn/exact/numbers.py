"""Exact models of continuous data: Gaussian mixtures, sets of points, and mixtures over angles."""

from __future__ import annotations

from math import log, pi
from typing import Any, Unpack

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import NoiseLevel
from bfn.core.heads import Output, Point, unknown_scale
from bfn.exact.base import ContinuousExactModel, ContinuousSettings, normal_log_prob
from bfn.kinds.angles import VonMises, log_i0e, pairs_of


class GaussianMixture(ContinuousExactModel):
    """Mixture of M Gaussians in D dimensions.

    With x ~ sum_m pi_m N(mu_m, Sigma_m) the state is u ~ sum_m pi_m N(s mu_m, I + s^2 Sigma_m), and

        x_hat = sum_m r_m [ mu_m + s Sigma_m (I + s^2 Sigma_m)^-1 (u - s mu_m) ],    r_m = p(m | u)

    Each Sigma_m = Q diag(lambda) Q^T is decomposed once, and a prediction takes two products with Q. If each variable
    has a level of its own, since parts of the data are known, I + S Sigma_m S is factorised for each sample.

    Args:
        means: (M, D).
        covariances: (M, D, D), positive semi-definite.
        stds: instead of covariances, (M,) for isotropic components or (M, D) for axis-aligned ones. A component with
            std 0 is a point; the mixture then has a posterior but no density.
        weights: (M,), equal if None.
        settings: see ``bfn.exact.base.ContinuousExactModel``.
    """

    means: Tensor
    variances: Tensor
    axes: Tensor | None

    def __init__(
        self, means: Any, covariances: Any = None, *, stds: Any = None, weights: Any = None,
        **settings: Unpack[ContinuousSettings],
    ) -> None:  # fmt: skip
        means = torch.as_tensor(means).double()
        if means.ndim != 2 or means.numel() == 0:
            raise UserError(f"means of shape {tuple(means.shape)}: expected (components, dimensions)")
        if not bool(torch.isfinite(means).all()):
            raise UserError("means with NaN or infinite values: expected finite ones")
        super().__init__((means.shape[1],), **settings)
        variances, axes = _eigen(means.shape, covariances, stds)
        self._register("means", means)
        self._register("variances", variances)
        self.register_buffer("axes", None if axes is None else axes.to(self._dtype))
        self._register_weights(weights, means)

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        if self.axes is not None and isinstance(level.s, Tensor) and level.s[0].numel() > 1:
            return Point(self._mean_at_own_levels(u, level.s, self.axes), unknown_scale(level))
        s, centred, variances = self._components(u, level.s, 1.0)
        resp = torch.softmax(self._log_joint(centred, variances), 1).unsqueeze(-1)
        pull = self._rotate(resp * (s * self.variances / variances) * centred, back=True)
        return Point((resp * self.means + pull).sum(1), unknown_scale(level))

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        _, centred, variances = self._components(u, level.s, 1.0)
        return torch.logsumexp(self._log_joint(centred, variances), 1)

    def log_prob(self, x: Tensor) -> Tensor:
        if not bool((self.variances > 0).all()):
            raise UserError("a component with std 0 in some direction has no density; give it a positive std")
        _, centred, variances = self._components(x.to(self.dtype), 1.0, 0.0)
        return torch.logsumexp(self._log_joint(centred, variances), 1)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        which = self._draw_components(n, generator)
        noise = torch.randn((n, self.data_shape[0]), generator=generator, dtype=self.dtype, device=self.device)
        noise = noise * self.variances[which].sqrt()
        if self.axes is not None:
            noise = (self.axes[which] @ noise.unsqueeze(-1)).squeeze(-1)
        return self.means[which] + noise

    def _mean_at_own_levels(self, u: Tensor, s: Tensor, axes: Tensor) -> Tensor:
        """Return E[x | u] for u = s x + eps with s (batch, D)."""
        # In units of c = max(1, s), z = u / c = a x + eps / c, large s do not overflow.
        c = s.clamp(min=1)
        a, z = (s / c).unsqueeze(1), (u / c).unsqueeze(1)
        covariances = (axes * self.variances.unsqueeze(1)) @ axes.mT
        total = a.unsqueeze(-1) * covariances * a.unsqueeze(-2) + torch.diag_embed(c**-2).unsqueeze(1)
        factor = torch.linalg.cholesky(total)
        residual = z - a * self.means
        pull = torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)
        log_scale = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        resp = torch.softmax(self.log_weights - (residual * pull).sum(-1) / 2 - log_scale, 1).unsqueeze(-1)
        return (resp * (self.means + torch.einsum("mde,bme->bmd", covariances, a * pull))).sum(1)

    def _components(self, u: Tensor, s: float | Tensor, noise: float) -> tuple[float | Tensor, Tensor, Tensor]:
        """Return s, and u - s mu and noise + s^2 lambda along the axes of each component, (batch, M, D)."""
        s = s.reshape(len(s), 1, -1) if isinstance(s, Tensor) else s
        centred = self._rotate(u.unsqueeze(1) - s * self.means, back=False)
        return s, centred, noise + s * s * self.variances

    def _rotate(self, vectors: Tensor, back: bool) -> Tensor:
        if self.axes is None:
            return vectors
        return torch.einsum("bme,mde->bmd" if back else "bmd,mde->bme", vectors, self.axes)

    def _log_joint(self, centred: Tensor, variances: Tensor) -> Tensor:
        """Return log pi_m N(u; component m), (batch, M)."""
        squares = (centred.square() / variances + variances.log()).sum(-1)
        return self.log_weights - (squares + centred.shape[-1] * log(2 * pi)) / 2


def _eigen(shape: torch.Size, covariances: Tensor | None, stds: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return variances (M, D), and axes (M, D, D) or None for the coordinate axes, in float64."""
    n, dim = shape
    if (covariances is None) == (stds is None):
        raise UserError("covariances and stds: give exactly one of the two")
    if stds is not None:
        stds = torch.as_tensor(stds).double()
        if tuple(stds.shape) not in ((n,), (n, dim)):
            raise UserError(f"stds of shape {tuple(stds.shape)}: expected ({n},) or ({n}, {dim})")
        if not bool((torch.isfinite(stds) & (stds >= 0)).all()):
            raise UserError(f"stds with smallest value {float(stds.min()):.6g}: expected finite values >= 0")
        return stds.square().reshape(n, -1).expand(n, dim).clone(), None
    covariances = torch.as_tensor(covariances).double()
    if tuple(covariances.shape) != (n, dim, dim):
        raise UserError(f"covariances of shape {tuple(covariances.shape)}: expected ({n}, {dim}, {dim})")
    if not torch.allclose(covariances, covariances.mT, rtol=1e-6, atol=1e-12):
        raise UserError("covariances that are not symmetric: expected Sigma = Sigma^T; average the two")
    variances, axes = torch.linalg.eigh(covariances)
    # Rounding can make eigenvalues of a semi-definite matrix slightly negative.
    if bool((variances < -1e-6 * variances[:, -1:].abs().clamp(min=1e-300)).any()):
        raise UserError(f"covariances with eigenvalue {float(variances.min()):.6g}: expected none below 0")
    return variances.clamp(min=0), axes


class Points(ContinuousExactModel):
    """A set of points, such as images, each the centre of an isotropic Gaussian.

    In float32 predictions have an error of about 1e-5. Densities are always summed in float64, since the large squares
    in them cancel.

    Args:
        points: (N, *data_shape).
        bandwidth: standard deviation of the Gaussians; 0 for the points themselves.
        weights: (N,), equal if None.
        chunk: number of points to work on at a time; this takes 4 * batch * chunk bytes in float32.
        settings: see ``bfn.exact.base.ContinuousExactModel``.
    """

    centred: Tensor
    centre: Tensor

    def __init__(
        self, points: Any, bandwidth: float = 0.0, *, weights: Any = None, chunk: int = 4096,
        **settings: Unpack[ContinuousSettings],
    ) -> None:  # fmt: skip
        points = torch.as_tensor(points)
        if points.ndim < 1 or points.numel() == 0:
            raise UserError(f"points of shape {tuple(points.shape)}: expected (n_points, *data_shape), none of them 0")
        if not 0 <= bandwidth < float("inf"):
            raise UserError(f"bandwidth={bandwidth}: expected a finite standard deviation >= 0")
        if chunk < 1:
            raise UserError(f"chunk={chunk}: expected at least 1 point at a time")
        super().__init__(points.shape[1:], **settings)
        self.flow.check(points, self.data_shape)
        self.bandwidth, self.chunk = float(bandwidth), chunk
        flat = points.reshape(len(points), -1).to(self._dtype)
        # Relative to their mean the points are short vectors, and differences of their products lose fewer digits.
        self._register("centre", flat.mean(0, dtype=torch.float64))
        self._register("centred", flat - self.centre)
        self._register_weights(weights, points)

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
            raise UserError("bandwidth=0: points have no density; give a bandwidth, or use log_evidence")
        flat = x.reshape(len(x), -1).to(self.dtype)
        one = flat.new_ones(1, 1)
        return self._log_density(flat, one, one * self.bandwidth**2)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        x = self.centred[self._draw_components(n, generator)] + self.centre
        if self.bandwidth > 0:
            x = x + self.bandwidth * torch.randn(x.shape, generator=generator, dtype=self.dtype, device=self.device)
        return x.reshape(n, *self.data_shape)

    def _state(self, u: Tensor, s: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = u.reshape(len(u), -1).to(self.dtype)
        s = s.reshape(len(s), -1) if isinstance(s, Tensor) else flat.new_full((1, 1), s)
        if s.shape[1] > 1:
            # The levels of known and unknown data are too far apart for float32.
            flat, s = flat.double(), s.double()
        return flat, s, 1 + (s * self.bandwidth) ** 2

    def _log_density(self, u: Tensor, s: Tensor, variance: Tensor) -> Tensor:
        u, s, variance = u.double() - s.double() * self.centre.double(), s.double(), variance.double()
        _, log_sum = self._attend(u, s, variance, with_mean=False)
        rest = u.square().sum(1, keepdim=True) / variance + u.shape[1] * (log(2 * pi) + variance.log())
        return (log_sum - rest.squeeze(1) / 2).to(self.dtype)

    def _attend(self, u: Tensor, s: Tensor, variance: Tensor, with_mean: bool = True) -> tuple[Tensor, Tensor]:
        """Return the posterior mean of the centred points, (batch, D), and the log sum of their weights, (batch,)."""
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


class VonMisesMixture(ContinuousExactModel):
    """Mixture of M products of von Mises distributions over D angles.

    The data are pairs (cos, sin), (D, 2). Densities are those of the angles. A known angle is known with both numbers
    of its pair.

    Args:
        centres: (M, D), in radians.
        concentrations: (M, D), 0 for a uniform angle.
        weights: (M,), equal if None.
        settings: see ``bfn.exact.base.ContinuousExactModel``; the default of ``sigma_1`` is 0.01.

    >>> model = VonMisesMixture([[0.0], [2.0]], [[20.0], [5.0]])
    >>> bool((model.sample_data(3).norm(dim=-1) - 1).abs().max() < 1e-12)
    True
    """

    natural: Tensor

    def __init__(
        self, centres: Any, concentrations: Any, *, weights: Any = None, **settings: Unpack[ContinuousSettings]
    ) -> None:
        centres, c = (torch.as_tensor(x, dtype=torch.float64) for x in (centres, concentrations))
        if centres.ndim != 2 or centres.shape != c.shape or centres.numel() == 0:
            shapes = f"centres of shape {tuple(centres.shape)}, concentrations of shape {tuple(c.shape)}"
            raise UserError(f"{shapes}: expected (components, angles) of both")
        if not bool((torch.isfinite(c) & (c >= 0) & torch.isfinite(centres)).all()):
            raise UserError("centres and concentrations: expected finite angles, and finite concentrations from 0 up")
        settings.setdefault("sigma_1", 1e-2)
        super().__init__((centres.shape[1], 2), **settings)
        self._register("natural", c.unsqueeze(-1) * pairs_of(centres))
        weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        self._register_weights(weights, centres)

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        natural = self.natural + (u * level.s).unsqueeze(1)
        resp = torch.log_softmax(self._log_joint(natural), 1)
        angles = natural.transpose(1, 2)
        return VonMises(angles, resp.unsqueeze(1).expand(angles.shape[:-1]))

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        natural = self.natural + (u * level.s).unsqueeze(1)
        s = torch.as_tensor(level.s, dtype=u.dtype, device=u.device).expand(u.shape)
        of_pairs = s.square().sum((1, 2)) / 4
        return torch.logsumexp(self._log_joint(natural), 1) + normal_log_prob(u, 1.0) - of_pairs

    def log_prob(self, x: Tensor) -> Tensor:
        c = self.natural.norm(dim=-1)
        inside = (self.natural * x.to(self.dtype).unsqueeze(1)).sum(-1) - c - log_i0e(c) - log(2 * pi)
        return torch.logsumexp(self.log_weights + inside.sum(-1), 1)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        which = self._draw_components(n, generator)
        return VonMises.single(self.natural[which]).draw(generator)

    def _log_joint(self, natural: Tensor) -> Tensor:
        """Return log pi_m prod_d I_0(|natural_d|) / I_0(|prior natural_d|), (batch, M)."""
        before, after = torch.linalg.vector_norm(self.natural, dim=-1), torch.linalg.vector_norm(natural, dim=-1)
        gained: Tensor = (after - before + log_i0e(after) - log_i0e(before)).sum(-1)
        return self.log_weights + gained
