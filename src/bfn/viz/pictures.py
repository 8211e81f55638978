"""Samples to look at: sheets of images, lines of text, and how both form along the way.

Needs Pillow for pictures (``pip install 'bayesian-flow[cli]'``); lines of text need nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.files import atomic
from bfn.flows import DiscreteFlow, Flow
from bfn.sampling import Step

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    Frame = tuple[str, Picture]
    """A picture with its caption."""

CELL = 56
"""Images on a sheet are enlarged by a whole number to about this height."""
GAP = 2
PAPER, INK = 255, 0
UNKNOWN = "_"
"""Stands for a symbol that is not known yet."""


def lines(x: Tensor, alphabet: str | None) -> list[str]:
    """Classes (n, ...) as one line a sample: symbols of the alphabet, or numbers where there is none."""
    rows = x.reshape(len(x), -1).tolist()
    if alphabet is None:
        return [" ".join(str(k) for k in row) for row in rows]
    return ["".join(alphabet[k] for k in row) for row in rows]


def theta_lines(theta: Tensor, alphabet: str) -> list[str]:
    """Probabilities (n, length, K) as text: symbols with more than half of it, underscores elsewhere."""
    top, symbol = theta.max(-1)
    return [
        "".join(alphabet[k] if p > 0.5 else UNKNOWN for k, p in zip(*row, strict=True))
        for row in zip(symbol.tolist(), top.tolist(), strict=True)
    ]


def pixels(x: Tensor, levels: int | None = None) -> Tensor:
    """Images in [-1, 1], or classes 0..levels-1, as bytes: (n, channel, height, width) -> uint8 (n, h, w, channel)."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise UserError(f"images of shape {tuple(x.shape)}: expected (n, channel, height, width) with 1 or 3 channels")
    share = (x.float() + 1) / 2 if levels is None else x.float() / (levels - 1)
    return share.clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()


