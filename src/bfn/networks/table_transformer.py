"""A transformer over the columns of a table: every column is a token."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bfn.networks.arguments import config_of, require_divisible, require_positive, require_shape
from bfn.networks.embedding import Conditioning
from bfn.networks.table_mlp import TableVector
from bfn.networks.transformer import Adaptive, Attention, FeedForward

__all__ = ["TableTransformer"]


class TableTransformer(nn.Module):
    """Transformer over the columns of a table: one row is one vector, as for :class:`bfn.networks.TableMLP`.

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
