"""Heads and output distributions: how the output of a network becomes a distribution over the data.

Solvers use only the mean of the distribution, the prediction (x_hat or class probabilities). Losses use log
probabilities and the KL divergence between sender and receiver, and the original sampler draws from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log, pi, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn._utils.arguments import check_real
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Flow, NoiseLevel, Part, PartFlow
from bfn.core.registry import Registry, registry
from bfn.core.schedules import FIRST_TIME

Scale = float | Tensor
"""sqrt(beta) of a batch: a number, or a tensor that broadcasts against the state."""


class Output(ABC):
    """Distribution over the data given the state, p_O."""

    @property
    def is_density(self) -> bool:
        """True if ``log_prob`` is the log of a density, not of a probability."""
        return False

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The prediction: x_hat, or class probabilities."""

    @property
    def mode(self) -> Tensor:
        """The most likely data, in the form of a prediction; the mean by default."""
        return self.mean

    def nearest(self, prediction: Tensor) -> Tensor:
        """Return the possible data nearest to a prediction, in its form, if data lie on a curve, as angles do."""
        return prediction

    @abstractmethod
    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a sample, in the form of a prediction (one-hot for classes)."""

    def draw_whole(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw all variables of a sample together; independently, unless the network knows how they depend."""
        return self.draw(generator)

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Return log p_O(x), like x."""

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> Output:
        """Return a distribution of the same kind with another mean; by default all mass on it."""
        return Point(mean, unknown_scale(level))

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> Output:
        """Return the guided distribution, p_0 + sum_i scales_i (p_i - p_(i-1)).

        This output holds all of them side by side in the batch, the last and most conditional p first.

        Args:
            rescale: share by which the standard deviation over a sample is brought back to that of the conditional p.
        """
        conditional = self.mean.chunk(len(scales) + 1)[0]
        return Point(_rescaled(beyond(self.mean, scales), conditional, rescale), unknown_scale(level))

    def with_parts(self, change: Callable[[Part, Output], Output], flow: Flow) -> Output:
        """Return the distribution with that of each part replaced by ``change(part, distribution)``."""
        (part,) = flow.layout
        return change(part, self)

    @abstractmethod
    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return KL(sender || receiver) of a message, one value for each dimension, like x.

        The sender is N(alpha w(x), kappa alpha I), the receiver its mixture over p_O. If there is no closed form, this
        is an unbiased estimate from one message.

        Args:
            accuracy: alpha, (batch, 1, ...).
        """


@dataclass(frozen=True)
class Point(Output):
    """All mass on x_hat. ``log_prob`` is that of a normal about x_hat with the scale that is still unknown."""

    x_hat: Tensor
    scale: float | Tensor

    @property
    def is_density(self) -> bool:
        return True

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
    """Independent classes.

    Args:
        logits: (batch, ..., K).
        together: function that draws all classes of a sample at once, (batch, ...), if the network can.
    """

    logits: Tensor
    together: Callable[[torch.Generator | None], Tensor] | None = field(default=None, compare=False)

    @cached_property
    def mean(self) -> Tensor:
        return torch.softmax(self.logits, -1)

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> Output:
        """Return classes with these probabilities, clipped at 0."""
        return Categorical(mean.clamp(min=torch.finfo(mean.dtype).tiny).log())

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> Output:
        """Guide the logits."""
        return Categorical(beyond(self.logits, scales))

    @cached_property
    def log_probs(self) -> Tensor:
        """Normalised log-probabilities."""
        return torch.log_softmax(self.logits, -1)

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot classes by inverting the cumulative distribution, from one uniform number for each variable."""
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
        # log N(y; sender) - log sum_k p_k N(y; receiver_k) = y_x - logsumexp_k(log p_k + y_k): no K x K tensor.
        n_classes = self.logits.shape[-1]
        alpha = accuracy.unsqueeze(-1)
        eps = torch.randn(self.logits.shape, generator=generator, dtype=self.logits.dtype, device=self.logits.device)
        index = x.long().unsqueeze(-1)
        # The common shift -alpha of the message cancels between the two terms.
        y = eps * (n_classes * alpha).sqrt()
        y = y.scatter_add(-1, index, (n_classes * alpha).expand(*x.shape, 1))
        return (y.gather(-1, index) - torch.logsumexp(self.log_probs + y, -1, keepdim=True)).squeeze(-1)


class Head(ABC):
    """The input of the network for a state, and the meaning of its output.

    Attributes:
        kind: kind of data that it is for.
        starts_at_zero: True if the prediction is defined at t = 0, where nothing is known.
        shows_start: True if the network sees the state at t = 0, where it is only noise.
    """

    registry: ClassVar[str] = "head"
    kind: ClassVar[str]
    starts_at_zero: ClassVar[bool] = True
    shows_start: ClassVar[bool] = False

    def of_part(self, name: str) -> Head:
        """Return the head of a part."""
        return self

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Any:
        """Return the network's input, mu or theta, like u."""
        return flow.network_input(u, level.s)

    def shown_presence(self, flow: Flow, present: Tensor, u: Tensor) -> Any:
        """Return the mask of the data that exist in the form that the network takes."""
        return flow.unpack(present)

    @abstractmethod
    def output(self, flow: Flow, raw: Any, u: Tensor, level: NoiseLevel) -> Output:
        """Return the distribution over the data for the network's output."""

    def check_raw(self, flow: Flow, raw: Any, state_shape: tuple[int, ...], batch: int) -> str | None:
        """Say what is wrong with the network's output for a batch; None if nothing is."""
        expected = (batch, *self.raw_shape(state_shape))
        found = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        return None if found == expected else f"has shape {found}: expected {expected}"

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that the network's output must have for one sample."""
        return state_shape


