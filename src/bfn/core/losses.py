"""Losses, in nats per dimension, and weightings of them for training.

    continuous time     L(x) = E_t  beta'(t) / (2 kappa) || w(x) - w_hat ||^2
    n steps             L_n(x) = n E_i KL( sender || receiver ) with accuracy beta_{i+1} - beta_i
    reconstruction      - log p_O(x) at t = 1

L + reconstruction is an upper bound of -log p(x); L_n falls to L as n grows. All are unbiased estimates from one time
for each sample, drawn stratified over the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi, prod, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from bfn._utils.arguments import as_tensor, check_real, check_whole
from bfn._utils.pieces import evaluating
from bfn.core.conditions import ConditionTensors
from bfn.core.control import Model
from bfn.core.errors import NetworkError, UserError, did_you_mean
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.heads import Output
from bfn.core.info import ErrorCurve
from bfn.core.registry import Registry, registry
from bfn.core.schedules import stratified_times
from bfn.core.solver import LEAST_T_START

__all__ = [
    "EDM", "WEIGHTINGS", "Bound", "CrossEntropy", "Importance", "JointWeighting", "LossByTime", "MinSNR", "Weighting",
    "continuous_time_loss", "continuous_time_loss_values", "error_curve", "errors_and_values", "n_step_loss",
    "noised_output", "reconstruction_loss", "squared_error", "weighted_loss",
]  # fmt: skip


# --- losses -----------------------------------------------------------------------------------------------------------


def noised_output(
    model: Model,
    x: Tensor,
    t: Tensor,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    eps: Tensor | None = None,
) -> tuple[Output, NoiseLevel]:
    """Call the network once on noised data. Returns its output and the noise level.

    Args:
        x: packed data.
        t: times, (batch, *time_shape).
        eps: the noise, (batch, *state_shape), drawn if None.
    """
    flow = model.flow
    shape = (len(x), *flow.state_shape(tuple(x.shape[1:])))
    if eps is None:
        eps = torch.randn(shape, generator=generator, dtype=model.dtype, device=x.device)
    if eps.shape != shape:
        raise UserError(f"eps of shape {tuple(eps.shape)}: expected noise like the state, {shape}")
    level = flow.noise_level(t, len(x), len(shape) - 1, like=eps)
    output = model.output(flow.noised(x, level.s, eps), level, **(conditions or {}))
    if output.mean.shape != shape:
        raise NetworkError(f"the network's prediction has shape {tuple(output.mean.shape)}: expected {shape}")
    return output, level


def errors_and_values(
    model: Model,
    x: Tensor,
    t: Tensor,
    values: Callable[[Flow, Output, Tensor, Tensor], Tensor],
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    eps: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the squared error of the leading part and the values of a weighting, (batch,), from one network call.

    Error curves are read at the times of the leading part and with its schedule. The errors of parts with other
    schedules or with times of their own would not fit to them.

    Args:
        values: function of (flow, output, x, squared errors) with one value for each variable, like x.
        factor: multiplies the values, (batch,) or like x.
    """
    output, _ = noised_output(model, x, t, generator, conditions, eps)
    present = (conditions or {}).get("present")
    errors = model.flow.errors(x, _at_least_float32(output.mean))
    own = values(model.flow, output, x, errors)
    name, flow = model.flow.leading_part, model.flow
    error = mean_over_present(flow.split(errors)[name], None if present is None else flow.split(present)[name])
    if factor is not None and factor.ndim > 1:
        return error, mean_over_present(own * factor.to(own), present)
    mean = mean_over_present(own, present)
    return error, mean if factor is None else mean * factor.to(mean)


def squared_error(
    model: Model,
    x: Tensor,
    t: Tensor,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    eps: Tensor | None = None,
) -> Tensor:
    """Return ||w(x) - w_hat||^2 / kappa per dimension at the times t, (batch,). Weightings multiply this."""
    return errors_and_values(model, x, t, _errors_alone, generator, conditions, eps)[1]


