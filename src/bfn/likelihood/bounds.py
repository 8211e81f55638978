"""Bounds: what it costs to send the data by messages.

``bound`` is the continuous-time loss with the reconstruction; ``n-step`` sends the data in n messages. For continuous
data the receiver of a message of accuracy alpha may be N(x_hat, (1/alpha + r) I) with any r >= 0 that does not
depend on x:

    KL = 1/2 sum_d [ log(1 + alpha r) + (1 + alpha (x_d - x_hat_d)^2) / (1 + alpha r) - 1 ]

r = 0 is the usual loss, alpha/2 ||x - x_hat||^2. The best r is the mean squared error a dimension, which makes it
D/2 log(1 + alpha r) on average; :func:`receiver_variance` takes it from other data, so that the bound stays one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bfn._utils.arguments import check_whole
from bfn._utils.pieces import evaluating
from bfn.core.conditions import n_present, sum_over_present
from bfn.core.errors import UserError
from bfn.core.losses import continuous_time_loss_values, noised_output, squared_error
from bfn.likelihood.bits import Batch, Likelihood, batches, checked_conditions

if TYPE_CHECKING:
    from bfn.core.conditions import Label
    from bfn.core.model import Model


def continuous_bound(batch: Batch, nfe: int) -> Likelihood:
    """The continuous-time loss at nfe - 1 stratified times a sample, and the reconstruction."""
    model, x, conditions, generator = batch.model, batch.x, batch.conditions, batch.generator
    times = nfe - 1
    shift = torch.rand(len(x), generator=generator, dtype=torch.float64, device=x.device)
    losses = []
    for i in range(times):
        t = (i + shift) / times
        values = continuous_time_loss_values(model, x, t, generator, conditions).double()
        losses.append(sum_over_present(values, conditions.get("present")))
        batch.on_call(len(x))
    return _with_reconstruction(batch, torch.stack(losses, 1), 1.0)


def n_step_bound(batch: Batch, nfe: int, variance: Tensor | None) -> Likelihood:
    """KL(sender || receiver) of each of nfe - 1 messages, and the reconstruction."""
    model, x, conditions, generator = batch.model, batch.x, batch.conditions, batch.generator
    steps = nfe - 1
    terms = []
    for i in range(steps):
        t = torch.full((len(x),), i / steps, dtype=torch.float64, device=x.device)
        output, _ = noised_output(model, x, t, generator, conditions)
        alpha = model.flow.gain(t, t + 1 / steps, x.ndim - 1)
        if variance is None:
            kl = output.message_kl(x, alpha.to(output.mean.dtype), generator).double()
        else:
            wider = 1 + alpha * float(variance[i])
            square = (x - output.mean).double().square()
            kl = (wider.log() + (1 + alpha * square) / wider - 1) / 2
        terms.append(sum_over_present(kl, conditions.get("present")))
        batch.on_call(len(x))
    return _with_reconstruction(batch, torch.stack(terms, 1), float(steps))


@torch.no_grad()
def receiver_variance(
    model: Model,
    x: Tensor,
    n_steps: int,
    label: Label | None = None,
    generator: torch.Generator | None = None,
    batch: int | None = None,
) -> Tensor:
    """Mean squared error a dimension at the start of each of n steps, (n_steps,) float64: the best receiver variance.

    x: data other than those whose bound is then computed; with the same data it would be no bound.
    """
    if not model.flow.has_range:
        raise UserError(f"{model.flow.kind} data: their receiver is the exact mixture over classes, with no variance")
    if n_steps < 1:
        raise UserError(f"n_steps={n_steps}: expected at least 1 step")
    check_whole("n_steps", n_steps, 1, 10**6)
    conditions = checked_conditions(model, x, label, batch=batch)
    totals = torch.zeros(n_steps, dtype=torch.float64, device=model.device)
    with evaluating(model):
        for some, its_own in batches(x, conditions, batch, x[0].numel(), model.device):
            for i in range(n_steps):
                t = torch.full((len(some),), i / n_steps, dtype=torch.float64, device=model.device)
                totals[i] += squared_error(model, some, t, generator, its_own).double().sum()
    return totals / len(x)


def _with_reconstruction(batch: Batch, terms: Tensor, scale: float) -> Likelihood:
    """-(scale * mean of the terms (batch, calls) + reconstruction).

    The error is from differences of neighbours in time, whose means are nearly the same; it sees the terms' noise, and
    what little of the change with t lies between neighbours. The reconstruction has one draw, which tells no noise.
    """
    x, conditions = batch.x, batch.conditions
    t = torch.ones(len(x), dtype=torch.float64, device=x.device)
    output, _ = noised_output(batch.model, x, t, batch.generator, conditions)
    reconstruction = -sum_over_present(output.log_prob(x).double(), conditions.get("present"))
    calls = torch.full((len(x),), terms.shape[1] + 1, device=x.device)
    error = scale * (terms.diff(dim=1).square().mean(1) / 2 / terms.shape[1]).sqrt()
    log_prob = -(scale * terms.mean(1) + reconstruction)
    dims = n_present(x, conditions.get("present"))
    n_dims = float(dims.double().mean()) if isinstance(dims, Tensor) else dims
    return Likelihood(log_prob, error, calls, n_dims, True, output.is_density, reconstruction)
