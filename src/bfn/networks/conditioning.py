"""Parts that networks share: checks of arguments and inputs, and the embedding of time, labels and conditions.

The argument ``conditions`` of a network declares named conditions, {"gap": {"shape": [], "mean": 0.25}, ...}:

    numbers     shape [] or [n]: standardised by mean and std, one vector per sample
    a class     shape [] with n_classes: one vector per sample
    a sequence  shape [length] with n_classes, or [length, features]: tokens that the network attends to

A condition that is not given is null: -1 for classes, NaN for numbers. The network learns an embedding of null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn._utils.arguments import MOST_COUNT, check_whole
from bfn.core.errors import UserError, did_you_mean
from bfn.core.plain import to_plain

Declarations: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Conditions by name, each with its shape, n_classes, mean and std, as in a network's config."""

DEPTHS = ("n_blocks", "n_layers", "n_levels")
"""Arguments that count blocks of layers, which are built one after another."""
MOST_BLOCKS = 10_000
"""Maximum of such an argument. A larger number is a mistake that would take very long to build."""
RESERVED = ("self", "inputs", "t", "label", "present")
"""Names that a condition cannot have: the other arguments of a network."""
KEYS = ("shape", "n_classes", "mean", "std")

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def require_positive(config: Mapping[str, Any], *names: str) -> None:
    """Raise a UserError for the first of these sizes that is not a whole number above 0. A size may be None."""
    for name in names:
        if config[name] is not None:
            check_whole(name, config[name], 1, MOST_BLOCKS if name in DEPTHS else MOST_COUNT)


class Network(nn.Module):
    """Base class of networks. It keeps their arguments in ``config``, {"name": name, argument: value, ...}.

    Args:
        name: of the network in ``bfn.networks.NETWORKS``.
        arguments: the ``locals()`` at the start of ``__init__``.
        sizes: names of the arguments that must be whole numbers above 0; "n_levels" counts the multipliers of a U-Net.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any], *sizes: str) -> None:
        super().__init__()
        own = {key: value for key, value in arguments.items() if key not in ("self", "__class__")}
        self.config = {"name": name, **to_plain(own)}
        require_positive({**self.config, "n_levels": len(arguments.get("multipliers", ()))}, *sizes)
        n_classes = arguments.get("n_classes", 0)
        if n_classes < 0 or n_classes == 1:
            raise UserError(f"n_classes={n_classes}: expected 0 (continuous data) or at least 2 classes")

    @staticmethod
    def require_divisible(**sizes: tuple[int, int]) -> None:
        """Raise a UserError for the first size, name=(size, divisor), that is not a multiple of its divisor."""
        for name, (size, divisor) in sizes.items():
            if size % divisor:
                raise UserError(f"{name}={size}: expected a multiple of {divisor}")

    @staticmethod
    def require_shape(inputs: Tensor, t: Tensor, expected: Sequence[int | str], n_times: int = 1) -> None:
        """Raise a UserError unless the inputs have the expected shape.

        Args:
            inputs: states as the network takes them.
            t: times, (batch,), or (batch, n_times) if n_times is above 1.
            expected: sizes of the inputs; a name stands for any size.
            n_times: number of times per sample.
        """
        shape = tuple(inputs.shape)
        pairs = zip(shape, expected, strict=False)
        if len(shape) != len(expected) or any(isinstance(wanted, int) and wanted != size for size, wanted in pairs):
            raise UserError(f"inputs of shape {shape}: this network takes ({', '.join(map(str, expected))})")
        times = (len(inputs), n_times) if n_times > 1 else (len(inputs),)
        if tuple(t.shape) != times:
            one = "one time per sample and part" if n_times > 1 else "one time per sample"
            raise UserError(f"t of shape {tuple(t.shape)}: expected {one}, {times}")

    @staticmethod
    def require_present(present: Tensor, *shapes: Sequence[int]) -> None:
        """Raise a UserError unless the mask ``present`` is bool and has one of these shapes."""
        wanted = list(dict.fromkeys(map(tuple, shapes)))
        if present.dtype != torch.bool or tuple(present.shape) not in wanted:
            expected = " or ".join(map(str, wanted))
            raise UserError(f"present of shape {tuple(present.shape)}, {present.dtype}: expected bool of {expected}")


def set_constants(module: Any) -> None:
    """Call a module's ``reset_constants()``, unless it is built on the meta device.

    The first computation on that device imports hundreds of modules, which takes seconds.
    """
    if torch.get_default_device().type != "meta":
        module.reset_constants()


def zeroed(layer: Layer) -> Layer:
    """Set the weights and the bias of a layer to zero, so that its residual branch starts as zero."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def centre(theta: Tensor) -> Tensor:
    """Scale class probabilities (..., K) to mean 0, and to mean square 1 if certain: (K theta - 1) / sqrt(K - 1)."""
    n_classes = theta.shape[-1]
    return (n_classes * theta - 1) / math.sqrt(n_classes - 1)


