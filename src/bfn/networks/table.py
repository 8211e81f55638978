"""A residual perceptron over the columns of a table, numbers and classes side by side in one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.networks.arguments import config_of, require_divisible, require_positive, require_shape
from bfn.networks.conditioning import Conditioning, zeroed
from bfn.networks.mlp import ResidualBlock
from bfn.networks.transformer import Adaptive, Attention, FeedForward

LEAST = 1e-20
"""Probabilities are not taken for smaller where their logarithm is: e^46 is all the evidence there ever is."""


class TableVector(nn.Module):
    """The vector of a table's row: numbers, class probabilities, and of each number how well it is known.

    Probabilities are centred on the way in; on the way out Bayes' rule is at work, as in :func:`combine`: to what the
    other columns say of a class, the column's own evidence is added, which so need not pass through the network.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, n_numbers: int, class_counts: Sequence[int]) -> None:
        super().__init__()
        if n_numbers < 0 or any(count < 2 for count in class_counts) or not (n_numbers or class_counts):
            raise UserError(
                f"n_numbers={n_numbers}, class_counts={list(class_counts)}: expected columns, classes of at least 2"
            )
        self.n_numbers, self.class_counts = n_numbers, tuple(class_counts)
        counts = torch.tensor([count for count in class_counts for _ in range(count)], dtype=torch.float32)
        ones, zeros = torch.ones(n_numbers), torch.zeros(n_numbers)
        self.register_buffer("scale", torch.cat((ones, counts * (counts - 1) ** -0.5, ones)), persistent=False)
        self.register_buffer("shift", torch.cat((zeros, -((counts - 1) ** -0.5), zeros)), persistent=False)

    @property
    def in_features(self) -> int:
        """Places of the vector."""
        return len(self.scale)

    @property
    def out_features(self) -> int:
        """Numbers and logits that are predicted."""
        return self.in_features - self.n_numbers

    def forward(self, inputs: Tensor) -> Tensor:
        """The vector with class probabilities centred, (batch, in_features)."""
        return torch.addcmul(self.shift, inputs, self.scale)

    def with_evidence(self, output: Tensor, inputs: Tensor) -> Tensor:
        """The output (batch, out_features) with the classes' own evidence."""
        evidence = inputs[:, self.n_numbers : self.out_features].clamp(min=LEAST).log_()
        return output + nn.functional.pad(evidence, (self.n_numbers, 0)) if self.n_numbers else output + evidence


class TableMLP(nn.Module):
    """Perceptron over the columns of a table: one row is one vector, (batch, in_features) -> (batch, out_features).

    Args:
        n_numbers: columns that are numbers.
        class_counts: how many classes each of the others has.
        width: features inside the network.
        n_blocks: number of residual blocks.
        condition_features: width of the vector of the time.
        dropout: probability of dropping a hidden feature.
        n_waves: sines and cosines that each number is shown as too, of wavelengths 4, 2, 1, 1/2 ...: a perceptron that
            is shown numbers alone is slow to learn what hangs on small differences of them.
    """

    frequencies: Tensor

    def __init__(
        self,
        n_numbers: int,
        class_counts: Sequence[int],
        *,
        width: int = 256,
        n_blocks: int = 3,
        condition_features: int = 64,
        dropout: float = 0.0,
        n_waves: int = 0,
    ) -> None:
        super().__init__()
        self.config = config_of("table-mlp", locals())
        require_positive(self.config, "width", "n_blocks", "condition_features")
        if n_waves < 0:
            raise UserError(f"n_waves={n_waves}: expected at least 0")
        self.vector = TableVector(n_numbers, class_counts)
        self.conditioning = Conditioning(condition_features)
        self.register_buffer("frequencies", torch.pi / 2 * 2.0 ** torch.arange(n_waves), persistent=False)
        self.stem = nn.Linear(self.vector.in_features + 2 * n_waves * n_numbers, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, condition_features, dropout) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = zeroed(nn.Linear(width, self.vector.out_features))

    @property
    def prior(self) -> nn.Parameter:
        """What is predicted before anything is known, (out_features,)."""
        return self.head.bias

    def forward(self, inputs: Tensor, t: Tensor) -> Tensor:
        """Predict numbers and logits from inputs at times t (batch,)."""
        require_shape(inputs, t, ("batch", self.vector.in_features))
        vector = self.conditioning(t).vector
        hidden = self.stem(self._features(inputs))
        for block in self.blocks:
            hidden = block(hidden, vector)
        return self.vector.with_evidence(self.head(self.norm(hidden)), inputs)

    def _features(self, inputs: Tensor) -> Tensor:
        """What the first layer sees."""
        features: Tensor = self.vector(inputs)
        if not len(self.frequencies):
            return features
        phases = (inputs[:, : self.vector.n_numbers, None] * self.frequencies).flatten(1)
        return torch.cat((features, phases.sin(), phases.cos()), 1)


