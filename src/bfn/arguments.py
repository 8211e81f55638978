"""Arguments as users give them: numbers and tensors, or one line that says what was expected instead."""

from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from bfn.errors import UserError

__all__ = ["as_tensor", "check_real", "check_text", "check_whole"]


def check_whole(name: str, value: object, least: int, most: int) -> int:
    """The value, if it is a whole number within bounds; neither 2.0 nor True is one.

    >>> check_whole("n", 3, 1, 10)
    3
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        raise UserError(f"{name}={_brief(value)}: expected a whole number from {least} to {most:,}")
    return int(value)


def check_real(name: str, value: Any) -> float | None:
    """The value, if it is a number, be it NaN, or a tensor of one; None is passed through."""
    if value is None:
        return None
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise UserError(f"{name}={_brief(value)}: expected a number")
    try:
        return float(value)
    except OverflowError:
        raise UserError(f"{name}={_brief(value)}: expected a number that a float can hold") from None


def check_text(name: str, value: object) -> None:
    """Raise a UserError unless the value is a string."""
    if not isinstance(value, str):
        raise UserError(f"{name}={_brief(value)}: expected a string")


def as_tensor(name: str, value: Any, **options: Any) -> Tensor:
    """The value as a tensor, with options as ``torch.as_tensor`` takes them."""
    try:
        return torch.as_tensor(value, **options)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise UserError(f"{name}={_brief(value)}: expected numbers, an array or a tensor") from None


def _brief(value: object) -> str:
    return " ".join(repr(value).split())[:60]
