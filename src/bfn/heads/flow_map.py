"""The head of a model that maps a state to the end of its path."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.flows import Flow, NoiseLevel
from bfn.heads.base import Head, Output

__all__ = ["FlowMapHead"]


@dataclass(frozen=True)
class FlowMapHead(Head):
    """Another head, whose network is shown every state as if it were at least at s = least_s.

    At t = 0 a state is nothing but noise, and mu = u s / (1 + s^2) and theta = softmax(s u) show none of it. For a
    posterior there is no need; but the path's end follows from it, and a network that is to tell the end must see it.
    """

    head: Head
    least_s: float

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.head.kind

    @property
    def starts_at_zero(self) -> bool:  # type: ignore[override]
        return self.head.starts_at_zero

    @property
    def shows_start(self) -> bool:  # type: ignore[override]
        return True

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Tensor:
        s = level.s.clamp(min=self.least_s) if isinstance(level.s, torch.Tensor) else max(level.s, self.least_s)
        return self.head.inputs(flow, u, NoiseLevel(level.t, s))

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        return self.head.output(flow, raw, u, level)

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.head.raw_shape(state_shape)
