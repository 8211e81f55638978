"""What exact models share: the state's density, its Bayes posterior, and checks of their parameters."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from math import log, pi
from typing import Any

import torch
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.core.flows import DiscreteFlow, Flow, NoiseLevel, Shape
from bfn.core.heads import Categorical, Output
from bfn.core.info import ModelInfo, Spread
from bfn.core.model import Model

LOG_ZERO = -1e30
"""Stands for log 0 inside posteriors: exp of it is 0, but sums and differences of it stay finite."""


SPREAD_SAMPLES = 500
"""Data that tell an exact model's spread."""


class ExactModel(Model, nn.Module):
    """A distribution of data whose posterior given the state u = s w(x) + sqrt(kappa) eps is known exactly.

    Usable wherever a model is: ``loss``, ``sample`` with every solver. Its only error is rounding, so that whatever a
    solver gets wrong on it is the solver's own.
    """

    def __init__(self, flow: Flow, data_shape: Shape) -> None:
        super().__init__()
        self.flow = flow
        self.data_shape = tuple(data_shape)

    @property
    def dtype(self) -> torch.dtype:
        return next(b.dtype for b in self.buffers() if b.is_floating_point())

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device

    @cached_property
    def info(self) -> ModelInfo:
        """That it is exact, and the spread of some of its data."""
        numbers = [name for name, part in self.flow.parts.items() if part.has_range]
        some: Any = self.sample_data(SPREAD_SAMPLES, torch.Generator(self.device).manual_seed(0)) if numbers else None
        if not isinstance(some, Mapping):
            return ModelInfo(exact=True, spread=None if some is None else Spread.of(some))
        found = {name: Spread.of(some[name]) for name in numbers}
        return ModelInfo(exact=True, part_spreads={name: spread for name, spread in found.items() if spread})

    @abstractmethod
    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n exact samples of the data, (n, *data_shape)."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Exact log-probability (log-density for continuous data) of x, (batch,), nats."""

    @abstractmethod
    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """Log-density of the state u at that level, log E_x N(u; s w(x), kappa I): (batch,), nats."""

    @abstractmethod
    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        """The output distribution whose mean is E[data | u]."""

    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        if conditions:
            name = next(iter(conditions))
            raise UserError(f"{name} given: an exact model has nothing to condition on; leave {name} out")
        expected = self.flow.state_shape(self.data_shape)
        if tuple(u.shape[1:]) != expected:
            raise UserError(f"state of shape {tuple(u.shape)}: expected (batch, *{expected})")
        return self.posterior_output(u, level)

    def log_sender(self, u: Tensor, x: Tensor, level: NoiseLevel) -> Tensor:
        """log N(u; s w(x), kappa I), (batch,): the sender's density of the state."""
        residual = u - level.s * self.flow.message(x, dtype=u.dtype)
        return normal_log_prob(residual, self.flow.kappa)


class DiscreteExactModel(ExactModel):
    """Strings of ``length`` classes. All that the state says of them is the log-likelihood s u of each class.

    p(u | x) = N(u; s w(x), K I) is proportional in x to exp(sum_d s u[d, x_d]): a model has only to sum its own
    probability against such a product, which :meth:`marginals` does.
    """

    flow: DiscreteFlow

    def __init__(self, n_classes: int, length: int, beta_1: float, flow: DiscreteFlow | None) -> None:
        if length < 1:
            raise UserError(f"length={length}: expected at least 1 variable")
        if flow is not None and flow.n_classes != n_classes:
            raise UserError(f"flow with n_classes={flow.n_classes}: the model has {n_classes} classes; make them equal")
        super().__init__(flow or DiscreteFlow(n_classes, beta_1), (length,))

    @abstractmethod
    def marginals(self, log_likelihood: Tensor) -> Tensor:
        """Unnormalised log posterior of each variable, (batch, length, K), from s u, (batch, length, K)."""

    @abstractmethod
    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        """log sum_x p(x) exp(sum_d log_likelihood[d, x_d]): (batch,)."""

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        return Categorical(self.marginals(u * level.s))

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        n_classes, length = self.flow.n_classes, self.data_shape[0]
        # ||w||^2 = K (K - 1) a variable, and u . w = K u_x - sum_k u_k.
        s = level.s.reshape(-1) if isinstance(level.s, Tensor) else level.s
        shift = s * u.flatten(1).sum(1) / n_classes + s * s * (length * (n_classes - 1) / 2)
        evidence: Tensor = self.log_normaliser(u * level.s) + normal_log_prob(u, n_classes) - shift
        return evidence


def normal_log_prob(u: Tensor, variance: float | Tensor) -> Tensor:
    """Log-density of (batch, ...) under N(0, variance I), or with a variance for each number: (batch,)."""
    if isinstance(variance, Tensor):
        own = variance.to(u)
        return -(u.square() / own + (2 * pi * own).log()).flatten(1).sum(1) / 2
    return -(u.flatten(1).square().sum(1) / variance + u[0].numel() * log(2 * pi * variance)) / 2


def safe_log(probs: Tensor) -> Tensor:
    """log with LOG_ZERO for log 0."""
    return probs.log().clamp(min=LOG_ZERO)


def restore_log_zero(log_probs: Tensor) -> Tensor:
    """-inf for sums that hold a LOG_ZERO: the log-probability of what is impossible."""
    return torch.where(log_probs < LOG_ZERO / 2, float("-inf"), log_probs)


def check_probs(probs: Tensor, name: str) -> Tensor:
    """``probs`` in float64, its last axis summing to 1 to the last digit; a ValueError if it is no distribution."""
    probs = torch.as_tensor(probs)
    if not probs.is_floating_point():
        raise UserError(f"{name} of type {probs.dtype}: expected probabilities as floats")
    # Sums of N float32 numbers are right to about sqrt(N) roundings; 1e-4 tells those from counts or logits.
    probs = probs.double()
    if not bool(torch.isfinite(probs).all()) or bool((probs < 0).any()):
        raise UserError(f"{name} with smallest value {float(probs.min()):.6g}: expected finite values >= 0")
    totals = probs.sum(-1, keepdim=True)
    if not bool((totals - 1).abs().le(1e-4).all()):
        worst = float(totals.flatten()[(totals.flatten() - 1).abs().argmax()])
        raise UserError(f"{name} sum to {worst:.6g}: expected 1; divide by the sum first")
    return probs / totals


def log_weights(weights: Tensor | None, components: Tensor, dtype: torch.dtype) -> Tensor:
    """Logarithms of the components' weights, which sum to 1, on their device; equal ones for None."""
    n = len(components)
    weights = torch.full((n,), 1 / n, dtype=torch.float64) if weights is None else check_probs(weights, "weights")
    if tuple(weights.shape) != (n,):
        raise UserError(f"weights of shape {tuple(weights.shape)}: expected one a component, ({n},)")
    return safe_log(weights).to(components.device, dtype)


def draw_classes(probs: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One class a row from (n, K) probabilities, by inverting their cumulative sum: (n,) int64."""
    cumulative = probs.double().cumsum(-1)
    uniform = torch.rand((len(probs), 1), generator=generator, dtype=torch.float64, device=probs.device)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).squeeze(1)
    return drawn.clamp_(max=probs.shape[-1] - 1)


def draw_components(weights: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """n components from one set of weights (N,), however many: (n,) int64."""
    cumulative = weights.double().cumsum(0)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64, device=weights.device)
    return torch.searchsorted(cumulative, uniform * cumulative[-1], right=True).clamp_(max=len(weights) - 1)
