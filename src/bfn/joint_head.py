"""Heads of joint data: one a part, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel, Shape
from bfn.heads import Head, Output, make_head
from bfn.joint import JointFlow, Part, flat
from bfn.joint_flat import FlatMap

__all__ = ["JointHead"]


@dataclass(frozen=True)
class JointHead(Head):
    """A head a part. flat: the network takes and gives one vector (batch, ...) instead of mappings of parts.

    levels: a flat network is told of each number how well it is known, behind all else: log(1 + s) / 4. Otherwise it
    could not tell a number that is given from noise.

    A flat network sees the parts' inputs side by side and gives their outputs the same way; where heads allow it, this
    takes a few operations for all parts together.
    """

    kind: ClassVar[str] = "joint"
    parts: Mapping[str, Head]
    flat: bool = False
    levels: bool = False

    @classmethod
    def make(
        cls, predicts: Mapping[str, str | Head], flow: Flow, flat: bool = False, levels: bool = False
    ) -> JointHead:
        """Heads from their names, checked against the flow of each part."""
        if set(predicts) != set(flow.parts):
            raise UserError(f"predicts={dict(predicts)}: expected a head for each of the parts {', '.join(flow.parts)}")
        heads = {name: make_head(predicts[name], own) for name, own in flow.parts.items()}
        return cls(heads, flat, levels)

    @property
    def starts_at_zero(self) -> bool:  # type: ignore[override]
        return all(head.starts_at_zero for head in self.parts.values())

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Any:
        whole = self._flat_map(flow)
        if whole is not None:
            shown = whole.inputs(u, level)
        else:
            parts = {p.name: self.parts[p.name].inputs(p.flow, p.state_of(u), p.level_of(level)) for p in _layout(flow)}
            if not self.flat:
                return parts
            shown = torch.cat([flat(x) for x in parts.values()], 1)
        return torch.cat((shown, _number_levels(flow, u, level)), 1) if self.levels else shown

    def shown_presence(self, flow: Flow, present: Tensor, u: Tensor) -> Any:
        """Like the inputs: of a flat network one vector."""
        return flow.over_variables(present, u) if self.flat else flow.unpack(present)

    def output(self, flow: Flow, raw: Any, u: Tensor, level: NoiseLevel) -> Output:
        layout = _layout(flow)
        whole = self._flat_map(flow)

        def parts() -> dict[str, Output]:
            given = self._split(layout, raw) if self.flat else raw
            heads = ((part, self.parts[part.name]) for part in layout)
            return {p.name: own.output(p.flow, given[p.name], p.state_of(u), p.level_of(level)) for p, own in heads}

        if whole is None:
            return JointOutput(layout, parts())
        return FlatOutput(layout, _Later(layout, parts), whole, raw, u, level)

    def _flat_map(self, flow: Flow) -> FlatMap | None:
        """All parts at once, for a network of one vector where the heads allow it; kept for the flow of the model."""
        kept: tuple[Flow, FlatMap | None] | None = self.__dict__.get("_kept")
        if kept is None or kept[0] is not flow:
            kept = flow, FlatMap.make(_layout(flow), self.parts) if self.flat else None
            self.__dict__["_kept"] = kept
        return kept[1]

    def check_raw(self, flow: Flow, raw: Any, state_shape: Shape, batch: int) -> str | None:
        if self._flat_map(flow) is not None:
            return super().check_raw(flow, raw, state_shape, batch)
        if self.flat:
            expected: object = (batch, sum(math.prod(self._raw_shape(part)) for part in _layout(flow)))
            found: object = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        else:
            expected = {part.name: (batch, *self._raw_shape(part)) for part in _layout(flow)}
            found = {k: tuple(v.shape) for k, v in raw.items()} if isinstance(raw, Mapping) else type(raw).__name__
        return None if found == expected else f"has shape {found}: expected {expected}"

    def _raw_shape(self, part: Part) -> Shape:
        return self.parts[part.name].raw_shape(part.state_shape)

    def _split(self, layout: tuple[Part, ...], raw: Tensor) -> dict[str, Tensor]:
        shapes = {part.name: self._raw_shape(part) for part in layout}
        pieces = torch.split(raw, [math.prod(shape) for shape in shapes.values()], 1)
        return {name: x.reshape(-1, *shape) for (name, shape), x in zip(shapes.items(), pieces, strict=True)}


@dataclass(frozen=True)
class JointOutput(Output):
    """Independent parts, each with its own distribution."""

    layout: tuple[Part, ...]
    parts: Mapping[str, Output]

    @property
    def is_density(self) -> bool:  # type: ignore[override]
        """Whether that of any part is a density's."""
        return any(self.parts[part.name].is_density for part in self.layout)

    @cached_property
    def mean(self) -> Tensor:
        return self._each(lambda output: output.mean)

    @property
    def mode(self) -> Tensor:
        return self._each(lambda output: output.mode)

    def nearest(self, prediction: Tensor) -> Tensor:
        return torch.cat([flat(own.nearest(part.state_of(prediction))) for part, own in self._pairs()], 1)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        return self._each(lambda output: output.draw(generator))

    def log_prob(self, x: Tensor) -> Tensor:
        return torch.cat([flat(own.log_prob(part.data_of(x))) for part, own in self._pairs()], 1)

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        accuracy = accuracy.expand(len(x), x.shape[1])
        return torch.cat([
            flat(own.message_kl(part.data_of(x), accuracy[:, part.data].reshape(-1, *part.shape), generator))
            for part, own in self._pairs()
        ], 1)  # fmt: skip

    def fit_errors(self, x: Tensor) -> Tensor:
        """What training makes small, like x: -log p of classes, the squared errors of numbers."""
        return torch.cat([
            flat(part.flow.errors(part.data_of(x), own.mean) if part.flow.has_range else -own.log_prob(part.data_of(x)))
            for part, own in self._pairs()
        ], 1)  # fmt: skip

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> Output:
        return self._made_of(lambda p, own: own.with_mean(p.state_of(mean), p.level_of(level)))

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> Output:
        return self._made_of(lambda p, own: own.guided(scales, rescale, p.level_of(level)))

    def _made_of(self, act: Callable[[Part, Output], Output]) -> Output:
        return JointOutput(self.layout, {part.name: act(part, own) for part, own in self._pairs()})

    def _pairs(self) -> Iterator[tuple[Part, Output]]:
        return ((part, self.parts[part.name]) for part in self.layout)

    def _each(self, act: Callable[[Output], Tensor]) -> Tensor:
        return torch.cat([flat(act(own)) for _, own in self._pairs()], 1)


