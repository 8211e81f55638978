"""What the networks share: the conditioning vector, rotary positions, and how class probabilities enter and leave.

Time enters through sines and cosines of a few fixed frequencies, the label through a table whose first row means "no
class". Their sum, after two linear layers, is one vector a sample, which gives every block its own scale and shift.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from bfn.errors import UserError

__all__ = ["Conditioning", "Rotary", "centre", "combine", "zeroed"]

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


class Conditioning(nn.Module):
    """Time and label as one vector: t (batch,), label (batch,) or None -> (batch, features)."""

    frequencies: Tensor

    def __init__(self, features: int, n_labels: int = 0, n_frequencies: int = 32) -> None:
        super().__init__()
        if n_labels < 0:
            raise UserError(f"n_labels={n_labels}: expected 0 (no labels) or the number of labels")
        # Outputs change smoothly over t in [0, 1]: from a sixth of a turn to 16 turns is enough.
        turns = torch.logspace(math.log10(1 / 6), math.log10(16), n_frequencies)
        self.register_buffer("frequencies", 2 * math.pi * turns, persistent=False)
        self.time = nn.Linear(2 * n_frequencies, features)
        self.label = nn.Embedding(n_labels + 1, features) if n_labels else None
        self.out = nn.Linear(features, features)

    def forward(self, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Embed; label -1 and label None both mean "no class"."""
        phase = t.to(self.frequencies.dtype)[:, None] * self.frequencies
        hidden = self.time(torch.cat((phase.sin(), phase.cos()), dim=1))
        if self.label is not None:
            row = torch.zeros(t.shape, dtype=torch.int64, device=t.device) if label is None else label + 1
            try:
                hidden = hidden + self.label(row)
            except IndexError:
                low, high = int(row.min()) - 1, int(row.max()) - 1
                known = f"expected classes from 0 to {self.label.num_embeddings - 2}, or -1 for none"
                raise UserError(f"label from {low} to {high}: {known}") from None
        elif label is not None:
            raise UserError("label given to a network without labels: build it with n_labels, or pass label=None")
        return nn.functional.silu(self.out(nn.functional.silu(hidden)))


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
