"""Losses: what it costs to send the data through the flow, in nats a dimension.

    continuous time     L(x) = E_t  beta'(t) / (2 kappa) || w(x) - w_hat ||^2
    n steps             L_n(x) = n E_i KL( sender || receiver ) with accuracy beta_{i+1} - beta_i
    reconstruction      - log p_O(x) at t = 1

L + reconstruction bounds -log p(x) from above; L_n falls to L as n grows. All are unbiased estimates from one time a
sample, drawn stratified over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bfn.arguments import as_tensor, check_whole
from bfn.conditions import ConditionTensors
from bfn.core.solver import LEAST_T_START
from bfn.error_curve import ErrorCurve
from bfn.errors import NetworkError, UserError
from bfn.eval_mode import evaluating
from bfn.flows import Flow, NoiseLevel
from bfn.heads import Output
from bfn.presence import mean_over_present

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = [
    "continuous_time_loss",
    "continuous_time_loss_values",
    "error_curve",
    "error_curves",
    "errors_and_values",
    "even_flow",
    "n_step_loss",
    "noised_output",
    "reconstruction_loss",
    "squared_error",
]


def noised_output(
    model: Model,
    x: Tensor,
    t: Tensor,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    eps: Tensor | None = None,
) -> tuple[Output, NoiseLevel]:
    """One network call on x noised to the times t, (batch,); eps is the noise, (batch, *state_shape), drawn if None."""
    flow = model.flow
    shape = (len(x), *flow.state_shape(tuple(x.shape[1:])))
    if eps is None:
        eps = torch.randn(shape, generator=generator, dtype=model.dtype, device=x.device)
    elif tuple(eps.shape) != shape:
        raise UserError(f"eps of shape {tuple(eps.shape)}: expected noise like the state, {shape}")
    level = flow.noise_level(t, len(x), len(shape) - 1, like=eps)
    u = flow.noised(x, level.s, eps)
    output = model.output(u, level, **(conditions or {}))
    if output.mean.shape != shape:
        raise NetworkError(f"the network's prediction has shape {tuple(output.mean.shape)}: expected {shape}")
    return output, level


def squared_error(
    model: Model,
    x: Tensor,
    t: Tensor,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    eps: Tensor | None = None,
) -> Tensor:
    """||w(x) - w_hat||^2 / kappa a dimension at the times t: (batch,). Every weighting of the loss multiplies this."""
    return errors_and_values(model, x, t, lambda flow, output, x, errors: errors, generator, conditions, eps)[0]


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
    """The squared error, and what a weighting makes of (flow, output, x, squared errors), from one call: (batch,) each.

    values: like x, one value a variable. factor: multiplies the values, (batch,) or like x.
    """
    output, _ = noised_output(model, x, t, generator, conditions, eps)
    prediction, present = output.mean, (conditions or {}).get("present")
    errors = model.flow.errors(x, prediction.to(torch.promote_types(prediction.dtype, torch.float32)))
    own = values(model.flow, output, x, errors)
    if factor is None or factor.ndim == 1:
        mean = mean_over_present(own, present)
        return mean_over_present(errors, present), mean if factor is None else mean * factor.to(mean)
    return mean_over_present(errors, present), mean_over_present(own * factor.to(own), present)


@torch.no_grad()
def error_curve(
    model: Model,
    x: Tensor,
    n_times: int = 64,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> ErrorCurve:
    """The mean squared error at n_times equally spaced times from 0 to 1: every sample of x once at each."""
    first = 0.0 if model.starts_at_zero else LEAST_T_START
    times = torch.linspace(first, 1, n_times, dtype=torch.float64)
    with evaluating(model):
        errors = [
            float(squared_error(model, x, t.expand(len(x)), generator, conditions).double().mean()) for t in times
        ]
    return ErrorCurve(tuple(times.tolist()), tuple(errors))


@torch.no_grad()
def error_curves(
    model: Model,
    x: Tensor,
    n_times: int = 64,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    times: Mapping[str, Tensor] | None = None,
) -> dict[str, ErrorCurve]:
    """:func:`error_curve` of each part of joint data, "" where data are of one kind.

    times: (n_times,) of each part, where parts have times of their own; equally spaced and the same for all if None.
    """
    first = 0.0 if model.starts_at_zero else LEAST_T_START
    even = torch.linspace(first, 1, n_times, dtype=torch.float64)
    own = dict.fromkeys(model.flow.parts, even) if times is None else times
    calls = even if times is None else torch.stack([own[name] for name in model.flow.parts], 1)
    errors: dict[str, list[float]] = {name: [] for name in own}
    there = model.flow.split((conditions or {}).get("present", torch.ones_like(x, dtype=torch.bool)))
    with evaluating(model):
        for t in calls:
            prediction = noised_output(model, x, t.expand(len(x), *t.shape), generator, conditions)[0].mean
            for name, values in model.flow.split(model.flow.errors(x, prediction)).items():
                errors[name].append(float(values[there[name]].double().mean()))
    return {name: ErrorCurve(tuple(own[name].tolist()), tuple(errors[name])) for name in own}


def even_flow(
    model: Model,
    x: Tensor,
    n_times: int = 64,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
    n_rounds: int = 6,
) -> Flow:
    """The model's flow on schedules by which what it learns of each part grows evenly in t: for a new model.

    What is learnt of a part depends on how far the others are. Where parts have times of their own, the errors are
    measured again along the schedules just found, n_rounds times; else once, along the model's own.
    """
    flow, times = model.flow, None
    for _ in range(n_rounds if flow.time_shape else 1):
        curves = error_curves(model, x, n_times, generator, conditions, times)
        schedules = {name: curves[name].even_schedule(own) for name, own in flow.parts.items()}
        even = torch.linspace(0, 1, n_times, dtype=torch.float64)
        times = {name: own.schedule.inverse(schedules[name].beta(even)) for name, own in flow.parts.items()}
    return flow.with_schedules(schedules)


def continuous_time_loss(
    model: Model,
    x: Tensor,
    t: Tensor | None = None,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> Tensor:
    """beta'(t)/2 * ||w(x) - w_hat||^2 / kappa, nats a dimension, (batch,)."""
    values = continuous_time_loss_values(model, x, t, generator, conditions)
    return mean_over_present(values, (conditions or {}).get("present"))


