"""Arguments as users give them: numbers and tensors, or one line that says what was expected instead."""

from math import inf
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from bfn.core.errors import UserError

MOST_COUNT = 10**9
"""Of steps, samples of a batch, paths: more are a slip, and would never come to an end."""


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


def check_share(name: str, value: Any) -> float | None:
    """The value, if it is a number from 0 to 1; None is passed through."""
    share = check_real(name, value)
    if share is not None and not 0 <= share <= 1:
        raise UserError(f"{name}={_brief(value)}: expected a share from 0 to 1")
    return share


def check_positive(name: str, value: Any) -> float | None:
    """The value, if it is a finite number above 0; None is passed through."""
    number = check_real(name, value)
    if number is not None and not 0 < number < inf:
        raise UserError(f"{name}={_brief(value)}: expected a positive number")
    return number


def check_seed(value: object) -> int:
    """The seed, if it is a whole number that a generator of torch takes."""
    return check_whole("seed", value, -(2**63), 2**64 - 1)


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
