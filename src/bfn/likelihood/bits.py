"""Data and their conditions: checked, and a batch at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bfn._utils.arguments import check_whole
from bfn._utils.estimate import Estimate, mean_estimate
from bfn._utils.pieces import evaluating
from bfn._utils.progress import Progress, Shown
from bfn.core.conditions import ConditionTensors, conditions_for, pack_present, rows_of
from bfn.core.errors import UserError
from bfn.core.losses import continuous_time_loss, n_step_loss, reconstruction_loss

if TYPE_CHECKING:
    from bfn.core.conditions import Label
    from bfn.core.model import Model


BATCH_NUMBERS = 1 << 16
"""Numbers in the states of a batch where its size is not given."""


@dataclass(frozen=True)
class Batch:
    """Samples that are measured at a time, and what it takes to measure them.

    conditions: what the network is told of each. generator: draws what is drawn.
    on_call: told, after each network call, of how many states it was.
    """

    model: Model
    x: Tensor
    conditions: ConditionTensors
    generator: torch.Generator | None
    on_call: Callable[[int], object]


def checked_conditions(
    model: Model,
    x: Tensor,
    label: Label | None,
    condition: Mapping[str, Any] | None = None,
    present: Any = None,
    **counts: int | None,
) -> dict[str, Tensor]:
    """What the network is told of each sample, null where nothing is said; refuses other data, and counts below 1."""
    shape = model.flow.shape_of(x, model.data_shape)
    model.flow.check(x, shape)
    if len(x) == 0:
        raise UserError("no data: expected at least 1 sample")
    for name, count in counts.items():
        if isinstance(count, int) and count < 1:
            raise UserError(f"{name}={count}: expected at least 1")
        if count is not None:
            check_whole(name, count, 1, 10**9)
    nothing = label is None and not condition
    given = {} if nothing else conditions_for(model, len(x), label, condition, draw=False)
    if present is not None:
        given["present"] = pack_present(model.flow, present, shape, len(x), model.device)
    return given


def batch_size(states: int | None, numbers: int, draws: int = 1) -> int:
    """Samples that make up so many states, of so many numbers, ``draws`` a sample; None for as many as suit."""
    return max(1, (BATCH_NUMBERS // numbers if states is None else states) // draws)


def some_of(
    x: Tensor, conditions: ConditionTensors, rows: slice, device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """Some of the data, and their conditions."""
    return x[rows].to(device), {name: value[rows].to(device) for name, value in conditions.items()}


def batches(
    x: Tensor, conditions: ConditionTensors, states: int | None, numbers: int, device: torch.device
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Data and conditions, as many at a time as make up so many states."""
    size = batch_size(states, numbers)
    for first in range(0, len(x), size):
        yield some_of(x, conditions, slice(first, first + size), device)


LEAST_BATCHES = 8
"""Batches that held-out data are cut into, at least: the interval comes from their means."""


def bits_estimate(nats: Tensor, n_dims: float = 1) -> Estimate:
    """The mean of independent values in nats, (n,), as bits; a dimension, where they are sums over ``n_dims``."""
    if n_dims < 1:
        raise UserError(f"n_dims={n_dims}: expected the number of dimensions of a sample, at least 1")
    return mean_estimate(nats).scaled(1 / (math.log(2) * n_dims))


def bits_parts(transmission: Tensor, reconstruction: Tensor, n_dims: float = 1) -> dict[str, Estimate]:
    """Transmission, reconstruction and their total in bits, from nats of the same samples or batches, (n,) each."""
    parts = {"transmission": transmission, "reconstruction": reconstruction, "total": transmission + reconstruction}
    return {name: bits_estimate(nats, n_dims) for name, nats in parts.items()}


