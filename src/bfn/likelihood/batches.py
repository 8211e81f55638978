"""Data a batch at a time, and what is found of one."""

from collections.abc import Iterator

import torch
from torch import Tensor

BATCH_NUMBERS = 1 << 16
"""Numbers in the states of a batch where its size is not given."""

Part = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of a batch: log_prob, its error, calls, reconstruction (NaN where there is none); each (batch,) float64."""


def batches(x: Tensor, label: Tensor | None, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Data and labels, ``size`` samples at a time, at least 1."""
    for first in range(0, len(x), max(1, size)):
        rows = slice(first, first + max(1, size))
        yield x[rows].to(device), None if label is None else label[rows].to(device)
