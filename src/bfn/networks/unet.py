"""A U-Net for images: residual blocks at several resolutions, joined by skip connections (Ronneberger et al., 2015)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfn.core.errors import UserError
from bfn.networks.conditioning import Conditioning, Context, CrossAttention, Network, centre, combine, zeroed

CHANNELS_PER_GROUP = 8


class GroupNorm(nn.GroupNorm):
    """Group normalisation by the mean and variance over the pixels that are present."""

    def __init__(self, channels: int, affine: bool = True) -> None:
        super().__init__(channels // CHANNELS_PER_GROUP, channels, affine=affine)

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Map x (batch, channels, height, width) -> the same shape."""
        if present is None:
            return super().forward(x)
        share = present / present.sum((2, 3), keepdim=True)

        def group_mean(values: Tensor) -> Tensor:
            means = (values * share).sum((2, 3)).reshape(len(values), self.num_groups, -1)
            return means.mean(-1, keepdim=True).expand_as(means).reshape(len(values), -1, 1, 1)

        # In float32 under autocast too, as in torch.
        centred = x.to(share.dtype) - group_mean(x)
        normal = centred * (group_mean(centred.square()) + self.eps).rsqrt()
        return torch.addcmul(self.bias[:, None, None], normal, self.weight[:, None, None]) if self.affine else normal


def _masked(x: Tensor, present: Tensor | None) -> Tensor:
    """Set absent pixels to zero, like those beyond the edges. Every convolution over neighbours needs this."""
    return x if present is None else x * present


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions. The condition sets scale and shift of the second normalisation."""

    def __init__(self, in_channels: int, out_channels: int, condition_features: int, dropout: float) -> None:
        super().__init__()
        self.norm_in = GroupNorm(in_channels)
        self.conv_in = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.modulation = zeroed(nn.Linear(condition_features, 2 * out_channels))
        self.norm_out = GroupNorm(out_channels, affine=False)
        self.dropout = nn.Dropout(dropout)
        self.conv_out = zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Map x (batch, in_channels, height, width) -> (batch, out_channels, height, width)."""
        present = context.present
        scale, shift = self.modulation(context.vector)[:, :, None, None].chunk(2, dim=1)
        hidden = self.conv_in(_masked(F.silu(self.norm_in(x, present)), present))
        hidden = torch.addcmul(shift, self.norm_out(hidden, present), 1 + scale)
        out: Tensor = self.skip(x) + self.conv_out(_masked(self.dropout(F.silu(hidden)), present))
        return out


