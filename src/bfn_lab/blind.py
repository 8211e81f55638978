"""Blind comparison by people: the two-alternative forced choice of the paper.

A pair is one sample of each of two samplers, from the same noise and of the same class, in random order. The key says
which is which. It is kept beside the folder of pairs and not in it, so that the folder can be handed out.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn import Model, UserError, viz
from bfn.quality import Estimate, Setting, draw, share_estimate

PAIRS, ANSWERS = "pairs.md", "answers.csv"
SIDES = ("left", "right")
INSTRUCTIONS = (
    "Choose the better sample of each pair, by its quality alone, and write `left` or `right` after its number in "
    f"`{ANSWERS}`. If you cannot decide, choose one all the same; empty lines do not count."
)
SIDE_PIXELS = 224
"""Images are enlarged to about this height."""


@dataclass(frozen=True)
class Preference:
    """Counts of answers.

    Attributes:
        first, second: labels of the samplers.
        n_first, n_second: how often each was chosen.
        n_skipped: number of pairs without an answer.
    """

    first: str
    second: str
    n_first: int
    n_second: int
    n_skipped: int

    @property
    def share(self) -> Estimate:
        """Share of the answered pairs in which the first was chosen, with Wilson's interval."""
        return share_estimate(self.n_first, self.n_first + self.n_second)

    def sentence(self) -> str:
        """Return the result in words."""
        percent = self.share.scaled(100)
        verdict = f"{self.first if percent.value > 50 else self.second} is preferred"
        if percent.low <= 50 <= percent.high:
            verdict = "no preference is shown: the interval contains 50 %"
        skipped = f", {self.n_skipped} skipped" if self.n_skipped else ""
        return (
            f"{self.first} was chosen over {self.second} in {self.n_first} of {self.n_first + self.n_second} pairs"
            f"{skipped}: {percent.value:.1f} % [{percent.low:.1f}, {percent.high:.1f}]; {verdict}"
        )


def write_study(
    model: Model, settings: Sequence[Setting], folder: Path, n: int, seed: int, batch: int, progress: Any = False
) -> str:
    """Draw samples with two settings, write them as pairs, and return what to do next, for ``bfn compare --blind``."""
    check_pairs(folder, model, settings)
    samples = []
    for setting in settings:
        with tqdm(total=setting.nfe * n, desc=setting.label, unit="call", delay=1, disable=not progress) as bar:
            samples.append(draw(model, setting, n, seed, batch, on_calls=bar.update).x)
    write_pairs(folder, model, settings, samples, seed=seed)
    return (
        f"{n} pairs written to {folder}: read {PAIRS}, fill in {ANSWERS}, then bfn compare ... --blind {folder} "
        f"--score {folder / ANSWERS}; do not read the key before, {key_path(folder)}"
    )


def score_answers(answers: Path, folder: Path | None = None) -> str:
    """Return the result of a study in words, for ``bfn compare --score``."""
    return score(answers, key_path(folder or answers.parent)).sentence()


def key_path(folder: Path) -> Path:
    """Return the path of the key to a folder of pairs."""
    return folder.with_name(f"{folder.name}-key.json")


def check_pairs(folder: Path, model: Model, settings: Sequence[Setting]) -> None:
    """Raise a UserError for pairs that cannot be shown, before any sample is drawn."""
    if len(settings) != 2 or settings[0] == settings[1]:
        raise UserError(
            f"{len(settings)} settings: a blind comparison is one of two different ones, "
            "two solvers at one number of calls or one solver at two"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not an empty folder; give another, or empty this one")
    if model.form not in ("images", "text"):
        raise UserError(f"samples of shape {model.data_shape} are neither images nor text")


def write_pairs(
    folder: Path, model: Model, settings: Sequence[Setting], samples: Sequence[Tensor], *, seed: int = 0
) -> list[Path]:
    """Write pairs.md with its pictures, an empty answers.csv, and the key beside the folder.

    Args:
        folder: where to write; a new or an empty folder.
        model: the model.
        settings: the two settings.
        samples: samples of each, (n, *data_shape).
        seed: seed of the order within the pairs.

    Returns:
        The files.
    """
    check_pairs(folder, model, settings)
    folder.mkdir(parents=True, exist_ok=True)
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
    (folder / PAIRS).write_text("\n".join(lines), encoding="utf-8")
    answers = "pair,answer\n" + "".join(f"{i},\n" for i in range(1, len(first) + 1))
    (folder / ANSWERS).write_text(answers, encoding="utf-8")
    key_path(folder).write_text(json.dumps(key, indent=2) + "\n", encoding="utf-8")
    return [folder / PAIRS, folder / ANSWERS, *files, key_path(folder)]


def score(answers: Path, key: Path) -> Preference:
    """Count the answers.

    Args:
        answers: a file with lines "pair,answer"; answers are left, right or nothing.
        key: the key, as ``write_pairs`` wrote it.
    """
    try:
        known = json.loads(key.read_text(encoding="utf-8"))
        left, (first, second) = known["left"], (sampler["label"] for sampler in known["samplers"])
    except FileNotFoundError:
        raise UserError(f"{key}: no such file: it is written beside the folder of pairs") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{key}: not the key of a blind comparison") from None
    found = _read_answers(answers, len(left))
    chosen = [left[pair - 1] if answer == "l" else 1 - left[pair - 1] for pair, answer in found.items() if answer]
    if not chosen:
        raise UserError(f"{answers}: no pair is answered; write left or right after the numbers")
    return Preference(first, second, chosen.count(0), chosen.count(1), len(left) - len(chosen))


def _read_answers(answers: Path, n: int) -> dict[int, str]:
    """Return the answers to n pairs by their number: "l", "r" or nothing."""
    found: dict[int, str] = {}
    with answers.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            cells = [cell.strip().lower() for cell in row]
            if not any(cells) or cells[0] == "pair":
                continue
            pair, answer = (*cells, "")[:2]
            if not pair.isdecimal() or not 1 <= int(pair) <= n:
                raise UserError(f"{answers}, line {number}: pair {pair!r}: expected 1 to {n}")
            if answer not in (*SIDES, *(side[0] for side in SIDES), ""):
                raise UserError(f"{answers}, line {number}: answer {answer!r}: expected left, right, or nothing")
            if int(pair) in found:
                raise UserError(f"{answers}, line {number}: pair {pair} is answered twice")
            found[int(pair)] = answer[:1]
    return found


def _write_pair(path: Path, images: Sequence[Tensor]) -> Path:
    factor = max(1, SIDE_PIXELS // images[0].shape[-2])
    large = [x.repeat_interleave(factor, -2).repeat_interleave(factor, -1) for x in images]
    picture = viz.side_by_side([(side, viz.sheet(x)) for side, x in zip(SIDES, large, strict=True)])
    return viz.write_picture(path, picture)