def sheet(x: Tensor, levels: int | None = None, columns: int | None = None) -> Picture:
    """Images side by side, as nearly square as they come, small ones enlarged. x and levels as in :func:`pixels`."""
    from PIL import Image

    tiles = pixels(x, levels)
    n, height, width, channels = tiles.shape
    scale = max(1, round(CELL / height))
    tiles = tiles.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
    height, width = height * scale, width * scale
    columns = columns or math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    page = torch.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels), PAPER, dtype=torch.uint8)
    for i, tile in enumerate(tiles):
        top, left = (GAP + (i // columns) * (height + GAP)), (GAP + (i % columns) * (width + GAP))
        page[top : top + height, left : left + width] = tile
    return Image.fromarray((page.squeeze(-1) if channels == 1 else page).numpy())


def flow_sheet(flow: Flow, values: Tensor) -> Picture:
    """A sheet of mu or x_hat, (n, channel, height, width), or of the mean level of class probabilities, (..., K)."""
    if not isinstance(flow, DiscreteFlow):
        return sheet(values)
    classes = torch.arange(flow.n_classes, dtype=values.dtype)
    return sheet(values @ classes, flow.n_classes)


def text_picture(theta: Tensor, alphabet: str, columns: int = 64) -> Picture:
    """Probabilities (n, length, K) as a picture of text: the likeliest symbols, the fainter the less they are known."""
    from PIL import Image, ImageDraw, ImageFont

    font, width, height = ImageFont.load_default(14), 10, 18
    top, symbol = theta.max(-1)
    floor = 1 / theta.shape[-1]
    ink = ((top - floor) / (1 - floor)).clamp(0, 1).mul(PAPER).round().int()
    n, length = symbol.shape
    rows = math.ceil(length / columns)
    block = rows * height + height // 2
    picture = Image.new("L", ((min(length, columns) + 2) * width, n * block + height), PAPER)
    draw = ImageDraw.Draw(picture)
    for i in range(n):
        for j, (k, dark) in enumerate(zip(symbol[i].tolist(), ink[i].tolist(), strict=True)):
            left = width + (j % columns) * width + width // 2
            below = height // 2 + i * block + (j // columns) * height
            draw.text((left, below), alphabet[k], fill=PAPER - dark, font=font, anchor="ma")
    return picture


def side_by_side(parts: Sequence[Frame], title: str = "") -> Picture:
    """Pictures in a row, each below its caption, all below a title."""
    from PIL import Image, ImageDraw, ImageFont

    font, line, margin = ImageFont.load_default(13), 20, 8
    widths = [max(picture.width, math.ceil(font.getlength(caption))) for caption, picture in parts]
    top = margin + line * (1 + bool(title))
    width = max(sum(widths) + margin * (len(parts) + 1), math.ceil(font.getlength(title)) + 2 * margin)
    height = top + max(picture.height for _, picture in parts) + margin
    mode = "RGB" if any(picture.mode == "RGB" for _, picture in parts) else "L"
    page = Image.new(mode, (width, height), "white")
    draw = ImageDraw.Draw(page)
    draw.text((margin, margin), title, fill="black", font=font)
    left = margin
    for (caption, picture), wide in zip(parts, widths, strict=True):
        draw.text((left, top - line), caption, fill="black", font=font)
        page.paste(picture, (left, top))
        left += wide + margin
    return page


def write_picture(path: Path | str, picture: Picture) -> Path:
    """A PNG file, atomically."""
    with atomic(path) as temporary:
        picture.save(temporary, format="PNG")
    return Path(path)


def write_animation(path: Path | str, frames: Iterable[Picture], seconds: float = 3.0) -> Path:
    """An animated .gif or .png, atomically; it lasts that long, then holds its last frame as long again."""
    path = Path(path)
    formats = {".gif": "GIF", ".png": "PNG"}
    if path.suffix not in formats:
        raise UserError(f"{path}: an animation is a .gif or a .png file")
    first, *rest = frames
    each = max(20, round(1000 * seconds / (1 + len(rest))))
    durations = [*[each] * len(rest), round(1000 * seconds)]
    with atomic(path) as temporary:
        first.save(
            temporary, format=formats[path.suffix], save_all=True, append_images=rest, duration=durations, loop=0
        )  # fmt: skip
    return path


def write_sheet(path: Path | str, x: Tensor, alphabet: str | None = None, levels: int | None = None) -> Path:
    """Samples as a PNG sheet if they are images, as lines of a .txt file otherwise; returns the file."""
    path = Path(path)
    if x.ndim == 4:
        return write_picture(path.with_suffix(".png"), sheet(x, levels))
    with atomic(path.with_suffix(".txt")) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines(x, alphabet)), encoding="utf-8")
    return path.with_suffix(".txt")


@dataclass
class Recorder:
    """An ``on_step`` callback that keeps how the first few samples form.

    flow: the model's. keep: how many samples. alphabet: of a text model.
    """

    flow: Flow
    keep: int = 16
    alphabet: str | None = None
    steps: list[tuple[float, Tensor, Tensor]] = field(default_factory=list)
    """(t, what is known, what is predicted) of each call: mu and x_hat, or theta and class probabilities."""

    def __call__(self, step: Step) -> None:
        known = self.flow.network_input(step.u[: self.keep], float(self.flow.schedule.s(step.t)))
        self.steps.append((step.t, known.cpu(), step.prediction[: self.keep].cpu()))

    def frames(self) -> list[Picture]:
        """One picture a call: what the network is shown beside what it predicts."""
        n = len(self.steps)
        return [
            side_by_side(
                [("known", self._picture(known)), ("predicted", self._picture(predicted))],
                f"call {i} of {n}, t = {t:.3f}",
            )
            for i, (t, known, predicted) in enumerate(self.steps, 1)
        ]

    def _picture(self, values: Tensor) -> Picture:
        if self.alphabet is not None:
            return text_picture(values, self.alphabet)
        return flow_sheet(self.flow, values)
