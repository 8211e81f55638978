"""Presence: which of a sample's variables exist, where samples have different lengths.

``present`` is a bool tensor like the data, True where there is data. Padding counts in no loss and no likelihood, the
network is shown nothing there, and it comes back as 0. ``known`` is what is given of a sample, ``present`` what exists
of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bfn.arguments import as_tensor
from bfn.core.info import Fact
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.schedules import stratified_times

__all__ = ["Lengths", "mean_over_present", "n_present", "pack_mask", "pack_present", "present_of", "sum_over_present"]


@dataclass(frozen=True)
class Lengths:
    """How long the data's samples are: shares of the lengths 0, 1, 2, ..., and the parts of joint data that have them.

    A part that has a length has it along its first axis. parts: ("",) where data are of one kind.
    """

    shares: tuple[float, ...]
    parts: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if not self.shares or not all(share >= 0 for share in self.shares) or not 0.999 < sum(self.shares) < 1.001:
            raise UserError("shares of lengths: expected numbers from 0 up, of the lengths 0, 1, ..., that sum to 1")
        if self.shares[0]:
            raise UserError("shares of lengths: the data have samples of length 0; leave them out")

    @classmethod
    def of(cls, lengths: Tensor, parts: tuple[str, ...] = ("",)) -> Lengths:
        """The shares of the data's lengths, (samples,)."""
        counts = torch.bincount(lengths.long()).double()
        return cls(tuple((counts / counts.sum()).tolist()), parts)

    @property
    def longest(self) -> int:
        """The longest of the data."""
        return len(self.shares) - 1

    def draw(self, n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
        """n lengths in proportion to their shares, in random order: (n,) int64."""
        ends = torch.tensor(self.shares, dtype=torch.float64, device=device).cumsum(0)
        places = stratified_times(n, generator, device) * ends[-1]
        order = torch.randperm(n, generator=generator, device=device)
        return torch.searchsorted(ends, places, right=True).clamp(max=self.longest)[order]


def present_up_to(lengths: Any, n: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return what is present of n samples of these lengths, one for all or one each, by part: bool (n, longest).

    Args:
        shapes: shapes of the parts that have a length.
    """
    lengths = as_tensor("lengths", lengths)
    longest = {name: shape[0] if shape else 1 for name, shape in shapes.items()}
    most = min(longest.values())
    if lengths.is_floating_point() or tuple(lengths.shape) not in ((), (n,)):
        raise UserError(f"lengths of shape {tuple(lengths.shape)}: expected a whole number, or one each of the {n}")
    lengths = lengths.expand(n)
    if not (int(lengths.min()) >= 1 and int(lengths.max()) <= most):
        raise UserError(
            f"lengths from {int(lengths.min())} to {int(lengths.max())}: expected 1 to {most}, the model's longest"
        )
    return {
        name: torch.arange(size, device=lengths.device)[None, :] < lengths[:, None] for name, size in longest.items()
    }


def pack_present(flow: Flow, present: Any, data_shape: Any, n: int, device: torch.device | None = None) -> Tensor:
    """Return what is present of n samples, like packed data.

    Args:
        present: bool (n, ...), with as many leading axes as needed: (n, length) serves data of shape (length, 3). A
            mapping for joint data; parts that are left out are present.
    """
    packed = pack_mask("present", present, flow, data_shape, n, device, left_out=True)
    empty = (~packed.reshape(n, -1).any(1)).nonzero()
    if len(empty):
        raise UserError(f"present: sample {int(empty[0])} has length 0; expected some of its data to exist")
    return packed


def pack_mask(
    what: str,
    mask: Any,
    flow: Flow,
    data_shape: Any,
    n: int,
    device: torch.device | None = None,
    *,
    left_out: bool = False,
) -> Tensor:
    """Return a mask of n samples like packed data. ``left_out`` is the value for parts without a mask."""
    given, masks = flow.by_part(what, mask), {}
    for name, shape in flow.by_part("data_shape", data_shape).items():
        own = as_tensor(what, given.get(name, left_out), device=device)
        of = f"{what} of part {name!r}" if name else what
        if own.dtype is not torch.bool:
            raise UserError(f"{of} of type {own.dtype}: expected torch.bool, True where there is data")
        if own.ndim and (len(own) != n or tuple(own.shape[1:]) != tuple(shape[: own.ndim - 1])):
            raise UserError(f"{of} of shape {tuple(own.shape)}: expected (n, *data_shape) = {(n, *shape)}")
        masks[name] = own.reshape(*own.shape, *(1,) * (1 + len(shape) - own.ndim)).expand(n, *shape)
    return flow.lay(masks)


def present_of(
    flow: Flow,
    data_shape: Any,
    n: int,
    present: Any,
    lengths: Any,
    own: Lengths | None,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor | None:
    """Return what is present of n samples, like packed data; None if nothing is padded.

    Args:
        present, lengths: what the user gave.
        own: lengths of the training data, drawn from if neither is given.
    """
    if present is None and lengths is None and own is None:
        return None
    if present is not None:
        if lengths is not None:
            raise UserError("present beside lengths: both say what there is of the samples; give one of them")
        return pack_present(flow, present, data_shape, n, device)
    parts = ("",) if own is None else own.parts
    if any(name not in flow.parts for name in parts):
        raise UserError(
            f"lengths={lengths}: the parts {', '.join(flow.parts)} of this model have none; leave them out, or say "
            "with present={part: mask} what there is of each"
        )
    shapes = flow.by_part("data_shape", data_shape)
    drawn = own.draw(n, generator, device) if lengths is None and own is not None else lengths
    masks = present_up_to(drawn, n, {name: shapes[name] for name in parts})
    return pack_present(flow, flow.from_parts(masks), data_shape, n, device)


def mean_over_present(values: Tensor, present: Tensor | None) -> Tensor:
    """The mean over a sample's variables that exist: (batch, ...) -> (batch,)."""
    if present is None:
        return values.flatten(1).mean(1) if values.ndim > 1 else values
    return sum_over_present(values, present) / present.reshape(len(present), -1).sum(1)


def sum_over_present(values: Tensor, present: Tensor | None) -> Tensor:
    """The sum over a sample's variables that exist: (batch, ...) -> (batch,)."""
    flat = values.reshape(len(values), -1)
    return flat.sum(1) if present is None else torch.where(present.reshape(flat.shape), flat, 0.0).sum(1)


def n_present(x: Tensor, present: Tensor | None) -> Tensor | int:
    """How many variables a sample has: a number, or (batch,)."""
    return math.prod(x.shape[1:]) if present is None else present.reshape(len(present), -1).sum(1)


LENGTHS: Fact[Lengths | None] = Fact("lengths", Lengths | None, None)
"""Lengths of the training data, if they differ."""
