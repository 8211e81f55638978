"""Named conditions of a network: what each is declared as, how it is checked, and how it is embedded.

A network is told of its conditions by a mapping, {"gap": {"shape": [], "mean": 0.25, "std": 0.05}, ...}. Each is one of

    numbers     shape [] or [n]: standardised by mean and std, one vector a sample
    a class     shape [] with n_classes: one vector a sample
    a sequence  shape [length] with n_classes, or [length, features]: tokens that are attended to

A condition that is not there is null: -1 for whole numbers, NaN for floats, and the network learns what that means.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.errors import UserError, did_you_mean

__all__ = ["ClassEmbedding", "ConditionSpec", "Declarations", "NumberEmbedding", "TokenEmbedding", "declared"]

Declarations: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Conditions by name, each with its shape, n_classes, mean and std, as a config holds them."""

TAKEN = ("self", "inputs", "t", "label", "present")
KEYS = ("shape", "n_classes", "mean", "std")


@dataclass(frozen=True)
class ConditionSpec:
    """What a network expects of one condition: values (batch, *shape), classes where n_classes is not 0."""

    name: str
    shape: tuple[int, ...] = ()
    n_classes: int = 0
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0

    @property
    def is_sequence(self) -> bool:
        """Whether it is made of tokens that are attended to, and not one vector a sample."""
        return len(self.shape) == (1 if self.n_classes else 2)

    @property
    def null(self) -> float:
        """What stands for "not there": -1 for classes, NaN for numbers."""
        return -1 if self.n_classes else math.nan

    def embedding(self, features: int) -> "ClassEmbedding | NumberEmbedding | TokenEmbedding":
        """A fresh embedding of its values."""
        if self.is_sequence:
            return TokenEmbedding(self, features)
        return ClassEmbedding(self, features) if self.n_classes else NumberEmbedding(self, features)

    def checked(self, values: Tensor | None, t: Tensor) -> Tensor:
        """The values of a batch with these times, null for all of it if None; a UserError unless they fit."""
        shape = (len(t), *self.shape)
        if values is None:
            return torch.full(shape, self.null, dtype=torch.int64 if self.n_classes else t.dtype, device=t.device)
        if values.shape != shape:
            raise UserError(f"{self.name} of shape {tuple(values.shape)}: this network takes {shape}")
        if self.n_classes and (values.is_floating_point() or values.is_complex()):
            raise UserError(f"{self.name} of {values.dtype}: expected classes, whole numbers with -1 for none")
        if self.n_classes:
            return values.long()
        return values if values.is_floating_point() else values.to(t.dtype)

    def outside(self, classes: Tensor) -> UserError:
        """The error for classes of which some are not known."""
        low, high = int(classes.min()), int(classes.max())
        known = f"expected classes from 0 to {self.n_classes - 1}, or -1 for none"
        return UserError(f"{self.name} from {low} to {high}: {known}")


def declared(conditions: Declarations | None) -> list[ConditionSpec]:
    """The conditions of a network's arguments, sorted by name; a UserError for what cannot be."""
    return [_declared(name, (conditions or {})[name]) for name in sorted(conditions or {})]


