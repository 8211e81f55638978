"""The network behind the published checkpoint of binarised MNIST, computing what the original computes.

Reference: Graves et al., "Bayesian Flow Networks", 2023, sections 6 and 7, and its released code.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.networks.embedding import JSON, require_positive, require_shape, zeroed
from bfn.networks.official_blocks import (
    AttentionBlock,
    ResidualBlock,
    channels_last,
    pixelwise,
    refuse_label,
    require_divisible,
    weights_channels_last,
)

__all__ = ["OfficialBinaryUNet"]


class Stage(nn.ModuleList):
    """One position of `OfficialBinaryUNet`: modules in turn, of which the residual blocks also see the time."""

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(batch, channels, height, width), (batch, time_width) -> (batch, out, height', width')."""
        for module in self:
            x = module(x, time) if isinstance(module, ResidualBlock) else module(x)
        return x


class Shrink(nn.Module):
    """Halve height and width by a stride-2 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shrink = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, channels, height/2, width/2)."""
        out: Tensor = self.shrink(x)
        return out


class Enlarge(nn.Module):
    """Double height and width: nearest neighbour, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enlarge = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, channels, 2 height, 2 width)."""
        out: Tensor = self.enlarge(F.interpolate(x, scale_factor=2.0))
        return out


class OfficialBinaryUNet(nn.Module):
    """The MNIST network: theta (batch, 1, H, W, 2) and t (batch,) -> one logit a pixel, of class 1: (batch, 1, H, W).

    It sees 2 theta_0 - 1 and 2 t - 1 at every pixel, projected to `width` channels; a U-Net with stride-2 convolutions
    down and nearest-neighbour up-sampling; projected input and U-Net output, side by side, give the logit.
    """

    time_frequency: Tensor

    def __init__(
        self,
        *,
        width: int,
        multipliers: Sequence[int],
        n_blocks: int,
        attention_rates: Sequence[int],
        n_heads: int,
        groups: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(width=width, n_levels=len(multipliers), n_blocks=n_blocks, n_heads=n_heads, groups=groups)
        require_divisible(width=(width, math.lcm(2, n_heads, groups)))
        self.config: dict[str, JSON] = {
            "name": "official-binary-unet",
            "width": width,
            "multipliers": list(multipliers),
            "n_blocks": n_blocks,
            "attention_rates": list(attention_rates),
            "n_heads": n_heads,
            "groups": groups,
            "dropout": dropout,
        }
        self.width, self.shrinkage = width, 2 ** (len(multipliers) - 1)
        self.pixel_in = nn.Linear(2, width)
        time_width = 4 * width
        self.time_1 = nn.Linear(width, time_width)
        self.time_2 = nn.Linear(time_width, time_width)

        def residual(in_channels: int, out_channels: int) -> ResidualBlock:
            return ResidualBlock(
                in_channels, out_channels, time_width=time_width, groups=groups, dropout=dropout, time_bias=True
            )

        def attention(channels: int) -> AttentionBlock:
            return AttentionBlock(channels, n_heads=n_heads, groups=groups, head_first=True)

        channels, skips = width, [width]
        self.down = nn.ModuleList([Stage([nn.Conv2d(width, width, 3, padding=1)])])
        for depth, multiplier in enumerate(multipliers):
            if depth > 0:
                self.down.append(Stage([Shrink(channels)]))
                skips.append(channels)
            for _ in range(n_blocks):
                stage = Stage([residual(channels, multiplier * width)])
                channels = multiplier * width
                if 2**depth in attention_rates:
                    stage.append(attention(channels))
                self.down.append(stage)
                skips.append(channels)
        self.middle = Stage([residual(channels, channels), attention(channels), residual(channels, channels)])
        self.up = nn.ModuleList()
        for depth, multiplier in reversed(list(enumerate(multipliers))):
            for index in range(n_blocks + 1):
                stage = Stage([residual(channels + skips.pop(), multiplier * width)])
                channels = multiplier * width
                if 2**depth in attention_rates:
                    stage.append(attention(channels))
                if depth > 0 and index == n_blocks:
                    stage.append(Enlarge(channels))
                self.up.append(stage)
        self.norm_out = nn.GroupNorm(groups, channels)
        self.conv_out = zeroed(nn.Conv2d(channels, width, 3, padding=1))
        self.pixel_out = nn.Linear(2 * width, 1)
        self.prepare()

    def prepare(self) -> None:
        """Set what no checkpoint holds, frequencies and memory layout; again after a start on the meta device."""
        half = self.width // 2
        frequency = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("time_frequency", frequency, persistent=False)
        weights_channels_last(self)

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Theta (batch, 1, H, W, 2), t (batch,) -> logit of class 1 (batch, 1, H, W)."""
        require_shape(inputs, t, ("batch", 1, "height", "width", 2))
        require_divisible(height=(inputs.shape[2], self.shrinkage), width=(inputs.shape[3], self.shrinkage))
        refuse_label(label)
        t = t.to(inputs.dtype)
        angle = 4000 * t[:, None] * self.time_frequency
        time = torch.cat([angle.cos(), angle.sin()], 1)
        time = F.silu(self.time_2(F.silu(self.time_1(time))))

        evidence = 2 * inputs[..., 0] - 1
        pixel = torch.cat([evidence, (2 * t - 1)[:, None, None, None].expand_as(evidence)], 1)
        projected = pixelwise(self.pixel_in, pixel)
        h = channels_last(projected)
        skips: list[Tensor] = []
        for stage in self.down:
            h = stage(h, time)
            skips.append(h)
        h = self.middle(h, time)
        for stage in self.up:
            h = stage(torch.cat([h, skips.pop()], 1), time)
        h = self.conv_out(F.silu(self.norm_out(h)))
        return pixelwise(self.pixel_out, torch.cat([projected, h], 1))
