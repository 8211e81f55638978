"""Residual multilayer perceptrons: ``MLP`` for vectors, ``TableMLP`` for the rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.core.errors import UserError
from bfn.networks.conditioning import Conditioning, Context, Network, centre, combine, set_constants, zeroed

LEAST_PROBABILITY = 1e-20
"""Lower bound of class probabilities before a logarithm is taken."""


class ResidualBlock(nn.Module):
    """Two linear layers. The condition sets scale and shift of the normalised features.

    x (batch, width), condition (batch, condition_features) -> (batch, width)
    """

    def __init__(self, width: int, condition_features: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = zeroed(nn.Linear(condition_features, 2 * width))
        self.hidden = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = zeroed(nn.Linear(width, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Add the output of the two layers to x."""
        scale, shift = self.modulation(condition).chunk(2, dim=-1)
        hidden = self.hidden(torch.addcmul(shift, self.norm(x), 1 + scale))
        return x.add(self.out(self.dropout(F.silu(hidden))))


class MLP(Network):
    """Multilayer perceptron for vectors.

    continuous (n_classes = 0): inputs (batch, in_features) -> (batch, out_features)
    discrete: theta (batch, in_features, n_classes) -> logits (batch, out_features, n_classes)

    Args:
        in_features: number of variables of a vector.
        out_features: number of variables of the output; in_features if None.
        n_classes: number of classes of a discrete variable, 0 for continuous vectors.
        width: number of hidden features.
        n_blocks: number of residual blocks.
        condition_features: size of the embedding of time and conditions.
        n_labels: number of labels, 0 for none.
        dropout: probability of dropping a hidden feature.
        conditions: by name, numbers as {"shape": [8], "mean": 0.0, "std": 1.0} (a single one with shape []), classes as
            {"shape": [], "n_classes": 5}.
        n_times: number of times per sample. Joint data may have one for each part.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | None = None,
        *,
        n_classes: int = 0,
        width: int = 128,
        n_blocks: int = 3,
        condition_features: int = 128,
        n_labels: int = 0,
        dropout: float = 0.0,
        conditions: Mapping[str, Mapping[str, Any]] | None = None,
        n_times: int = 1,
    ) -> None:
        out_features = in_features if out_features is None else out_features
        super().__init__(
            "mlp", locals(), "in_features", "out_features", "width", "n_blocks", "condition_features", "n_times"
        )
        self.in_features, self.out_features = in_features, out_features
        self.n_classes, self.n_times = n_classes, n_times
        per_variable = max(n_classes, 1)
        self.conditioning = Conditioning(condition_features, n_labels, conditions, n_times)
        if self.conditioning.sequences:
            name = self.conditioning.sequences[0]
            raise UserError(f"condition {name} is a sequence: an MLP takes none, a transformer and a U-Net do")
        self.stem = nn.Linear(in_features * per_variable, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, condition_features, dropout) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = zeroed(nn.Linear(width, out_features * per_variable))

    def forward(
        self, inputs: Tensor, t: Tensor, label: Tensor | None = None, present: Tensor | None = None, **conditions: Any
    ) -> Tensor:
        """Predict the data.

        Args:
            inputs: see the class.
            t: times, (batch,) or (batch, n_times), from 0 (nothing is known) to 1 (data).
            label: int64, (batch,), -1 for none.
            present: bool, (batch, in_features), False where a vector has no entry.
            conditions: by name, (batch, ...), -1 or NaN for none.
        """
        classes = (self.n_classes,) if self.n_classes else ()
        self.require_shape(inputs, t, ("batch", self.in_features, *classes), self.n_times)
        context = self.conditioning(t, label, **conditions)
        entries = centre(inputs) if self.n_classes else inputs
        if present is not None:
            self.require_present(present, inputs.shape[:2])
            entries = entries.masked_fill(~(present[..., None] if self.n_classes else present), 0.0)
        hidden = self.stem(entries.flatten(1))
        for block in self.blocks:
            hidden = block(hidden, context.vector)
        output: Tensor = self.head(self.norm(hidden))
        if not self.n_classes:
            return output
        logits = output.reshape(len(inputs), self.out_features, self.n_classes)
        return combine(inputs, logits) if self.in_features == self.out_features else logits


class TableNetwork(Network):
    """Base class of networks for the rows of a table, (batch, in_features) -> (batch, out_features).

    A row is a vector of numbers, class probabilities, and the noise level of each number. Class probabilities are
    centred in the input. In the output their logarithm is added as in ``combine``, so that a class column's own
    evidence does not have to pass through the network.

    Args:
        name, arguments, sizes: see ``Network``. The arguments contain ``n_numbers``, the number of numeric
            columns, and ``class_counts``, the number of classes of each class column.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, name: str, arguments: Mapping[str, Any], *sizes: str) -> None:
        super().__init__(name, arguments, *sizes)
        n_numbers: int = arguments["n_numbers"]
        class_counts: tuple[int, ...] = tuple(arguments["class_counts"])
        if n_numbers < 0 or any(count < 2 for count in class_counts) or not (n_numbers or class_counts):
            found = f"n_numbers={n_numbers}, class_counts={list(class_counts)}"
            raise UserError(f"{found}: expected columns, classes of at least 2")
        self.n_numbers, self.class_counts = n_numbers, class_counts
        self.out_features = n_numbers + sum(class_counts)
        self.in_features = self.out_features + n_numbers
        self.conditioning = Conditioning(arguments["condition_features"])
        set_constants(self)

    def reset_constants(self) -> None:
        """Set scale and shift of the inputs."""
        ones, zeros = torch.ones(self.n_numbers), torch.zeros(self.n_numbers)
        counts = torch.cat([ones[:0], *(torch.full((count,), float(count)) for count in self.class_counts)])
        self.register_buffer("scale", torch.cat((ones, counts * (counts - 1) ** -0.5, ones)), persistent=False)
        self.register_buffer("shift", torch.cat((zeros, -((counts - 1) ** -0.5), zeros)), persistent=False)

    def forward(self, inputs: Tensor, t: Tensor) -> Tensor:
        """Predict numbers and logits from rows at times t (batch,)."""
        self.require_shape(inputs, t, ("batch", self.in_features))
        output = self.predict(inputs, torch.addcmul(self.shift, inputs, self.scale), self.conditioning(t))
        evidence = inputs[:, self.n_numbers : self.out_features].clamp(min=LEAST_PROBABILITY).log_()
        return output + F.pad(evidence, (self.n_numbers, 0)) if self.n_numbers else output + evidence

    def predict(self, inputs: Tensor, entries: Tensor, context: Context) -> Tensor:
        """Return what is added to the evidence. The entries are the inputs with centred class probabilities."""
        raise NotImplementedError


