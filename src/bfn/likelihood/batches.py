"""Data a batch at a time, and what is found of one."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bfn.errors import UserError

BATCH_NUMBERS = 1 << 16
"""Numbers in the states of a batch where its size is not given."""

Part = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Of a batch: log_prob, its error, calls, reconstruction (NaN where there is none), whether log_prob is a density's."""


def batches(
    x: Tensor, label: Tensor | None, states: int | None, numbers: int, device: torch.device, draws: int = 1
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Data and labels, as many at a time as make up so many states, of so many numbers, ``draws`` a sample."""
    size = max(1, (BATCH_NUMBERS // numbers if states is None else states) // draws)
    for first in range(0, len(x), size):
        rows = slice(first, first + size)
        yield x[rows].to(device), None if label is None else label[rows].to(device)


def check_batch(batch: int | None) -> None:
    """Refuse batches of nothing."""
    if batch is not None and batch < 1:
        raise UserError(f"batch={batch}: expected at least 1 state at a time, or None")
