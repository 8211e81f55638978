"""Pairs for people to choose from: the paper's two-alternative forced choice.

A pair is one sample of each of two samplers, from the same noise and of the same class, in an order drawn at random.
The key says which is which; it is kept beside the folder of pairs, not in it, so that the folder can be handed out.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bfn._utils.estimate import Estimate, share_estimate
from bfn._utils.files import atomic_write
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.quality.measurements import Setting
from bfn.viz.pictures import sheet, side_by_side, write_picture

PAIRS, ANSWERS = "pairs.md", "answers.csv"
SIDES = ("left", "right")
INSTRUCTIONS = (
    "Choose the better sample of each, by its quality alone, and write `left` or `right` behind its number in "
    f"`{ANSWERS}`. If you cannot tell, choose all the same; a line left empty does not count."
)
SIDE_PIXELS = 224
"""Images are shown enlarged to about this height."""


@dataclass(frozen=True)
class Preference:
    """How often the first of two samplers was chosen over the second; skipped pairs do not count."""

    first: str
    second: str
    n_first: int
    n_second: int
    n_skipped: int

    @property
    def share(self) -> Estimate:
        """Of the answered pairs, those in which the first was chosen, with Wilson's interval."""
        return share_estimate(self.n_first, self.n_first + self.n_second)

    def sentence(self) -> str:
        """In words."""
        percent = self.share.scaled(100)
        verdict = (
            f"{self.first if percent.value > 50 else self.second} is preferred"
            if not percent.low <= 50 <= percent.high
            else "no preference is shown: the interval holds 50 %"
        )
        skipped = f", {self.n_skipped} skipped" if self.n_skipped else ""
        return (
            f"{self.first} was chosen over {self.second} in {self.n_first} of {self.n_first + self.n_second} pairs"
            f"{skipped}: {percent.value:.1f} % [{percent.low:.1f}, {percent.high:.1f}]; {verdict}"
        )


def key_path(folder: Path) -> Path:
    """Where the key to a folder of pairs is kept."""
    return folder.with_name(f"{folder.name}-key.json")


def check_pairs(folder: Path, model: Model, settings: Sequence[Setting]) -> None:
    """Refuse what cannot be shown in pairs, before any sample is drawn."""
    if len(settings) != 2 or settings[0] == settings[1]:
        raise UserError(
            f"{len(settings)} settings: a blind comparison is one of two different ones, "
            "two solvers at one number of calls or one solver at two"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not an empty folder; give another, or empty this one")
    if model.form == "numbers":
        raise UserError(f"samples of shape {model.data_shape} are neither images nor text")


def write_pairs(
    folder: Path, model: Model, settings: Sequence[Setting], samples: Sequence[Tensor], *, seed: int = 0
) -> list[Path]:
    """Write pairs.md, its pictures, an empty answers.csv, and the key beside the folder.

    settings, samples: two of each, samples (n, *data_shape) of the model.
    """
    check_pairs(folder, model, settings)
    first, second = samples
    swapped = torch.rand(len(first), generator=torch.Generator().manual_seed(seed)).lt(0.5).tolist()
    files: list[Path] = []
    lines = [f"# Which of the two is better?\n\n{len(first)} pairs. {INSTRUCTIONS}\n"]
    for number, swap in enumerate(swapped, 1):
        pair = [x[number - 1 : number] for x in (first, second)]
        left, right = reversed(pair) if swap else pair
        if model.form == "images":
            files.append(_write_pair(folder / f"pair-{number:03d}.png", [model.flow.values(x) for x in (left, right)]))
            shown = f"![pair {number}]({files[-1].name})"
        else:
            texts = [model.decode(x)[0] for x in (left, right)]
            shown = "\n\n".join(f"**{side}**\n\n> {text}" for side, text in zip(SIDES, texts, strict=True))
        lines.append(f"## {number}\n\n{shown}\n")
    samplers = [{**setting.asdict(), "label": setting.label} for setting in settings]
    key = {"samplers": samplers, "left": [int(swap) for swap in swapped]}
    atomic_write(folder / PAIRS, "\n".join(lines))
    atomic_write(folder / ANSWERS, "pair,answer\n" + "".join(f"{i},\n" for i in range(1, len(first) + 1)))
    atomic_write(key_path(folder), json.dumps(key, indent=2) + "\n")
    return [folder / PAIRS, folder / ANSWERS, *files, key_path(folder)]


def score(answers: Path, key: Path) -> Preference:
    """Count the answers, lines "pair,answer" with left, right or nothing, against the key."""
    try:
        known = json.loads(key.read_text(encoding="utf-8"))
        left, (first, second) = known["left"], (sampler["label"] for sampler in known["samplers"])
    except FileNotFoundError:
        raise UserError(f"{key}: no such file: it is written beside the folder of pairs") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{key}: not the key of a blind comparison") from None
    given: dict[int, str] = {}
    with answers.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            cells = [cell.strip().lower() for cell in row]
            if not any(cells) or cells[0] == "pair":
                continue
            pair, answer = (*cells, "")[:2]
            if not pair.isdecimal() or not 1 <= int(pair) <= len(left):
                raise UserError(f"{answers}, line {number}: pair {pair!r}: expected 1 to {len(left)}")
            if answer not in (*SIDES, *(side[0] for side in SIDES), ""):
                raise UserError(f"{answers}, line {number}: answer {answer!r}: expected left, right, or nothing")
            if int(pair) in given:
                raise UserError(f"{answers}, line {number}: pair {pair} is answered twice")
            given[int(pair)] = answer[:1]
    chosen = [left[pair - 1] if answer == "l" else 1 - left[pair - 1] for pair, answer in given.items() if answer]
    if not chosen:
        raise UserError(f"{answers}: no pair is answered; write left or right behind the numbers")
    return Preference(first, second, chosen.count(0), chosen.count(1), len(left) - len(chosen))


def _write_pair(path: Path, images: Sequence[Tensor]) -> Path:
    factor = max(1, SIDE_PIXELS // images[0].shape[-2])
    large = [x.repeat_interleave(factor, -2).repeat_interleave(factor, -1) for x in images]
    return write_picture(path, side_by_side([(side, sheet(x)) for side, x in zip(SIDES, large, strict=True)]))
