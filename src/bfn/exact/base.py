"""Base classes of exact models, and functions that they share."""

from abc import abstractmethod
from functools import cached_property
from math import log, pi, prod
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, DiscreteFlow, Flow, NoiseLevel, Shape
from bfn.core.heads import Categorical, Output
from bfn.core.info import EXACT, SPREADS, ModelInfo, Spread
from bfn.core.model import Model

LOG_ZERO = -1e30
"""Stands for log 0 inside posteriors: its exp is 0, but sums and differences of it are finite."""
SPREAD_SAMPLES = 500
"""Number of samples that the spread of the data is measured on."""


class ContinuousSettings(TypedDict, total=False):
    """Settings of exact models of continuous data, see ``ContinuousExactModel``."""

    sigma_1: float
    flow: ContinuousFlow | None
    dtype: torch.dtype


class DiscreteSettings(TypedDict, total=False):
    """Settings of exact models of discrete data, see ``DiscreteExactModel``."""

    beta_1: float
    flow: DiscreteFlow | None
    dtype: torch.dtype


class ExactModel(Model, nn.Module):
    """A distribution of data whose posterior given the state u = s w(x) + sqrt(kappa) eps is known exactly.

    It can be used wherever a model can, for ``loss`` and for ``sample`` with every solver. Its only error is rounding,
    so errors of its samples are errors of the solver.

    Args:
        flow: how the data are noised.
        data_shape: shape of one sample.
        dtype: type of the parameters and of the states.
    """

    log_weights: Tensor

    def __init__(self, flow: Flow, data_shape: Any, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.flow = flow
        self.data_shape = data_shape
        self._dtype = dtype

    def _register(self, name: str, values: Tensor) -> None:
        """Register parameters as a buffer of the model's type."""
        self.register_buffer(name, values.to(self._dtype))

    def _register_log_probs(self, name: str, probs: Tensor, what: str) -> None:
        """Register the logarithms of probabilities, which error messages call ``what``."""
        self._register(name, safe_log(check_probs(probs, what)))

    def _register_weights(self, weights: Tensor | None, components: Tensor) -> None:
        """Register the log weights of a mixture on the device of its components; equal ones for None."""
        n = len(components)
        weights = torch.full((n,), 1 / n, dtype=torch.float64) if weights is None else check_probs(weights, "weights")
        if tuple(weights.shape) != (n,):
            raise UserError(f"weights of shape {tuple(weights.shape)}: expected one for each component, ({n},)")
        self._register("log_weights", safe_log(weights).to(components.device))

    def _draw_components(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n components of the mixture, int64, (n,)."""
        cumulative = self.log_weights.exp().double().cumsum(0)
        uniform = torch.rand(n, generator=generator, dtype=torch.float64, device=cumulative.device)
        return torch.searchsorted(cumulative, uniform * cumulative[-1], right=True).clamp_(max=len(cumulative) - 1)

    @property
    def dtype(self) -> torch.dtype:
        return next(b.dtype for b in self.buffers() if b.is_floating_point())

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device

    @cached_property
    def info(self) -> ModelInfo:
        """Facts about the model: it is exact, and the spread of numeric data."""
        info = ModelInfo()
        info[EXACT] = True
        numbers = [name for name, part in self.flow.parts.items() if part.has_range]
        if numbers:
            generator = torch.Generator(self.device).manual_seed(0)
            data = self.flow.by_part("data", self.sample_data(SPREAD_SAMPLES, generator))
            found = {name: Spread.of(data[name]) for name in numbers}
            info[SPREADS] = {name: spread for name, spread in found.items() if spread}
        return info

    @abstractmethod
    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Any:
        """Draw n exact samples of the data, (n, *data_shape); a mapping of parts for joint data."""

    @abstractmethod
    def log_prob(self, x: Any) -> Tensor:
        """Return the exact log-probability of x in nats, (batch,); the log-density of continuous data."""

    @abstractmethod
    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """Return the log-density of the state u in nats, log E_x N(u; s w(x), kappa I), (batch,)."""

    @abstractmethod
    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        """Return the output distribution, whose mean is E[data | u]."""

    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        if conditions:
            name = next(iter(conditions))
            raise UserError(f"{name} given: an exact model has nothing to condition on; leave {name} out")
        expected = self.flow.state_shape(self.data_shape)
        if tuple(u.shape[1:]) != expected:
            raise UserError(f"state of shape {tuple(u.shape)}: expected (batch, *{expected})")
        return self.posterior_output(u, level)

    def log_sender(self, u: Tensor, x: Tensor, level: NoiseLevel) -> Tensor:
        """Return the log-density of the state given the data, log N(u; s w(x), kappa I), (batch,)."""
        residual = u - level.s * self.flow.message(x, dtype=u.dtype)
        return normal_log_prob(residual, self.flow.noise_variance)


class ContinuousExactModel(ExactModel):
    """Exact model of continuous data.

    Args:
        data_shape: shape of one sample.
        sigma_1: noise that is left at t = 1, of the default flow.
        flow: used instead of the default flow.
        dtype: type of the parameters and of the states.
    """

    def __init__(
        self,
        data_shape: Shape,
        *,
        sigma_1: float = 1e-3,
        flow: ContinuousFlow | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(flow or ContinuousFlow(sigma_1), tuple(data_shape), dtype)


class DiscreteExactModel(ExactModel):
    """Exact model of strings of classes.

    The state enters by the log-likelihood s u of each class: p(u | x) = N(u; s w(x), K I) is proportional in x to
    exp(sum_d s u[d, x_d]). A subclass sums its own probabilities times such a product.

    Args:
        n_classes: number of classes K.
        length: number of variables of a string.
        beta_1: final accuracy of the default flow.
        flow: used instead of the default flow.
        dtype: type of the parameters and of the states.
    """

    flow: DiscreteFlow

    def __init__(
        self,
        n_classes: int,
        length: int,
        *,
        beta_1: float = 0.75**2,
        flow: DiscreteFlow | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if length < 1:
            raise UserError(f"length={length}: expected at least 1 variable")
        if flow is not None and flow.n_classes != n_classes:
            raise UserError(f"flow with n_classes={flow.n_classes}: the model has {n_classes} classes; make them equal")
        super().__init__(flow or DiscreteFlow(n_classes, beta_1), (length,), dtype)

    @abstractmethod
    def marginals(self, log_likelihood: Tensor) -> Tensor:
        """Return the unnormalised log posterior of each variable given s u, both (batch, length, K)."""

    @abstractmethod
    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        """Return log sum_x p(x) exp(sum_d log_likelihood[d, x_d]), (batch,)."""

    def posterior_output(self, u: Tensor, level: NoiseLevel) -> Output:
        return Categorical(self.marginals(u * level.s))

    def log_evidence(self, u: Tensor, level: NoiseLevel) -> Tensor:
        return self.log_normaliser(u * level.s).add(class_factor(u, level.s))


def normal_log_prob(u: Tensor, variance: float | Tensor) -> Tensor:
    """Return the log-density of (batch, ...) under N(0, variance), (batch,). Each number may have its own variance."""
    if isinstance(variance, Tensor):
        own = variance.to(u)
        return -(u.square() / own + (2 * pi * own).log()).flatten(1).sum(1) / 2
    return -(u.flatten(1).square().sum(1) / variance + u[0].numel() * log(2 * pi * variance)) / 2


def class_factor(u: Tensor, s: float | Tensor) -> Tensor:
    """Return the factor of log N(u; s w, K I) that is the same for all classes, (batch,); u is (batch, ..., K)."""
    n_classes = u.shape[-1]
    # ||w||^2 = K (K - 1) for each variable, and u . w = K u_x - sum_k u_k.
    s = s.reshape(len(s), -1)[:, 0] if isinstance(s, Tensor) else s
    shift = s * u.flatten(1).sum(1) / n_classes + s * s * (prod(u.shape[1:-1]) * (n_classes - 1) / 2)
    return normal_log_prob(u, n_classes) - shift


def log_probs_of(log_probs: Tensor, x: Tensor) -> Tensor:
    """Return the log-probability of x, (batch, ...), in each component of (M, ..., K), (batch, M)."""
    log_probs = log_probs.expand(len(x), *log_probs.shape)
    index = x.long()[:, None, ..., None].expand(*log_probs.shape[:-1], 1)
    return log_probs.gather(-1, index).reshape(*log_probs.shape[:2], -1).sum(-1)


def safe_log(probs: Tensor) -> Tensor:
    """Return the log of probabilities, LOG_ZERO instead of log 0."""
    return probs.log().clamp(min=LOG_ZERO)


def restore_log_zero(log_probs: Tensor) -> Tensor:
    """Return -inf for sums that contain a LOG_ZERO."""
    return torch.where(log_probs < LOG_ZERO / 2, float("-inf"), log_probs)


def check_probs(probs: Tensor, name: str) -> Tensor:
    """Return probabilities in float64, normalised over the last axis.

    Raises:
        UserError: they are not close to a distribution.
    """
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


def draw_classes(probs: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one class for each row of probabilities (n, K), int64, (n,), by inverting the cumulative sums."""
    cumulative = probs.double().cumsum(-1)
    uniform = torch.rand((len(probs), 1), generator=generator, dtype=torch.float64, device=probs.device)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).squeeze(1)
    return drawn.clamp_(max=probs.shape[-1] - 1)
