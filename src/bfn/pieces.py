"""Long output as numbered files: each whole or not there, made by any number of processes, resumed after a kill."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bfn.errors import UserError
from bfn.files import atomic_write, locked, read_text, sweep
from bfn.processes import ALONE, Processes
from bfn.progress import Progress, Shown, say

__all__ = ["Pieces", "Write", "digest", "write_pieces"]

Write = Callable[[range, Path, Callable[[float], None]], object]
"""Makes the file of some items, atomically, and may tell how many are done by then: ``write(rows, path, advance)``."""


@dataclass(frozen=True)
class Pieces:
    """n items in files of ``size`` each, the last perhaps of fewer: ``folder/stem-000000.npz`` and so on."""

    folder: Path
    n: int
    size: int
    suffix: str
    stem: str = "samples"

    def __len__(self) -> int:
        return math.ceil(self.n / self.size)

    def path(self, number: int) -> Path:
        """The file of that number."""
        return self.folder / f"{self.stem}-{number:06d}{self.suffix}"

    def rows(self, number: int) -> range:
        """The numbers of its items."""
        return range(number * self.size, min(self.n, (number + 1) * self.size))

    @property
    def missing(self) -> list[int]:
        """The numbers of files that are not there."""
        return [number for number in range(len(self)) if not self.path(number).exists()]

    @property
    def paths(self) -> list[Path]:
        """All files, in order."""
        return [*map(self.path, range(len(self)))]


def write_pieces(
    pieces: Pieces,
    write: Write,
    request: Mapping[str, Any],
    *,
    processes: Processes = ALONE,
    progress: Shown = False,
    unit: str = "sample",
) -> int:
    """Make the files that are not there, and return how many those were.

    request: plain values that say all that the items depend on, kept in ``folder/stem.json``. Files of another request
        are not mixed with these: that is a UserError. The same request goes on where it was, with any number of
        processes: what an item is must depend on its number alone (:func:`bfn.seeds.block_generator`).
    """
    asked = json.loads(json.dumps({"n": pieces.n, "a file": pieces.size, **request}, default=str))
    folder, note = pieces.folder, pieces.folder / f"{pieces.stem}.json"
    busy = f"{folder}: another process is writing there: wait until it is done, or choose another directory"
    with locked(folder / f".{pieces.stem}.lock", busy, wait=0) if processes.main else nullcontext():
        if processes.main:
            _agree(note, asked)
            sweep(*(pieces.path(number) for number in pieces.missing))
        processes.wait()
        todo = processes.from_main(pieces.missing)
        done = pieces.n - sum(len(pieces.rows(number)) for number in todo)
        with Progress(pieces.n, "sampling", unit, progress, start=done) as bar:
            try:
                for number in processes.own(todo):
                    write(pieces.rows(number), pieces.path(number), lambda count: bar.update(count * processes.count))
            except KeyboardInterrupt:
                there = len(pieces) - len(pieces.missing)
                if processes.main:
                    say(
                        f"{there} of {len(pieces)} files are in {folder}: the same command goes on from there", progress
                    )
                raise
        processes.wait()
    return len(todo)


def digest(*parts: str | Any) -> str:
    """A short name of strings and tensors: equal ones have equal names."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part.cpu().contiguous().numpy().tobytes())
        sha.update(b"\0")
    return sha.hexdigest()[:16]


def _agree(note: Path, asked: dict[str, Any]) -> None:
    """Note what is asked for, or see that it is what was asked for before."""
    if not note.exists():
        atomic_write(note, json.dumps(asked, indent=2) + "\n")
        return
    try:
        before = json.loads(read_text(note))
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise UserError(f"{note}: damaged, or of something else: remove it, or choose another directory")
    other = next((key for key in {**before, **asked} if before.get(key) != asked.get(key)), None)
    if other is not None:
        raise UserError(
            f"{note.parent}: has files of another request, with {other} {before.get(other)!r} and not "
            f"{asked.get(other)!r}: choose another directory, or remove them"
        )
