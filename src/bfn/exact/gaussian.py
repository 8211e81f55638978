"""Gaussian mixtures: the exact posterior mean in any dimension.

With x ~ sum_m pi_m N(mu_m, Sigma_m) the state is u ~ sum_m pi_m N(s mu_m, I + s^2 Sigma_m), and

    x_hat = sum_m r_m [ mu_m + s Sigma_m (I + s^2 Sigma_m)^-1 (u - s mu_m) ],    r_m = p(m | u)

Each Sigma_m = Q diag(lambda) Q^T is decomposed once; every level then costs two products with Q. Where each variable
has a level of its own (parts of the data are known), I + S Sigma_m S is factorised instead, for each sample.
"""

from math import log, pi

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.exact.base import ExactModel, draw_components, log_weights
from bfn.flows import ContinuousFlow, NoiseLevel
from bfn.heads import Output, Point, unknown_scale

__all__ = ["GaussianMixture"]


class GaussianMixture(ExactModel):
    """Mixture of M Gaussians in D dimensions.

    means: (M, D). covariances: (M, D, D), positive semi-definite; or stds: (M,) isotropic, or (M, D) along the axes.
    weights: (M,), equal if None. A component may be a point (std 0); it then has no density, only a posterior.
    """

    means: Tensor
    variances: Tensor
    axes: Tensor | None
    log_weights: Tensor

    def __init__(
        self,
        means: Tensor,
        covariances: Tensor | None = None,
        *,
        stds: Tensor | None = None,
        weights: Tensor | None = None,
        sigma_1: float = 1e-3,
        flow: ContinuousFlow | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        means = torch.as_tensor(means).double()
        if means.ndim != 2 or means.numel() == 0:
            raise UserError(f"means of shape {tuple(means.shape)}: expected (components, dimensions)")
        if not bool(torch.isfinite(means).all()):
            raise UserError("means with NaN or infinite values: expected finite ones")
        super().__init__(flow or ContinuousFlow(sigma_1), (means.shape[1],))
        variances, axes = _eigen(means.shape, covariances, stds)
        self.register_buffer("means", means.to(dtype))
        self.register_buffer("variances", variances.to(dtype))
        self.register_buffer("axes", None if axes is None else axes.to(dtype))
        self.register_buffer("log_weights", log_weights(weights, means, dtype))

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
            raise UserError("a component without extent in some direction: it has no density; give it a positive std")
        _, centred, variances = self._components(x.to(self.dtype), 1.0, 0.0)
        return torch.logsumexp(self._log_joint(centred, variances), 1)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        which = draw_components(self.log_weights.exp(), n, generator)
        noise = torch.randn((n, self.data_shape[0]), generator=generator, dtype=self.dtype, device=self.device)
        noise = noise * self.variances[which].sqrt()
        if self.axes is not None:
            noise = (self.axes[which] @ noise.unsqueeze(-1)).squeeze(-1)
        return self.means[which] + noise

    def _mean_at_own_levels(self, u: Tensor, s: Tensor, axes: Tensor) -> Tensor:
        """E[x | u] with u = s x + eps, s (batch, D), from z = u / c = a x + eps / c with c = max(1, s): no overflow."""
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
        """s, u - s mu and the variances noise + s^2 lambda, all along each component's axes: (batch, M, D)."""
        s = s.reshape(len(s), 1, -1) if isinstance(s, Tensor) else s
        centred = self._rotate(u.unsqueeze(1) - s * self.means, back=False)
        return s, centred, noise + s * s * self.variances

    def _rotate(self, vectors: Tensor, back: bool) -> Tensor:
        if self.axes is None:
            return vectors
        return torch.einsum("bme,mde->bmd" if back else "bmd,mde->bme", vectors, self.axes)

    def _log_joint(self, centred: Tensor, variances: Tensor) -> Tensor:
        """log pi_m N(u; component m), (batch, M)."""
        squares = (centred.square() / variances + variances.log()).sum(-1)
        return self.log_weights - (squares + centred.shape[-1] * log(2 * pi)) / 2


def _eigen(shape: torch.Size, covariances: Tensor | None, stds: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Variances (M, D) and axes (M, D, D) or None for the coordinate axes, float64."""
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
    # Eigenvalues of a semi-definite matrix come out within rounding of 0.
    if bool((variances < -1e-6 * variances[:, -1:].abs().clamp(min=1e-300)).any()):
        raise UserError(f"covariances with eigenvalue {float(variances.min()):.6g}: expected none below 0")
    return variances.clamp(min=0), axes