class AttentionBlock(nn.Module):
    """Self-attention over all pixels."""

    def __init__(self, channels: int, head_features: int) -> None:
        super().__init__()
        self.head_features = head_features
        self.norm = GroupNorm(channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = zeroed(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Map x (batch, channels, height, width) -> the same shape; present is (batch, 1, height, width)."""
        batch, channels, height, width = x.shape
        mask = None if present is None else present.flatten(2)[:, None] > 0
        qkv = self.qkv(self.norm(x, present)).reshape(batch, 3, channels // self.head_features, self.head_features, -1)
        query, key, value = qkv.transpose(-1, -2).unbind(1)
        hidden = F.scaled_dot_product_attention(query, key, value, mask)
        return x.add(self.out(hidden.transpose(-1, -2).reshape(batch, channels, height, width)))


class Stage(nn.Module):
    """A residual block, optionally followed by attention to the pixels and to the conditions that are sequences."""

    def __init__(self, block: ResidualBlock, attention: AttentionBlock | None, cross: CrossAttention | None) -> None:
        super().__init__()
        self.block = block
        self.attention = attention
        self.cross = cross

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Map x (batch, in_channels, height, width) -> (batch, out_channels, height, width)."""
        x = self.block(x, context)
        x = x if self.attention is None else self.attention(x, context.present)
        if self.cross is None:
            return x
        pixels: Tensor = self.cross(x.flatten(2).transpose(1, 2), context)
        return pixels.transpose(1, 2).reshape(x.shape)


def _check_attention(level: int, widths: Sequence[int], head_features: int) -> None:
    """Raise a UserError for a level that cannot have attention."""
    if not 0 <= level < len(widths):
        raise UserError(f"attention_levels has {level}: this network has levels 0 to {len(widths) - 1}")
    if widths[level] % head_features:
        raise UserError(f"head_features={head_features}: does not divide the {widths[level]} channels of level {level}")


class UNet(Network):
    """U-Net for images.

    continuous (n_classes = 0): inputs (batch, in_channels, height, width) -> (batch, out_channels, height, width)
    discrete: theta (batch, in_channels, height, width, n_classes) -> logits (batch, out_channels, ..., n_classes)

    Args:
        in_channels: number of channels of the image.
        out_channels: number of channels of the output; in_channels if None.
        n_classes: number of classes of a discrete pixel, 0 for continuous images.
        channels: hidden channels of the first level, a multiple of 8.
        multipliers: hidden channels of each level as a multiple of `channels`. Each level halves the resolution.
        n_blocks: residual blocks per level.
        attention_levels: levels with attention after each block, 0 is the finest.
        head_features: number of features of an attention head.
        condition_features: size of the embedding of time and conditions, and of the tokens of sequences.
        n_labels: number of labels, 0 for none.
        patch: side of the squares of pixels that are folded into channels before the first level.
        dropout: probability of dropping a feature inside the residual blocks.
        conditions: by name, numbers as {"shape": [8], "mean": 0.0, "std": 1.0} (a single one with shape []), classes as
            {"shape": [], "n_classes": 5}, sequences as {"shape": [64], "n_classes": 30} or {"shape": [64, 16]}. The
            levels in `attention_levels` attend to sequences.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        *,
        n_classes: int = 0,
        channels: int = 64,
        multipliers: Sequence[int] = (1, 2),
        n_blocks: int = 2,
        attention_levels: Sequence[int] = (1,),
        head_features: int = 32,
        condition_features: int = 128,
        n_labels: int = 0,
        patch: int = 1,
        dropout: float = 0.0,
        conditions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        out_channels = in_channels if out_channels is None else out_channels
        super().__init__(
            "unet", locals(), "in_channels", "out_channels", "channels", "n_levels", "n_blocks", "patch",
            "head_features",
        )  # fmt: skip
        self.require_divisible(channels=(channels, CHANNELS_PER_GROUP))
        widths = [channels * multiplier for multiplier in multipliers]
        for level in attention_levels:
            _check_attention(level, widths, head_features)
        self.in_channels, self.out_channels, self.n_classes, self.patch = in_channels, out_channels, n_classes, patch
        self.divisor = patch * 2 ** (len(multipliers) - 1)
        self.conditioning = Conditioning(condition_features, n_labels, conditions)
        sequences = self.conditioning.sequences
        if sequences and not attention_levels:
            raise UserError(f"attention_levels=[]: condition {sequences[0]} is a sequence, which needs at least one")

        def stage(width_in: int, width_out: int, level: int) -> Stage:
            block = ResidualBlock(width_in, width_out, condition_features, dropout)
            if level not in attention_levels:
                return Stage(block, None, None)
            n_heads = width_out // head_features
            cross = CrossAttention(width_out, n_heads, condition_features) if sequences else None
            return Stage(block, AttentionBlock(width_out, head_features), cross)

        per_pixel = max(n_classes, 1) * patch**2
        self.stem = nn.Conv2d(in_channels * per_pixel, channels, 3, padding=1)
        width, skips = channels, [channels]
        self.downs, self.shrinks = nn.ModuleList(), nn.ModuleList()
        for level, level_width in enumerate(widths):
            if level:
                self.shrinks.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
            widths_in = [width, *[level_width] * (n_blocks - 1)]
            self.downs.append(nn.ModuleList(stage(width_in, level_width, level) for width_in in widths_in))
            skips += [level_width] * n_blocks
            width = level_width
        last = len(widths) - 1
        self.middle = nn.ModuleList([stage(width, width, last), stage(width, width, -1)])
        self.ups, self.grows = nn.ModuleList(), nn.ModuleList()
        for level in range(last, -1, -1):
            widths_in = [width, *[widths[level]] * n_blocks]
            self.ups.append(nn.ModuleList(stage(own + skips.pop(), widths[level], level) for own in widths_in))
            width = widths[level]
            if level:
                self.grows.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm = GroupNorm(width)
        self.head = zeroed(nn.Conv2d(width, out_channels * per_pixel, 3, padding=1))

    def forward(
        self, inputs: Tensor, t: Tensor, label: Tensor | None = None, present: Tensor | None = None, **conditions: Any
    ) -> Tensor:
        """Predict the data.

        Args:
            inputs: see the class.
            t: times, (batch,), from 0 (nothing is known) to 1 (data).
            label: int64, (batch,), -1 for none.
            present: bool, (batch, 1 or in_channels, height, width), False at padding, which does not affect other
                pixels.
            conditions: by name, (batch, ...), -1 or NaN for none.
        """
        classes = (self.n_classes,) if self.n_classes else ()
        self.require_shape(inputs, t, ("batch", self.in_channels, "height", "width", *classes))
        height, width = inputs.shape[2:4]
        if height % self.divisor or width % self.divisor:
            raise UserError(f"images of {height} x {width}: expected sides that are multiples of {self.divisor}")
        context = self.conditioning(t, label, **conditions)
        images = centre(inputs).movedim(-1, 2).flatten(1, 2) if self.n_classes else inputs
        contexts = [context] * len(self.downs)
        if present is not None:
            self.require_present(present, inputs.shape[:4], (len(inputs), 1, height, width))
            images, contexts = self._padded(images, present.any(1, keepdim=True), context)
        output = self._convolve(images, contexts)
        if not self.n_classes:
            return output
        logits = output.reshape(len(inputs), self.out_channels, self.n_classes, height, width).movedim(2, -1)
        return combine(inputs, logits) if self.in_channels == self.out_channels else logits

    def _padded(self, images: Tensor, pixels: Tensor, context: Context) -> tuple[Tensor, list[Context]]:
        """Return images with zeros as padding, and the context of each level with its mask."""
        images = images.masked_fill(~pixels, 0.0)
        return images, [context._replace(present=mask) for mask in self._masks(pixels, images)]

    def _masks(self, pixels: Tensor, images: Tensor) -> list[Tensor]:
        """Return the mask of each level, 0 or 1 in the type of the images: present if any of its pixels is present."""
        # Attention to nothing is NaN, so in an image without any present pixel all of them are attended to.
        pixels = pixels | ~pixels.flatten(1).any(1)[:, None, None, None]
        masks = [F.max_pool2d(pixels.to(images.dtype), self.patch)]
        while len(masks) < len(self.downs):
            masks.append(F.max_pool2d(masks[-1], 2))
        return masks

    def _convolve(self, images: Tensor, contexts: Sequence[Context]) -> Tensor:
        """Apply all levels to images whose classes are channels, with one context per level, the finest first."""
        # Convolutions keep the memory layout of their input. Channels-last is a third faster on CPU.
        patches = F.pixel_unshuffle(images, self.patch).contiguous(memory_format=torch.channels_last)
        hidden = self.stem(patches)
        skips = [hidden]
        for level, stages in enumerate(self.downs):
            if level:
                hidden = self.shrinks[level - 1](_masked(hidden, contexts[level - 1].present))
                skips.append(hidden)
            for stage in stages.children():
                hidden = stage(hidden, contexts[level])
                skips.append(hidden)
        for stage in self.middle:
            hidden = stage(hidden, contexts[-1])
        for level, (stages, context) in enumerate(zip(self.ups, reversed(contexts), strict=True)):
            if level:
                larger = F.interpolate(hidden, scale_factor=2.0, mode="nearest")
                hidden = self.grows[level - 1](_masked(larger, context.present))
            for stage in stages.children():
                hidden = stage(torch.cat((hidden, skips.pop()), dim=1), context)
        present = contexts[0].present
        return F.pixel_shuffle(self.head(_masked(F.silu(self.norm(hidden, present)), present)), self.patch)
