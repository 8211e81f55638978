"""Work in numbered pieces: their seeds, the processes that share them, and the files that hold them.

``torchrun`` and ``accelerate launch`` start several processes and number them in the environment. Work is cut into
pieces that depend on nothing but their number, and each process does every so-many-th piece. Results are put into the
order of the pieces, so they are the same for any number of processes.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from bfn._utils.files import atomic_write, locked, read_text, sweep
from bfn._utils.progress import Progress, Shown, say
from bfn.core.errors import UserError

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""Time that a process waits for another, which may have much more to do."""


# --- seeds ------------------------------------------------------------------------------------------------------------


def derived_seed(*parts: int | str) -> int:
    """Return a 63-bit seed made from numbers and words. Similar parts give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def derived_generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by ``derived_seed``."""
    return torch.Generator(device).manual_seed(derived_seed(*parts))


def block_generator(seed: int, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of a batch by its number. The first batch uses the seed itself, as a single batch does."""
    return torch.Generator(device).manual_seed(derived_seed(seed, "block", index) if index else seed)


# --- evaluation mode --------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_users: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Number of running ``evaluating`` blocks of each module that returns to training mode after the last of them."""


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put the modules of a model into evaluation mode and restore their modes afterwards. Exact models have none.

    If threads share a model, it stays in evaluation mode until all of them are done.
    """
    with _lock:
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        held = [module for module in modules if module.training or module in _users]
        for module in held:
            _users[module] = _users.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _lock:
            for module in held:
                _users[module] -= 1
                if not _users[module]:
                    del _users[module]
                    module.training = True


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work.

    Args:
        index: number of this process.
        count: number of processes.
        local_index: number of this process on its machine.
    """

    index: int = 0
    count: int = 1
    local_index: int = 0

    @classmethod
    def here(cls) -> Processes:
        """Read the numbers that the launcher has set; one process if there is no launcher."""
        try:
            index, count = (int(os.environ.get(name, usual)) for name, usual in (("RANK", 0), ("WORLD_SIZE", 1)))
            local_index = int(os.environ.get("LOCAL_RANK", index))
        except ValueError:
            raise UserError("RANK, WORLD_SIZE, LOCAL_RANK: expected whole numbers, as torchrun sets them") from None
        return cls(index, count, local_index) if count > 1 else ALONE

    @property
    def main(self) -> bool:
        """True for the process that prints and writes shared files."""
        return self.index == 0

    def own(self, pieces: Iterable[T]) -> list[T]:
        """Return the pieces that this process works on."""
        return list(pieces)[self.index :: self.count]

    def gather(self, values: Sequence[T]) -> list[T]:
        """Return the results of all processes in the order of the pieces. Every process gets them."""
        if self.count == 1:
            return list(values)
        found: list[Any] = [None] * self.count
        _group().all_gather_object(found, list(values))
        return [found[i % self.count][i // self.count] for i in range(sum(map(len, found)))]

    def from_main(self, value: T) -> T:
        """Return the first process's value in every process."""
        if self.count == 1:
            return value
        box = [value]
        _group().broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Wait until all processes have arrived here."""
        self.gather([])


ALONE = Processes()
"""A single process, which does all of the work."""


def _group() -> Any:
    """Return torch.distributed with the processes connected, by gloo since they exchange data on the CPU."""
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=PATIENCE)
        atexit.register(distributed.destroy_process_group)
    return distributed


# --- files ------------------------------------------------------------------------------------------------------------

Write = Callable[[range, Path, Callable[[float], None]], object]
"""A function ``write(rows, path, advance)`` that writes a file of items atomically and may report how many are done."""


@dataclass(frozen=True)
class Pieces:
    """Files of n items: ``folder/stem-000000.npz`` and so on.

    Args:
        folder: their directory.
        n: number of items.
        size: number of items in a file; the last one may have fewer.
        suffix: ending of the names.
        stem: beginning of the names.
    """

    folder: Path
    n: int
    size: int
    suffix: str
    stem: str = "samples"

    def __len__(self) -> int:
        return math.ceil(self.n / self.size)

    def path(self, number: int) -> Path:
        """Return the path of a file by its number."""
        return self.folder / f"{self.stem}-{number:06d}{self.suffix}"

    def rows(self, number: int) -> range:
        """Return the numbers of the items in a file."""
        return range(number * self.size, min(self.n, (number + 1) * self.size))

    @property
    def missing(self) -> list[int]:
        """The numbers of the files that do not exist."""
        return [number for number in range(len(self)) if not self.path(number).exists()]

    @property
    def paths(self) -> list[Path]:
        """The paths of all files, in order."""
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
    """Write the files that are missing.

    Args:
        pieces: the files.
        write: writes one of them. An item must depend on its number alone, see ``block_generator``.
        request: plain values that the items depend on. They are kept in ``folder/stem.json``; the same request goes on
            where it stopped, with any number of processes.
        processes: the processes that share the work.
        progress: whether and how progress is shown.
        unit: name of an item, in the singular.

    Returns:
        The number of files that were missing.

    Raises:
        UserError: the folder has files of another request.
    """
    asked = json.loads(json.dumps({"n": pieces.n, "a file": pieces.size, **request}, default=str))
    folder, note = pieces.folder, pieces.folder / f"{pieces.stem}.json"
    busy = f"{folder}: another process is writing there: wait until it is done, or choose another directory"
    with locked(folder / f".{pieces.stem}.lock", busy, wait=0) if processes.main else nullcontext():
        if processes.main:
            _check_request(note, asked)
            sweep(*(pieces.path(number) for number in pieces.missing))
        processes.wait()
        todo = processes.from_main(pieces.missing)
        done = pieces.n - sum(len(pieces.rows(number)) for number in todo)
        with Progress(pieces.n, "sampling", unit, progress, start=done) as bar:
            try:
                for number in processes.own(todo):
                    write(pieces.rows(number), pieces.path(number), lambda count: bar.update(count * processes.count))
            except KeyboardInterrupt:
                if processes.main:
                    done = len(pieces) - len(pieces.missing)
                    say(f"{done} of {len(pieces)} files are in {folder}: the same command goes on from there", progress)
                raise
        processes.wait()
    return len(todo)


def digest(*parts: str | Any) -> str:
    """Return 16 hexadecimal digits that are equal for equal strings and tensors."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part.cpu().contiguous().numpy().tobytes())
        sha.update(b"\0")
    return sha.hexdigest()[:16]


def _check_request(note: Path, asked: dict[str, Any]) -> None:
    """Write down the request, or raise a UserError if the folder holds files of another one."""
    if not note.exists():
        atomic_write(note, json.dumps(asked, indent=2) + "\n")
        return
    try:
        before = json.loads(read_text(note))
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise UserError(f"{note}: damaged, or not a request: remove it, or choose another directory")
    other = next((key for key in {**before, **asked} if before.get(key) != asked.get(key)), None)
    if other is not None:
        raise UserError(
            f"{note.parent}: has files of another request, with {other} {before.get(other)!r} and not "
            f"{asked.get(other)!r}: choose another directory, or remove them"
        )
