"""Joint data: several named parts of any kind in one sample, through the same loop.

The process is linear and acts on each coordinate alone, so that the states of all parts lie side by side in one tensor
(batch, D), and a part is a view of a slice of it. The data are packed the same way into (batch, N), one number a
variable (classes as whole numbers): users give and get mappings of parts, the loop and the losses see one tensor.

    kappa, s, the message map, a row's coefficients     numbers of a part become vectors over D, constant on each part
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn.arguments import as_tensor
from bfn.errors import UserError, did_you_mean
from bfn.flows import Flow, NoiseLevel, Shape
from bfn.joint_places import Places
from bfn.schedules import Schedule, Time, stratified_times

__all__ = ["JointFlow"]

TIMES = ("together", "separate")
"""Whether the parts share one time, or have one each."""


def flat(x: Tensor) -> Tensor:
    """(batch, ...) -> (batch, numbers of a sample); one number a sample is a column."""
    return x.reshape(len(x), -1)


@dataclass(frozen=True)
class Part:
    """Where a part lies: its flow and shape, and its slices of the packed data and of the state."""

    name: str
    flow: Flow
    shape: Shape
    data: slice
    state: slice
    index: int = 0

    @property
    def state_shape(self) -> Shape:
        """Shape of the part's own state."""
        return self.flow.state_shape(self.shape)

    def data_of(self, x: Tensor) -> Tensor:
        """The part of packed data or of a mask, in its own shape; classes are whole numbers again."""
        own = x[:, self.data].reshape(-1, *self.shape)
        return own if self.flow.has_range or own.dtype is torch.bool else own.long()

    def state_of(self, u: Tensor) -> Tensor:
        """A view of the part's state, or of anything like it, in its own shape."""
        return u[:, self.state].reshape(-1, *self.state_shape)

    def scale_of(self, s: float | Tensor) -> float | Tensor:
        """The part of what broadcasts against the whole state; all classes of a variable have the same."""
        if not isinstance(s, Tensor):
            return s
        own = self.state_of(s)
        return own if self.flow.has_range else own[..., :1]

    def level_of(self, level: NoiseLevel) -> NoiseLevel:
        """The part's own noise level."""
        t = level.t if level.t.ndim == 1 else level.t[:, self.index]
        return NoiseLevel(t, self.scale_of(level.s))


