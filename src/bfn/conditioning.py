"""Conditions on a sample, all acting where the network is called: classes, functions of the data, known parts.

The one loop asks ``predict(u, level, label)`` for a distribution over the data. Each condition here is such a function
made from another, so that every solver works with every one of them:

    Guided     by classes, without a classifier (Ho and Salimans 2022): from the prediction without a class past the
               one with it
    Steered    by the gradient of a function of the predicted data
    Known      parts of the data are given
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel, Shape
from bfn.heads import Output
from bfn.info import NO_CLASS
from bfn.sde import data_from_message

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = [
    "Given", "Guidance", "Guided", "Known", "KnownAt", "Predict", "Steered", "Steering",
    "anything_known", "conditioned",
]  # fmt: skip

KnownAt = Literal["data", "path"]
"""Where the network is shown the known part: at the data end, or on its own noisy path."""

DATA_END = 1e4
"""sqrt(beta) that stands for the data end: noise of 1e-4, small beside any data, yet its square times a float32
number still has digits left to compare data by."""


class Predict(Protocol):
    """One network call: the distribution over the data given the state u at that level."""

    def __call__(self, u: Tensor, level: NoiseLevel, label: Tensor | None = None) -> Output:
        """Like ``Model.output``."""


@dataclass(frozen=True)
class Guidance:
    """How far to go past the prediction without a class: scale 1 is the plain conditional prediction, 0 has no class.

    rescale: on images, how far to bring the prediction's standard deviation over each sample back to that of the
        conditional one, 0 not at all, 1 all the way (Lin et al. 2023). Beyond scale 1 predictions overshoot the data's
        range; this, and ``clip``, keep them in. The default came out a little ahead of 0 on the bundled mnist
        (docs/results/conditioning.md).
    """

    scale: float
    rescale: float = 0.7

    def __post_init__(self) -> None:
        if not -float("inf") < self.scale < float("inf"):
            raise UserError(f"guidance={self.scale}: expected a finite scale, such as 2; 1 is no guidance")
        if not 0 <= self.rescale <= 1:
            raise UserError(f"rescale={self.rescale}: expected a share from 0 to 1")


@dataclass(frozen=True)
class Steering:
    """A function of the predicted data that samples should make large, such as a classifier's log-probability.

    function: x_hat or class probabilities, (batch, *state_shape) -> (batch,), differentiable.
    scale: factor on its gradient.
    """

    function: Callable[[Tensor], Tensor]
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not -float("inf") < self.scale < float("inf"):
            raise UserError(f"steer with scale={self.scale}: expected a finite factor, such as 1")


@dataclass(frozen=True)
class Guided:
    """none + scale (conditional - none), on logits for classes and on x_hat otherwise; both from one batch."""

    predict: Predict
    guidance: Guidance

    def __call__(self, u: Tensor, level: NoiseLevel, label: Tensor | None = None) -> Output:
        """One network call on twice the batch."""
        if label is None:
            raise UserError(f"guidance={self.guidance.scale}: it needs the classes to guide to; give label")
        s = torch.cat([level.s, level.s]) if isinstance(level.s, Tensor) and len(level.s) > 1 else level.s
        twice = NoiseLevel(torch.cat([level.t, level.t]), s)
        both = self.predict(torch.cat([u, u]), twice, torch.cat([label, torch.full_like(label, NO_CLASS)]))
        return both.guided(self.guidance.scale, self.guidance.rescale, level)


@dataclass(frozen=True)
class Steered:
    """The prediction given c, where log p(c | u) is taken to be f(prediction(u)).

    The posterior mean of the message is E[w | u] = (u + kappa grad_u log p(u)) / s (Tweedie). Given c the density is
    p(u) p(c | u) up to a factor, so

        w_hat_given_c = w_hat + (kappa / s) grad_u log p(c | u)

    The gradient runs through the network, and brings the posterior's covariance with it: for f linear in x the shift is
    Cov[w | u] grad f. It is exact where f(prediction) differs from log p(c | u) by a constant: a linear f on Gaussian
    data; f = log p_k on classes, which asks for class k. Elsewhere it takes the mean of the data for the data, as is
    usual ("diffusion posterior sampling", Chung et al. 2023), and asks for too much while little is known.

    Class probabilities move by grad / s, and are cut at 0 and normalised.
    """

    predict: Predict
    flow: Flow
    steering: Steering

    def __call__(self, u: Tensor, level: NoiseLevel, label: Tensor | None = None) -> Output:
        """One network call and its gradient."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            output = self.predict(u, level, label) if label is not None else self.predict(u, level)
            mean = output.mean
            value = self.steering.function(mean)
            if not isinstance(value, Tensor) or tuple(value.shape) != (len(u),) or not value.requires_grad:
                lacking = "" if value.requires_grad else " without a gradient"
                raise UserError(
                    f"steer gives shape {tuple(value.shape)}{lacking}: expected one number a sample, ({len(u)},), "
                    "differentiable in the predicted data"
                )
            (gradient,) = torch.autograd.grad(value.sum(), u)
        scale, _ = self.flow.message_map
        # Below this s next to nothing is known, and 1/s would amplify what a network gets wrong: the shift fades to 0.
        floor = 0.1 / self.flow.kappa**0.5
        s = level.s.clamp(min=floor) if isinstance(level.s, Tensor) else max(level.s, floor)
        shifted = mean.detach() + gradient * (self.steering.scale * self.flow.kappa / scale / s)
        return output.with_mean(shifted, level)


