"""How samples form: a callback that keeps the way, and animations of it. Needs Pillow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from bfn.errors import UserError
from bfn.files import atomic
from bfn.sampling import Step
from bfn.viz.pictures import sheet, side_by_side, text_picture

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from bfn.model import Model

__all__ = ["Recorder", "write_animation"]


@dataclass
class Recorder:
    """An ``on_step`` callback that keeps how the first few samples of a model form. keep: how many samples."""

    model: Model
    keep: int = 16
    steps: list[tuple[float, Tensor, Tensor]] = field(default_factory=list)
    """(t, what is known, what is predicted) of each call: mu and x_hat, or theta and class probabilities."""
    present: Tensor | None = None
    """What is there of the samples, where they are texts of different lengths: to be set once it is known."""

    def __call__(self, step: Step) -> None:
        flow = self.model.flow
        known = flow.network_input(step.u[: self.keep], float(flow.schedule.s(step.t)))
        self.steps.append((step.t, known.cpu(), step.prediction[: self.keep].cpu()))

    def frames(self) -> list[Picture]:
        """One picture a call: what is known beside what is predicted."""
        n = len(self.steps)
        return [
            side_by_side(
                [("known", self.picture(known)), ("predicted", self.picture(predicted))],
                f"call {i} of {n}, t = {t:.3f}",
            )
            for i, (t, known, predicted) in enumerate(self.steps, 1)
        ]

    def picture(self, prediction: Tensor) -> Picture:
        """A prediction, or what is known, as text or as a sheet of images."""
        tokenizer = self.model.info.text_tokenizer
        if tokenizer is not None:
            there = None if self.present is None else self.present[: self.keep].cpu()
            return text_picture(prediction, tokenizer.pieces, present=there)
        return sheet(self.model.flow.expected_values(prediction))


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
