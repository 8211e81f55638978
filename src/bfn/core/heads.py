"""Output distributions, and what a head is.

All that a solver asks of an output distribution is its mean, the prediction (x_hat or class probabilities); losses ask
for log-probabilities and for the KL divergence between sender and receiver; the original sampler draws from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log, pi
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn._utils.arguments import check_real
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Flow, NoiseLevel, Part, PartFlow
from bfn.core.registry import Registry, registry
from bfn.core.schedules import FIRST_TIME
from bfn.solvers.sde import message_from_noise

__all__ = [
    "HEADS",
    "Categorical",
    "DataHead",
    "FlowMapHead",
    "Head",
    "LogitsHead",
    "NoiseHead",
    "Output",
    "Point",
    "PreconditionedHead",
    "beyond",
    "make_head",
    "unknown_scale",
]


class Output(ABC):
    """Distribution over data given the state: p_O. is_density: whether log_prob is a density's, not a probability's."""

    is_density: ClassVar[bool] = False

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The prediction: x_hat, or class probabilities."""

    @property
    def mode(self) -> Tensor:
        """The likeliest data, in the form of a prediction; the mean, unless the distribution knows better."""
        return self.mean

    def nearest(self, prediction: Tensor) -> Tensor:
        """The possible data nearest to a prediction, in its form: itself, unless data lie on a curve, as angles do."""
        return prediction

    @abstractmethod
    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """A sample, in the form of a prediction (one-hot for classes)."""

    def draw_whole(self, generator: torch.Generator | None = None) -> Tensor:
        """A sample of all variables together; each for itself, unless the network knows how they hang together."""
        return self.draw(generator)

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """log p_O(x), like x."""

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> Output:
        """A distribution of the same kind with another mean: here all mass on it."""
        return Point(mean, unknown_scale(level))

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> Output:
        """p_0 + sum_i scales_i (p_i - p_(i-1)), where this is of all of them, the last, most conditional p first.

        rescale: how far to bring the standard deviation over each sample back to that of the conditional one.
        """
        conditional = self.mean.chunk(len(scales) + 1)[0]
        return Point(_rescaled(beyond(self.mean, scales), conditional, rescale), unknown_scale(level))

    def with_parts(self, change: Callable[[Part, Output], Output], flow: Flow) -> Output:
        """Return the distribution with that of each part replaced by ``change(part, distribution)``."""
        (part,) = flow.layout
        return change(part, self)

    @abstractmethod
    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """KL(sender || receiver) of a message of that accuracy alpha, (batch, 1, ...): one value a dimension, like x.

        The sender is N(alpha w(x), kappa alpha I), the receiver its mixture over p_O. Where there is no closed form,
        an unbiased estimate from one message.
        """


@dataclass(frozen=True)
class Point(Output):
    """All mass on x_hat. As a density at the data end: a normal about x_hat with the scale that is still unknown."""

    is_density: ClassVar[bool] = True

    x_hat: Tensor
    scale: float | Tensor

    @property
    def mean(self) -> Tensor:
        return self.x_hat

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        return self.x_hat

    def log_prob(self, x: Tensor) -> Tensor:
        log_scale = self.scale.log() if isinstance(self.scale, Tensor) else log(self.scale)
        return -((x - self.x_hat) / self.scale).square() / 2 - log_scale - log(2 * pi) / 2

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return accuracy / 2 * (x - self.x_hat).square()


