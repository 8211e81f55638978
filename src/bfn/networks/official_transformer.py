"""The network behind the published text8 checkpoint, computing what the original computes.

Reference: Graves et al., "Bayesian Flow Networks", 2023, sections 6 and 7, and its released code.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.networks.arguments import config_of, refuse_label, require_divisible, require_positive, require_shape

__all__ = ["OfficialTransformer", "position_code"]


def position_code(length: int, width: int) -> Tensor:
    """sin(p / 1000^(j/d)) in even columns j, cos of the same in odd ones: (length, width).

    Base 1000, and a frequency of its own for every column: the published weights were trained with it.
    """
    column = torch.arange(width, dtype=torch.float32)
    angle = torch.arange(length, dtype=torch.float32)[:, None] / 1000 ** (column / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


class TransformerBlock(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)). Bidirectional, tanh-GELU."""

    def __init__(self, width: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        dropout = self.dropout if self.training else 0.0
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        x = x + F.dropout(self.attention_out(attended.transpose(1, 2).flatten(2)), dropout)
        hidden = F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh")
        return x + F.dropout(self.mlp_out(hidden), dropout)


class OfficialTransformer(nn.Module):
    """The text8 network: theta (batch, length, K) and t (batch,) -> logits (batch, length, K).

    Features = Linear(2 theta - 1) + position code + Linear(2 t - 1); blocks; norm; the result and the features, side by
    side, are projected to logits.
    """

    position: Tensor

    def __init__(
        self, *, n_classes: int, length: int, width: int, n_layers: int, n_heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.config = config_of("official-transformer", locals())
        require_positive(self.config, "n_classes", "length", "width", "n_layers", "n_heads")
        require_divisible(width=(width, n_heads))
        self.input_shape = (length, n_classes)
        self.dropout = dropout
        self.theta_in = nn.Linear(n_classes, width)
        self.time_in = nn.Linear(1, width)
        self.register_buffer("position", position_code(length, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, n_heads, dropout) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.logits_out = nn.Linear(2 * width, n_classes)
        self._initialise()

    def _initialise(self) -> None:
        """GPT-2's: normal of deviation 0.02, divided by sqrt(2 n_layers) where a branch joins the residual stream."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                joins = name.endswith(("attention_out", "mlp_out"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * len(self.blocks)) if joins else 0.02)
                nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Theta (batch, length, K), t (batch,) -> logits (batch, length, K)."""
        require_shape(inputs, t, ("batch", *self.input_shape))
        refuse_label(label)
        time = self.time_in((2 * t.to(inputs.dtype) - 1)[:, None, None])
        features = self.theta_in(2 * inputs - 1) + self.position + time
        x = F.dropout(features, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.logits_out(torch.cat([self.norm(x), features], -1))
        return out