def combine(theta: Tensor, logits: Tensor) -> Tensor:
    """Add the log of theta to logits by Bayes' rule, both (..., K).

    p(x_i = k | theta) is proportional to theta_ik p(x_i = k | theta of all other variables). A network that adds log
    theta to its output has to learn the second factor only, and starts from softmax(output) = theta.
    """
    return logits.to(theta.dtype) + theta.clamp(min=torch.finfo(theta.dtype).tiny).log()


@dataclass(frozen=True)
class ConditionSpec:
    """A declared condition.

    Attributes:
        name: of the condition, a Python name.
        shape: of its value for one sample.
        n_classes: number of classes; 0 for numbers.
        mean, std: of numbers, one number or one for each feature.
    """

    name: str
    shape: tuple[int, ...] = ()
    n_classes: int = 0
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0

    @property
    def is_sequence(self) -> bool:
        """Return True for tokens that are attended to, False for one vector per sample."""
        return len(self.shape) == (1 if self.n_classes else 2)

    @property
    def null(self) -> float:
        """Value that stands for a condition that is not given: -1 for classes, NaN for numbers."""
        return -1 if self.n_classes else math.nan

    def embedding(self, features: int) -> ClassEmbedding | NumberEmbedding | TokenEmbedding:
        """Return a new embedding of the values."""
        if self.is_sequence:
            return TokenEmbedding(self, features)
        return ClassEmbedding(self, features) if self.n_classes else NumberEmbedding(self, features)

    def checked(self, values: Tensor | None, t: Tensor) -> Tensor:
        """Return the values of a batch, (batch, *shape), in the type that is embedded.

        Args:
            values: null for the whole batch if None.
            t: times of the batch.

        Raises:
            UserError: shape or type do not fit.
        """
        shape = (len(t), *self.shape)
        if values is None:
            return torch.full(shape, self.null, dtype=torch.int64 if self.n_classes else t.dtype, device=t.device)
        if values.shape != shape:
            raise UserError(f"{self.name} of shape {tuple(values.shape)}: this network takes {shape}")
        if not self.n_classes:
            return values if values.is_floating_point() else values.to(t.dtype)
        if values.is_floating_point() or values.is_complex():
            raise UserError(f"{self.name} of {values.dtype}: expected classes, whole numbers with -1 for none")
        return values.long()


def declared(conditions: Declarations | None) -> list[ConditionSpec]:
    """Return the conditions that a network declares, sorted by name.

    Raises:
        UserError: a declaration is impossible.
    """
    return [_declared(name, entry) for name, entry in sorted((conditions or {}).items())]


def _declared(name: str, entry: Mapping[str, Any]) -> ConditionSpec:
    if not name.isidentifier() or name in RESERVED:
        known = ", ".join(RESERVED)
        raise UserError(f"condition {name!r}: expected a Python name other than {known} (n_labels is for label)")
    if not isinstance(entry, Mapping):
        raise UserError(f"condition {name} is {entry!r}: expected a mapping with {', '.join(KEYS)}")
    for key in entry:
        if key not in KEYS:
            raise UserError(f"condition {name} has {key!r}: expected {', '.join(KEYS)}{did_you_mean(key, KEYS)}")
    n_classes = entry.get("n_classes") or 0
    if not isinstance(n_classes, int) or n_classes < 0:
        raise UserError(f"condition {name} with n_classes={n_classes}: expected 0 (numbers) or the number of classes")
    shape = _declared_shape(name, entry.get("shape", ()), n_classes)
    for key in ("mean", "std"):
        if key in entry:
            _check_scale(name, key, entry[key], shape, n_classes)
    return ConditionSpec(name, shape, n_classes, entry.get("mean", 0.0), entry.get("std", 1.0))


