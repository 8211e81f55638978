"""Output distributions, and what a head is.

All that a solver asks of an output distribution is its mean, the prediction (x_hat or class probabilities); losses ask
for log-probabilities and for the KL divergence between sender and receiver; the original sampler draws from it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import log, pi
from typing import Any, ClassVar

import torch
from torch import Tensor

from bfn.core.flows import Flow, NoiseLevel, Part

__all__ = ["Categorical", "Head", "Output", "Point", "beyond", "unknown_scale"]


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

    def with_mean(self, mean: Tensor, level: NoiseLevel) -> "Output":
        """A distribution of the same kind with another mean: here all mass on it."""
        return Point(mean, unknown_scale(level))

    def guided(self, scales: tuple[float, ...], rescale: float, level: NoiseLevel) -> "Output":
        """p_0 + sum_i scales_i (p_i - p_(i-1)), where this is of all of them, the last, most conditional p first.

        rescale: how far to bring the standard deviation over each sample back to that of the conditional one.
        """
        conditional = self.mean.chunk(len(scales) + 1)[0]
        return Point(_rescaled(beyond(self.mean, scales), conditional, rescale), unknown_scale(level))

    def with_parts(self, change: Callable[[Part, "Output"], "Output"], flow: Flow) -> "Output":
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

    def of_part(self, name: str) -> "Head":
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