@dataclass(frozen=True)
class Categorical(Output):
    """Independent classes from logits (batch, ..., K).

    together: draws them all at once, (batch, ...) classes from a generator, where the network can.
    """

    logits: Tensor
    together: Callable[[torch.Generator | None], Tensor] | None = field(default=None, compare=False)

    @cached_property
    def mean(self) -> Tensor:
        return torch.softmax(self.logits, -1)

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> Output:
        """Classes with these probabilities, cut at 0."""
        return Categorical(mean.clamp(min=torch.finfo(mean.dtype).tiny).log())

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> Output:
        """On the logits."""
        return Categorical(beyond(self.logits, scales))

    @cached_property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities."""
        return torch.log_softmax(self.logits, -1)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """One-hot classes by inverting the cumulative distribution: one uniform number a variable."""
        cumulative = self.mean.float().cumsum(-1)
        uniform = torch.rand((*self.logits.shape[:-1], 1), generator=generator, device=self.logits.device)
        k = (cumulative < uniform * cumulative[..., -1:]).sum(-1, keepdim=True).clamp_(max=self.logits.shape[-1] - 1)
        return torch.zeros_like(self.logits).scatter_(-1, k, 1.0)

    def draw_whole(self, generator: torch.Generator | None = None) -> Tensor:
        if self.together is None:
            return self.draw(generator)
        return torch.zeros_like(self.logits).scatter_(-1, self.together(generator).unsqueeze(-1), 1.0)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.log_probs.gather(-1, x.long().unsqueeze(-1)).squeeze(-1)

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """log N(y; sender) - log sum_k p_k N(y; receiver_k) = y_x - logsumexp_k(log p_k + y_k): no K x K tensor."""
        n_classes = self.logits.shape[-1]
        alpha = accuracy.unsqueeze(-1)
        eps = torch.randn(self.logits.shape, generator=generator, dtype=self.logits.dtype, device=self.logits.device)
        index = x.long().unsqueeze(-1)
        # The common shift -alpha of the message cancels between the two terms.
        y = eps * (n_classes * alpha).sqrt()
        y = y.scatter_add(-1, index, (n_classes * alpha).expand(*x.shape, 1))
        return (y.gather(-1, index) - torch.logsumexp(self.log_probs + y, -1, keepdim=True)).squeeze(-1)


class Head(ABC):
    """What the network is shown, and what its output means."""

    registry: ClassVar[str] = "head"
    kind: ClassVar[str]
    starts_at_zero: ClassVar[bool] = True
    """Whether the prediction is defined at t = 0, where nothing is known."""
    shows_start: ClassVar[bool] = False
    """Whether the network is shown the state at t = 0, where it is nothing but noise."""

    def of_part(self, name: str) -> Head:
        """Return the head of a part."""
        return self

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Tensor:
        """The network's input: mu or theta, like u."""
        return flow.network_input(u, level.s)

    def shown_presence(self, flow: Flow, present: Tensor, u: Tensor) -> Any:
        """What of the data exists, in the form that the network is told it: like the data."""
        return flow.unpack(present)

    @abstractmethod
    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        """The distribution that the network's output stands for."""

    def check_raw(self, flow: Flow, raw: Any, state_shape: tuple[int, ...], batch: int) -> str | None:
        """What is wrong with the network's output for a batch, in words; None if nothing is."""
        expected = (batch, *self.raw_shape(state_shape))
        found = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        return None if found == expected else f"has shape {found}: expected {expected}"

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape that the network's output must have for one sample."""
        return state_shape


def unknown_scale(level: NoiseLevel) -> float | Tensor:
    """Standard deviation of what is still unknown of continuous data: (1 + beta)^(-1/2), sigma_1 at t = 1."""
    return (1 + level.s * level.s) ** -0.5


def beyond(predictions: Tensor, scales: tuple[float, ...]) -> Tensor:
    """p_0 + sum_i scales_i (p_i - p_(i-1)) of (p_k, ..., p_0), side by side in a batch."""
    none, first, *more = reversed(predictions.chunk(len(scales) + 1))
    result = torch.lerp(none, first, scales[0])
    for scale, before, after in zip(scales[1:], [first, *more], more, strict=False):
        result = result + scale * (after - before)
    return result


def _rescaled(x_hat: Tensor, like: Tensor, share: float) -> Tensor:
    """x_hat with its standard deviation over each sample brought by that share to that of ``like``."""
    if share == 0 or x_hat.ndim < 3 or x_hat[0].numel() == 1:  # a vector's entries are not alike as pixels are
        return x_hat
    dims = tuple(range(1, x_hat.ndim))
    ratio = like.std(dims, keepdim=True) / x_hat.std(dims, keepdim=True).clamp(min=torch.finfo(x_hat.dtype).tiny)
    return x_hat * torch.lerp(torch.ones_like(ratio), ratio, share)


