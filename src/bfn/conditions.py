"""Conditions: named tensors that a network is given beside the state, and what the training data have of them.

A condition is a tensor (n, ...): classes, numbers, vectors, sequences. One that is left out, or dropped in training, is
null: -1 for whole numbers, NaN for floats, which a network turns into a vector of its own. The class of a sample is the
condition called ``label``; what exists of a padded sample goes the same way as ``present`` (``bfn.presence``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.arguments import as_tensor
from bfn.core.info import NOTHING, Fact, ModelInfo
from bfn.errors import UserError, did_you_mean
from bfn.flows import Shape
from bfn.schedules import stratified_times

__all__ = [
    "CLASSES", "CONDITIONS", "NO_CLASS", "Classes", "Condition", "ConditionTensors", "Label", "as_values",
    "conditions_in_turn", "dropped", "known_conditions", "labels_of", "null_like", "rows_of",
]  # fmt: skip

NO_CLASS = -1
"""The null of whole numbers: the label that asks a class-conditional network for its prediction without a class."""

ConditionTensors = Mapping[str, Tensor]
"""Conditions of a batch by their names, each (n, ...)."""

Label = int | str | Sequence[int | str] | Tensor
"""Classes that a user asks for: one for all samples or one for each, as numbers or names, or an array."""


class HasConditions:
    """Samples with the conditions that they were made with."""

    x: Any
    conditions: ConditionTensors

    @property
    def label(self) -> Tensor | None:
        """The classes of the samples, (n,), if any."""
        return self.conditions.get("label")

    @property
    def present(self) -> Any:
        """What of the samples is there, bool like x, where they have different lengths; None where all is."""
        packed = self.conditions.get("present")
        if packed is None or not isinstance(self.x, Mapping):
            return packed
        pieces = torch.split(packed, [math.prod(own.shape[1:]) for own in self.x.values()], 1)
        return {name: piece.reshape(own.shape) for (name, own), piece in zip(self.x.items(), pieces, strict=True)}


MOST_EXAMPLES = 4096
"""Numbers that are kept of a condition's values in the data, to draw from."""


def null_like(value: Tensor) -> Tensor:
    """The null of a condition: -1 for whole numbers, NaN for floats."""
    return torch.full_like(value, math.nan if value.is_floating_point() else NO_CLASS)


def dropped(conditions: ConditionTensors, share: float | Mapping[str, float], draws: Tensor) -> dict[str, Tensor]:
    """Conditions with some samples' made null, each with its probability; what is present is never dropped.

    share: one for all, or one each by name, 0 for others. draws: (batch, conditions), uniform in [0, 1).
    """
    found, column = {}, 0
    for name, value in conditions.items():
        if name == "present":
            found[name] = value
            continue
        own = share.get(name, 0.0) if isinstance(share, Mapping) else share
        lost = (draws[:, column] < own).to(value.device).view(-1, *(1,) * (value.ndim - 1))
        found[name] = torch.where(lost, null_like(value), value)
        column += 1
    return found


def rows_of(conditions: ConditionTensors | None, rows: Any) -> dict[str, Tensor]:
    """Some samples' conditions."""
    return {name: value[rows] for name, value in (conditions or {}).items()}