@dataclass(frozen=True)
class FlatOutput(JointOutput):
    """The same with a mean that all parts have in common; the parts are made where one asks for them."""

    whole: FlatMap
    raw: Tensor
    u: Tensor
    level: NoiseLevel

    @cached_property
    def mean(self) -> Tensor:
        return self.whole.prediction(self.raw, self.u, self.level)

    def fit_errors(self, x: Tensor) -> Tensor:
        """What training makes small, like x: -log p of classes, the squared errors of numbers."""
        return self.whole.fit_errors(self.raw, self.u, self.level, x)

    def nearest(self, prediction: Tensor) -> Tensor:
        return prediction  # numbers and classes alone


class _Later(Mapping[str, Output]):
    """The distributions of parts, made when the first of them is asked for."""

    def __init__(self, layout: tuple[Part, ...], make: Callable[[], dict[str, Output]]) -> None:
        self._names, self._make = [part.name for part in layout], make

    @cached_property
    def _made(self) -> dict[str, Output]:
        return self._make()

    def __getitem__(self, name: str) -> Output:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _number_levels(flow: Flow, u: Tensor, level: NoiseLevel) -> Tensor:
    """How well each number is known, (batch, numbers)."""
    s = torch.as_tensor(level.s, dtype=u.dtype, device=u.device).expand(
        -1 if isinstance(level.s, Tensor) else 1, u.shape[1]
    )
    own = torch.cat([s[:, part.state] for part in _layout(flow) if part.flow.has_range], 1)
    return (own.log1p() / 4).expand(len(u), -1)


def _layout(flow: Flow) -> tuple[Part, ...]:
    if not isinstance(flow, JointFlow):
        raise UserError(f"a head of named parts on a {flow.kind} flow: expected a JointFlow")
    return flow.layout
