"""Heads: from what a network puts out to a distribution over data.

A head says what the network is shown and what its output means; the result is an *output distribution*, the paper's
p_O(x | theta; t). All that a solver asks of it is its mean, the prediction (x_hat or class probabilities); losses ask
for log-probabilities and for the KL divergence between sender and receiver; the original sampler draws from it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from math import log, pi
from typing import ClassVar

import torch
from torch import Tensor

from bfn.flows import Flow, Level
from bfn.sde import message_from_noise

NOISE_T_MIN = 1e-6
"""Below this time a noise prediction says nothing of the data (0/0 at t = 0): x_hat is 0, as in the released code."""


class Output(ABC):
    """Distribution over data given the state: p_O."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The prediction: x_hat, or class probabilities."""

    @abstractmethod
    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """A sample, in the form of a prediction (one-hot for classes)."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """log p_O(x), like x."""

    @abstractmethod
    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """KL(sender || receiver) of a message of that accuracy alpha, (batch, 1, ...): one value a dimension, like x.

        The sender is N(alpha w(x), kappa alpha I), the receiver its mixture over p_O. Where there is no closed form,
        an unbiased estimate from one message.
        """


@dataclass(frozen=True)
class Point(Output):
    """All mass on x_hat. As a density at the data end: a normal about x_hat with the scale that is still unknown."""

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
    """Independent classes from logits (batch, ..., K)."""

    logits: Tensor

    @cached_property
    def mean(self) -> Tensor:
        return torch.softmax(self.logits, -1)

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

    kind: ClassVar[str]
    starts_at_zero: ClassVar[bool] = True
    """Whether the prediction is defined at t = 0, where nothing is known."""

    def inputs(self, flow: Flow, u: Tensor, level: Level) -> Tensor:
        """The network's input: mu or theta, like u."""
        return flow.network_input(u, level.s)

    @abstractmethod
    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: Level) -> Output:
        """The distribution that the network's output stands for."""

    def raw_shape(self, state_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape that the network's output must have for one sample."""
        return state_shape


def unknown_scale(level: Level) -> float | Tensor:
    """Standard deviation of what is still unknown of continuous data: (1 + beta)^(-1/2), sigma_1 at t = 1."""
    return (1 + level.s * level.s) ** -0.5


@dataclass(frozen=True)
class NoiseHead(Head):
    """The network predicts eps: x_hat = (u - eps_hat) / s (paper, eq. cbfn-rep)."""

    kind: ClassVar[str] = "continuous"
    starts_at_zero: ClassVar[bool] = False

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: Level) -> Output:
        if isinstance(level.s, float):
            s_min = float(flow.schedule.s(NOISE_T_MIN))
            x_hat = message_from_noise(raw, u, level.s, flow.kappa) if level.s >= s_min else torch.zeros_like(raw)
        else:
            known = (level.t >= NOISE_T_MIN).view(level.s.shape)
            x_hat = torch.where(known, message_from_noise(raw, u, torch.where(known, level.s, 1), flow.kappa), 0)
        return Point(x_hat, unknown_scale(level))


@dataclass(frozen=True)
class DataHead(Head):
    """The network predicts x."""

    kind: ClassVar[str] = "continuous"

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: Level) -> Output:
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

    def __post_init__(self) -> None:
        if not 0 < self.data_std < float("inf"):
            raise ValueError(f"data_std={self.data_std}: expected the positive standard deviation of the data")

    def inputs(self, flow: Flow, u: Tensor, level: Level) -> Tensor:
        return u * (1 + (level.s * self.data_std) ** 2) ** -0.5

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: Level) -> Output:
        variance = 1 + (level.s * self.data_std) ** 2
        x_hat = u * (level.s * self.data_std**2 / variance) + raw * (self.data_std * variance**-0.5)
        return Point(x_hat, unknown_scale(level))


@dataclass(frozen=True)
class LogitsHead(Head):
    """The network predicts the logits of each variable's classes."""

    kind: ClassVar[str] = "discrete"

    def output(self, flow: Flow, raw: Tensor, u: Tensor, level: Level) -> Output:
        return Categorical(raw)


HEADS: dict[str, type[Head]] = {
    "noise": NoiseHead,
    "data": DataHead,
    "preconditioned": PreconditionedHead,
    "logits": LogitsHead,
}
"""Heads by the name that ``BFN(predicts=...)`` takes."""


def make_head(predicts: str, flow: Flow) -> Head:
    """The head of that name, checked against the kind of data."""
    fitting = [name for name, head in HEADS.items() if head.kind == flow.kind]
    if predicts not in HEADS:
        near = get_close_matches(predicts, fitting, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"predicts={predicts!r}: expected one of {', '.join(fitting)}{hint}")
    if predicts not in fitting:
        raise ValueError(
            f"predicts={predicts!r} is for {HEADS[predicts].kind} data: {flow.kind} data take {', '.join(fitting)}"
        )
    return HEADS[predicts]()