class TableTransformer(nn.Module):
    """Transformer over the columns of a table: one row is one vector, as for :class:`bfn.networks.table.TableMLP`.

    It costs many times as much as the perceptron, and pays where there is a GPU and columns hang together in many ways.

    Args:
        n_numbers: columns that are numbers.
        class_counts: how many classes each of the others has.
        width: features of a column inside the network.
        n_blocks: number of blocks.
        n_heads: attention heads.
        condition_features: width of the vector of the time.
        dropout: probability of dropping a hidden feature.
    """

    places: Tensor
    back: Tensor

    def __init__(
        self,
        n_numbers: int,
        class_counts: Sequence[int],
        *,
        width: int = 128,
        n_blocks: int = 4,
        n_heads: int = 4,
        condition_features: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.config = config_of("table-transformer", locals())
        require_positive(self.config, "width", "n_blocks", "n_heads", "condition_features")
        require_divisible(width=(width, n_heads))
        self.vector = TableVector(n_numbers, class_counts)
        # Each column's places of the vector, side by side, filled up with a place that is always 0.
        places, first = [], n_numbers
        for i in range(n_numbers):
            places.append([i, self.vector.out_features + i])
        for count in class_counts:
            places.append(list(range(first, first + count)))
            first += count
        most = max(map(len, places))
        padded = torch.tensor([own + [self.vector.in_features] * (most - len(own)) for own in places])
        self.register_buffer("places", padded, persistent=False)
        # The way back: a number is the first place of its column.
        is_output = padded < self.vector.out_features
        back = torch.empty(self.vector.out_features, dtype=torch.int64)
        back[padded[is_output]] = torch.arange(padded.numel()).view_as(padded)[is_output]
        self.register_buffer("back", back, persistent=False)
        n = len(places)
        self.conditioning = Conditioning(condition_features)
        self.stem = nn.Parameter(torch.randn(n, most, width) * 0.5 * most**-0.5)
        self.column = nn.Parameter(torch.randn(n, 1, width) * 0.5)
        self.blocks = nn.ModuleList()
        for _ in range(n_blocks):
            layers = (Attention(width, n_heads, nn.Identity()), FeedForward(width, 4, dropout))  # type: ignore[arg-type]
            self.blocks.extend(Adaptive(layer, width, condition_features) for layer in layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Parameter(torch.zeros(n, width, most))
        self.prior = nn.Parameter(torch.zeros(self.vector.out_features))

    def forward(self, inputs: Tensor, t: Tensor) -> Tensor:
        """Predict numbers and logits from inputs at times t (batch,)."""
        require_shape(inputs, t, ("batch", self.vector.in_features))
        context = self.conditioning(t)
        entries = nn.functional.pad(self.vector(inputs), (0, 1)).index_select(1, self.places.flatten())
        by_column = entries.view(len(inputs), *self.places.shape).transpose(0, 1)
        hidden = torch.baddbmm(self.column, by_column, self.stem).transpose(0, 1)
        for block in self.blocks:
            hidden = block(hidden, context)
        out = torch.bmm(self.norm(hidden).transpose(0, 1), self.head).transpose(0, 1).flatten(1)
        return self.vector.with_evidence(out.index_select(1, self.back) + self.prior, inputs)
