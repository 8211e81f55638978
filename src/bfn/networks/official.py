"""The networks of the published checkpoints: text8, CIFAR-10 and MNIST. They compute the same as the original code.

Reference: Graves et al., "Bayesian Flow Networks", 2023, sections 6 and 7, and its released code.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.networks.conditioning import Network, set_constants, zeroed

FOURIER_EXPONENTS = (5, 6)
"""The CIFAR-10 network also sees sines and cosines of its input, at angular frequencies 2 pi 2^5 and 2 pi 2^6."""


def refuse_label(label: Tensor | None) -> None:
    """Raise a UserError if there is a label."""
    if label is not None:
        raise UserError("label given to a network without labels: the published networks know none, pass label=None")


def position_code(length: int, width: int) -> Tensor:
    """Return sin(p / 1000^(j/d)) in even columns j and cos of the same in odd columns, (length, width).

    The published weights were trained with base 1000 and a different frequency in every column.
    """
    column = torch.arange(width, dtype=torch.float32)
    angle = torch.arange(length, dtype=torch.float32)[:, None] / 1000 ** (column / width)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


class TransformerBlock(nn.Module):
    """Bidirectional pre-norm block, (batch, length, width) -> the same: x + attention(norm(x)), x + mlp(norm(x))."""

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
        """Apply attention and the MLP, with tanh-GELU."""
        dropout = self.dropout if self.training else 0.0
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        x = x + F.dropout(self.attention_out(attended.transpose(1, 2).flatten(2)), dropout)
        hidden = F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh")
        return x + F.dropout(self.mlp_out(hidden), dropout)


class OfficialTransformer(Network):
    """The text8 network: theta (batch, length, K) and t (batch,) -> logits (batch, length, K).

    The features Linear(2 theta - 1) + position code + Linear(2 t - 1) pass through the blocks and a norm. The result
    and the features are concatenated and projected to logits.
    """

    position: Tensor

    def __init__(
        self, *, n_classes: int, length: int, width: int, n_layers: int, n_heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__("official-transformer", locals(), "n_classes", "length", "width", "n_layers", "n_heads")
        self.require_divisible(width=(width, n_heads))
        self.input_shape = (length, n_classes)
        self.dropout = dropout
        self.theta_in = nn.Linear(n_classes, width)
        self.time_in = nn.Linear(1, width)
        on_meta = torch.get_default_device().type == "meta"  # where computations are slow, see `set_constants`
        self.register_buffer("position", torch.empty(length, width) if on_meta else position_code(length, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, n_heads, dropout) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.logits_out = nn.Linear(2 * width, n_classes)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise as GPT-2: std 0.02, divided by sqrt(2 n_layers) in the last layer of each residual branch."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                joins = name.endswith(("attention_out", "mlp_out"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * len(self.blocks)) if joins else 0.02)
                nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Predict logits from theta at times t."""
        self.require_shape(inputs, t, ("batch", *self.input_shape))
        refuse_label(label)
        time = self.time_in((2 * t.to(inputs.dtype) - 1)[:, None, None])
        features = self.theta_in(2 * inputs - 1) + self.position + time
        x = F.dropout(features, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.logits_out(torch.cat([self.norm(x), features], -1))
        return out


def channels_last(x: Tensor) -> Tensor:
    """Return a tensor in the layout in which convolutions are fastest and attention needs no copy."""
    return x.contiguous(memory_format=torch.channels_last)


def use_channels_last(network: nn.Module) -> None:
    """Store the weights of convolutions in the channels-last layout, so that no call has to convert them."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def pixelwise(linear: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer to the channels of every pixel, (batch, in, h, w) -> (batch, out, h, w)."""
    out: Tensor = linear(x.movedim(1, -1))
    return out.movedim(-1, 1)


class ResidualBlock(nn.Module):
    """Residual block of two convolutions, with the projected time added between them.

    (batch, in, height, width), activated time features (batch, time_width) -> (batch, out, height, width)

    Args:
        in_channels, out_channels: sizes.
        time_width: number of time features.
        groups: of the group norms.
        dropout: probability of dropping a feature.
        time_bias: True for a time projection with a bias, as in `OfficialBinaryUNet`. One without starts as zero.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, time_width: int, groups: int, dropout: float, time_bias: bool
    ) -> None:
        super().__init__()
        self.norm_1 = nn.GroupNorm(groups, in_channels)
        self.conv_1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        time = nn.Linear(time_width, out_channels, bias=time_bias)
        self.time = time if time_bias else zeroed(time)
        self.norm_2 = nn.GroupNorm(groups, out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv_2 = zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Add the branch to the input, which is projected if the number of channels changes."""
        h = self.conv_1(F.silu(self.norm_1(x))) + self.time(time)[:, :, None, None]
        h = self.conv_2(self.dropout(F.silu(self.norm_2(h))))
        out: Tensor = self.skip(x) + h
        return out


class AttentionBlock(nn.Module):
    """Self-attention over pixels, added to its input, (batch, channels, height, width) -> the same.

    Args:
        channels: size.
        n_heads: number of attention heads.
        groups: of the group norm.
        head_first: order of the projection's outputs: q, k and v of each head in turn, as in `OfficialBinaryUNet`, or
            all q, then all k, then all v, as in `OfficialFlatUNet`.
    """

    def __init__(self, channels: int, *, n_heads: int, groups: int, head_first: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_first = head_first
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = zeroed(nn.Linear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every pixel to every pixel."""
        qkv = self.qkv(self.norm(x).flatten(2).mT)
        by_head = (self.n_heads, 3, -1) if self.head_first else (3, self.n_heads, -1)
        order = (3, 0, 2, 1, 4) if self.head_first else (2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unflatten(-1, by_head).permute(order))
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return x + out.mT.reshape(x.shape)


class OfficialFlatUNet(Network):
    """The CIFAR-10 network: mu (batch, C, H, W) and t (batch,) -> (batch, C, H, W), or (batch, C, H, W, n_outputs).

    A U-Net that does not change the resolution: `n_blocks` residual blocks down, two around one attention in the
    middle, `n_blocks + 1` up with skip connections. Input and final features are concatenated and projected to
    `n_outputs` numbers per channel: one, the noise, or two, its mean and log standard deviation.
    """

    fourier: Tensor
    time_frequency: Tensor

    def __init__(
        self, *, channels: int, width: int, n_blocks: int, n_heads: int, groups: int, n_outputs: int,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(
            "official-flat-unet", locals(), "channels", "width", "n_blocks", "n_heads", "groups", "n_outputs"
        )
        self.require_divisible(width=(width, math.lcm(2, n_heads, groups)))
        self.channels, self.width, self.n_outputs = channels, width, n_outputs
        time_width = 4 * width
        self.time_1 = nn.Linear(width, time_width)
        self.time_2 = nn.Linear(time_width, time_width)
        self.conv_in = nn.Conv2d(channels * (1 + 2 * len(FOURIER_EXPONENTS)), width, 3, padding=1)

        residual = partial(
            ResidualBlock, out_channels=width, time_width=time_width, groups=groups, dropout=dropout, time_bias=False
        )
        self.down = nn.ModuleList(residual(width) for _ in range(n_blocks))
        self.middle_1 = residual(width)
        self.middle_attention = AttentionBlock(width, n_heads=n_heads, groups=groups, head_first=False)
        self.middle_2 = residual(width)
        self.up = nn.ModuleList(residual(2 * width) for _ in range(n_blocks + 1))
        self.norm_out = nn.GroupNorm(groups, width)
        self.conv_out = zeroed(nn.Conv2d(width, width, 3, padding=1))
        self.pixel_out = nn.Linear(channels + width, channels * n_outputs)
        set_constants(self)

    def reset_constants(self) -> None:
        """Set frequencies and memory layout, which checkpoints do not hold."""
        waves = 2 * math.pi * 2.0 ** torch.tensor(FOURIER_EXPONENTS, dtype=torch.float32)
        self.register_buffer("fourier", waves[:, None, None, None], persistent=False)
        self.register_buffer("time_frequency", torch.logspace(0, -4, self.width // 2), persistent=False)
        use_channels_last(self)

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Predict the noise from mu at times t."""
        self.require_shape(inputs, t, ("batch", self.channels, "height", "width"))
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
        split = out.reshape(len(out), self.channels, self.n_outputs, *out.shape[2:])
        return out if self.n_outputs == 1 else split.movedim(2, -1)


class Stage(nn.ModuleList):
    """Modules of `OfficialBinaryUNet` that are applied in turn. Residual blocks also take the time features."""

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Apply the modules, (batch, channels, height, width) -> (batch, out, height', width')."""
        for module in self:
            x = module(x, time) if isinstance(module, ResidualBlock) else module(x)
        return x


def _resampling(**layers: nn.Module) -> nn.Sequential:
    """Return layers that are applied in turn, with their weights stored under these names."""
    return nn.Sequential(OrderedDict(layers))


class OfficialBinaryUNet(Network):
    """The MNIST network: theta (batch, 1, H, W, 2) and t (batch,) -> logits of class 1, (batch, 1, H, W).

    2 theta_0 - 1 and 2 t - 1 are projected to `width` channels at every pixel, and pass through a U-Net with stride-2
    convolutions and nearest-neighbour up-sampling. Projected input and output are concatenated to give the logit.
    """

    time_frequency: Tensor

    def __init__(
        self, *, width: int, multipliers: Sequence[int], n_blocks: int, attention_rates: Sequence[int], n_heads: int,
        groups: int = 32, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__("official-binary-unet", locals(), "width", "n_levels", "n_blocks", "n_heads", "groups")
        self.require_divisible(width=(width, math.lcm(2, n_heads, groups)))
        self.width, self.shrinkage = width, 2 ** (len(multipliers) - 1)
        self.pixel_in = nn.Linear(2, width)
        time_width = 4 * width
        self.time_1 = nn.Linear(width, time_width)
        self.time_2 = nn.Linear(time_width, time_width)

        residual = partial(ResidualBlock, time_width=time_width, groups=groups, dropout=dropout, time_bias=True)
        attention = partial(AttentionBlock, n_heads=n_heads, groups=groups, head_first=True)
        channels, skips = width, [width]

        def stage(n_in: int, depth: int) -> Stage:
            n_out = multipliers[depth] * width
            own = Stage([residual(n_in, n_out)])
            return own.append(attention(n_out)) if 2**depth in attention_rates else own

        self.down = nn.ModuleList([Stage([nn.Conv2d(width, width, 3, padding=1)])])
        for depth, multiplier in enumerate(multipliers):
            if depth:
                self.down.append(Stage([_resampling(shrink=nn.Conv2d(channels, channels, 3, stride=2, padding=1))]))
                skips.append(channels)
            for _ in range(n_blocks):
                self.down.append(stage(channels, depth))
                channels = multiplier * width
                skips.append(channels)
        self.middle = Stage([residual(channels, channels), attention(channels), residual(channels, channels)])
        self.up = nn.ModuleList()
        for depth, multiplier in reversed(list(enumerate(multipliers))):
            for index in range(n_blocks + 1):
                own = stage(channels + skips.pop(), depth)
                channels = multiplier * width
                if depth and index == n_blocks:
                    conv = nn.Conv2d(channels, channels, 3, padding=1)
                    own.append(_resampling(repeat=nn.Upsample(scale_factor=2.0), enlarge=conv))
                self.up.append(own)
        self.norm_out = nn.GroupNorm(groups, channels)
        self.conv_out = zeroed(nn.Conv2d(channels, width, 3, padding=1))
        self.pixel_out = nn.Linear(2 * width, 1)
        set_constants(self)

    def reset_constants(self) -> None:
        """Set frequencies and memory layout, which checkpoints do not hold."""
        half = self.width // 2
        frequency = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("time_frequency", frequency, persistent=False)
        use_channels_last(self)

    def forward(self, inputs: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """Predict the logits of class 1 from theta at times t."""
        self.require_shape(inputs, t, ("batch", 1, "height", "width", 2))
        self.require_divisible(height=(inputs.shape[2], self.shrinkage), width=(inputs.shape[3], self.shrinkage))
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
