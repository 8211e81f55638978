"""Data a batch at a time, and what is found of one."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BATCH_NUMBERS = 1 << 16
"""Numbers in the states of a batch where its size is not given."""


class BatchLikelihood(NamedTuple):
    """Of each sample of a batch, (batch,): see :class:`bfn.likelihood.Likelihood`.

    reconstruction: NaN where there is none. is_density: whether log_prob is a density's.
    """

    log_prob: Tensor
    error: Tensor
    nfe: Tensor
    reconstruction: Tensor
    is_density: Tensor


def batches(
    x: Tensor, label: Tensor | None, states: int | None, numbers: int, device: torch.device, draws: int = 1
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Data and labels, as many at a time as make up so many states, of so many numbers, ``draws`` a sample."""
    size = max(1, (BATCH_NUMBERS // numbers if states is None else states) // draws)
    for first in range(0, len(x), size):
        rows = slice(first, first + size)
        yield x[rows].to(device), None if label is None else label[rows].to(device)