def _declared_shape(name: str, shape: Any, n_classes: int) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence) else (None,)
    if len(sizes) > (1 if n_classes else 2) or any(not isinstance(size, int) or size < 1 for size in sizes):
        kinds = "[] or [length] for classes" if n_classes else "[], [features] or [length, features] for numbers"
        raise UserError(f"condition {name} of shape {shape}: expected {kinds}")
    return sizes


def _check_scale(name: str, key: str, value: Any, shape: tuple[int, ...], n_classes: int) -> None:
    """Raise a UserError unless the mean or the std of a condition is one number or one for each feature."""
    if n_classes:
        raise UserError(f"condition {name} has n_classes and {key}: classes are not standardised, leave {key} out")
    least = 0.0 if key == "std" else -math.inf
    is_list = isinstance(value, Sequence) and (len(value),) == shape[-1:]
    numbers = value if is_list else [value]
    if not all(isinstance(number, Real) and least < float(number) < math.inf for number in numbers):
        wanted = "a number" + (f", or {shape[-1]}," if shape else "") + (" above 0" if key == "std" else "")
        raise UserError(f"condition {name} with {key}={value}: expected {wanted}")


class ClassEmbedding(nn.Embedding):
    """Embedding of classes, (...) -> (..., features). Row 0 is the embedding of null, class -1."""

    def __init__(self, spec: ConditionSpec, features: int) -> None:
        super().__init__(spec.n_classes + 1, features)
        self.spec = spec

    def forward(self, classes: Tensor) -> Tensor:
        """Embed classes from -1 to n_classes - 1."""
        try:
            return F.embedding(classes + 1, self.weight)
        except IndexError:
            values, most = f"{int(classes.min())} to {int(classes.max())}", self.spec.n_classes - 1
            message = f"{self.spec.name} from {values}: expected classes from 0 to {most}, or -1 for none"
            raise UserError(message) from None


