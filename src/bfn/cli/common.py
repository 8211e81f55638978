"""What several commands share: the kinds of options, the model, the progress bar, what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from bfn.errors import UserError

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm

    from bfn.model import BFN
    from bfn.model_data import ModelData

__all__ = [
    "FILE", "SEED", "AsJson", "Device", "ModelName", "Part", "Seed", "Source", "check_not_a_directory",
    "check_positive", "load", "measured_on", "on_terminal", "print_json", "progress_bar", "table",
]  # fmt: skip

LARGEST_SEED = 2**32 - 1
"""More than torch and numpy both take, other seeds being derived from it, is refused."""


def _read_seed(words: list[str]) -> int:
    if not words[0].isdecimal() or int(words[0]) > LARGEST_SEED:
        raise UserError(f"{words[0]}: expected a whole number from 0 to {LARGEST_SEED}")
    return int(words[0])


ModelName = Annotated[Positional[str], arg(metavar="MODEL", help="a directory, or a bundled model: see bfn models")]
AsJson = Annotated[bool, arg(help="print one JSON value for programs instead of text for people")]
SEED = PrimitiveConstructorSpec(
    1, "N", _read_seed, lambda value: value is None or isinstance(value, int), lambda value: [str(value)]
)
Seed = Annotated[int, SEED, arg(help="of all that is drawn at random: the same seed, the same result")]
Device = Annotated[str, arg(metavar="NAME", help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one")]
Source = Annotated[str | None, arg(metavar="NAME_OR_PATH")]
Part = Literal["train", "validation", "test", "all"]
FILE = arg(metavar="FILE")


def load(name: str, device: str = "cpu") -> BFN:
    """A stored or bundled model on a device, both named as the user does."""
    import bfn

    return bfn.load(name).to(_device(device))


def _device(name: str) -> torch.device:
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


def measured_on(name: str, model: BFN, held_out: ModelData, seed: int) -> tuple[dict[str, Any], str]:
    """What a report says of the data and of the unit of its figures: values for programs, a line for people."""
    values = {
        "model": name,
        "data": held_out.source,
        "part": held_out.part,
        "n": len(held_out.x),
        "with_labels": held_out.label is not None,
        "seed": seed,
        "unit": "bits per character" if model.form == "text" else "bits per dimension",
    }
    conditional = ", each with its class" if held_out.label is not None else ""
    return values, "{model} on {n} samples of {data} ({part})".format_map(values) + f"{conditional}, {values['unit']}:"


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


def check_positive(**values: int | None) -> None:
    """Refuse counts below 1; an option that is not given is None."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: expected at least 1")


def check_not_a_directory(**files: Path | None) -> None:
    """Refuse directories where a file is to be written: told before an hour of measuring, not after."""
    for name, path in files.items():
        if path is not None and path.is_dir():
            raise UserError(f"--{name} {path}: is a directory: expected a file")