@dataclass(frozen=True, eq=False)
class Known:
    """x (n, *data_shape) is given where mask, of the same shape, is True.

    The known part follows its exact path under any solver, since its message w(x) takes the place of the predicted one.
    What the network sees of it is a choice:

    at="data"  all of it, noise-free at accuracy DATA_END: E[unknown | u_unknown, x_known], so that the rest follows the
               flow of the conditional distribution. Exact for exact models. A network sees two noise levels in one
               input, which it was not trained on; measured on all bundled models it makes far more of the known part
               so than otherwise (docs/results/conditioning.md), so this is the default.
    at="path"  its noisy state, as in training ("replacement"): E[unknown | u_unknown, u_known]. What u_known does not
               tell yet is ignored, and the rest is committed to by then: biased even for exact models.
    """

    predict: Predict
    flow: Flow
    x: Tensor
    mask: Tensor
    at: KnownAt
    dtype: torch.dtype

    def __call__(self, u: Tensor, level: NoiseLevel, label: Tensor | None = None) -> Output:
        """The prediction with the known part put in."""
        if self.at == "data":
            u = torch.where(self.state_mask, self.shown, u)
            s = torch.as_tensor(level.s, dtype=u.dtype, device=u.device)
            level = NoiseLevel(self.flow.told(level.t, self.mask), torch.where(self.state_mask, DATA_END, s))
        output = self.predict(u, level, label) if label is not None else self.predict(u, level)
        return Given(output, self.prediction, self.state_mask, self.x, self.mask)

    @cached_property
    def message(self) -> Tensor:
        """w(x), like the state."""
        return self.flow.message(self.x, self.dtype)

    @cached_property
    def state_mask(self) -> Tensor:
        """The mask, to broadcast against the state."""
        return self.flow.over_variables(self.mask, self.message)

    @cached_property
    def prediction(self) -> Tensor:
        """x as a prediction: itself, or one-hot."""
        return data_from_message(self.message, self.flow)

    @cached_property
    def shown(self) -> Tensor:
        """The state at the data end; for classes without the constant s (K - 1), in which all digits would be lost."""
        return DATA_END * self.flow.visible(self.message)

    def start(self, u: Tensor, noise: Tensor, s: float | Tensor) -> Tensor:
        """The state u at the first time with the known part on its path, s w + sqrt(kappa) noise."""
        return torch.where(self.state_mask, s * self.message + noise * self.flow.noise_scale(u), u)

    def restore(self, x: Tensor) -> Tensor:
        """Samples with the known part as it was given, to the last bit."""
        return torch.where(self.mask, self.x.to(x.dtype), x)


