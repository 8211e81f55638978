"""Conditions on a sample, all acting where the network is called: classes, functions of the data, known parts.

The one loop asks ``predict(u, level, **conditions)`` for a distribution over the data. Each condition here is such a
function made from another, so that every solver works with every one of them:

    Guided     by the network's conditions, without a classifier (Ho and Salimans 2022): from the prediction without
               them past the one with them
    Steered    by the gradient of a function of the predicted data
    Known      parts of the data are given (``bfn.known``)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from bfn.conditions import NO_CLASS, known_conditions, null_like
from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel
from bfn.heads import Output
from bfn.info import LARGEST, Label, ModelInfo
from bfn.known import Known, KnownAt, Predict, check_known, check_known_parts

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = [
    "Guidance", "Guided", "Steered", "Steering", "conditioned", "conditions_for",
]  # fmt: skip


@dataclass(frozen=True)
class Guidance:
    """How far to go past the prediction without conditions: scale 1 is the plain conditional prediction, 0 has none.

    scale: of all conditions together; or of some by name, in the order in which they are added. Those of equal scale
        count together, those without one are always there. With p_0 the prediction without the named ones and p_i that
        with the first i groups the result is p_0 + sum_i scale_i (p_i - p_(i-1)).
    rescale: on images, how far to bring the prediction's standard deviation over each sample back to that of the
        conditional one, 0 not at all, 1 all the way (Lin et al. 2023). Beyond scale 1 predictions overshoot the data's
        range; this, and ``clip``, keep them in. The default came out a little ahead of 0 on the bundled mnist
        (docs/results/conditioning.md).
    """

    scale: float | Mapping[str, float]
    rescale: float = 0.7

    def __post_init__(self) -> None:
        for scale in self.scales:
            if isinstance(scale, bool) or not isinstance(scale, int | float) or not -LARGEST < scale < LARGEST:
                raise UserError(f"guidance={scale}: expected a finite scale, such as 2; 1 is no guidance")
        if not 0 <= self.rescale <= 1:
            raise UserError(f"rescale={self.rescale}: expected a share from 0 to 1")

    @property
    def scales(self) -> tuple[float, ...]:
        """All scales, each once."""
        return tuple(dict.fromkeys(self.scale.values())) if isinstance(self.scale, Mapping) else (self.scale,)

    def groups(self, conditions: Collection[str]) -> tuple[tuple[float, tuple[str, ...]], ...]:
        """The scales that are not 1 with the conditions that each is for; a UserError where there is none of a name."""
        own = [name for name in conditions if name != "present"]
        by_name = self.scale if isinstance(self.scale, Mapping) else dict.fromkeys(own, self.scale)
        foreign = next((name for name in by_name if name not in own), None)
        if foreign is not None or (self.scales and not own):
            given = f"{foreign}={by_name[foreign]:g}" if foreign else f"{self.scales[0]:g}"
            known = f"those of these samples are {', '.join(own)}" if own else "there are none"
            raise UserError(f"guidance={given}: it needs conditions to guide to, such as label; {known}")
        by_scale = {scale: tuple(name for name in by_name if by_name[name] == scale) for scale in self.scales}
        return tuple((float(scale), names) for scale, names in by_scale.items() if scale != 1)


@dataclass(frozen=True)
class Steering:
    """A function of the predicted data that samples should make large, such as a classifier's log-probability.

    function: x_hat or class probabilities, (batch, *state_shape) -> (batch,), differentiable.
    scale: factor on its gradient.
    """

    function: Callable[[Tensor], Tensor]
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not -LARGEST < self.scale < LARGEST:
            raise UserError(f"steer with scale={self.scale}: expected a finite factor, such as 1")


@dataclass(frozen=True)
class Guided:
    """The prediction of :class:`Guidance`, on logits for classes and on x_hat otherwise; all from one batch."""

    predict: Predict
    guidance: Guidance

    def __call__(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        """One network call on as many batches as there are groups, and one more: with all of them first, then none."""
        groups = self.guidance.groups(conditions)
        if not groups:
            return self.predict(u, level, **conditions)
        versions, current = [conditions], conditions
        for _, names in reversed(groups):
            current = {**current, **{name: null_like(current[name]) for name in names}}
            versions.append(current)
        m = len(versions)
        s = torch.cat([level.s] * m) if isinstance(level.s, Tensor) and len(level.s) > 1 else level.s
        all_of = {name: torch.cat([version[name] for version in versions]) for name in conditions}
        output = self.predict(torch.cat([u] * m), NoiseLevel(torch.cat([level.t] * m), s), **all_of)
        return output.guided(tuple(scale for scale, _ in groups), self.guidance.rescale, level)


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

    def __call__(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        """One network call and its gradient."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            output = self.predict(u, level, **conditions)
            mean = output.mean
            value = self.steering.function(mean)
            if not isinstance(value, Tensor):
                raise UserError(f"steer gives a {type(value).__name__}: expected a tensor, one number a sample")
            if tuple(value.shape) != (len(u),) or not value.requires_grad:
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


def conditions_for(
    info: ModelInfo,
    n: int,
    label: Label | None = None,
    condition: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
    *,
    drawn: bool = True,
) -> dict[str, Tensor]:
    """The conditions of n samples, ``label`` among them: those asked for; null for the rest.

    Where nothing is asked for they are drawn from the data's own, unless ``drawn`` says no.
    """
    if condition is not None and not isinstance(condition, Mapping):
        raise UserError(f"condition of type {type(condition).__name__}: expected a mapping of names to values")
    given = dict(condition or {})
    if "label" in given:
        if label is not None:
            raise UserError("label beside condition['label']: give one of them")
        label = given.pop("label")
    drawn = drawn and label is None and not given
    if label is None and info.classes is not None and not drawn:
        label = NO_CLASS
    labels = info.labels(label, n, generator, device)
    found = known_conditions(info.conditions, given, n, generator, device, drawn=drawn)
    return found if labels is None else {"label": labels, **found}


def conditioned(
    model: Model,
    n: int,
    *,
    conditions: Collection[str] = (),
    guidance: float | Mapping[str, float] | Guidance | None = None,
    steer: Callable[[Tensor], Tensor] | Steering | None = None,
    known: Tensor | Mapping[str, Any] | None = None,
    known_mask: Any = None,
    known_at: KnownAt = "data",
    each: int = 1,
) -> tuple[Predict, Known | None]:
    """What the loop calls: the model's output under all conditions, and the known part if there is one.

    conditions: the names of those that the network will be given. each: members of the batch for each of the n samples.
    """
    predict: Predict = model.output
    if guidance is not None:
        guidance = guidance if isinstance(guidance, Guidance) else Guidance(guidance)
        predict = Guided(predict, guidance) if guidance.groups(conditions) else predict
    if steer is not None:
        predict = Steered(predict, model.flow, steer if isinstance(steer, Steering) else Steering(steer))
    if known_at not in get_args(KnownAt):
        raise UserError(f"known_at={known_at!r}: expected one of {', '.join(get_args(KnownAt))}")
    if known is None and known_mask is None:
        return predict, None
    if isinstance(known, Mapping):
        x, where = check_known_parts(model, n, known, known_mask)
    elif known is None or known_mask is None:
        raise UserError(f"{'known' if known is None else 'known_mask'}=None: known and known_mask go together")
    else:
        x, where = check_known(model.flow, model.data_shape, n, known, known_mask, model.device)
    if not bool(where.any()):
        return predict, None
    x, where = x.repeat_interleave(each, 0), where.repeat_interleave(each, 0)
    given = Known(predict, model.flow, x, where, known_at, model.dtype)
    return given, given
