"""Pictures of samples with Pillow: sheets of images, lines of text, molecules, animations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bfn._utils.arguments import require
from bfn._utils.files import atomic
from bfn.core.codec import sheet
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.core.sampling import Step
from bfn.data.tokenizers import text_picture

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = [
    "Recorder", "lines", "molecule_sheet", "sheet", "side_by_side", "text_picture", "write_animation", "write_picture",
    "write_samples",
]  # fmt: skip


def lines(model: Model, x: Any, present: Any = None) -> list[str]:
    """Return one line for each sample: its text, or its numbers in units; for joint data name=value for each part.

    Args:
        model: the model that x was drawn from.
        x: samples.
        present: bool, like x, True where there is data.
    """
    return model.codec.lines(x, present)


def side_by_side(parts: Sequence[tuple[str, Picture]], title: str = "") -> Picture:
    """Draw pictures in a row, each (caption, picture) below its caption, and a title above them."""
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
    """Write a PNG file atomically. Returns its path."""
    with atomic(path) as temporary:
        picture.save(temporary, format="PNG")
    return Path(path)


def write_samples(path: Path | str, model: Model, x: Any, columns: int | None = None, present: Any = None) -> Path:
    """Write samples as a PNG sheet if they are images, else as lines of a .txt file. Returns the path of the file."""
    if model.form == "images":
        return write_picture(Path(path).with_suffix(".png"), sheet(model.flow.values(x), columns))
    text = Path(path).with_suffix(".txt")
    with atomic(text) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines(model, x, present)), encoding="utf-8")
    return text


MOST_DRAWN = 100
"""Maximum number of molecules in a picture."""


def molecule_sheet(smiles: Sequence[str], captions: Sequence[str] = (), *, side: int = 180) -> Picture:
    """Draw molecules on a grid that is as square as possible; at most 100 of them.

    Args:
        smiles: the molecules. The place of a string that is not a molecule stays empty.
        captions: text below each molecule.
        side: width and height of one molecule in pixels.
    """
    if not smiles:
        raise UserError("no molecules: expected at least 1 to draw")
    chem, draw = (require(name, "to draw molecules") for name in ("rdkit.Chem", "rdkit.Chem.Draw"))
    base: Any = require("rdkit.rdBase", "to draw molecules")
    some = smiles[:MOST_DRAWN]
    with base.BlockLogs():
        molecules = [chem.MolFromSmiles(one) for one in some]
    picture: Picture = draw.MolsToGridImage(
        [chem.Mol() if one is None else one for one in molecules], molsPerRow=math.ceil(math.sqrt(len(some))),
        subImgSize=(side, side), legends=list(captions[:MOST_DRAWN]) or None, returnPNG=False,
    )  # fmt: skip
    return picture.convert("RGB")


@dataclass
class Recorder:
    """An ``on_step`` callback that records how the first samples form.

    Attributes:
        model: the model that is sampled.
        keep: number of samples to record.
        steps: (t, input, prediction) of each network call: mu and x_hat, or theta and class probabilities.
        present: mask of the samples, to be set after sampling if they are texts of different lengths.
    """

    model: Model
    keep: int = 16
    steps: list[tuple[float, Tensor, Tensor]] = field(default_factory=list)
    present: Tensor | None = None

    def __call__(self, step: Step) -> None:
        flow = self.model.flow
        known = flow.network_input(step.u[: self.keep], float(flow.schedule.s(step.t)))
        self.steps.append((step.t, known.cpu(), step.prediction[: self.keep].cpu()))

    def frames(self) -> list[Picture]:
        """Return one picture for each network call, with the input beside the prediction."""
        pairs = [[("known", self.picture(known)), ("predicted", self.picture(x))] for _, known, x in self.steps]
        times = [f"call {i} of {len(pairs)}, t = {t:.3f}" for i, (t, _, _) in enumerate(self.steps, 1)]
        return [*map(side_by_side, pairs, times)]

    def picture(self, prediction: Tensor) -> Picture:
        """Draw inputs or predictions as text or as a sheet of images."""
        tokenizer = self.model.info.text_tokenizer
        if tokenizer is not None:
            present = None if self.present is None else self.present[: self.keep].cpu()
            return text_picture(prediction, tokenizer.pieces, present=present)
        return sheet(self.model.flow.expected_values(prediction))


def write_animation(path: Path | str, frames: Iterable[Picture], seconds: float = 3.0) -> Path:
    """Write an animated .gif or .png atomically. Returns its path.

    Args:
        path: of the file.
        frames: pictures of the same size.
        seconds: duration of the animation; the last frame is then shown for as long again.
    """
    path = Path(path)
    kind = {".gif": "GIF", ".png": "PNG"}.get(path.suffix)
    if kind is None:
        raise UserError(f"{path}: expected a .gif or a .png file for an animation")
    first, *rest = frames
    each = max(20, round(1000 * seconds / (1 + len(rest))))
    durations = [*[each] * len(rest), round(1000 * seconds)]
    with atomic(path) as temporary:
        first.save(temporary, format=kind, save_all=True, append_images=rest, duration=durations, loop=0)
    return path
