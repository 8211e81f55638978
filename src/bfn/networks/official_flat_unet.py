"""The network behind the published CIFAR-10 checkpoints: a U-Net that never changes its resolution.

Reference: Graves et al., "Bayesian Flow Networks", 2023, sections 6 and 7, and its released code.
"""

import math

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

__all__ = ["OfficialFlatUNet"]

FOURIER_EXPONENTS = (5, 6)
"""The CIFAR-10 network sees its input's sines and cosines at angular frequencies 2 pi 2^5 and 2 pi 2^6 as well."""


class OfficialFlatUNet(nn.Module):
    """The CIFAR-10 network: mu (batch, C, H, W) and t (batch,) -> (batch, C, H, W), or (batch, C, H, W, n_outputs).

    A U-Net that keeps its resolution: `n_blocks` residual blocks down, two around one attention in the middle,
    `n_blocks + 1` up with skips. Input and final features, side by side, give `n_outputs` numbers a channel: one, the
    noise, or two, its mean and log standard deviation.
    """

    fourier: Tensor
    time_frequency: Tensor

    def __init__(
        self,
        *,
        channels: int,
        width: int,
        n_blocks: int,
        n_heads: int,
        groups: int,
        n_outputs: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(
            channels=channels, width=width, n_blocks=n_blocks, n_heads=n_heads, groups=groups, n_outputs=n_outputs
        )
        require_divisible(width=(width, math.lcm(2, n_heads, groups)))
        self.config: dict[str, JSON] = {
            "name": "official-flat-unet",
            "channels": channels,
            "width": width,
            "n_blocks": n_blocks,
            "n_heads": n_heads,
            "groups": groups,
            "n_outputs": n_outputs,
            "dropout": dropout,
        }
        self.channels, self.width, self.n_outputs = channels, width, n_outputs
        time_width = 4 * width
        self.time_1 = nn.Linear(width, time_width)
        self.time_2 = nn.Linear(time_width, time_width)
        self.conv_in = nn.Conv2d(channels * (1 + 2 * len(FOURIER_EXPONENTS)), width, 3, padding=1)

        def residual(in_channels: int) -> ResidualBlock:
            block = ResidualBlock(
                in_channels, width, time_width=time_width, groups=groups, dropout=dropout, time_bias=False
            )
            zeroed(block.time)
            return block

        self.down = nn.ModuleList(residual(width) for _ in range(n_blocks))
        self.middle_1 = residual(width)
        self.middle_attention = AttentionBlock(width, n_heads=n_heads, groups=groups, head_first=False)
        self.middle_2 = residual(width)
        self.up = nn.ModuleList(residual(2 * width) for _ in range(n_blocks + 1))
        self.norm_out = nn.GroupNorm(groups, width)
        self.conv_out = zeroed(nn.Conv2d(width, width, 3, padding=1))
        self.pixel_out = nn.Linear(channels + width, channels * n_outputs)
        self.prepare()

    def prepare(self) -> None:
        """Set what no checkpoint holds, frequencies and memory layout; again after a start on the meta device."""
        waves = 2 * math.pi * 2.0 ** torch.tensor(FOURIER_EXPONENTS, dtype=torch.float32)
        self.register_buffer("fourier", waves[:, None, None, None], persistent=False)
        self.register_buffer("time_frequency", torch.logspace(0, -4, self.width // 2), persistent=False)
        weights_channels_last(self)

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Mu (batch, C, H, W), t (batch,) -> (batch, C, H, W), or (batch, C, H, W, n_outputs) if n_outputs > 1."""
        require_shape(inputs, t, ("batch", self.channels, "height", "width"))
        refuse_label(label)
        angle = 1000 * (t[:, None].to(inputs.dtype) + 0.001) * self.time_frequency
        time = torch.cat([angle.sin(), angle.cos()], 1)
        time = F.silu(self.time_2(F.silu(self.time_1(time))))

        wave = (self.fourier * inputs[:, None]).flatten(1, 2)
        h = self.conv_in(channels_last(torch.cat([inputs, wave.sin(), wave.cos()], 1)))
        skips = [h]
        for block in self.down:
            h = block(h, time)
            skips.append(h)
        h = self.middle_2(self.middle_attention(self.middle_1(h, time)), time)
        for block in self.up:
            h = block(torch.cat([h, skips.pop()], 1), time)
        h = self.conv_out(F.silu(self.norm_out(h)))
        out = pixelwise(self.pixel_out, torch.cat([inputs, h], 1))
        if self.n_outputs == 1:
            return out
        split = out.reshape(out.shape[0], self.channels, self.n_outputs, *out.shape[2:])
        return split.movedim(2, -1)
