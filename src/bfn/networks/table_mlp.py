"""A residual perceptron over the columns of a table, numbers and classes side by side in one vector."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bfn.errors import UserError
from bfn.networks.arguments import config_of, require_positive, require_shape
from bfn.networks.embedding import Conditioning, zeroed
from bfn.networks.mlp import ResidualBlock

__all__ = ["TableMLP", "TableVector"]

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
