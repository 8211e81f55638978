"""Named conditions of a network: what each is declared as, how it is checked, and how it is embedded.

A network is told of its conditions by a mapping, {"gap": {"shape": [], "mean": 0.25, "std": 0.05}, ...}. Each is one of

    numbers     shape [] or [n]: standardised by mean and std, one vector a sample
    a class     shape [] with n_classes: one vector a sample
    a sequence  shape [length] with n_classes, or [length, features]: tokens that are attended to

A condition that is not there is null: -1 for whole numbers, NaN for floats, and the network learns what that means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.core.errors import UserError, did_you_mean

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


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def zeroed(layer: Layer) -> Layer:
    """Set the weights and bias of a layer to zero, so that its branch starts as nothing."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def centre(theta: Tensor) -> Tensor:
    """Class probabilities (..., K) with mean zero and unit mean square at certainty: (K theta - 1) / sqrt(K - 1)."""
    n_classes = theta.shape[-1]
    return (n_classes * theta - 1) / math.sqrt(n_classes - 1)


def combine(theta: Tensor, logits: Tensor) -> Tensor:
    """Logits of the posterior from each place's own evidence theta and what its surroundings say, both (..., K).

    Bayes' rule: p(x_i = k | theta) is proportional to theta_ik p(x_i = k | theta elsewhere). A network that adds
    log theta to its output has only the surroundings to learn, and starts from softmax(output) = theta.
    """
    return logits.to(theta.dtype) + theta.clamp(min=torch.finfo(theta.dtype).tiny).log()


class Context(NamedTuple):
    """What the blocks of a network are told beside their input."""

    vector: Tensor
    """Time and conditions, (batch, features)."""
    tokens: Tensor | None = None
    """The conditions that are sequences, one behind the other, (batch, tokens, features)."""
    attended: Tensor | None = None
    """Which tokens are there, bool (batch, tokens)."""
    present: Tensor | None = None
    """Which places of the data are there, in the form the network's blocks use; None if all are."""


class Conditioning(nn.Module):
    """Time and conditions, the label one of them, as the blocks get them: t (batch,), any (batch, ...) -> Context.

    n_times: how many times a sample has, where parts of joint data have their own; t is then (batch, n_times).
    """

    frequencies: Tensor

    def __init__(
        self,
        features: int,
        n_labels: int = 0,
        n_frequencies: int = 32,
        conditions: Declarations | None = None,
        n_times: int = 1,
    ) -> None:
        super().__init__()
        if n_labels < 0:
            raise UserError(f"n_labels={n_labels}: expected 0 (no labels) or the number of labels")
        # Outputs change smoothly over t in [0, 1]: from a sixth of a turn to 16 turns is enough.
        turns = torch.logspace(math.log10(1 / 6), math.log10(16), n_frequencies)
        self.register_buffer("frequencies", 2 * math.pi * turns, persistent=False)
        self.specs = [*([ConditionSpec("label", (), n_labels)] if n_labels else []), *declared(conditions)]
        self.sequences = [spec.name for spec in self.specs if spec.is_sequence]
        self.time = nn.Linear(2 * n_frequencies * n_times, features)
        self.label = self.specs[0].embedding(features) if n_labels else None
        self.out = nn.Linear(features, features)
        for spec in self.specs[1 if n_labels else 0 :]:
            # With a word in front no name can be that of something a module has already.
            self.add_module(f"condition_{spec.name}", spec.embedding(features))

    def forward(self, t: Tensor, label: Tensor | None = None, **conditions: Tensor | None) -> Context:
        """Embed; a condition that is None or left out is null, as -1 is for classes and NaN for numbers."""
        given = conditions if label is None else {"label": label, **conditions}
        self._require_known(*given)
        phase = (t.to(self.frequencies.dtype).unsqueeze(-1) * self.frequencies).flatten(1)
        hidden = self.time(torch.cat((phase.sin(), phase.cos()), dim=1))
        tokens, attended = [], []
        for spec in self.specs:
            values = spec.checked(given.get(spec.name), t)
            embedding = self.label if spec.name == "label" else self.get_submodule(f"condition_{spec.name}")
            if spec.is_sequence:
                parts = embedding(values)  # type: ignore[misc]
                tokens.append(parts[0])
                attended.append(parts[1])
            else:
                hidden = hidden + embedding(values)  # type: ignore[misc]
        vector = F.silu(self.out(F.silu(hidden)))
        return Context(vector, torch.cat(tokens, 1), torch.cat(attended, 1)) if tokens else Context(vector)

    def _require_known(self, *names: str) -> None:
        known = [spec.name for spec in self.specs]
        for name in names:
            if name == "label" and name not in known:
                raise UserError("label given to a network without labels: build it with n_labels, or pass label=None")
            if name not in known:
                what = f"this network knows {', '.join(known) or 'none'}"
                raise UserError(f"condition {name!r}: {what}; others go into its conditions{did_you_mean(name, known)}")


class CrossAttention(nn.Module):
    """Attention to the tokens of the conditions; it starts as nothing: x (batch, places, width) -> the same shape."""

    def __init__(self, width: int, n_heads: int, token_features: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(token_features, 2 * width)
        self.out = zeroed(nn.Linear(width, width))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Every place attends to the tokens that are there."""
        assert context.attended is not None  # only networks with sequences are built with it
        query = self.query(self.norm(x)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        key, value = self.key_value(context.tokens).unflatten(-1, (2, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        hidden = F.scaled_dot_product_attention(query, key, value, context.attended[:, None, None])
        return x + self.out(hidden.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Rotary(nn.Module):
    """Rotary positions (Su et al., 2021): turns pairs of features by angles that grow with the position.

    Scalar products of turned vectors depend on the distance of their positions alone.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, features: int, max_length: int, base: float = 10_000.0) -> None:
        super().__init__()
        if features % 2:
            raise UserError(f"features={features}: rotary positions need an even number of features a head")
        frequencies = base ** -(torch.arange(0, features, 2, dtype=torch.float64) / features)
        angles = torch.arange(max_length, dtype=torch.float64)[:, None] * frequencies
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), dim=1).float(), persistent=False)
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), dim=1).float(), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Turn vectors (..., length, features); the type of the vectors is kept."""
        length, features = vectors.shape[-2:]
        cos, sin = self.cos[:length].to(vectors.dtype), self.sin[:length].to(vectors.dtype)
        return vectors * cos + vectors.roll(features // 2, dims=-1) * sin