@dataclass(frozen=True, init=False, eq=False)
class JointFlow(Flow):
    """Named parts, each with its flow; a model binds it to the parts' shapes.

    times: "together", one time for all parts; or "separate", a time a part: the network is told (batch, parts) of them,
        in training each part draws its own, and samples may take any path through them.

    >>> from bfn.flows import ContinuousFlow, DiscreteFlow
    >>> flow = JointFlow(x=ContinuousFlow(0.02), kind=DiscreteFlow(5)).for_shape({"x": (29, 3), "kind": (29,)})
    >>> flow.state_shape({"x": (29, 3), "kind": (29,)})
    (232,)
    """

    kind: ClassVar[str] = "joint"
    flows: Mapping[str, Flow]
    times: str = "together"

    def __init__(
        self,
        flows: Mapping[str, Flow] | None = None,
        *,
        times: str = "together",
        shapes: Mapping[str, Shape] | None = None,
        **named: Flow,
    ) -> None:
        own = {**({} if flows is None else flows), **named}
        if not own:
            raise UserError("JointFlow(): expected at least one named part, such as x=ContinuousFlow()")
        for name, flow in own.items():
            if not isinstance(flow, Flow) or isinstance(flow, JointFlow):
                raise UserError(f"part {name!r}: {flow!r}: expected a flow of one kind of data")
        if times not in TIMES:
            raise UserError(f"times={times!r}: expected one of {', '.join(TIMES)}{did_you_mean(times, TIMES)}")
        object.__setattr__(self, "flows", own)
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "_shapes", shapes)

    @property
    def parts(self) -> Mapping[str, Flow]:
        return self.flows

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JointFlow):
            return False
        return dict(self.parts) == dict(other.parts) and self.times == other.times

    __hash__ = None  # type: ignore[assignment]

    def with_schedules(self, schedules: Mapping[str, Schedule]) -> JointFlow:
        flows = {name: flow.with_schedules({"": schedules[name]}) for name, flow in self.parts.items()}
        return JointFlow(flows, times=self.times, shapes=getattr(self, "_shapes", None))

    def for_shape(self, data_shape: Shape | Mapping[str, Shape]) -> JointFlow:
        if not isinstance(data_shape, Mapping) or set(data_shape) != set(self.parts):
            raise UserError(f"data_shape={data_shape}: expected a shape for each of the parts {', '.join(self.parts)}")
        shapes = {name: tuple(data_shape[name]) for name in self.parts}
        return JointFlow(self.parts, times=self.times, shapes=shapes)

    @cached_property
    def layout(self) -> tuple[Part, ...]:
        """The parts in their order, with their places."""
        shapes: Mapping[str, Shape] | None = getattr(self, "_shapes", None)
        if shapes is None:
            raise UserError("a joint flow without shapes: a model binds it to them, or call flow.for_shape(...)")
        found: list[Part] = []
        n, d = 0, 0
        for name, flow in self.parts.items():
            size, width = math.prod(shapes[name]), math.prod(flow.state_shape(shapes[name]))
            found.append(Part(name, flow, shapes[name], slice(n, n + size), slice(d, d + width), len(found)))
            n, d = n + size, d + width
        return tuple(found)

    @property
    def leading_part(self) -> str:
        """The part with the most variables."""
        return max(self.layout, key=lambda part: part.data.stop - part.data.start).name

    @property
    def schedule(self) -> Schedule:  # type: ignore[override]
        """That of the leading part."""
        return self.parts[self.leading_part].schedule

    def over_state(self, rows: Sequence[Sequence[float]], like: Tensor) -> Sequence[float | Tensor]:
        alike = [len(set(row)) == 1 for row in rows]
        apart = [row for row, same in zip(rows, alike, strict=True) if not same]
        values = torch.tensor(apart, dtype=like.dtype, device=like.device).view(-1, len(self.parts))
        vectors = iter(values[:, self._part_of_state.to(like.device)])
        return [row[0] if same else next(vectors) for row, same in zip(rows, alike, strict=True)]

    @cached_property
    def _part_of_state(self) -> Tensor:
        """(D,): the number of the part that each place of the state belongs to."""
        return torch.repeat_interleave(torch.tensor(self._state_sizes))

    @cached_property
    def _state_sizes(self) -> list[int]:
        return [part.state.stop - part.state.start for part in self.layout]

    def over_data(self, values: Mapping[str, Tensor]) -> Tensor:
        sizes = [part.data.stop - part.data.start for part in self.layout]
        return _laid_out([values[part.name] for part in self.layout], sizes)

    @cached_property
    def kappa(self) -> Tensor:  # type: ignore[override]
        kappas = [torch.tensor(part.flow.kappa, dtype=torch.float64) for part in self.layout]
        return _laid_out(kappas, self._state_sizes).to(torch.get_default_dtype())

    @cached_property
    def message_map(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        pairs = [torch.tensor(part.flow.message_map, dtype=torch.float64) for part in self.layout]
        scale, shift = _laid_out(pairs, self._state_sizes).to(torch.get_default_dtype())
        return scale, shift

    @property
    def n_values(self) -> int | None:
        return None

    def noise_scale(self, like: Tensor) -> Tensor:
        return self.kappa.to(like).sqrt()

    def state_shape(self, data_shape: Any) -> Shape:
        return (self.layout[-1].state.stop,)

    @property
    def time_shape(self) -> Shape:
        return (len(self.parts),) if self.times == "separate" else ()

    def draw_times(self, n: int, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        if not self.time_shape:
            return super().draw_times(n, generator, device)
        # Stratified alone and in random order, so that the time of one part says nothing of another's.
        columns = [
            stratified_times(n, generator, device)[torch.randperm(n, generator=generator, device=device)]
            for _ in self.parts
        ]
        return torch.stack(columns, 1)

    def times_of(self, t: Tensor) -> Mapping[str, Tensor]:
        if t.ndim < 2:
            return dict.fromkeys(self.parts, t)
        if tuple(t.shape[1:]) != self.time_shape:
            raise UserError(
                f"times of shape {tuple(t.shape)}: this flow has one time for all parts; "
                "JointFlow(..., times='separate') has one a part"
                if not self.time_shape
                else f"times of shape {tuple(t.shape)}: expected (batch, {len(self.parts)}), one a part"
            )
        return dict(zip(self.parts, t.unbind(1), strict=True))

    def told(self, t: Tensor, known: Tensor) -> Tensor:
        """1 for a part that is wholly known, where parts have times of their own."""
        if t.ndim < 2:
            return t
        whole = torch.stack([known[:, part.data].all(1) for part in self.layout], 1)
        return torch.where(whole, 1.0, t)

    def noise_level(self, t: Time, batch: int, state_ndim: int, like: Tensor) -> NoiseLevel:
        many = isinstance(t, Tensor) and t.ndim > 0
        times = torch.as_tensor(t if many else [float(t)], dtype=torch.float64, device=like.device)
        s = _laid_out(
            [self.parts[name].schedule.s(own) for name, own in self.times_of(times).items()], self._state_sizes
        )
        told = times.to(like)
        told = told.unsqueeze(1) if self.time_shape and told.ndim == 1 else told
        return NoiseLevel(told.expand(batch, *self.time_shape), s.to(like))

    def noise_levels(self, times: Sequence[Any], batch: int, state_ndim: int, like: Tensor) -> list[NoiseLevel]:
        at = torch.tensor(times, dtype=torch.float64, device=like.device)
        level = self.noise_level(at, len(at), state_ndim, like)
        told = level.t.unsqueeze(1).repeat(1, batch, *(1 for _ in self.time_shape)).unbind()
        return [NoiseLevel(*pair) for pair in zip(told, torch.as_tensor(level.s).unsqueeze(1).unbind(), strict=True)]

    def rate(self, t: Tensor, data_ndim: int) -> Tensor:
        times = self.times_of(t)
        return self.over_data({name: flow.schedule.slope(times[name]) for name, flow in self.parts.items()})

    def gain(self, t_start: Tensor, t_end: Tensor, data_ndim: int) -> Tensor:
        start, end = self.times_of(t_start), self.times_of(t_end)
        return self.over_data(
            {name: flow.schedule.increment(start[name], end[name]) for name, flow in self.parts.items()}
        )

    def pack(self, x: Any, data_shape: Any) -> Tensor:
        if isinstance(x, Tensor):
            self.check(x, data_shape)
            return x
        if not isinstance(x, Mapping):
            raise UserError(
                f"data of type {type(x).__name__}: expected a mapping with the parts {', '.join(self.parts)}"
            )
        wrong = next((name for name in (*self.parts, *x) if (name in self.parts) != (name in x)), None)
        if wrong is not None:
            what = "is missing" if wrong in self.parts else "is not a part of this model"
            raise UserError(f"part {wrong!r} {what}: expected {', '.join(self.parts)}")
        tensors = {name: as_tensor(f"part {name!r}", value) for name, value in x.items()}
        sizes = {name: len(value) if value.ndim else 0 for name, value in tensors.items()}
        if len(set(sizes.values())) > 1:
            raise UserError(f"batch sizes {sizes}: expected as many samples of each part")
        for part in self.layout:
            try:
                part.flow.check(tensors[part.name], part.shape)
            except UserError as error:
                raise UserError(f"part {part.name!r}: {error}") from None
        floats = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
        dtype = max(floats, key=lambda kind: torch.finfo(kind).bits, default=torch.get_default_dtype())
        return torch.cat([flat(tensors[part.name]).to(dtype) for part in self.layout], 1)

    def shape_of(self, x: Tensor, data_shape: Any) -> Any:
        return data_shape

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        return {part.name: part.data_of(x) for part in self.layout}

    def split(self, values: Tensor) -> dict[str, Tensor]:
        return {part.name: values[:, part.data].reshape(-1, *part.shape) for part in self.layout}

    def over_variables(self, values: Tensor, state: Tensor) -> Tensor:
        if self._places is not None:
            return values.index_select(1, self._places.variable.to(values.device))
        own = self.split(values)
        return self._each(
            lambda part: part.flow.over_variables(own[part.name], part.state_of(state)).expand(-1, *part.state_shape)
        )

    def check(self, x: Tensor, data_shape: Any) -> None:
        n = self.layout[-1].data.stop
        if x.ndim != 2 or x.shape[1] != n:
            raise UserError(f"packed data of shape {tuple(x.shape)}: expected (batch, {n}), or a mapping of parts")

    def _each(self, act: Callable[[Part], Tensor]) -> Tensor:
        """What an action gives for each part, side by side: (batch, D) or (batch, N)."""
        return torch.cat([flat(act(part)) for part in self.layout], 1)

    def message(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        if self._places is None:
            return self._each(lambda part: part.flow.message(part.data_of(x), dtype or x.dtype))
        return self._places.message(x, dtype or x.dtype)

    def noised(self, x: Tensor, s: float | Tensor, eps: Tensor) -> Tensor:
        if self._places is None:
            return self._each(lambda part: part.flow.noised(part.data_of(x), part.scale_of(s), part.state_of(eps)))
        return self._places.noised(x, s, eps)

    def network_input(self, u: Tensor, s: float | Tensor) -> Tensor:
        return self._each(lambda part: part.flow.network_input(part.state_of(u), part.scale_of(s)))

    def decode(self, prediction: Tensor) -> Tensor:
        return self._each(lambda part: part.flow.decode(part.state_of(prediction)).to(prediction.dtype))

    def visible(self, w: Tensor) -> Tensor:
        return self._each(lambda part: part.flow.visible(part.state_of(w)))

    def shrinkage(self, s: Tensor) -> Tensor:
        raise UserError("a joint flow has no SDE of its own: ask its parts, flow.parts[name]")

    def values(self, x: Tensor) -> Tensor:
        return self._each(lambda part: part.flow.values(part.data_of(x)))

    def expected_values(self, prediction: Tensor) -> Tensor:
        return self._each(lambda part: part.flow.expected_values(part.state_of(prediction)))

    def errors(self, x: Tensor, prediction: Tensor) -> Tensor:
        return self._each(lambda part: part.flow.errors(part.data_of(x), part.state_of(prediction)))

    @cached_property
    def _places(self) -> Places | None:
        """All parts at once, where they are numbers and classes alone."""
        return Places.make([(part.flow, math.prod(part.shape)) for part in self.layout])


def _laid_out(numbers: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """(..., total): each (...) of the numbers repeated as often as its part is wide."""
    return torch.cat([x.unsqueeze(-1).expand(*x.shape, size) for x, size in zip(numbers, sizes, strict=True)], -1)
