"""What the networks behind the published BFN checkpoints share: checks, memory layout, residual and attention blocks.

These networks exist for the published weights and for training them anew; ``Transformer`` and ``UNet`` are the better
choice for anything else. ``bfn.interop.load_official`` knows the published names of the weights.

Reference: Graves et al., "Bayesian Flow Networks", 2023, sections 6 and 7, and its released code.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.errors import UserError
from bfn.networks.embedding import zeroed

__all__ = [
    "AttentionBlock", "ResidualBlock", "channels_last", "pixelwise", "refuse_label", "require_divisible",
    "weights_channels_last",
]  # fmt: skip


def refuse_label(label: Tensor | None) -> None:
    """Raise a UserError if there is a label: the published networks know none."""
    if label is not None:
        raise UserError("label given to a network without labels: the published networks know none, pass label=None")


def require_divisible(**sizes: tuple[int, int]) -> None:
    """Raise a UserError for the first size, (size, divisor), that the divisor does not divide."""
    for name, (size, divisor) in sizes.items():
        if size % divisor:
            raise UserError(f"{name}={size}: expected a multiple of {divisor}")


def channels_last(x: Tensor) -> Tensor:
    """The memory layout in which convolutions are fastest and attention finds its tokens without a copy."""
    return x.contiguous(memory_format=torch.channels_last)


def weights_channels_last(network: nn.Module) -> None:
    """Keep convolutions' weights in the layout of their inputs, so that they are not converted at every call."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def pixelwise(linear: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer on the channels of every pixel: (batch, in, height, width) -> (batch, out, height, width)."""
    out: Tensor = linear(x.movedim(1, -1))
    return out.movedim(-1, 1)


class ResidualBlock(nn.Module):
    """norm, SiLU, conv, + projected time, norm, SiLU, dropout, conv, added to the (projected) input."""

    def __init__(
        self, in_channels: int, out_channels: int, *, time_width: int, groups: int, dropout: float, time_bias: bool
    ) -> None:
        super().__init__()
        self.norm_1 = nn.GroupNorm(groups, in_channels)
        self.conv_1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(time_width, out_channels, bias=time_bias)
        self.norm_2 = nn.GroupNorm(groups, out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv_2 = zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(batch, in, height, width) and activated time features (batch, time_width) -> (batch, out, height, width)."""
        h = self.conv_1(F.silu(self.norm_1(x))) + self.time(time)[:, :, None, None]
        h = self.conv_2(self.dropout(F.silu(self.norm_2(h))))
        out: Tensor = self.skip(x) + h
        return out


class AttentionBlock(nn.Module):
    """Self-attention over pixels, added to its input.

    head_first: how the projection's outputs are ordered: head by head, each with its q, k and v (`OfficialBinaryUNet`),
        or all q, then all k, then all v (`OfficialFlatUNet`).
    """

    def __init__(self, channels: int, *, n_heads: int, groups: int, head_first: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_first = head_first
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = zeroed(nn.Linear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same."""
        qkv = self.qkv(self.norm(x).flatten(2).mT)
        if self.head_first:
            q, k, v = qkv.unflatten(-1, (self.n_heads, 3, -1)).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = qkv.unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return x + out.mT.reshape(x.shape)