@dataclass(frozen=True)
class NoiseHead(Head):
    """The network predicts eps: x_hat = (u - eps_hat) / s (paper, eq. cbfn-rep), and 0 before the first time."""

    kind: ClassVar[str] = "continuous"
    starts_at_zero: ClassVar[bool] = False

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        if isinstance(level.s, float):
            told = level.s >= flow.schedule.s_first
            x_hat = message_from_noise(raw, u, level.s, flow.kappa) if told else torch.zeros_like(raw)
        else:
            known = (level.t >= FIRST_TIME).view(-1, *(1,) * (u.ndim - 1))
            x_hat = torch.where(known, message_from_noise(raw, u, torch.where(known, level.s, 1), flow.kappa), 0)
        return Point(x_hat, unknown_scale(level))


@dataclass(frozen=True)
class DataHead(Head):
    """The network predicts x."""

    kind: ClassVar[str] = "continuous"

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        return Point(raw, unknown_scale(level))


@dataclass(frozen=True)
class PreconditionedHead(Head):
    """The network sees unit variance and predicts unit variance at every noise level (Karras et al. 2022, sec. 5).

    With d the standard deviation of the data, x = skip + out F:

        input  u / sqrt(1 + s^2 d^2)        skip  s d^2 u / (1 + s^2 d^2)        out  d / sqrt(1 + s^2 d^2)

    which is theirs with sigma = 1/s, and regular at s = 0.
    """

    data_std: float = 0.5

    kind: ClassVar[str] = "continuous"
    shows_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_real("data_std", self.data_std)
        if not 0 < self.data_std < 1e15:
            raise UserError(f"data_std={self.data_std}: expected the positive standard deviation of the data")

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Tensor:
        return u * (1 + (level.s * self.data_std) ** 2) ** -0.5

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        variance = 1 + (level.s * self.data_std) ** 2
        x_hat = u * (level.s * self.data_std**2 / variance) + raw * (self.data_std * variance**-0.5)
        return Point(x_hat, unknown_scale(level))


@dataclass(frozen=True)
class LogitsHead(Head):
    """The network predicts the logits of each variable's classes."""

    kind: ClassVar[str] = "discrete"

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        return Categorical(raw)


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


HEADS: Registry[type[Head]] = registry("head")
"""Heads by the name that ``BFN(predicts=...)`` takes."""


def make_head(predicts: str | Head | Mapping[str, str | Head], flow: Flow) -> Head:
    """Make the head of that name, or one for each part, and check that it fits the data."""
    if isinstance(predicts, Head):
        own = getattr(flow, "kind", None)
        if predicts.kind != own:
            raise UserError(f"predicts={predicts}: it is for {predicts.kind} data, the flow is {own}")
        return predicts
    named = flow.by_part("predicts", predicts)
    if set(named) != set(flow.parts):
        raise UserError(f"predicts={dict(named)}: expected a head for each of the parts {', '.join(flow.parts)}")
    heads = flow.from_parts({name: _part_head(named[name], part) for name, part in flow.parts.items()})
    if isinstance(heads, Head):
        return heads
    joint: Head = HEADS["joint"](heads)  # type: ignore[call-arg]
    return joint


def _part_head(predicts: str | Head, flow: PartFlow) -> Head:
    """Make the head of one part."""
    if isinstance(predicts, Head):
        return make_head(predicts, flow)
    if predicts in HEADS and HEADS[predicts].kind == flow.kind:
        return HEADS[predicts]()
    fitting = [name for name, head in HEADS.items() if head.kind == flow.kind]
    if predicts in HEADS:
        kind = HEADS[predicts].kind
        raise UserError(f"predicts={predicts!r} is for {kind} data: {flow.kind} data take {', '.join(fitting)}")
    hint = did_you_mean(predicts, fitting)
    raise UserError(f"predicts={predicts!r}: expected one of {', '.join(fitting)}{hint}")
