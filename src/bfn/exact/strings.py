"""Discrete data whose posterior is a sum over few terms: sets of strings, and mixtures of independent variables."""

from typing import Any

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.exact.base import (
    DiscreteExactModel,
    check_probs,
    draw_classes,
    draw_components,
    log_weights,
    restore_log_zero,
    safe_log,
)
from bfn.flows import DiscreteFlow, NoiseLevel

__all__ = ["MixtureOfProducts", "ProductOfCategoricals", "StringSet"]


class StringSet(DiscreteExactModel):
    """A finite set of strings (N, L) of classes, with weights (N,), equal if None."""

    strings: Tensor
    log_weights: Tensor

    def __init__(
        self,
        strings: Tensor,
        weights: Tensor | None = None,
        *,
        n_classes: int,
        beta_1: float = 0.75**2,
        flow: DiscreteFlow | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        strings = torch.as_tensor(strings)
        if strings.ndim != 2 or strings.numel() == 0:
            raise UserError(f"strings of shape {tuple(strings.shape)}: expected (n_strings, length)")
        super().__init__(n_classes, strings.shape[1], beta_1, flow)
        self.flow.check(strings, self.data_shape)
        self.register_buffer("strings", strings.long())
        self.register_buffer("log_weights", log_weights(weights, strings, dtype))

    def posterior(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """Probability of each string given the state, (batch, N)."""
        return torch.softmax(self._log_joint(u * level.s), 1)

    def marginals(self, log_likelihood: Tensor) -> Tensor:
        weights = torch.softmax(self._log_joint(log_likelihood), 1)
        probs = torch.zeros_like(log_likelihood)
        for d, column in enumerate(self.strings.T):
            probs[:, d].index_add_(1, column, weights)
        return safe_log(probs)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        return torch.logsumexp(self._log_joint(log_likelihood), 1)

    def log_prob(self, x: Tensor) -> Tensor:
        self.flow.check(x, self.data_shape)
        weights = self.log_weights.exp()
        return torch.stack([weights[(self.strings == row).all(1)].sum() for row in x]).log()

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self.strings[draw_components(self.log_weights.exp(), n, generator)]

    def _log_joint(self, log_likelihood: Tensor) -> Tensor:
        """log p(string) + its log-likelihood, (batch, N): one gather a position keeps memory at (batch, N)."""
        joint = self.log_weights.expand(len(log_likelihood), -1)
        for d, column in enumerate(self.strings.T):
            joint = joint + log_likelihood[:, d, column]
        return joint


class MixtureOfProducts(DiscreteExactModel):
    """Mixture of M products of categoricals: weights (M,), equal if None, and probs (M, L, K)."""

    log_weights: Tensor
    log_probs: Tensor

    def __init__(
        self,
        weights: Tensor | None,
        probs: Tensor,
        *,
        beta_1: float = 0.75**2,
        flow: DiscreteFlow | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        probs = torch.as_tensor(probs)
        if probs.ndim != 3 or probs.numel() == 0:
            raise UserError(f"probs of shape {tuple(probs.shape)}: expected (components, length, classes)")
        super().__init__(probs.shape[2], probs.shape[1], beta_1, flow)
        probs = check_probs(probs, "probs")
        self.register_buffer("log_weights", log_weights(weights, probs, dtype))
        self.register_buffer("log_probs", safe_log(probs).to(dtype))

    def marginals(self, log_likelihood: Tensor) -> Tensor:
        joint = self.log_probs + log_likelihood.unsqueeze(1)
        totals = torch.logsumexp(joint, -1, keepdim=True)
        component = torch.log_softmax(self.log_weights + totals.flatten(2).sum(2), 1)
        return torch.logsumexp(component[..., None, None] + joint - totals, 1)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        totals = torch.logsumexp(self.log_probs + log_likelihood.unsqueeze(1), -1)
        return torch.logsumexp(self.log_weights + totals.sum(2), 1)

    def log_prob(self, x: Tensor) -> Tensor:
        self.flow.check(x, self.data_shape)
        index = x.long()[:, None, :, None].expand(-1, len(self.log_weights), -1, 1)
        log_probs = self.log_probs.expand(len(x), -1, -1, -1).gather(3, index).flatten(2).sum(2)
        return restore_log_zero(torch.logsumexp(self.log_weights + log_probs, 1))

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        probs = self.log_probs[draw_components(self.log_weights.exp(), n, generator)].exp()
        return draw_classes(probs.flatten(0, 1), generator).reshape(n, -1)


class ProductOfCategoricals(MixtureOfProducts):
    """Independent variables with probs (L, K): the one case in which the original sampler's draws are exact.

    settings: ``beta_1``, ``flow`` and ``dtype``, as those of a mixture.
    """

    def __init__(self, probs: Tensor, **settings: Any) -> None:
        probs = torch.as_tensor(probs)
        if probs.ndim != 2:
            raise UserError(f"probs of shape {tuple(probs.shape)}: expected (length, classes)")
        super().__init__(None, probs.unsqueeze(0), **settings)