class TableMLP(TableNetwork):
    """Multilayer perceptron for rows of a table, (batch, in_features) -> (batch, out_features).

    See ``TableNetwork`` for the layout of a row.

    Args:
        n_numbers: number of numeric columns.
        class_counts: number of classes of each class column.
        width: number of hidden features.
        n_blocks: number of residual blocks.
        condition_features: size of the embedding of the time.
        dropout: probability of dropping a hidden feature.
        n_waves: number of sines and cosines of each number that are added to the input, of wavelengths 4, 2, 1, ...
            With them the network learns patterns that depend on small numeric differences faster.
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
        if n_waves < 0:
            raise UserError(f"n_waves={n_waves}: expected at least 0")
        super().__init__("table-mlp", locals(), "width", "n_blocks", "condition_features")
        self.stem = nn.Linear(self.in_features + 2 * n_waves * n_numbers, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, condition_features, dropout) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = zeroed(nn.Linear(width, self.out_features))

    def reset_constants(self) -> None:
        """Set the constants of the rows, and the frequencies of the waves."""
        super().reset_constants()
        frequencies = torch.pi / 2 * 2.0 ** torch.arange(self.config["n_waves"])
        self.register_buffer("frequencies", frequencies, persistent=False)

    @property
    def prior(self) -> nn.Parameter:
        """Output of the network while nothing is known, (out_features,)."""
        return self.head.bias

    def predict(self, inputs: Tensor, entries: Tensor, context: Context) -> Tensor:
        hidden = self.stem(self.features(inputs, entries))
        for block in self.blocks:
            hidden = block(hidden, context.vector)
        output: Tensor = self.head(self.norm(hidden))
        return output

    def features(self, inputs: Tensor, entries: Tensor) -> Tensor:
        """Return the entries with the waves of the numbers, the input of the first layer."""
        if not len(self.frequencies):
            return entries
        phases = (inputs[:, : self.n_numbers, None] * self.frequencies).flatten(1)
        return torch.cat((entries, phases.sin(), phases.cos()), 1)
