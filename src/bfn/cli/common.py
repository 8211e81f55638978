"""What several commands share: the kinds of options, the model with its card, the progress bar, output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from bfn import loaded
from bfn.errors import UserError

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm

LARGEST_SEED = 2**32 - 1
"""More than torch and numpy both take, other seeds being derived from it, is refused."""


def read_seed(words: list[str]) -> int:
    """A seed as it is typed."""
    if not words[0].isdecimal() or int(words[0]) > LARGEST_SEED:
        raise UserError(f"{words[0]}: expected a whole number from 0 to {LARGEST_SEED}")
    return int(words[0])


Loaded = loaded.Loaded
ModelName = Annotated[Positional[str], arg(metavar="MODEL", help="a directory, or a bundled model: see bfn models")]
AsJson = Annotated[bool, arg(help="print one JSON value for programs instead of text for people")]
SEED = PrimitiveConstructorSpec(
    1, "N", read_seed, lambda value: value is None or isinstance(value, int), lambda value: [str(value)]
)
Seed = Annotated[int, SEED, arg(help="of all that is drawn at random: the same seed, the same result")]
Device = Annotated[str, arg(metavar="NAME", help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one")]


def load(name: str, device: str = "cpu") -> Loaded:
    """A stored or bundled model on a device, named as the user does."""
    return loaded.load(name, pick_device(device))


def pick_device(name: str) -> torch.device:
    """A device of this machine by its name."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # AssertionError: "Torch not compiled with CUDA enabled"
        reason = str(error).splitlines()[0]
        raise UserError(f"device={name!r}: not on this machine ({reason}): take cpu, or auto") from None
    return torch.device(name)


def on_terminal() -> bool:
    """Whether somebody looks on: bars that the library draws are for a terminal only."""
    return sys.stderr.isatty()


def progress_bar(total: int, what: str, unit: str) -> tqdm[Any]:
    """A bar on standard error that shows up after a second, and on a terminal only."""
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, delay=1.0, leave=False, disable=None, file=sys.stderr)


def print_json(value: object) -> None:
    """One JSON value on standard output."""
    print(json.dumps(value, indent=2))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns of text, aligned."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join("  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def check_positive(**values: int) -> None:
    """Refuse counts below 1."""
    for name, value in values.items():
        if value < 1:
            raise UserError(f"--{name} {value}: expected at least 1")
