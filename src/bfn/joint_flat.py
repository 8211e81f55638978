"""Joint data for a network of one vector: all parts in a few operations, however many parts there are.

Where numbers are read by a head that is linear in state and output, and classes from logits, the input of the network
and the prediction have one form, with vectors over the state for scale, skip and out:

    softmax over each variable's classes of (scale x)  +  skip u  +  out raw

x is the state for the input, the network's output for the prediction; skip and out are 0 where there are classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bfn.flows import ContinuousFlow, DiscreteFlow, NoiseLevel
from bfn.heads import DataHead, Head, LogitsHead, PreconditionedHead
from bfn.joint import Part
from bfn.joint_places import Places

__all__ = ["FlatMap"]

RANGE = 60.0
"""Logits up to this size need no shift before their exponentials are taken: float32 goes beyond e^87 both ways."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Runs of classes in a state of that width. starts, sizes: of each variable's run; the rest are numbers."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    width: int

    @cached_property
    def is_class(self) -> Tensor:
        """(width,): 1 where there are classes, 0 where there are numbers."""
        return (self._variable < len(self.sizes)).to(torch.float64)

    @cached_property
    def _variable(self) -> Tensor:
        """(width,): the number of the variable; of numbers, one more than there are variables of classes."""
        variable = torch.full((self.width,), len(self.sizes))
        for i, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            variable[start : start + size] = i
        return variable

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor]:
        """(width, n) of 0 and 1 that sums over each variable, and what to add: infinity for the numbers' place."""
        n = 16 * (len(self.sizes) // 16 + 1)  # a multiple of what a processor takes at once: three times as fast
        sums = torch.nn.functional.one_hot(self._variable, n).to(torch.float64) * self.is_class.unsqueeze(1)
        beside = torch.zeros(n, dtype=torch.float64)
        beside[len(self.sizes) :] = torch.inf
        return sums, beside

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor]:
        """Where each place of (variables, most classes) is in a state with one more place, and the way back."""
        most = max(self.sizes)
        there = torch.full((len(self.sizes), most), self.width)
        back = torch.full((self.width,), len(self.sizes) * most)
        for i, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            there[i, :size] = torch.arange(start, start + size)
            back[start : start + size] = i * most + torch.arange(size)
        return there.flatten(), back

    def log_sums(self, z: Tensor) -> Tensor:
        """log sum exp over each variable's classes of logits (batch, width): (batch, variables)."""
        if _products_are_exact(z) and _in_range(z):
            return torch.matmul(z.exp(), self._sums[0].to(z.dtype))[:, : len(self.sizes)].log()
        padded = torch.nn.functional.pad(z, (0, 1), value=-torch.inf).index_select(1, self._padded[0].to(z.device))
        return padded.view(len(z), len(self.sizes), -1).logsumexp(-1)

    def softmax(self, z: Tensor, may_overwrite: bool = False) -> Tensor:
        """Probabilities of each variable's classes from logits (batch, width), 0 where there are numbers."""
        if _products_are_exact(z) and _in_range(z):
            powers = z.exp_() if may_overwrite else z.exp()
            sums, beside = (x.to(z.dtype) for x in self._sums)
            shares = torch.addmm(beside, powers, sums).reciprocal().index_select(1, self._variable)
            return powers * shares if powers.requires_grad else powers.mul_(shares)
        there, back = (x.to(z.device) for x in self._padded)
        padded = torch.nn.functional.pad(z, (0, 1), value=-torch.inf).index_select(1, there)
        probs = torch.softmax(padded.view(len(z), len(self.sizes), -1), -1).flatten(1)
        return torch.nn.functional.pad(probs, (0, 1)).index_select(1, back)


