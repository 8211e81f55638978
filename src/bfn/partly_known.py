"""Training on data of which some are known: what a model is to be shown when it fills in the rest.

A network that was never shown two noise levels at once fills in by what it makes of them. One that was trained so, on
some of its samples, knows: it predicts E[rest | noisy rest, known], and what is known costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bfn.arguments import check_real
from bfn.controls.known import BoundKnown
from bfn.errors import UserError
from bfn.flows import NoiseLevel
from bfn.heads import Output
from bfn.model import Model
from bfn.presence import pack_mask

__all__ = ["KnownInTraining", "PartlyKnown", "known_in_training"]

KnownInTraining = float | Callable[[Any, torch.Generator], Any]
"""A share of the samples, of which a random share of the variables each is known; or a function (x, generator) -> mask,
x a batch of data (of joint data a mapping of parts), the mask, or mapping of masks, True where they are known."""


class PartlyKnown(Model):
    """A model while some of the data x, where the mask is True, are known to it: packed, like each other."""

    def __init__(self, model: Model, x: Tensor, mask: Tensor) -> None:
        self.flow, self.data_shape = model.flow, model.data_shape
        self._dtype, self._device = model.dtype, model.device
        self._predict = partial(BoundKnown(x, mask, "data", model.flow, model.dtype).output, model.output)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._device

    def output(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        return self._predict(u, level, **conditions)


def known_in_training(
    model: Model, x: Tensor, known: KnownInTraining, generator: torch.Generator, present: Tensor | None = None
) -> Tensor | None:
    """The mask of a packed batch, like it; None where nothing is ever known."""
    if not callable(known):
        check_real("known", known)
        if not 0 <= known <= 1:
            raise UserError(f"known={known}: expected a share of the samples in [0, 1], or a function (x, generator)")
        if known == 0:
            return None
        share = torch.rand(len(x), generator=generator) * (torch.rand(len(x), generator=generator) < known)
        mask = torch.rand(x.shape, generator=generator) < share.reshape(-1, *(1,) * (x.ndim - 1))
    else:
        shape = model.flow.shape_of(x, model.data_shape)
        mask = pack_mask("known", known(model.flow.unpack(x), generator), model.flow, shape, len(x))
    return mask if present is None else mask & present
