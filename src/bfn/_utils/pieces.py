"""Several processes at one piece of work, on one machine or many: who this one is, and what they tell each other.

``torchrun`` and ``accelerate launch`` say in the environment how many there are. Work is cut into numbered blocks that
depend on no other; a process takes every so-many-th, and what all have found is put in the order of the numbers. So
the result is the same for any number of processes.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from bfn._utils.files import atomic_write, locked, read_text, sweep
from bfn._utils.progress import Progress, Shown, say
from bfn.core.errors import UserError

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""How long a process waits for another: one may have much more to do."""


@dataclass(frozen=True)
class Processes:
    """This process among all: its number, how many there are, and its number on its own machine."""

    index: int = 0
    count: int = 1
    local_index: int = 0

    @classmethod
    def here(cls) -> Processes:
        """What the launcher has set up; one process alone where there is none."""
        values = (os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        try:
            index, count = map(int, values)
            local_index = int(os.environ.get("LOCAL_RANK", index))
        except ValueError:
            raise UserError("RANK, WORLD_SIZE, LOCAL_RANK: expected whole numbers, as torchrun sets them") from None
        return cls(index, count, local_index) if count > 1 else ALONE

    @property
    def main(self) -> bool:
        """Whether this is the one that prints and writes what is one for all."""
        return self.index == 0

    def own(self, blocks: Iterable[T]) -> list[T]:
        """Those of the blocks that this process does."""
        return list(blocks)[self.index :: self.count]

    def gather(self, values: Sequence[T]) -> list[T]:
        """What all have found of their own blocks, in the order of the blocks; all have it then."""
        if self.count == 1:
            return list(values)
        found: list[Any] = [None] * self.count
        _group().all_gather_object(found, list(values))
        return [found[i % self.count][i // self.count] for i in range(sum(map(len, found)))]

    def from_main(self, value: T) -> T:
        """What the first process has, for all; the others' is not looked at."""
        if self.count == 1:
            return value
        box = [value]
        _group().broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Until all are here."""
        self.gather([])


ALONE = Processes()
"""One process, with all of the work."""


def _group() -> Any:
    """torch.distributed, with the processes in touch; gloo, since what they exchange is on the CPU."""
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=PATIENCE)
        atexit.register(distributed.destroy_process_group)
    return distributed


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
        processes: what an item is must depend on its number alone (:func:`bfn._utils.seeds.block_generator`).
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
