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


def present_up_to(lengths: Any, n: int, data_shape: Any, parts: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """What is present of n samples of these lengths, one for all or one each, by part: bool (n, longest)."""
    lengths = as_tensor("lengths", lengths)
    shapes = _by_part(data_shape)
    longest = {name: shapes[name][0] if shapes[name] else 1 for name in parts}
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
    """What is present of n samples, like packed data.

    present: bool (n, ...), as many axes as tell variables apart, from the first one on: (n, length) serves data of
    shape (length, 3). Of joint data a mapping of parts; a part that is left out is all there.
    """
    packed = pack_mask("present", present, data_shape, n, device, left_out=True)
    empty = (~packed.reshape(n, -1).any(1)).nonzero()
    if len(empty):
        raise UserError(f"present: sample {int(empty[0])} has length 0; expected some of its data to exist")
    return packed


def pack_mask(
    what: str, mask: Any, data_shape: Any, n: int, device: torch.device | None = None, *, left_out: bool = False
) -> Tensor:
    """A mask of n samples, of joint data a mapping of parts, like packed data. left_out: of parts without a mask."""
    shapes = _by_part(data_shape)
    given = mask if isinstance(mask, Mapping) else {"": mask}
    foreign = next((name for name in given if name not in shapes), None)
    if foreign is not None:
        named = ", ".join(shapes) or "a mapping"
        expected = f"expected some of the parts {named}" if "" not in shapes else "expected one bool tensor"
        raise UserError(f"{what} {'of ' + repr(foreign) if foreign else 'without parts'}: {expected}")
    masks = []
    for name, shape in shapes.items():
        own = as_tensor(what, given.get(name, left_out), device=device)
        of = f"{what} of part {name!r}" if name else what
        if own.dtype is not torch.bool:
            raise UserError(f"{of} of type {own.dtype}: expected torch.bool, True where there is data")
        if own.ndim and (len(own) != n or tuple(own.shape[1:]) != tuple(shape[: own.ndim - 1])):
            raise UserError(f"{of} of shape {tuple(own.shape)}: expected (n, *data_shape) = {(n, *shape)}")
        own = own.reshape(*own.shape, *(1,) * (1 + len(shape) - own.ndim)).expand(n, *shape)
        masks.append(own.reshape(n, -1))
    packed = torch.cat(masks, 1)
    return packed if isinstance(data_shape, Mapping) else packed.reshape(n, *data_shape)


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
    """What exists of n samples, like packed data; None where it is all of them. own: the data's lengths."""
    if present is None and lengths is None and own is None:
        return None
    if present is None:
        if own is None and isinstance(data_shape, Mapping):
            raise UserError(
                f"lengths={lengths}: the parts {', '.join(data_shape)} of this model have none; leave them out, or say "
                "with present={part: mask} what there is of each"
            )
        drawn = own.draw(n, generator, device) if lengths is None and own is not None else lengths
        masks = present_up_to(drawn, n, data_shape, ("",) if own is None else own.parts)
        present = masks if isinstance(data_shape, Mapping) else masks[""]
    elif lengths is not None:
        raise UserError("present beside lengths: both say what there is of the samples; give one of them")
    return pack_present(flow, present, data_shape, n, device)


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


def _by_part(data_shape: Any) -> Mapping[str, tuple[int, ...]]:
    return data_shape if isinstance(data_shape, Mapping) else {"": tuple(data_shape)}
