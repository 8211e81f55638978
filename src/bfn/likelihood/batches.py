"""Data and their classes: checked, and a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bfn.errors import UserError

if TYPE_CHECKING:
    from bfn.info import Label
    from bfn.model import Model

__all__ = ["batches", "checked_labels"]

BATCH_NUMBERS = 1 << 16
"""Numbers in the states of a batch where its size is not given."""


def checked_labels(model: Model, x: Tensor, label: Label | None, **counts: int | None) -> Tensor | None:
    """The class of each sample, None for the network without classes; refuses other data, and counts below 1."""
    model.flow.check(x, model.data_shape)
    if len(x) == 0:
        raise UserError("no data: expected at least 1 sample")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"{name}={count}: expected at least 1")
    return None if label is None else model.info.labels(label, len(x), device=model.device)


def batches(
    x: Tensor, label: Tensor | None, states: int | None, numbers: int, device: torch.device, draws: int = 1
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Data and labels, as many at a time as make up so many states, of so many numbers, ``draws`` a sample."""
    size = max(1, (BATCH_NUMBERS // numbers if states is None else states) // draws)
    for first in range(0, len(x), size):
        rows = slice(first, first + size)
        yield x[rows].to(device), None if label is None else label[rows].to(device)