def message_from_noise(eps_hat: Tensor, u: Tensor, s: Scale, kappa: float) -> Tensor:
    """Return w_hat = (u - sqrt(kappa) eps_hat) / s, which is 0/0 at s = 0."""
    if isinstance(s, float):
        return torch.add(u / s, eps_hat, alpha=-sqrt(kappa) / s)
    return (u - sqrt(kappa) * eps_hat) / s


def unknown_scale(level: NoiseLevel) -> float | Tensor:
    """Return the standard deviation of continuous data that is still unknown, (1 + beta)^(-1/2); sigma_1 at t = 1."""
    return (1 + level.s * level.s) ** -0.5


def beyond(predictions: Tensor, scales: tuple[float, ...]) -> Tensor:
    """Return p_0 + sum_i scales_i (p_i - p_(i-1)) of (p_k, ..., p_0), which lie side by side in the batch."""
    none, first, *more = reversed(predictions.chunk(len(scales) + 1))
    result = torch.lerp(none, first, scales[0])
    for scale, before, after in zip(scales[1:], [first, *more], more, strict=False):
        result = result + scale * (after - before)
    return result


def _rescaled(x_hat: Tensor, like: Tensor, share: float) -> Tensor:
    """Return x_hat with its standard deviation over each sample brought by that share to that of ``like``."""
    if share == 0 or x_hat.ndim < 3 or x_hat[0].numel() == 1:  # the entries of a vector are not alike, as pixels are
        return x_hat
    dims = tuple(range(1, x_hat.ndim))
    ratio = like.std(dims, keepdim=True) / x_hat.std(dims, keepdim=True).clamp(min=torch.finfo(x_hat.dtype).tiny)
    return x_hat * torch.lerp(torch.ones_like(ratio), ratio, share)


@dataclass(frozen=True)
class NoiseHead(Head):
    """The network predicts eps: x_hat = (u - eps_hat) / s (paper, eq. cbfn-rep), and 0 before FIRST_TIME."""

    kind: ClassVar[str] = "continuous"
    starts_at_zero: ClassVar[bool] = False

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: NoiseLevel) -> Output:
        kappa = flow.leading.kappa
        if isinstance(level.s, float):
            known = level.s >= flow.schedule.s_first
            x_hat = message_from_noise(raw, u, level.s, kappa) if known else torch.zeros_like(raw)
        else:
            after_start = (level.t >= FIRST_TIME).view(-1, *(1,) * (u.ndim - 1))
            s = torch.where(after_start, level.s, 1)
            x_hat = torch.where(after_start, message_from_noise(raw, u, s, kappa), 0)
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

    This is their formula with sigma = 1/s; it is regular at s = 0.
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
    """Another head, for a network that predicts the end of the path from a state.

    The network sees every state as if it were at least at s = least_s. At t = 0, mu = u s / (1 + s^2) and
    theta = softmax(s u) hide the state, which is only noise; a posterior mean does not need it, but the end of the
    path follows from it.
    """

    head: Head
    least_s: float

    kind: ClassVar[str] = ""  # each object has that of its head
    shows_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.head, Head):
            raise UserError(f"head={self.head!r}: expected a head, such as LogitsHead()")
        for name in ("kind", "starts_at_zero"):
            object.__setattr__(self, name, getattr(self.head, name))

    def inputs(self, flow: Flow, u: Tensor, level: NoiseLevel) -> Any:
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
    return _made_heads(predicts, flow)


def _made_heads(predicts: str | Mapping[str, str | Head], flow: Flow) -> Head:
    """Make heads by their names."""
    named = flow.by_part("predicts", predicts)
    if set(named) != set(flow.parts):
        raise UserError(f"predicts={dict(named)}: expected a head for each of the parts {', '.join(flow.parts)}")
    heads = flow.from_parts({name: _part_head(named[name], part) for name, part in flow.parts.items()})
    if isinstance(heads, Head):
        return heads
    joint: Head = registry("head")["joint"](heads)
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
