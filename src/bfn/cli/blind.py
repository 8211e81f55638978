"""``bfn compare --blind``: pairs of samples for people to judge, and their answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bfn.cli.common import progress_bar

if TYPE_CHECKING:
    from bfn.model import BFN
    from bfn.quality import Setting

__all__ = ["count_answers", "write_blind_pairs"]


def write_blind_pairs(model: BFN, settings: list[Setting], folder: Path, n: int, seed: int, batch: int) -> int:
    """Draw samples of two settings and write them as shuffled pairs."""
    from bfn.quality import draw
    from bfn.quality.blind import check_pairs, key_path, write_pairs

    check_pairs(folder, model, settings)
    with progress_bar(sum(setting.nfe for setting in settings) * n, "sampling", "call") as bar:
        samples = [draw(model, setting, n, seed, batch, on_calls=bar.update).x for setting in settings]
    write_pairs(folder, model, settings, samples, seed=seed)
    print(
        f"{n} pairs written to {folder}: read pairs.md, fill in answers.csv, then bfn compare ... --blind {folder} "
        f"--score {folder / 'answers.csv'}; the key, not to be looked at before, is {key_path(folder)}"
    )
    return 0


def count_answers(answers: Path, folder: Path) -> int:
    """Say whose samples people chose."""
    from bfn.quality.blind import key_path, score

    print(score(answers, key_path(folder)).sentence())
    return 0
