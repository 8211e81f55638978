"""Likelihoods in nats and bits, the bits of held-out data, and the batches that all of them are measured on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn._utils.arguments import MOST_COUNT, check_whole
from bfn._utils.estimate import Estimate, mean_estimate
from bfn._utils.pieces import evaluating
from bfn._utils.progress import Progress, Shown
from bfn.core.conditions import ConditionTensors, Label, conditions_for, pack_present
from bfn.core.control import Model, Rows
from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.losses import continuous_time_loss, n_step_loss, reconstruction_loss

# --- data, a batch at a time ------------------------------------------------------------------------------------------

STATE_NUMBERS = 1 << 16
"""Numbers in the states of a batch if its size is not given."""

LEAST_BATCHES = 8
"""Minimum number of batches that held-out data are split into: their means give the interval."""


@dataclass(frozen=True)
class Batch:
    """Samples that are measured together.

    Attributes:
        model: the model.
        x: data, packed, (batch, ...).
        conditions: conditions of the network by name, each (batch, ...).
        generator: source of the random numbers.
        on_call: called after each network call with the number of states in it.
    """

    model: Model
    x: Tensor
    conditions: ConditionTensors
    generator: torch.Generator | None
    on_call: Callable[[int], object]


def is_continuous(flow: Flow) -> bool:
    """Return True for data of one part that are real numbers."""
    return [part.has_range for part in flow.parts.values()] == [True]


def check_data(
    model: Model, x: Tensor, label: Any, condition: Any = None, present: Any = None, **counts: int | None
) -> dict[str, Tensor]:
    """Check data, and counts that must be positive whole numbers or None.

    Returns:
        The conditions of each sample by name; null for conditions that are not given.
    """
    shape = model.flow.shape_of(x, model.data_shape)
    model.flow.check(x, shape)
    if len(x) == 0:
        raise UserError("no data: expected at least 1 sample")
    for name, count in counts.items():
        if count is not None:
            check_whole(name, count, 1, MOST_COUNT)
    given = conditions_for(model, len(x), label, condition, draw=False) if label is not None or condition else {}
    if present is not None:
        given["present"] = pack_present(model.flow, present, shape, len(x), model.device)
    return given


def n_states_of(model: Model) -> int:
    """Return the number of dimensions of a state."""
    return math.prod(model.flow.state_shape(model.data_shape))


def batch_size(batch: int | None, numbers: int, draws: int = 1) -> int:
    """Return the number of samples in a batch.

    Args:
        batch: maximum number of states; if None, as many as make ``STATE_NUMBERS``.
        numbers: size of a state.
        draws: number of states for each sample.
    """
    return max(1, (STATE_NUMBERS // numbers if batch is None else batch) // draws)


def take(x: Tensor, conditions: ConditionTensors, rows: Rows, device: torch.device) -> tuple[Tensor, ConditionTensors]:
    """Return some rows of the data and of their conditions, on the device."""
    return x[rows].to(device), {name: value[rows].to(device) for name, value in conditions.items()}


# --- nats and bits ----------------------------------------------------------------------------------------------------


def bits_estimate(nats: Tensor, n_dims: float = 1) -> Estimate:
    """Return the mean of independent values in nats, (n,), as bits for each of ``n_dims`` dimensions."""
    if n_dims < 1:
        raise UserError(f"n_dims={n_dims}: expected the number of dimensions of a sample, at least 1")
    return mean_estimate(nats).scaled(1 / (math.log(2) * n_dims))


def bits_parts(transmission: Tensor, reconstruction: Tensor, n_dims: float = 1) -> dict[str, Estimate]:
    """Return transmission, reconstruction and their total in bits, from nats of the same samples, (n,) each."""
    parts = {"transmission": transmission, "reconstruction": reconstruction, "total": transmission + reconstruction}
    return {name: bits_estimate(nats, n_dims) for name, nats in parts.items()}


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihoods of samples, in nats.

    Attributes:
        log_prob: log p(x), (n,); a lower bound, in expectation, if ``is_bound``.
        error: standard error of each sample due to its random draws, (n,): 0 if there are none, NaN if there is only
            one. For a bound it is that of the transmission, without the single draw of the reconstruction.
        nfe: number of network calls for each sample, (n,).
        n_dims: number of dimensions of a sample; the average if samples differ.
        is_bound: whether ``log_prob`` is a lower bound.
        is_density: whether it is the log of a density, not of a probability.
        reconstruction: the term -log p_O(x) of -log_prob, (n,), if the bound has one.
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
        """Join the likelihoods of several batches."""
        rows = [part._rows() for part in parts]
        values: dict[str, Any] = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        values["n_dims"] = sum(part.n_dims * len(part.log_prob) for part in parts) / len(values["log_prob"])
        return replace(parts[0], **values)

    def on_cpu(self) -> Likelihood:
        """Return the likelihood with its tensors on the CPU."""
        values: dict[str, Any] = {name: value.cpu() for name, value in self._rows().items()}
        return replace(self, **values)

    def arrays(self) -> dict[str, Any]:
        """Return the fields that have a value, by name, for a file."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def read(cls, path: Path) -> Likelihood:
        """Read a file of ``arrays``."""
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored}
        values: dict[str, Any] = {name: torch.from_numpy(a) if a.ndim else a.item() for name, a in arrays.items()}
        return cls(**values)

    def _rows(self) -> dict[str, Tensor]:
        """Return the fields with one value for each sample."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def nats(self) -> Estimate:
        """Mean of -log p of a sample, with its 95 % interval over the samples."""
        return mean_estimate(-self.log_prob)

    @property
    def bits(self) -> Estimate:
        """Mean of -log2 p of a dimension (a character, for text), with its 95 % interval over the samples."""
        return bits_estimate(-self.log_prob, self.n_dims)

    @property
    def parts(self) -> dict[str, Estimate]:
        """Bits of a dimension: "total", and for a bound also "transmission" and "reconstruction"."""
        if self.reconstruction is None:
            return {"total": self.bits}
        return bits_parts(-self.log_prob - self.reconstruction, self.reconstruction, self.n_dims)

    def __str__(self) -> str:
        """Describe the figures in one line."""
        kind = "density, in the units that the network sees" if self.is_density else "probability"
        low, high = int(self.nfe.min()), int(self.nfe.max())
        calls = f"{low}" if low == high else f"{low} to {high}"
        return f"-log p of a {kind}{', from above' if self.is_bound else ''}; {calls} calls a sample"

    def asdict(self) -> dict[str, Any]:
        """Return plain values for JSON, with None instead of NaN."""
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
    """Measure the bits of a dimension (a character, for text) of data that the model was not trained on.

    The estimates are unbiased, from one time and one call at t = 1 for each sample.

    Args:
        model: the model.
        x: data, packed, (n, ...).
        label, condition: conditions, as for ``bfn.sample``; the network gets none if they are None.
        present: bool, like the data, True where a sample has data.
        n_steps: measure the loss of that many steps instead of the continuous-time loss.
        repeats: number of times at which the loss of each sample is measured.
        batch: maximum number of samples that go through the network together. There are at least 8 batches, if there
            are as many samples.
        generator: source of the random numbers: for each batch those of the losses, then those of the reconstruction.
        gather: joins the rows (n_batches, 2) of several processes that share the data.
        progress: whether to show progress.

    Returns:
        "transmission" (the loss), "reconstruction", and "total", their sum.
    """
    conditions = check_data(model, x, label, condition, present, repeats=repeats, batch=batch)
    n_batches = max(math.ceil(len(x) / batch), min(LEAST_BATCHES, len(x)))
    loss = continuous_time_loss if n_steps is None else partial(n_step_loss, n_steps=n_steps)
    nats = []
    with evaluating(model), Progress(len(x), "evaluating", "sample", progress) as bar:
        for rows in torch.arange(len(x)).tensor_split(n_batches):
            some, own = take(x, conditions, rows, model.device)
            losses = [loss(model, some, generator=generator, conditions=own) for _ in range(repeats)]
            end = reconstruction_loss(model, some, generator, own)
            nats.append(torch.stack((torch.stack(losses).mean(), end.mean())))
            bar.update(len(some))
    means = torch.stack(nats)
    transmission, reconstruction = (means if gather is None else gather(means)).unbind(1)
    return bits_parts(transmission, reconstruction)