@dataclass(frozen=True)
class Given(Output):
    """A distribution with some of the data given: prediction and state_mask like its mean, x and mask like the data."""

    output: Output
    prediction: Tensor
    state_mask: Tensor
    x: Tensor
    mask: Tensor

    @cached_property
    def mean(self) -> Tensor:
        return self._put_in(self.output.mean)

    @property
    def mode(self) -> Tensor:
        return self._put_in(self.output.mode)

    def nearest(self, prediction: Tensor) -> Tensor:
        return self._put_in(self.output.nearest(prediction))

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        return self._put_in(self.output.draw(generator))

    def log_prob(self, x: Tensor) -> Tensor:
        """0 where x is what was given, minus infinity where it is not."""
        log_prob = self.output.log_prob(x)
        given = torch.where(x == self.x, 0.0, -torch.inf).to(log_prob)
        return torch.where(self.mask, given, log_prob)

    def message_kl(self, x: Tensor, accuracy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What is given need not be sent."""
        return torch.where(self.mask, 0.0, self.output.message_kl(x, accuracy, generator))

    def _put_in(self, prediction: Tensor) -> Tensor:
        # A network under autocast predicts in a smaller type; what is given must not be rounded to it.
        return torch.where(self.state_mask, self.prediction, prediction.to(self.prediction.dtype))


def conditioned(
    model: Model,
    n: int,
    *,
    label: Tensor | None = None,
    guidance: float | Guidance | None = None,
    steer: Callable[[Tensor], Tensor] | Steering | None = None,
    known: Tensor | Mapping[str, Any] | None = None,
    known_mask: Any = None,
    known_at: KnownAt = "data",
) -> tuple[Predict, Known | None]:
    """What the loop calls: the model's output under all conditions, and the known part if there is one."""
    predict: Predict = model.output
    if guidance is not None:
        guidance = guidance if isinstance(guidance, Guidance) else Guidance(float(guidance))
        if label is None:
            raise UserError(
                f"guidance={guidance.scale:g}: it needs classes to guide to; give label, to a model that knows some"
            )
        predict = predict if guidance.scale == 1 else Guided(predict, guidance)
    if steer is not None:
        predict = Steered(predict, model.flow, steer if isinstance(steer, Steering) else Steering(steer))
    if known_at not in get_args(KnownAt):
        raise UserError(f"known_at={known_at!r}: expected one of {', '.join(get_args(KnownAt))}")
    if known is None and known_mask is None:
        return predict, None
    if isinstance(known, Mapping):
        x, where = _check_known_parts(model, n, known, known_mask)
    elif known is None or known_mask is None:
        raise UserError(f"{'known' if known is None else 'known_mask'}=None: known and known_mask go together")
    else:
        x, where = _check_known(model.flow, model.data_shape, n, known, known_mask, model.device)
    if not bool(where.any()):
        return predict, None
    given = Known(predict, model.flow, x, where, known_at, model.dtype)
    return given, given


def anything_known(known: object, known_mask: object) -> bool:
    """Whether these arguments of ``sample`` give any of the data."""
    whole = isinstance(known, Mapping) or not isinstance(known_mask, Tensor)
    return known is not None and (whole or bool(known_mask.any()))  # type: ignore[attr-defined]


def _check_known_parts(
    model: Model, n: int, known: Mapping[str, Any], mask: Mapping[str, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The same for joint data: whole parts, or the pieces of them where the mask of a part is True; packed."""
    masks = mask or {}
    foreign = next((name for name in (*known, *masks) if name not in model.flow.parts), None)
    if foreign is not None:
        raise UserError(f"known part {foreign!r}: expected one of {', '.join(model.flow.parts)}")
    xs, wheres = [], []
    for name, flow in model.flow.parts.items():
        shape = tuple(model.data_shape[name])
        value = torch.as_tensor(known.get(name, 0), device=model.device)
        value = value.to(model.dtype) if flow.has_range else value
        value = value.expand(shape) if value.ndim == 0 else value
        where = masks.get(name, torch.full(shape, name in known))
        try:
            own, own_where = _check_known(flow, shape, n, value, where, model.device)
        except UserError as error:
            raise UserError(f"part {name!r}: {error}") from None
        xs.append(own.reshape(n, -1).to(model.dtype))
        wheres.append(own_where.reshape(n, -1))
    return torch.cat(xs, 1), torch.cat(wheres, 1)


def _check_known(
    flow: Flow, data_shape: Shape, n: int, known: Tensor, mask: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """x and mask of n samples, (n, *data_shape); 0 where nothing is known, whatever ``known`` holds there."""
    if mask.dtype is not torch.bool:
        raise UserError(f"known_mask of type {mask.dtype}: expected torch.bool, True where the data are known")
    shape = (n, *data_shape)
    for name, given in (("known_mask", mask), ("known", known)):
        if tuple(given.shape) not in (tuple(data_shape), shape):
            raise UserError(f"{name} of shape {tuple(given.shape)}: expected {tuple(data_shape)} or {shape}")
    mask = mask.to(device).expand(shape)
    x = torch.where(mask, known.to(device), torch.zeros((), dtype=known.dtype, device=device))
    try:
        flow.check(x, data_shape)
    except ValueError as error:
        raise UserError(f"known: {error}") from None
    return x, mask