def _errors_alone(flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
    return errors


@torch.no_grad()
def error_curve(
    model: Model,
    x: Tensor,
    n_times: int = 64,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> ErrorCurve:
    """Measure the squared error at n_times equally spaced times from 0 to 1, on all of x at each time.

    The error of joint data is that of their leading part.
    """
    times = torch.linspace(0.0 if model.starts_at_zero else LEAST_T_START, 1, n_times, dtype=torch.float64)
    with evaluating(model):
        found = [errors_and_values(model, x, t.expand(len(x)), _errors_alone, generator, conditions)[0] for t in times]
    return ErrorCurve(tuple(times.tolist()), tuple(float(errors.double().mean()) for errors in found))


def continuous_time_loss(
    model: Model,
    x: Tensor,
    t: Tensor | None = None,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> Tensor:
    """Return beta'(t)/2 * ||w(x) - w_hat||^2 / kappa, nats per dimension, (batch,)."""
    values = continuous_time_loss_values(model, x, t, generator, conditions)
    return mean_over_present(values, (conditions or {}).get("present"))


def continuous_time_loss_values(
    model: Model,
    x: Tensor,
    t: Tensor | None = None,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> Tensor:
    """Return the continuous-time loss of each variable, like x, whose mean is the loss of a sample."""
    t = model.flow.draw_times(len(x), generator, x.device) if t is None else _checked_times(model.flow, x, t)
    output, _ = noised_output(model, x, t, generator, conditions)
    errors = model.flow.errors(x, _at_least_float32(output.mean))
    return errors * (model.flow.rate(t, x.ndim - 1) / 2).to(errors.dtype)


def n_step_loss(
    model: Model,
    x: Tensor,
    n_steps: int,
    t: Tensor | None = None,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> Tensor:
    """Return n KL(sender || receiver) of a random step, or of the one that holds t, nats per dimension, (batch,)."""
    if isinstance(n_steps, int) and n_steps < 1:
        raise UserError(f"n_steps={n_steps}: expected at least 1 step")
    check_whole("n_steps", n_steps, 1, 10**9)
    t = model.flow.draw_times(len(x), generator, x.device) if t is None else _checked_times(model.flow, x, t)
    start = (t.double() * n_steps).floor().clamp(max=n_steps - 1) / n_steps
    output, level = noised_output(model, x, start, generator, conditions)
    accuracy = model.flow.gain(start, start + 1 / n_steps, x.ndim - 1).to(level.t.dtype)
    kl = output.message_kl(x, accuracy, generator)
    return n_steps * mean_over_present(kl, (conditions or {}).get("present"))


def reconstruction_loss(
    model: Model, x: Tensor, generator: torch.Generator | None = None, conditions: ConditionTensors | None = None
) -> Tensor:
    """Return -log p_O(x) at t = 1, nats per dimension, (batch,).

    For classes this is a probability. For continuous data it is a density: that of a normal about x_hat with the
    standard deviation sigma_1 that the flow leaves unknown.
    """
    t = torch.ones(len(x), dtype=torch.float64, device=x.device)
    output, _ = noised_output(model, x, t, generator, conditions)
    return -mean_over_present(output.log_prob(x), (conditions or {}).get("present"))


def mean_over_present(values: Tensor, present: Tensor | None) -> Tensor:
    """Return the mean over the variables of each sample that exist, (batch, ...) -> (batch,)."""
    if present is None:
        return values.flatten(1).mean(1) if values.ndim > 1 else values
    return sum_over_present(values, present) / present.reshape(len(present), -1).sum(1)


def sum_over_present(values: Tensor, present: Tensor | None) -> Tensor:
    """Return the sum over the variables of each sample that exist, (batch, ...) -> (batch,)."""
    flat = values.reshape(len(values), -1)
    return flat.sum(1) if present is None else torch.where(present.reshape(flat.shape), flat, 0.0).sum(1)


def n_present(x: Tensor, present: Tensor | None) -> Tensor | int:
    """Return the number of variables of a sample that exist: a number, or (batch,)."""
    return prod(x.shape[1:]) if present is None else present.reshape(len(present), -1).sum(1)


def _at_least_float32(prediction: Tensor) -> Tensor:
    return prediction.to(torch.promote_types(prediction.dtype, torch.float32))


def _checked_times(flow: Flow, x: Tensor, t: Tensor) -> Tensor:
    """Return times that are given for a batch."""
    n, t = len(x), as_tensor("t", t)
    t = t.expand(n) if t.ndim == 0 else t
    if tuple(t.shape) not in {(n,), (n, *flow.time_shape)}:
        own = f", or one a part, {(n, *flow.time_shape)}" if flow.time_shape else ""
        raise UserError(f"t of shape {tuple(t.shape)}: expected one time a sample, ({n},){own}")
    if not bool(((t >= 0) & (t <= 1)).all()):
        raise UserError(f"t from {float(t.min())} to {float(t.max())}: expected times in [0, 1]")
    return t


# --- weightings -------------------------------------------------------------------------------------------------------


class Weighting(ABC):
    """Times at which a batch is trained, and the factor of the squared error at each."""

    registry: ClassVar[str] = "weighting"

    def draw(self, flow: Flow, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw n times in [0, 1]. Returns them and their factors, float64, (n,) each. Uniform times by default."""
        t = stratified_times(n, generator)
        return t, self.weight(flow, t)

    @abstractmethod
    def weight(self, flow: Flow, t: Tensor) -> Tensor:
        """Return density times factor at times t, like t: the factor for times that are drawn uniformly."""

    def values(self, flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
        """Return the loss of each variable, like x, that the factors multiply: the squared errors by default."""
        return errors

    def fitted(self, second_moment: Tensor) -> Weighting:
        """Return the weighting for measured E[(beta'/2 squared error)^2] in equal bins of t, (n_bins,)."""
        return self

    def restored(self, density: Sequence[float]) -> Weighting:
        """Return the weighting with the density that a checkpoint holds."""
        return self


@dataclass(frozen=True)
class Bound(Weighting):
    """The continuous-time bound: uniform times, factor beta'(t)/2."""

    def weight(self, flow: Flow, t: Tensor) -> Tensor:
        return flow.schedule.slope(t) / 2


@dataclass(frozen=True)
class Importance(Bound):
    """The bound, with times drawn more often where its integrand is large: unbiased, with less variance.

    The density is constant in equal bins of t and proportional to the root of the integrand's second moment, which
    minimises the variance.

    Args:
        density: relative density in each bin.
        uniform: share of uniform times, so that no factor exceeds 1/uniform times that of the bound.
    """

    density: tuple[float, ...] = (1.0,)
    uniform: float = 0.1

    def __post_init__(self) -> None:
        check_real("uniform", self.uniform)
        if not 0 < self.uniform <= 1:
            raise UserError(f"uniform={self.uniform}: expected a share in (0, 1] of uniform times")

    def draw(self, flow: Flow, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        density = torch.tensor(self.density, dtype=torch.float64)
        n_bins = len(density)
        edges = torch.cat((density.new_zeros(1), density.cumsum(0) / n_bins))
        position = stratified_times(n, generator) * edges[-1]
        k = (torch.searchsorted(edges, position, right=True) - 1).clamp_(0, n_bins - 1)
        t = ((k + (position - edges[k]) * n_bins / density[k]) / n_bins).clamp_(0, 1)
        return t, self.weight(flow, t) / density[k]

    def fitted(self, second_moment: Tensor) -> Importance:
        root = second_moment.double().clamp(min=0).sqrt()
        mean = float(root.mean())
        if not 0 < mean < float("inf"):
            return self
        return self.restored((self.uniform + (1 - self.uniform) * root / mean).tolist())

    def restored(self, density: Sequence[float]) -> Importance:
        return Importance(tuple(density), self.uniform)


@dataclass(frozen=True)
class MinSNR(Weighting):
    """Uniform times, factor min(SNR, gamma) with SNR = beta (Hang et al. 2023, eq. 8, for data prediction)."""

    gamma: float = 5.0

    def __post_init__(self) -> None:
        check_real("gamma", self.gamma)
        if not self.gamma > 0:
            raise UserError(f"gamma={self.gamma}: expected a positive signal-to-noise ratio, such as 5")

    def weight(self, flow: Flow, t: Tensor) -> Tensor:
        return flow.schedule.beta(t).clamp(max=self.gamma)


@dataclass(frozen=True)
class EDM(Weighting):
    """Normally distributed log sigma = -log s, factor (1 + s^2 d^2) / d^2 (Karras et al. 2022, table 1 and sec. 5).

    Levels beyond the last one of the flow, s(1), are moved to it.

    Args:
        mean, std: of log sigma.
        data_std: d. With a preconditioned head of the same d, the network's targets have unit variance and equal weight
            at every level.
    """

    mean: float = -1.2
    std: float = 1.2
    data_std: float = 0.5

    def __post_init__(self) -> None:
        for name in ("mean", "std", "data_std"):
            check_real(name, getattr(self, name))
        if not (self.std > 0 and self.data_std > 0):
            raise UserError(f"std={self.std}, data_std={self.data_std}: expected positive standard deviations")

    def draw(self, flow: Flow, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        normal = torch.special.ndtri(stratified_times(n, generator))
        s = torch.exp(-(self.mean + self.std * normal)).clamp(max=float(flow.schedule.s(1.0)))
        return flow.schedule.time_of_s(s).clamp(0, 1), 1 / self.data_std**2 + s.square()

    def weight(self, flow: Flow, t: Tensor) -> Tensor:
        # The normal density of log s, with d log s / dt = slope / (2 beta), times the factor.
        beta = flow.schedule.beta(t).clamp(min=1e-300)
        z = (-beta.log() / 2 - self.mean) / self.std
        density = torch.exp(-z.square() / 2) / (self.std * sqrt(2 * pi)) * flow.schedule.slope(t) / (2 * beta)
        return density * (1 / self.data_std**2 + beta)


@dataclass(frozen=True)
class CrossEntropy(Weighting):
    """Minus the log probability of classes, -log p_O(x), nats per dimension, at uniform times."""

    def draw(self, flow: Flow, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        if flow.leading.has_range:
            raise UserError("weighting='cross-entropy': it is for classes; numbers take edm, min-snr or the bound")
        return super().draw(flow, n, generator)

    def weight(self, flow: Flow, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def values(self, flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
        return -output.log_prob(x)


@dataclass(frozen=True)
class JointWeighting(Weighting):
    """A weighting for each part of joint data, at uniform times.

    Args:
        parts: the weighting of each part.
    """

    parts: Mapping[str, Weighting]

    def draw(self, flow: Flow, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        if set(self.parts) != set(flow.parts):
            raise UserError(
                f"weighting of parts {', '.join(self.parts)}: expected one for each of {', '.join(flow.parts)}"
            )
        for name, own in self.parts.items():
            own.draw(flow.parts[name], 1, torch.Generator())  # raises if it is for another kind of data
        t = flow.draw_times(n, generator)
        return t, self.weight(flow, t)

    def weight(self, flow: Flow, t: Tensor) -> Tensor:
        times = flow.times_of(t)
        return flow.over_data({name: own.weight(flow.parts[name], times[name]) for name, own in self.parts.items()}, 1)

    def values(self, flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
        # Each kind of loss is computed once, for all parts together: no small operation for each part.
        kinds = {type(own): own for own in self.parts.values()}
        result = errors
        for kind, own in kinds.items():
            if kind.values is Weighting.values:
                continue
            wanted = {name: torch.tensor(type(this) is kind) for name, this in self.parts.items()}
            result = torch.where(flow.over_data(wanted, 1).to(x.device), own.values(flow, output, x, errors), result)
        return result


WEIGHTINGS: Registry[type[Weighting]] = registry("weighting")
"""Weightings by name."""


FOR_SAMPLES = ("edm", "cross-entropy")
"""Weightings for better samples, of numbers and of classes. For joint data either name means both."""


def weighting_of(
    model: Model, weighting: str | Weighting | Mapping[str, str | Weighting], stds: Mapping[str, float] | None = None
) -> Weighting:
    """Return the weighting of that name for a model, for joint data one for each part.

    Args:
        stds: standard deviation of the data by part, for parts whose head does not say it.
    """
    if isinstance(weighting, JointWeighting):
        return weighting
    if not isinstance(weighting, Mapping):
        if tuple(model.flow.parts) == ("",):
            return _of_part(model, "", weighting, stds or {})
        pair = isinstance(weighting, str) and weighting in FOR_SAMPLES
        parts = model.flow.parts.items()
        weighting = {name: FOR_SAMPLES[not flow.has_range] if pair else weighting for name, flow in parts}
    return JointWeighting({name: _of_part(model, name, own, stds or {}) for name, own in weighting.items()})


def _of_part(model: Model, part: str, weighting: str | Weighting, stds: Mapping[str, float]) -> Weighting:
    """Return the weighting of one part."""
    if isinstance(weighting, Weighting):
        return weighting
    if weighting not in WEIGHTINGS or weighting == "joint":
        known = [name for name in WEIGHTINGS if name != "joint"]
        hint = did_you_mean(weighting, known)
        raise UserError(f"weighting={weighting!r}: expected one of {', '.join(known)}{hint}")
    std = model.data_std(part) or stds.get(part)
    return EDM(data_std=std) if weighting == "edm" and std is not None else WEIGHTINGS[weighting]()


def weighted_loss(
    model: Model,
    x: Tensor,
    weighting: Weighting,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> Tensor:
    """Return the loss that a weighting trains, (batch,). Draws the times, then the noise. Only the bound is in nats."""
    t, factor = weighting.draw(model.flow, len(x), generator)
    t, factor = t.to(x.device), factor.to(x.device)
    return errors_and_values(model, x, t, weighting.values, generator, conditions, factor=factor)[1]


class LossByTime:
    """The loss as a function of t, measured in training: moving means in equal bins of t.

    ``add`` collects values without reading them, so that a GPU does not wait; ``fold`` adds what was collected
    to the estimate. Rows of the estimate: counts, squared errors, and squares of the bound's integrand
    beta'/2 * squared error.
    """

    def __init__(self, n_bins: int = 64, memory: float = 0.9, device: torch.device | None = None) -> None:
        self.memory = memory
        self.recent = torch.zeros(3, n_bins, dtype=torch.float64, device=device)
        self.estimate = torch.zeros(3, n_bins, dtype=torch.float64)

    @property
    def n_bins(self) -> int:
        """Number of bins of t."""
        return self.estimate.shape[1]

    def add(self, t: Tensor, error: Tensor, slope: Tensor) -> None:
        """Collect squared errors at times t where d beta/dt = slope, (batch,) each."""
        k = (t * self.n_bins).long().clamp_(0, self.n_bins - 1).to(self.recent.device)
        error = error.detach().to(self.recent)
        integrand = error * slope.to(self.recent) / 2
        self.recent.index_add_(1, k, torch.stack((torch.ones_like(error), error, integrand.square())))

    def fold(self, recent: Tensor | None = None) -> None:
        """Add the collected sums, or those of all processes together, to the estimate."""
        self.estimate = self.memory * self.estimate + (self.recent if recent is None else recent).cpu()
        self.recent.zero_()

    def second_moment(self) -> Tensor:
        """Return E[(beta'/2 squared error)^2] by bin, (n_bins,); bins without samples have the mean of the others."""
        return self._mean(2)

    def squared_error(self) -> Tensor:
        """Return E[squared error] by bin, (n_bins,)."""
        return self._mean(1)

    def _mean(self, row: int) -> Tensor:
        count = self.estimate[0]
        seen = count > 0
        mean = self.estimate[row] / count.clamp(min=1e-300)
        return torch.where(seen, mean, mean[seen].mean() if bool(seen.any()) else 0.0)

    def summary(self) -> dict[str, list[float]]:
        """Return the centres of the bins with samples, the mean squared errors, and root mean square integrands."""
        count, errors, squares = (self.estimate + self.recent.cpu()).unbind()
        seen = (count > 0).nonzero().flatten().tolist()
        return {
            "t": [(k + 0.5) / self.n_bins for k in seen],
            "squared_error": [float(errors[k] / count[k]) for k in seen],
            "bound_rms": [sqrt(float(squares[k] / count[k])) for k in seen],
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {"recent": self.recent.cpu().clone(), "estimate": self.estimate.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the state of a checkpoint."""
        self.recent.copy_(state["recent"])
        self.estimate = state["estimate"].clone()
