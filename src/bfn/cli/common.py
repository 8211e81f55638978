"""What commands print, without power over the terminal: a model's card or a file's name may hold escape sequences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from bfn._utils.pieces import Processes
from bfn._utils.progress import Shown
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn.core.model import BFN
    from bfn.data.encoding import ModelData


HARMLESS = "\n\t"
TURNING = (*range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that turn the direction of what follows."""
CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *TURNING)
    if chr(code) not in HARMLESS
}


def printable(text: str) -> str:
    r"""Text with its control characters written out.

    >>> printable("red \x1b[31m")
    'red \\x1b[31m'
    """
    return text.translate(CONTROLS)


class PlainOutput:
    """A stream that control characters pass only written out."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, and say that all was written."""
        self._stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


LARGEST_SEED = 2**32 - 1
"""More than torch and numpy both take, other seeds being derived from it, is refused."""


def _read_seed(words: list[str]) -> int:
    if not words[0].isdecimal() or int(words[0]) > LARGEST_SEED:
        raise UserError(f"{words[0]}: expected a whole number from 0 to {LARGEST_SEED}")
    return int(words[0])


SEED = PrimitiveConstructorSpec(
    1, "N", _read_seed, lambda value: value is None or isinstance(value, int), lambda value: [str(value)]
)
FILE, DIRECTORY, NAME = arg(metavar="FILE"), arg(metavar="DIR"), arg(metavar="NAME")
BATCH = arg(
    help="samples that go through the network at a time; each batch draws its own, so that others come of another"
)
OWN_DATA = "a standard set or a path, as bfn train takes it; the set that the model was trained on if left out"

ModelName = Annotated[Positional[str], arg(metavar="MODEL", help="a directory, or a bundled model: see bfn models")]
FOR_PROGRAMS = "one JSON value for programs instead of text for people; progress as JSON lines on standard error"
AsJson = Annotated[bool, arg(help=FOR_PROGRAMS)]
Seed = Annotated[int, SEED, arg(help="of all that is drawn at random: the same seed, the same result")]
Device = Annotated[str, arg(metavar="NAME", help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one")]
Data = Annotated[str | None, arg(metavar="NAME_OR_PATH", help=OWN_DATA)]
OWN_NETWORK = "the network of a model that was trained with one of your own; its code is run"
Network = Annotated[str | None, arg(metavar="MODULE:CLASS", help=OWN_NETWORK)]
Names = Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]")]
Counts = Annotated[tuple[int, ...], arg(metavar="N [N ...]")]


@dataclass(frozen=True)
class HeldOut:
    """What is measured, and where."""

    n: Annotated[int, arg(help="how many samples, at most; images are chosen at random, pieces of a text evenly")]
    data: Data = None
    part: Annotated[Literal["train", "validation", "test", "all"], arg(help="which part of the data")] = "test"
    seed: Seed = 0
    network: Network = None
    device: Device = "auto"

    def read(self, model: BFN, as_json: bool, n: int | None = None) -> ModelData:
        """The data, as the model takes them; n: how many, if not as many as asked for."""
        from bfn.data.encoding import read_model_data

        return read_model_data(model, self.data, self.part, n or self.n, seed=self.seed, progress=shown(as_json))

    def told(self, name: str, model: BFN, read: ModelData) -> tuple[dict[str, Any], str]:
        """What a report says of the data and of the unit of its figures: values for programs, a line for people."""
        tokenizer = model.info.text_tokenizer
        values = {
            "model": name,
            "data": read.source,
            "part": read.part,
            "n": len(read.x),
            "with_labels": read.label is not None,
            "conditions": [*read.condition],
            "seed": self.seed,
            "unit": f"bits per {tokenizer.unit.removesuffix('s') if tokenizer else 'dimension'}",
        }
        told = [*(["class"] if read.label is not None else []), *read.condition]
        conditional = f", each with its {' and '.join(told)}" if told else ""
        line = f"{name} on {len(read.x)} samples of {read.source} ({read.part}){conditional}, {values['unit']}:"
        if model.info.scaling:
            line += "\n  (of numbers scaled as the model has them, to about mean 0 and standard deviation 1)"
        return values, line


def load(name: str, device: str = "cpu", network: str | None = None) -> BFN:
    """A stored or bundled model on a device, both named as the user does; network: its own, as "module:Class"."""
    import torch

    import bfn

    if device == "auto":
        processes = Processes.here()
        own = f"cuda:{processes.local_index}" if processes.count > 1 else "cuda"
        device = own if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: "Torch not compiled with CUDA enabled"
        reason = str(error).splitlines()[0]
        raise UserError(f"device={device!r}: not on this machine ({reason}): take cpu, or auto") from None
    if network is None:
        return bfn.load(name).to(device)
    from bfn.training.own_networks import load_with_network

    return load_with_network(name, network).to(device)


def shown(as_json: bool = False) -> Shown:
    """How progress is shown, by the first of several processes: JSON lines for programs, else what suits the place."""
    return False if not Processes.here().main else "json" if as_json else True


def tell(values: object, lines: Iterable[str], as_json: bool) -> None:
    """Print one JSON value for programs, or lines for people."""
    print(*([json.dumps(values, indent=2)] if as_json else lines), sep="\n")


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