@dataclass(frozen=True)
class Classes:
    """The classes of a class-conditional model: their names, and their shares in the data it was trained on."""

    names: tuple[str, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(values, list | tuple) for values in (self.names, self.shares)):
            kinds = f"{type(self.names).__name__} of names, {type(self.shares).__name__} of shares"
            raise UserError(f"classes from a {kinds}: expected tuples")
        if not self.names or len(self.names) != len(self.shares):
            raise UserError(f"{len(self.names)} class names, {len(self.shares)} shares: expected as many, at least one")
        if len(set(self.names)) != len(self.names):
            raise UserError(f"class names {', '.join(self.names)}: expected each name once")
        if not all(share >= 0 for share in self.shares) or not 0.999 < sum(self.shares) < 1.001:
            raise UserError(f"class shares {self.shares}: expected numbers from 0 up that sum to 1")

    @classmethod
    def equal(cls, n: int) -> Classes:
        """n classes named by their numbers, all equally frequent."""
        return cls(tuple(map(str, range(n))), (1 / n,) * n)

    def __len__(self) -> int:
        return len(self.names)

    def draw(self, n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
        """n classes in proportion to their shares, in random order: (n,) int64.

        Each is drawn by the shares; together they are spread evenly, so that a class is drawn n times its share, up to
        less than one, and a few samples already stand for the whole.
        """
        ends = torch.tensor(self.shares, dtype=torch.float64, device=device).cumsum(0)
        places = stratified_times(n, generator, device) * ends[-1]
        order = torch.randperm(n, generator=generator, device=device)
        return torch.searchsorted(ends, places, right=True).clamp(max=len(self) - 1)[order]

    def in_turn(self, n: int) -> Tensor:
        """n classes, each in its turn: what measurements ask for, so that every class counts alike."""
        return torch.arange(n) % len(self)

    def index(self, label: int | str) -> int:
        """The number of a class that is given by its name or its number; -1 for none."""
        if isinstance(label, str) and label in self.names:
            return self.names.index(label)
        try:
            number = int(label)
        except ValueError:
            number = len(self)
        if not NO_CLASS <= number < len(self):
            known = ", ".join(self.names[:12]) + (", ..." if len(self) > 12 else "")
            raise UserError(
                f"label={label!r}: expected one of the {len(self)} classes {known}, its number, or -1 for none"
                f"{did_you_mean(label, self.names)}"
            )
        return number

    def name(self, number: int) -> str:
        """The name of a class; "none" for -1."""
        return "none" if number == NO_CLASS else self.names[number]


@dataclass(frozen=True)
class Condition:
    """What a model knows of one of its conditions.

    shape: of one sample's value, () for one number. n_classes: of whole numbers, 0 for numbers. names: of the classes.
    low, high: the range of numbers in the data. examples: values of some samples of the data, one after the other,
    to draw from where none are asked for. optional: whether it was dropped in training, so that it may be left out.
    """

    shape: tuple[int, ...] = ()
    n_classes: int = 0
    names: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    examples: tuple[float, ...] = field(default=(), repr=False)
    optional: bool = True

    def __post_init__(self) -> None:
        if self.n_classes < 0 or (self.names and len(self.names) != self.n_classes):
            raise UserError(f"{len(self.names)} names for n_classes={self.n_classes}: expected as many")
        if not all(side > 0 for side in self.shape) or len(self.examples) % math.prod(self.shape):
            raise UserError(f"{len(self.examples)} numbers as examples: expected whole values of shape {self.shape}")

    @classmethod
    def of(cls, values: Tensor, names: Sequence[str] = (), *, optional: bool = True) -> Condition:
        """What is to be kept of a condition's values in the data, (samples, *shape)."""
        shape: Shape = tuple(values.shape[1:])
        size = max(1, math.prod(shape))
        kept = min(len(values), max(1, MOST_EXAMPLES // size))
        rows = torch.arange(kept) * len(values) // kept
        examples = tuple(values[rows].flatten().tolist()) if size <= MOST_EXAMPLES else ()
        if values.is_floating_point():
            finite = values[torch.isfinite(values)]
            low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (None, None)
            return cls(shape, 0, (), low, high, examples, optional)
        return cls(shape, max(len(names), int(values.max()) + 1), tuple(names), None, None, examples, optional)

    @property
    def n_examples(self) -> int:
        """How many values there are to draw from."""
        return len(self.examples) // math.prod(self.shape)

    def rows(self, numbers: Tensor) -> Tensor:
        """The examples of those numbers, (n, *shape)."""
        dtype = torch.int64 if self.n_classes else torch.get_default_dtype()
        return torch.tensor(self.examples, dtype=dtype).reshape(-1, *self.shape)[numbers]

    def null(self, n: int) -> Tensor:
        """n values that ask for the network without this condition."""
        dtype = torch.int64 if self.n_classes else torch.get_default_dtype()
        return null_like(torch.zeros((n, *self.shape), dtype=dtype))

    def values(self, name: str, given: Any, n: int) -> Tensor:
        """The values of n samples, (n, *shape): one for all or one each, checked against what the data have."""
        if self.names and not isinstance(given, Tensor):
            given = [self._number(name, one) for one in given] if isinstance(given, list | tuple) else given
            given = self._number(name, given) if isinstance(given, str) else given
        value = as_values(name, given, n, self.shape, whole=bool(self.n_classes))
        if self.n_classes:
            if value.numel() and not (int(value.min()) >= NO_CLASS and int(value.max()) < self.n_classes):
                raise UserError(
                    f"condition {name} from {int(value.min())} to {int(value.max())}: expected 0 to "
                    f"{self.n_classes - 1}, or -1 for none"
                )
            return value
        finite = value[torch.isfinite(value)]
        if self.low is not None and self.high is not None and finite.numel():
            width = max(self.high - self.low, 1e-12 + 0.1 * abs(self.high))
            wrong = finite[(finite < self.low - width) | (finite > self.high + width)]
            if wrong.numel():
                raise UserError(
                    f"condition {name}={float(wrong[0]):g}: the data that the model was made for have "
                    f"{self.low:g} to {self.high:g}"
                )
        return value

    def _number(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in self.names:
            known = ", ".join(self.names[:12]) + (", ..." if len(self.names) > 12 else "")
            raise UserError(f"condition {name}={value!r}: expected one of {known}{did_you_mean(value, self.names)}")
        return self.names.index(value)


def as_values(name: str, given: Any, n: int, shape: Shape | None = None, *, whole: bool | None = None) -> Tensor:
    """A condition as a user gives it, for each of n samples; of any shape where none is known."""
    value = as_tensor(f"condition {name}", given)
    if value.dtype is torch.bool:
        value = value.long()
    if whole is not None and whole == value.is_floating_point():
        if whole:
            raise UserError(f"condition {name} of type {value.dtype}: expected whole numbers, its classes")
        value = value.to(torch.get_default_dtype())
    if shape is None:
        shape = tuple(value.shape[1:]) if value.ndim and len(value) == n else tuple(value.shape)
    if tuple(value.shape) not in (tuple(shape), (n, *shape)):
        raise UserError(f"condition {name} of shape {tuple(value.shape)}: expected {tuple(shape)} or {(n, *shape)}")
    return value.expand(n, *shape)


def known_conditions(
    known: Mapping[str, Condition],
    given: Mapping[str, Any],
    n: int,
    generator: torch.Generator | None,
    device: torch.device | None,
    *,
    drawn: bool,
) -> dict[str, Tensor]:
    """The conditions of n samples: those given; of the rest, all drawn together from the data's own, or null.

    Where a model's info knows its conditions none but those may be given; else whatever the network takes.
    """
    foreign = next((name for name in given if known and name not in known), None)
    if foreign is not None:
        raise UserError(
            f"condition {foreign!r}: this model's are {', '.join(known)}{did_you_mean(foreign, tuple(known))}"
        )
    found = {
        name: known[name].values(name, value, n) if name in known else as_values(name, value, n)
        for name, value in given.items()
    }
    rest = {name: one for name, one in known.items() if name not in given}
    counts = {one.n_examples for one in rest.values() if one.examples}
    if rest and counts and (drawn or not all(one.optional for one in rest.values())):
        rows = stratified_times(n, generator, device)
        order = torch.randperm(n, generator=generator, device=device)
        places = rows[order].cpu()
    for name, one in rest.items():
        wanted = one.examples and (drawn or not one.optional)
        found[name] = one.rows((places * one.n_examples).long()) if wanted else one.null(n)
    return {name: value.to(device) for name, value in found.items()}


def labels_of(
    classes: Classes | None,
    label: Label | None,
    n: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor | None:
    """Return the classes of n samples, (n,) int64: those asked for, or drawn by their shares in the data.

    Returns None if the model has no classes and none are asked for.
    """
    if label is None:
        return None if classes is None else classes.draw(n, generator, device)
    given: Any = label.tolist() if isinstance(label, Tensor | np.ndarray | np.generic) else label
    values = [given] * n if isinstance(given, int | str) else given
    if not isinstance(values, Sequence) or len(values) != n:
        raise UserError(f"label={_brief(label)}: expected one class for all samples, or one for each of the {n}")
    wrong = next((value for value in values if isinstance(value, bool) or not isinstance(value, int | str)), None)
    if wrong is not None:
        raise UserError(f"label={wrong!r}: expected whole numbers, -1 for none, or names of classes")
    if classes is not None:
        return torch.tensor([classes.index(value) for value in values], dtype=torch.int64, device=device)
    named = next((value for value in values if isinstance(value, str)), None)
    if named is not None:
        raise UserError(f"label={named!r}: this model has no names of classes; give their numbers")
    return as_tensor("label", values, dtype=torch.int64, device=device)


def _brief(value: object) -> str:
    """Return a short text for a message."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]


def conditions_in_turn(info: ModelInfo, n: int) -> dict[str, Tensor]:
    """Return the conditions of n samples as measurements ask for them: classes in turn, others spread over the data."""
    classes = info[CLASSES]
    found = {} if classes is None else {"label": classes.in_turn(n)}
    for name, one in info[CONDITIONS].items():
        k = one.n_examples
        found[name] = one.rows(torch.arange(n) % k if n >= k else torch.arange(n) * k // n) if k else one.null(n)
    return found


CLASSES: Fact[Classes | None] = Fact("classes", Classes | None, None)
"""Classes of a class-conditional model."""

CONDITIONS: Fact[Mapping[str, Condition]] = Fact("conditions", Mapping[str, Condition], NOTHING)
"""Other conditions of the network, by name."""