def _products_are_exact(z: Tensor) -> bool:
    """Whether a matrix product sums as it should, and a look at a value costs no wait for another device."""
    whole = z.dtype is torch.float64 or (z.dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest")
    return whole and z.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def _in_range(z: Tensor) -> bool:
    low, high = z.detach().aminmax()
    return float(low) > -RANGE and float(high) < RANGE


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers that one head reads. place: from the first to the last of them. among: 1 for them, 0 for others there."""

    head: DataHead | PreconditionedHead
    place: slice
    among: Tensor

    def add_input(self, shown: Tensor, u: Tensor, s: Tensor) -> None:
        """What the network is shown of them."""
        s = s[:, self.place]
        scale = s / (1 + s * s) if isinstance(self.head, DataHead) else (1 + (s * self.head.data_std) ** 2) ** -0.5
        shown[:, self.place].addcmul_(u[:, self.place], scale * self.among.to(u))

    def add_prediction(self, predicted: Tensor, raw: Tensor, u: Tensor, s: Tensor) -> None:
        """x_hat."""
        own, out = predicted[:, self.place], self.among.to(u)
        if isinstance(self.head, PreconditionedHead):
            s = s[:, self.place]
            variance = 1 + (s * self.head.data_std) ** 2
            own.addcmul_(u[:, self.place], s * self.head.data_std**2 / variance * out)
            out = self.head.data_std * variance**-0.5 * out
        own.addcmul_(raw[:, self.place], out)


@dataclass(frozen=True, eq=False)
class FlatMap:
    """The map of all parts."""

    segments: Segments
    numbers: tuple[Numbers, ...]
    places: Places

    @classmethod
    def make(cls, layout: tuple[Part, ...], heads: Mapping[str, Head]) -> FlatMap | None:
        """The map, if all parts have this form and there are classes."""
        width = layout[-1].state.stop
        places = Places.make([(part.flow, math.prod(part.shape)) for part in layout])
        starts: list[int] = []
        sizes: list[int] = []
        numbers: dict[DataHead | PreconditionedHead, list[int]] = {}
        for part in layout:
            head, k = heads[part.name], part.flow.n_values
            if type(part.flow) is DiscreteFlow and type(head) is LogitsHead and k is not None:
                own = range(part.state.start, part.state.stop, k)
                starts, sizes = [*starts, *own], [*sizes, *[k] * len(own)]
            elif type(part.flow) is ContinuousFlow and type(head) in (DataHead, PreconditionedHead):
                assert isinstance(head, DataHead | PreconditionedHead)
                numbers.setdefault(head, []).extend(range(part.state.start, part.state.stop))
            else:
                return None
        return (
            cls(
                Segments(tuple(starts), tuple(sizes), width),
                tuple(_numbers(head, places) for head, places in numbers.items()),
                places,
            )
            if sizes and places is not None
            else None
        )

    def inputs(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """What the network is shown, (batch, width)."""
        s = self._s(u, level)
        z = u * (s * self.segments.is_class.to(u))
        # Classes that are known have logits beyond all bounds: at e^-59 they are 0 as well.
        shown = self.segments.softmax(z.clamp_(min=1 - RANGE), may_overwrite=True)
        for own in self.numbers:
            own.add_input(shown, u, s)
        return shown

    def prediction(self, raw: Tensor, u: Tensor, level: NoiseLevel) -> Tensor:
        """x_hat and class probabilities, (batch, width)."""
        predicted = self.segments.softmax(raw)
        for own in self.numbers:
            own.add_prediction(predicted, raw, u, self._s(u, level))
        return predicted

    def log_prob(self, raw: Tensor, x: Tensor) -> Tensor:
        """log p of the classes in the data (batch, N), and nothing of use where these are numbers."""
        chosen = raw.gather(1, self.places.indices(x))
        return chosen - self.segments.log_sums(raw).index_select(1, self._class_number.to(raw.device))

    def fit_errors(self, raw: Tensor, u: Tensor, level: NoiseLevel, x: Tensor) -> Tensor:
        """What training makes small, (batch, N): -log p of classes, the squared errors of numbers."""
        predicted = torch.zeros_like(raw)
        for own in self.numbers:
            own.add_prediction(predicted, raw, u, self._s(u, level))
        is_class = (self.places.n_values > 1).to(x.device)
        wrong = predicted.index_select(1, self.places.first.to(x.device)) - x
        return torch.where(is_class, -self.log_prob(raw, x), wrong.square())

    @cached_property
    def _class_number(self) -> Tensor:
        """(N,): which of the variables of classes each one is; 0 for numbers."""
        is_class = self.places.n_values > 1
        return torch.where(is_class, is_class.cumsum(0) - 1, 0)

    def _s(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """(1 or batch, width)."""
        return torch.as_tensor(level.s, dtype=u.dtype, device=u.device).expand(-1, self.segments.width)


def _numbers(head: DataHead | PreconditionedHead, places: list[int]) -> Numbers:
    among = torch.zeros(places[-1] + 1, dtype=torch.float64)
    among[places] = 1
    return Numbers(head, slice(places[0], places[-1] + 1), among[places[0] :])
