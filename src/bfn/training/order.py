"""The order of a run's data, as a function of its seed."""

from functools import lru_cache

import torch
from torch import Tensor

from bfn.seeds import derived_generator

__all__ = ["grouped_batch", "order"]

WINDOW = 50
"""Batches among which samples are sorted by their length."""


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, n: int) -> Tensor:
    return torch.randperm(n, generator=derived_generator(seed, "order", epoch))


def order(seed: int, start: int, count: int, n: int) -> list[tuple[int, Tensor]]:
    """Items number start .. start + count of an endless run through n items, newly shuffled each time round.

    As (epoch, item numbers): more than one pair where the stretch crosses the end of an epoch.
    """
    pieces = []
    while count > 0:
        epoch, first = divmod(start, n)
        piece = _permutation(seed, epoch, n)[first : first + count]
        pieces.append((epoch, piece))
        start, count = start + len(piece), count - len(piece)
    return pieces


def grouped_batch(seed: int, step: int, batch: int, lengths: Tensor) -> Tensor:
    """Item numbers of a step's batch, (batch,), for items of these lengths: those of a batch are about as long.

    Each time round, every item comes once, as in :func:`order`; some batches are drawn together, sorted by length, cut
    and shuffled.
    """
    width = max(1, min(WINDOW, len(lengths) // batch))
    window, place = divmod(step, width)
    return _window(seed, window, width, batch, lengths)[place]


def _window(seed: int, window: int, width: int, batch: int, lengths: Tensor) -> Tensor:
    """(width, batch): item numbers of some batches."""
    pieces = order(seed, window * width * batch, width * batch, len(lengths))
    items = torch.cat([index for _, index in pieces])
    items = items[lengths[items].sort(stable=True).indices].view(width, batch)
    return items[torch.randperm(width, generator=derived_generator(seed, "batches", window))]
