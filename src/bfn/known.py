"""What is known of a sample: parts of the data that are given, and followed exactly by every solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn.arguments import as_tensor
from bfn.controls.known import DATA_END, Given, KnownAt
from bfn.core.control import Predict
from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel, Shape
from bfn.heads import Output
from bfn.sde import data_from_message

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["Given", "Known", "KnownAt", "Predict", "anything_known", "check_known", "check_known_parts"]


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

    def __call__(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        """The prediction with the known part put in."""
        if self.at == "data":
            u = torch.where(self.state_mask, self.shown, u)
            s = torch.as_tensor(level.s, dtype=u.dtype, device=u.device)
            level = NoiseLevel(self.flow.told(level.t, self.mask), torch.where(self.state_mask, DATA_END, s))
        output = self.predict(u, level, **conditions)
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


def anything_known(known: object, known_mask: object) -> bool:
    """Whether these arguments of ``sample`` give any of the data."""
    whole = isinstance(known, Mapping) or not isinstance(known_mask, Tensor)
    return known is not None and (whole or bool(known_mask.any()))  # type: ignore[attr-defined]


def check_known_parts(
    model: Model, n: int, known: Mapping[str, Any], mask: Mapping[str, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The same for joint data: whole parts, or the pieces of them where the mask of a part is True; packed."""
    if mask is not None and not isinstance(mask, Mapping):
        raise UserError(f"known_mask of type {type(mask).__name__}: expected a mapping of parts, as known is one")
    masks = mask or {}
    foreign = next((name for name in (*known, *masks) if name not in model.flow.parts), None)
    if foreign is not None:
        raise UserError(f"known part {foreign!r}: expected one of {', '.join(model.flow.parts)}")
    xs, wheres = [], []
    for name, flow in model.flow.parts.items():
        shape = tuple(model.data_shape[name])
        value = as_tensor("known", known.get(name, 0), device=model.device)
        value = value.to(model.dtype) if flow.has_range else value
        value = value.expand(shape) if value.ndim == 0 else value
        where = masks.get(name, torch.full(shape, name in known))
        try:
            own, own_where = check_known(flow, shape, n, value, where, model.device)
        except UserError as error:
            raise UserError(f"part {name!r}: {error}") from None
        xs.append(own.reshape(n, -1).to(model.dtype))
        wheres.append(own_where.reshape(n, -1))
    return torch.cat(xs, 1), torch.cat(wheres, 1)


def check_known(
    flow: Flow, data_shape: Shape, n: int, known: Tensor, mask: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """x and mask of n samples, (n, *data_shape); 0 where nothing is known, whatever ``known`` holds there."""
    known, mask = as_tensor("known", known), as_tensor("known_mask", mask)
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
