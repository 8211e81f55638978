"""What the networks share: the conditioning vector, rotary positions, and how class probabilities enter and leave.

Time enters through sines and cosines of a few fixed frequencies, the label through a table whose first row means "no
class", other conditions as `bfn.networks.conditions` says. Their sum, after two linear layers, is one vector a sample,
which gives every block its own scale and shift. Conditions that are sequences are tokens, which blocks attend to.
"""

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.errors import UserError, did_you_mean
from bfn.networks.conditions import ConditionSpec, Declarations, declared

__all__ = ["Conditioning", "Context", "CrossAttention", "Rotary", "centre", "combine", "zeroed"]

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