@dataclass(frozen=True)
class Likelihood:
    """What is known of each sample's log-likelihood, in nats.

    log_prob: (n,). A lower bound, in expectation, where ``is_bound``.
    error: (n,), its standard error from what was drawn for the sample; 0 where nothing was, NaN where only one draw was
        made. Of a bound it is that of the transmission; the reconstruction's one draw comes on top.
    nfe: (n,), network calls made.
    n_dims: dimensions of a sample, on average where they differ. is_density: of a density, not of a probability.
    reconstruction: (n,), the part -log p_O(x) of -log_prob, where a bound has it.
    """

    log_prob: Tensor
    error: Tensor
    nfe: Tensor
    n_dims: float
    is_bound: bool
    is_density: bool
    reconstruction: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[Likelihood]) -> Likelihood:
        """Of all samples, from that of batches of them."""
        columns = zip(*((part.log_prob, part.error, part.nfe) for part in parts), strict=True)
        log_prob, error, nfe = (torch.cat(column) for column in columns)
        known = [part.reconstruction for part in parts if part.reconstruction is not None]
        reconstruction = torch.cat(known) if known else None
        n_dims = sum(part.n_dims * len(part.log_prob) for part in parts) / len(log_prob)
        return replace(parts[0], log_prob=log_prob, error=error, nfe=nfe, n_dims=n_dims, reconstruction=reconstruction)

    def on_cpu(self) -> Likelihood:
        """The same in main memory."""
        names = ("log_prob", "error", "nfe", "reconstruction")
        found = {name: getattr(self, name) for name in names}
        return replace(self, **{name: value.cpu() for name, value in found.items() if value is not None})

    def arrays(self) -> dict[str, Any]:
        """All of it, by name, for a file."""
        known = {} if self.reconstruction is None else {"reconstruction": self.reconstruction}
        facts = {"n_dims": self.n_dims, "is_bound": self.is_bound, "is_density": self.is_density}
        return {"log_prob": self.log_prob, "error": self.error, "nfe": self.nfe, **known, **facts}

    @classmethod
    def read(cls, path: Path) -> Likelihood:
        """What :meth:`arrays` are in a file."""
        with np.load(path, allow_pickle=False) as stored:
            values: dict[str, Any] = {name: torch.from_numpy(stored[name]) for name in stored}
        kinds = {"n_dims": float, "is_bound": bool, "is_density": bool}
        return cls(**{**values, **{name: kind(values[name]) for name, kind in kinds.items()}})

    @property
    def nats(self) -> Estimate:
        """Mean of -log p a sample, with its interval over the samples."""
        return mean_estimate(-self.log_prob)

    @property
    def bits(self) -> Estimate:
        """Mean of -log2 p a dimension (a character, for text), with its interval over the samples."""
        return bits_estimate(-self.log_prob, self.n_dims)

    @property
    def parts(self) -> dict[str, Estimate]:
        """Bits a dimension: "total", and of a bound "transmission" and "reconstruction" as well."""
        if self.reconstruction is None:
            return {"total": self.bits}
        return bits_parts(-self.log_prob - self.reconstruction, self.reconstruction, self.n_dims)

    def __str__(self) -> str:
        """One line for people: of what it is, and what it took."""
        what = "density, in the units that the network sees" if self.is_density else "probability"
        low, high = int(self.nfe.min()), int(self.nfe.max())
        calls = f"{low}" if low == high else f"{low} to {high}"
        return f"-log p of a {what}{', from above' if self.is_bound else ''}; {calls} calls a sample"

    def asdict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        return {
            "is_density": self.is_density,
            "is_bound": self.is_bound,
            "nats": self.nats.asdict(),
            "bits": {name: estimate.asdict() for name, estimate in self.parts.items()},
            "nfe": float(self.nfe.double().mean()),
            "log_prob": self.log_prob.tolist(),
            "log_prob_error": [None if math.isnan(error) else error for error in self.error.tolist()],
        }


@torch.no_grad()
def held_out_bits(
    model: Model,
    x: Tensor,
    label: Label | None = None,
    *,
    condition: Mapping[str, Any] | None = None,
    present: Any = None,
    n_steps: int | None = None,
    repeats: int = 1,
    batch: int = 64,
    generator: torch.Generator | None = None,
    gather: Callable[[Tensor], Tensor] | None = None,
    progress: Shown = False,
) -> dict[str, Estimate]:
    """Bits a dimension (a character, for text) of data that the model was not trained on.

    "transmission": the continuous-time loss, or that of n steps; "reconstruction"; "total", their sum. Unbiased
    estimates, from one time a sample and one call at t = 1.

    label, condition: what the network is told; nothing where they are None. present: where there is data.
    repeats: times at which the loss of each sample is measured. batch: samples that go through the network at a time,
        at most; there are at least 8 batches, as far as the samples reach.
    generator: draws, for each batch, what the losses need, then the noise of the reconstruction.
    gather: where several processes share the data, what brings their rows (n_batches, 2) together.
    """
    conditions = checked_conditions(model, x, label, condition, present, repeats=repeats, batch=batch)
    n_batches = max(math.ceil(len(x) / batch), min(LEAST_BATCHES, len(x)))
    nats = []
    with evaluating(model), Progress(len(x), "evaluating", "sample", progress) as bar:
        for rows in torch.arange(len(x)).tensor_split(n_batches):
            some = x[rows].to(model.device)
            its_own = rows_of(conditions, rows.to(model.device))
            losses = [
                continuous_time_loss(model, some, None, generator, its_own)
                if n_steps is None
                else n_step_loss(model, some, n_steps, None, generator, its_own)
                for _ in range(repeats)
            ]
            end = reconstruction_loss(model, some, generator, its_own)
            nats.append(torch.stack((torch.stack(losses).mean(), end.mean())))
            bar.update(len(some))
    means = torch.stack(nats)
    transmission, reconstruction = (means if gather is None else gather(means)).unbind(1)
    return bits_parts(transmission, reconstruction)
