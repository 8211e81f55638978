"""Mixtures of von Mises distributions: angles as pairs (cos, sin) whose exact posterior adds natural parameters.

Given the component the angles are independent. With h_md the natural parameter (concentration times direction) of
angle d in component m, the state multiplies the density of each angle by exp(s u_d . x_d):

    r_m proportional to pi_m prod_d I_0(|h_md + s u_d|) / I_0(|h_md|)          p(x_d | u) = sum_m r_m vM(h_md + s u_d)
"""

from math import log, pi

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.exact.base import ExactModel, draw_components, log_weights, normal_log_prob
from bfn.flows import ContinuousFlow, NoiseLevel
from bfn.heads import Output, VonMises, pairs_of
from bfn.heads.angle import log_i0e

__all__ = ["VonMisesMixture"]


class VonMisesMixture(ExactModel):
    """M components over D angles; the data are pairs, (D, 2).

    centres, concentrations: (M, D), in radians and from 0 (uniform) up. weights: (M,), equal if None.
    Densities are those of the angles. A known angle is known with both numbers of its pair.

    >>> model = VonMisesMixture([[0.0], [2.0]], [[20.0], [5.0]])
    >>> bool((model.sample_data(3).norm(dim=-1) - 1).abs().max() < 1e-12)
    True
    """

    natural: Tensor
    log_weights: Tensor

    def __init__(
        self,
        centres: Tensor,
        concentrations: Tensor,
        *,
        weights: Tensor | None = None,
        sigma_1: float = 1e-2,
        flow: ContinuousFlow | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        centres, c = (torch.as_tensor(x, dtype=torch.float64) for x in (centres, concentrations))
        if centres.ndim != 2 or centres.shape != c.shape or centres.numel() == 0:
            raise UserError(
                f"centres of shape {tuple(centres.shape)}, concentrations of shape {tuple(c.shape)}: "
                "expected (components, angles) of both"
            )
        if not bool((torch.isfinite(c) & (c >= 0) & torch.isfinite(centres)).all()):
            raise UserError("centres and concentrations: expected finite angles, and finite concentrations from 0 up")
        super().__init__(flow or ContinuousFlow(sigma_1), (centres.shape[1], 2))
        self.register_buffer("natural", (c.unsqueeze(-1) * pairs_of(centres)).to(dtype))
        weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        self.register_buffer("log_weights", log_weights(weights, centres, dtype))

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
        which = draw_components(self.log_weights.exp(), n, generator)
        return VonMises.single(self.natural[which]).draw(generator)

    def _log_joint(self, natural: Tensor) -> Tensor:
        """log pi_m prod_d I_0(|natural|) / I_0(|h|), (batch, M)."""
        before, after = torch.linalg.vector_norm(self.natural, dim=-1), torch.linalg.vector_norm(natural, dim=-1)
        gained: Tensor = (after - before + log_i0e(after) - log_i0e(before)).sum(-1)
        return self.log_weights + gained
