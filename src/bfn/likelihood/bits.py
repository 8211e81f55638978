"""Bits a dimension, with their intervals: every figure in bits comes from here.

What data cost falls in two parts, transmission (the loss) and reconstruction, whose sum bounds -log p from above. The
figures of the paper are this sum. The rule for the interval is one: a mean of independent values has Student's. Times
are stratified over a batch, so that the samples of one batch are not independent, but the means of batches are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn.errors import UserError
from bfn.estimate import Estimate, mean_estimate
from bfn.eval_mode import evaluating
from bfn.losses import continuous_time_loss, n_step_loss, reconstruction_loss

if TYPE_CHECKING:
    from bfn.info import Label
    from bfn.model import Model

LEAST_BATCHES = 8
"""Batches that held-out data are cut into, at least: the interval comes from their means."""


def bits_estimate(nats: Tensor, n_dims: int = 1) -> Estimate:
    """The mean of independent values in nats, (n,), as bits; a dimension, where they are sums over ``n_dims``."""
    if n_dims < 1:
        raise UserError(f"n_dims={n_dims}: expected the number of dimensions of a sample, at least 1")
    return mean_estimate(nats).scaled(1 / (math.log(2) * n_dims))


def bits_parts(transmission: Tensor, reconstruction: Tensor, n_dims: int = 1) -> dict[str, Estimate]:
    """Transmission, reconstruction and their total in bits, from nats of the same samples or batches, (n,) each."""
    parts = {"transmission": transmission, "reconstruction": reconstruction, "total": transmission + reconstruction}
    return {name: bits_estimate(nats, n_dims) for name, nats in parts.items()}


@torch.no_grad()
def held_out_bits(
    model: Model,
    x: Tensor,
    label: Label | None = None,
    *,
    n_steps: int | None = None,
    repeats: int = 1,
    batch: int = 64,
    generator: torch.Generator | None = None,
    gather: Callable[[Tensor], Tensor] | None = None,
    progress: bool = False,
) -> dict[str, Estimate]:
    """Bits a dimension (a character, for text) of data that the model was not trained on.

    "transmission": the continuous-time loss, or that of n steps; "reconstruction"; "total", their sum. Unbiased
    estimates, from one time a sample and one call at t = 1.

    label: classes for a class-conditional network; None for the network without classes.
    repeats: times at which the loss of each sample is measured. batch: samples that go through the network at a time,
        at most; there are at least 8 batches, as far as the samples reach.
    generator: draws, for each batch, what the losses need, then the noise of the reconstruction.
    gather: where several processes share the data, what brings their rows (n_batches, 2) together.
    """
    for name, count in (("repeats", repeats), ("batch", batch)):
        if count < 1:
            raise UserError(f"{name}={count}: expected at least 1")
    if len(x) == 0:
        raise UserError("no data: expected at least 1 sample")
    model.flow.check(x, model.data_shape)
    labels = None if label is None else model.info.labels(label, len(x), device=model.device)
    n_batches = max(math.ceil(len(x) / batch), min(LEAST_BATCHES, len(x)))
    nats = []
    with evaluating(model), tqdm(total=len(x), desc="evaluating", unit="sample", disable=not progress) as bar:
        for rows in torch.arange(len(x)).tensor_split(n_batches):
            some = x[rows].to(model.device)
            its_label = None if labels is None else labels[rows.to(labels.device)]
            losses = [_loss(model, some, n_steps, generator, its_label) for _ in range(repeats)]
            end = reconstruction_loss(model, some, generator, its_label)
            nats.append(torch.stack((torch.stack(losses).mean(), end.mean())))
            bar.update(len(some))
    means = torch.stack(nats)
    transmission, reconstruction = (means if gather is None else gather(means)).unbind(1)
    return bits_parts(transmission, reconstruction)


def _loss(
    model: Model, x: Tensor, n_steps: int | None, generator: torch.Generator | None, label: Tensor | None
) -> Tensor:
    if n_steps is None:
        return continuous_time_loss(model, x, None, generator, label)
    return n_step_loss(model, x, n_steps, None, generator, label)
