"""Data and their conditions: checked, and a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn.arguments import check_whole
from bfn.conditions import ConditionTensors
from bfn.core.conditions import conditions_for
from bfn.errors import UserError
from bfn.presence import pack_present

if TYPE_CHECKING:
    from bfn.info import Label
    from bfn.model import Model

__all__ = ["Batch", "batch_size", "batches", "checked_conditions", "some_of"]

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


def some_of(x: Tensor, conditions: ConditionTensors, rows: slice, device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
    """Some of the data, and their conditions."""
    return x[rows].to(device), {name: value[rows].to(device) for name, value in conditions.items()}


def batches(
    x: Tensor, conditions: ConditionTensors, states: int | None, numbers: int, device: torch.device
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Data and conditions, as many at a time as make up so many states."""
    size = batch_size(states, numbers)
    for first in range(0, len(x), size):
        yield some_of(x, conditions, slice(first, first + size), device)
