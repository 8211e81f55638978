"""The arguments of networks: kept in their config, and checked with one line that says what was expected."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bfn._utils.arguments import MOST_COUNT, check_whole
from bfn.core.errors import UserError

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None
"""Whatever `json` can write: the type of a network's stored arguments."""
BLOCKS, MOST_BLOCKS = ("n_blocks", "n_layers", "n_levels"), 10_000
"""Blocks that a network is made of, one after another: a slip here would take forever, before it took all memory."""


def config_of(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a network of that name, from the `locals()` at the start of its `__init__`."""
    given = {key: value for key, value in arguments.items() if key not in ("self", "__class__")}
    return {"name": name} | {key: _plain(value) for key, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def require_positive(config: Mapping[str, Any], *names: str) -> None:
    """Raise a UserError for the first of these sizes that is no whole number from 1 up; a size may be None."""
    for name in names:
        size = config[name]
        if isinstance(size, int) and size < 1:
            raise UserError(f"{name}={size}: expected at least 1")
        if size is not None:
            check_whole(name, size, 1, MOST_BLOCKS if name in BLOCKS else MOST_COUNT)


def require_divisible(**sizes: tuple[int, int]) -> None:
    """Raise a UserError for the first size, (size, divisor), that the divisor does not divide."""
    for name, (size, divisor) in sizes.items():
        if size % divisor:
            raise UserError(f"{name}={size}: expected a multiple of {divisor}")


def refuse_label(label: Tensor | None) -> None:
    """Raise a UserError if there is a label: the published networks know none."""
    if label is not None:
        raise UserError("label given to a network without labels: the published networks know none, pass label=None")


def require_shape(inputs: Tensor, t: Tensor, expected: Sequence[int | str], n_times: int = 1) -> None:
    """Raise a UserError unless inputs has the expected shape (names stand for any size) and t its n_times a sample."""
    wanted = ", ".join(str(size) for size in expected)
    if inputs.ndim != len(expected) or any(
        isinstance(size, int) and size != actual for size, actual in zip(expected, inputs.shape, strict=True)
    ):
        raise UserError(f"inputs of shape {tuple(inputs.shape)}: this network takes ({wanted})")
    if tuple(t.shape) != (len(inputs), *((n_times,) if n_times > 1 else ())):
        many = f"{n_times} times a sample, ({len(inputs)}, {n_times})"
        one = f"one time a sample, ({len(inputs)},)"
        raise UserError(f"t of shape {tuple(t.shape)}: expected {many if n_times > 1 else one}")


def require_present(present: Tensor, *shapes: Sequence[int]) -> None:
    """Raise a UserError unless present is bool and has one of these shapes."""
    if present.dtype != torch.bool or tuple(present.shape) not in [tuple(shape) for shape in shapes]:
        wanted = " or ".join(str(tuple(shape)) for shape in dict.fromkeys(map(tuple, shapes)))
        raise UserError(f"present of shape {tuple(present.shape)}, {present.dtype}: expected bool of {wanted}")
