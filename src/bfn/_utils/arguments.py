"""Checks of arguments and of optional packages. Each failure is one line that says what was expected."""

import importlib
from math import inf
from numbers import Integral, Real
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bfn.core.errors import UserError

MOST_COUNT = 10**9
"""Maximum of counts such as steps, samples or paths. A larger one is a mistake and would never finish."""

EXTRAS = {
    "records": ("pandas", "pyarrow", "tokenizers"),
    "chem": ("rdkit", "selfies", "fcd"),
    "tables": ("xgboost",),
    "metrics": ("spylls",),
}
"""Extras of this distribution and the optional packages that they install; all other packages come with ``data``."""


def check_whole(name: str, value: object, least: int, most: int) -> int:
    """Return the value if it is a whole number within bounds; neither 2.0 nor True is one.

    >>> check_whole("n", 3, 1, 10)
    3
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        raise UserError(f"{name}={_brief(value)}: expected a whole number from {least} to {most:,}")
    return int(value)


def check_real(name: str, value: Any) -> float | None:
    """Return the value as a float if it is a number (NaN included) or a tensor with one number; None stays None."""
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


def check_positive(name: str, value: Any) -> float | None:
    """Return the value if it is a finite number above 0; None stays None."""
    number = check_real(name, value)
    if number is not None and not 0 < number < inf:
        raise UserError(f"{name}={_brief(value)}: expected a positive number")
    return number


def check_share(name: str, value: Any) -> float | None:
    """Return the value as a float if it is a number from 0 to 1; None stays None."""
    share = check_real(name, value)
    if share is not None and not 0 <= share <= 1:
        raise UserError(f"{name}={_brief(value)}: expected a share from 0 to 1")
    return share


def check_seed(value: object) -> int:
    """Return the seed if it is a whole number that ``torch.Generator.manual_seed`` accepts."""
    return check_whole("seed", value, -(2**63), 2**64 - 1)


def check_text(name: str, value: object) -> None:
    """Raise a UserError unless the value is a string."""
    if not isinstance(value, str):
        raise UserError(f"{name}={_brief(value)}: expected a string")


def as_tensor(name: str, value: Any, **options: Any) -> Tensor:
    """Return the value as a tensor. The options are those of ``torch.as_tensor``."""
    try:
        return torch.as_tensor(value, **options)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise UserError(f"{name}={_brief(value)}: expected numbers, an array or a tensor") from None


def require(module: str, purpose: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: name of the module.
        purpose: completes "... is needed", such as "to draw molecules".

    Raises:
        ImportError: the package is missing; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        package = {"PIL": "Pillow", "sklearn": "scikit-learn"}.get(top, top)
        extra = next((name for name, packages in EXTRAS.items() if top in packages), "data")
        raise ImportError(f"{package} is needed {purpose}: pip install 'bayesian-flow[{extra}]'") from error


def _brief(value: object) -> str:
    """Return the value in at most 60 characters."""
    return " ".join(repr(value).split())[:60]