class NumberEmbedding(nn.Module):
    """Embedding of a single number, (...), or of a vector, (..., n), to (..., features)."""

    mean: Tensor
    std: Tensor
    frequencies: Tensor

    def __init__(self, spec: ConditionSpec, features: int) -> None:
        super().__init__()
        self.spec, self.single = spec, not spec.shape
        set_constants(self)
        self.linear = nn.Linear((16 if self.single else 0) + (1 if self.single else spec.shape[-1]), features)
        self.null = nn.Parameter(torch.zeros(features))

    def reset_constants(self) -> None:
        """Set frequencies, mean and standard deviation."""
        # The output may depend on a single number in a non-linear way: periods from 16 to half a standard deviation.
        turns = torch.logspace(-4, 1, 8 if self.single else 0, base=2)
        self.register_buffer("frequencies", 2 * math.pi * turns, persistent=False)
        self.register_buffer("mean", torch.tensor(self.spec.mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(self.spec.std, dtype=torch.float32), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Embed numbers. A vector that contains NaN gets the learned embedding of null."""
        numbers = numbers[..., None] if self.single else numbers
        null = numbers.isnan().any(-1, keepdim=True)
        # NaN is replaced before the layers: if it were masked after them, its gradient would be NaN times 0.
        numbers = (torch.where(null, self.mean, numbers.to(self.mean.dtype)) - self.mean) / self.std
        if self.single:
            phase = numbers * self.frequencies
            numbers = torch.cat((numbers, phase.sin(), phase.cos()), dim=-1)
        return torch.where(null, self.null, self.linear(numbers))


class TokenEmbedding(nn.Module):
    """Embedding of a sequence as tokens. The first token is null, so that attention always has a target.

    (batch, length) classes or (batch, length, n) numbers -> tokens (batch, 1 + length, features), and a mask
    (batch, 1 + length) of the tokens that are attended to.
    """

    def __init__(self, spec: ConditionSpec, features: int) -> None:
        super().__init__()
        self.spec = spec
        self.entries = ClassEmbedding(spec, features) if spec.n_classes else NumberEmbedding(spec, features)
        self.positions = nn.Parameter(torch.randn(1 + spec.shape[0], features))
        self.norm = nn.LayerNorm(features)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Embed a sequence. Entries of -1, and rows that contain NaN, are padding."""
        padding = values == -1 if self.spec.n_classes else values.isnan().any(-1)
        entries = torch.cat((torch.full_like(values[:, :1], self.spec.null), values), dim=1)
        tokens = self.norm(self.entries(entries) + self.positions)
        return tokens, torch.cat((padding.all(1, keepdim=True), ~padding), dim=1)


class Context(NamedTuple):
    """Time and conditions as the blocks of a network take them.

    Attributes:
        vector: time and conditions, (batch, features).
        tokens: conditions that are sequences, one after another, (batch, tokens, features).
        attended: bool, (batch, tokens), True for tokens that are attended to.
        present: mask of the data in the form that the network's blocks use; None if all are present.
    """

    vector: Tensor
    tokens: Tensor | None = None
    attended: Tensor | None = None
    present: Tensor | None = None


class Conditioning(nn.Module):
    """Embedding of the time, the label and the named conditions.

    Args:
        features: size of the embedding.
        n_labels: number of labels, 0 for none. The label is a condition of that name.
        conditions: the declared conditions.
        n_times: number of times per sample. Joint data may have one for each part.
    """

    frequencies: Tensor
    n_frequencies = 32

    def __init__(
        self, features: int, n_labels: int = 0, conditions: Declarations | None = None, n_times: int = 1
    ) -> None:
        super().__init__()
        if n_labels < 0:
            raise UserError(f"n_labels={n_labels}: expected 0 (no labels) or the number of labels")
        set_constants(self)
        self.specs = declared(conditions)
        self.sequences = [spec.name for spec in self.specs if spec.is_sequence]
        self.time = nn.Linear(2 * self.n_frequencies * n_times, features)
        self.label: nn.Module | None = None
        if n_labels:
            self.specs = [ConditionSpec("label", (), n_labels), *self.specs]
            self.label = self.specs[0].embedding(features)
        self.out = nn.Linear(features, features)
        for spec in declared(conditions):
            # The prefix keeps the name apart from the attributes that every module has.
            self.add_module(f"condition_{spec.name}", spec.embedding(features))

    def reset_constants(self) -> None:
        """Set the frequencies of the time embedding."""
        # Outputs change smoothly over t in [0, 1]: from a sixth of a turn to 16 turns is enough.
        turns = torch.logspace(math.log10(1 / 6), math.log10(16), self.n_frequencies)
        self.register_buffer("frequencies", 2 * math.pi * turns, persistent=False)

    def forward(self, t: Tensor, label: Tensor | None = None, **conditions: Tensor | None) -> Context:
        """Embed times (batch,) or (batch, n_times), and conditions (batch, ...); one that is left out is null."""
        values = conditions if label is None else {"label": label, **conditions}
        self._check_names(*values)
        phase = (t.to(self.frequencies.dtype).unsqueeze(-1) * self.frequencies).flatten(1)
        hidden = self.time(torch.cat((phase.sin(), phase.cos()), dim=1))
        tokens, attended = [], []
        for spec in self.specs:
            embedding = self.get_submodule("label" if spec.name == "label" else f"condition_{spec.name}")
            embedded = embedding(spec.checked(values.get(spec.name), t))
            if spec.is_sequence:
                tokens.append(embedded[0])
                attended.append(embedded[1])
            else:
                hidden = hidden + embedded
        vector = F.silu(self.out(F.silu(hidden)))
        return Context(vector, torch.cat(tokens, 1), torch.cat(attended, 1)) if tokens else Context(vector)

    def _check_names(self, *names: str) -> None:
        known = [spec.name for spec in self.specs]
        foreign = next((name for name in names if name not in known), None)
        if foreign is not None:
            raise UserError(_unknown_condition(foreign, known))


def _unknown_condition(name: str, known: Sequence[str]) -> str:
    if name == "label":
        return "label given to a network without labels: build it with n_labels, or pass label=None"
    what = f"this network knows {', '.join(known) or 'none'}"
    return f"condition {name!r}: {what}; others go into its conditions{did_you_mean(name, known)}"


class CrossAttention(nn.Module):
    """Attention to the tokens of the conditions, (batch, places, width) -> the same shape. It starts as zero."""

    def __init__(self, width: int, n_heads: int, token_features: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(token_features, 2 * width)
        self.out = zeroed(nn.Linear(width, width))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Attend from every place to the tokens that the context marks as attended."""
        assert context.attended is not None  # this layer is only part of networks that declare sequences
        query = self.query(self.norm(x)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        key, value = self.key_value(context.tokens).unflatten(-1, (2, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        hidden = F.scaled_dot_product_attention(query, key, value, context.attended[:, None, None])
        return x.add(self.out(hidden.transpose(1, 2).flatten(2)))
