"""Old names of ``bfn.controls`` and ``bfn.core.conditions``, until their importers have moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from bfn.controls.guidance import Guidance
from bfn.controls.steering import Steering
from bfn.core.conditions import Conditions
from bfn.core.control import Predict
from bfn.errors import UserError
from bfn.flows import Flow

__all__ = ["Guidance", "Guided", "Steered", "Steering", "conditioned", "conditions_for"]


def Guided(predict: Predict, guidance: Guidance) -> Predict:  # noqa: N802  the name of earlier versions
    """Return the guided function."""
    return guidance.predict(predict, cast(Any, None))


def Steered(predict: Predict, flow: Flow, steering: Steering) -> Predict:  # noqa: N802  likewise
    """Return the steered function."""
    return partial(steering._steered, predict, flow)


def conditions_for(
    info: Any, n: int, label: Any = None, condition: Any = None, generator: torch.Generator | None = None,
    device: torch.device | None = None, *, drawn: bool = True,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the conditions of n samples."""
    if condition is not None and not isinstance(condition, Mapping):
        raise UserError(f"condition of type {type(condition).__name__}: expected a mapping of names to values")
    given = dict(condition or {})
    if "label" in given:
        if label is not None:
            raise UserError("label beside condition['label']: give one of them")
        label = given.pop("label")
    model: Any = type("Facts", (), {"info": info, "device": device})
    return Conditions(label, given, drawn and label is None and not given).conditions({}, model, n, generator)


def conditioned(model: Any, n: int, *, conditions: Collection[str] = (), guidance: Any = None) -> tuple[Predict, None]:
    """Return the model's output with guidance."""
    if guidance is None:
        return model.output, None
    guidance = Guidance.from_options(guidance)
    return (Guided(model.output, guidance) if guidance.groups(conditions) else model.output), None