def _declared(name: str, given: Mapping[str, Any]) -> ConditionSpec:
    if not name.isidentifier() or name in TAKEN:
        raise UserError(
            f"condition {name!r}: expected a Python name other than {', '.join(TAKEN)} (n_labels is for label)"
        )
    if not isinstance(given, Mapping):
        raise UserError(f"condition {name} is {given!r}: expected a mapping with {', '.join(KEYS)}")
    for key in given:
        if key not in KEYS:
            raise UserError(f"condition {name} has {key!r}: expected {', '.join(KEYS)}{did_you_mean(key, KEYS)}")
    shape, n_classes = given.get("shape", ()), given.get("n_classes") or 0
    sizes = tuple(shape) if isinstance(shape, Sequence) else (None,)
    if len(sizes) > (1 if n_classes else 2) or any(not isinstance(size, int) or size < 1 for size in sizes):
        kinds = "[] or [length] for classes" if n_classes else "[], [features] or [length, features] for numbers"
        raise UserError(f"condition {name} of shape {shape}: expected {kinds}")
    if not isinstance(n_classes, int) or n_classes < 0:
        raise UserError(f"condition {name} with n_classes={n_classes}: expected 0 (numbers) or the number of classes")
    for key in ("mean", "std"):
        if key in given and n_classes:
            raise UserError(f"condition {name} has n_classes and {key}: classes are not standardised, leave {key} out")
        numbers = torch.tensor(given.get(key, 1.0))
        fits = numbers.shape in ((), sizes[-1:]) and bool(numbers.isfinite().all())
        if not fits or (key == "std" and (numbers <= 0).any()):
            expected = "a number" + (f", or {sizes[-1]}," if sizes else "") + (" above 0" if key == "std" else "")
            raise UserError(f"condition {name} with {key}={given[key]}: expected {expected}")
    return ConditionSpec(name, sizes, n_classes, given.get("mean", 0.0), given.get("std", 1.0))


class ClassEmbedding(nn.Embedding):
    """One vector a class; the first row is that of no class: (...) -> (..., features)."""

    def __init__(self, spec: ConditionSpec, features: int) -> None:
        super().__init__(spec.n_classes + 1, features)
        self.spec = spec

    def forward(self, classes: Tensor) -> Tensor:
        """Embed; -1 is no class."""
        try:
            return F.embedding(classes + 1, self.weight)
        except IndexError:
            raise self.spec.outside(classes) from None


class NumberEmbedding(nn.Module):
    """One vector for a single number or for n of them: (...) or (..., n) -> (..., features)."""

    mean: Tensor
    std: Tensor
    frequencies: Tensor

    def __init__(self, spec: ConditionSpec, features: int) -> None:
        super().__init__()
        self.single = not spec.shape
        # A single number may matter in a way that is not linear: periods from 16 to half a standard deviation.
        turns = torch.logspace(-4, 1, 8 if self.single else 0, base=2)
        # None of these is a weight: mean and std are in the network's config.
        self.register_buffer("frequencies", 2 * math.pi * turns, persistent=False)
        self.register_buffer("mean", torch.tensor(spec.mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std, dtype=torch.float32), persistent=False)
        self.linear = nn.Linear(2 * len(turns) + (1 if self.single else spec.shape[-1]), features)
        self.null = nn.Parameter(torch.zeros(features))

    def forward(self, numbers: Tensor) -> Tensor:
        """Embed; a vector with NaN anywhere becomes the learned null."""
        numbers = numbers[..., None] if self.single else numbers
        null = numbers.isnan().any(-1, keepdim=True)
        # Before the layers and not after: the gradient of what is masked later is NaN times 0.
        numbers = (torch.where(null, self.mean, numbers.to(self.mean.dtype)) - self.mean) / self.std
        if self.single:
            phase = numbers * self.frequencies
            numbers = torch.cat((numbers, phase.sin(), phase.cos()), dim=-1)
        return torch.where(null, self.null, self.linear(numbers))


class TokenEmbedding(nn.Module):
    """Tokens of a sequence, behind a null that is attended to where there is no sequence at all.

    (batch, length) classes or (batch, length, n) numbers -> tokens (batch, 1 + length, features), and which of them
    are attended to (batch, 1 + length)
    """

    def __init__(self, spec: ConditionSpec, features: int) -> None:
        super().__init__()
        self.spec = spec
        self.entries = ClassEmbedding(spec, features) if spec.n_classes else NumberEmbedding(spec, features)
        self.positions = nn.Parameter(torch.randn(1 + spec.shape[0], features))
        self.norm = nn.LayerNorm(features)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Embed; entries -1, and rows with NaN, are padding."""
        padding = values == -1 if self.spec.n_classes else values.isnan().any(-1)
        entries = torch.cat((torch.full_like(values[:, :1], self.spec.null), values), dim=1)
        tokens = self.norm(self.entries(entries) + self.positions)
        return tokens, torch.cat((padding.all(1, keepdim=True), ~padding), dim=1)
