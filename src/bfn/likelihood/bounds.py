"""Bounds on the log-likelihood: the cost of sending the data in messages.

The continuous-time bound is the loss and the reconstruction. The n-step bound sends the data in n messages. For
continuous data the receiver of a message of accuracy alpha may be N(x_hat, (1/alpha + r) I) with any r >= 0 that does
not depend on x:

    KL = 1/2 sum_d [ log(1 + alpha r) + (1 + alpha (x_d - x_hat_d)^2) / (1 + alpha r) - 1 ]

r = 0 is the usual loss, alpha/2 ||x - x_hat||^2. The best r is the mean squared error of a dimension, with which the
average is D/2 log(1 + alpha r). ``receiver_variance`` measures it on other data, so that the result is a bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bfn._utils.arguments import check_whole
from bfn._utils.pieces import evaluating
from bfn.core.conditions import Label
from bfn.core.control import Model
from bfn.core.errors import UserError
from bfn.core.losses import continuous_time_loss_values, n_present, noised_output, squared_error, sum_over_present
from bfn.likelihood.bits import Batch, Likelihood, batch_size, check_data, is_continuous, take


def continuous_bound(batch: Batch, nfe: int) -> Likelihood:
    """Return the continuous-time bound from nfe - 1 stratified times for each sample, and the reconstruction."""
    x, generator = batch.x, batch.generator
    shift = torch.rand(len(x), generator=generator, dtype=torch.float64, device=x.device)
    losses = []
    for i in range(nfe - 1):
        t = (i + shift) / (nfe - 1)
        losses.append(continuous_time_loss_values(batch.model, x, t, generator, batch.conditions))
        batch.on_call(len(x))
    return _with_reconstruction(batch, losses, 1.0)


def n_step_bound(batch: Batch, nfe: int, variance: Tensor | None) -> Likelihood:
    """Return the bound from nfe - 1 messages and the reconstruction. variance: of the receivers, (nfe - 1,)."""
    x, generator, steps = batch.x, batch.generator, nfe - 1
    terms = []
    for i in range(steps):
        t = torch.full((len(x),), i / steps, dtype=torch.float64, device=x.device)
        output, _ = noised_output(batch.model, x, t, generator, batch.conditions)
        alpha = batch.model.flow.gain(t, t + 1 / steps, x.ndim - 1)
        if variance is None:
            terms.append(output.message_kl(x, alpha.to(output.mean.dtype), generator))
        else:
            wider = 1 + alpha * float(variance[i])
            square = (x - output.mean).double().square()
            terms.append((wider.log() + (1 + alpha * square) / wider - 1) / 2)
        batch.on_call(len(x))
    return _with_reconstruction(batch, terms, float(steps))


@torch.no_grad()
def receiver_variance(
    model: Model,
    x: Tensor,
    n_steps: int,
    label: Label | None = None,
    generator: torch.Generator | None = None,
    batch: int | None = None,
) -> Tensor:
    """Return the best variance of the receiver of each of n messages: the mean squared error of a dimension.

    Args:
        model: a model of continuous data.
        x: data, other than those whose likelihood is to be bounded: with the same data it would be no bound.
        n_steps: number of messages.
        label: classes of the data.
        generator: source of the noise.
        batch: maximum number of samples that go through the network together.

    Returns:
        The variances, (n_steps,), float64.
    """
    if not is_continuous(model.flow):
        raise UserError("receiver_variance: it is for continuous data; the receiver of classes has no variance")
    check_whole("n_steps", n_steps, 1, 10**6)
    conditions = check_data(model, x, label, batch=batch)
    totals = torch.zeros(n_steps, dtype=torch.float64, device=model.device)
    with evaluating(model):
        for rows in torch.split(torch.arange(len(x)), batch_size(batch, x[0].numel())):
            some, own = take(x, conditions, rows, model.device)
            for i in range(n_steps):
                t = torch.full((len(some),), i / n_steps, dtype=torch.float64, device=model.device)
                totals[i] += squared_error(model, some, t, generator, own).double().sum()
    return totals / len(x)


def _with_reconstruction(batch: Batch, costs: list[Tensor], scale: float) -> Likelihood:
    """Return the bound -(scale * mean cost + reconstruction).

    The error comes from the differences of neighbouring times, whose means are nearly equal. It does not include the
    error of the reconstruction, which has a single draw.

    Args:
        batch: the data.
        costs: the cost of each variable at each call, each like x.
        scale: factor of the mean over the calls.
    """
    x, present = batch.x, batch.conditions.get("present")
    terms = torch.stack([sum_over_present(cost.double(), present) for cost in costs], 1)
    t = torch.ones(len(x), dtype=torch.float64, device=x.device)
    output, _ = noised_output(batch.model, x, t, batch.generator, batch.conditions)
    reconstruction = -sum_over_present(output.log_prob(x).double(), present)
    error = scale * (terms.diff(dim=1).square().mean(1) / 2 / len(costs)).sqrt()
    calls = torch.full((len(x),), len(costs) + 1, device=x.device)
    n_dims = float(torch.as_tensor(n_present(x, present)).double().mean())
    log_prob = -(scale * terms.mean(1) + reconstruction)
    return Likelihood(log_prob, error, calls, n_dims, True, output.is_density, reconstruction)