def continuous_time_loss_values(
    model: Model,
    x: Tensor,
    t: Tensor | None = None,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> Tensor:
    """The same for each variable, like x: its mean over a sample's variables is the loss."""
    t = model.flow.draw_times(len(x), generator, x.device) if t is None else _check_t(t, len(x), model.flow)
    output, _ = noised_output(model, x, t, generator, conditions)
    prediction = output.mean
    errors = model.flow.errors(x, prediction.to(torch.promote_types(prediction.dtype, torch.float32)))
    return errors * (model.flow.rate(t, x.ndim - 1) / 2).to(errors.dtype)


def n_step_loss(
    model: Model,
    x: Tensor,
    n_steps: int,
    t: Tensor | None = None,
    generator: torch.Generator | None = None,
    conditions: ConditionTensors | None = None,
) -> Tensor:
    """n KL(sender || receiver) at a step drawn uniformly (the one that holds t), nats a dimension, (batch,)."""
    if isinstance(n_steps, int) and n_steps < 1:
        raise UserError(f"n_steps={n_steps}: expected at least 1 step")
    check_whole("n_steps", n_steps, 1, 10**9)
    t = model.flow.draw_times(len(x), generator, x.device) if t is None else _check_t(t, len(x), model.flow)
    start = (t.double() * n_steps).floor().clamp(max=n_steps - 1) / n_steps
    output, level = noised_output(model, x, start, generator, conditions)
    accuracy = model.flow.gain(start, start + 1 / n_steps, x.ndim - 1).to(level.t.dtype)
    kl = output.message_kl(x, accuracy, generator)
    return n_steps * mean_over_present(kl, (conditions or {}).get("present"))


def reconstruction_loss(
    model: Model, x: Tensor, generator: torch.Generator | None = None, conditions: ConditionTensors | None = None
) -> Tensor:
    """-log p_O(x) at t = 1, nats a dimension, (batch,).

    For classes the probability of the data. For continuous data a density: that of a normal about x_hat with the
    standard deviation sigma_1 that the flow leaves unknown.
    """
    t = torch.ones(len(x), dtype=torch.float64, device=x.device)
    output, _ = noised_output(model, x, t, generator, conditions)
    return -mean_over_present(output.log_prob(x), (conditions or {}).get("present"))


def _check_t(t: Tensor, batch: int, flow: Flow) -> Tensor:
    t = as_tensor("t", t)
    if t.ndim == 0:
        t = t.expand(batch)
    if tuple(t.shape) not in {(batch,), (batch, *flow.time_shape)}:
        own = f", or one a part, {(batch, *flow.time_shape)}" if flow.time_shape else ""
        raise UserError(f"t of shape {tuple(t.shape)}: expected one time a sample, ({batch},){own}")
    if not bool(((t >= 0) & (t <= 1)).all()):
        raise UserError(f"t from {float(t.min())} to {float(t.max())}: expected times in [0, 1]")
    return t
