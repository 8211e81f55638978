"""Reading and writing of files. A written file is complete or absent; a damaged file is named in one line."""

from __future__ import annotations

import errno
import gzip
import io
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from bfn.core.errors import UserError

MOST_TEXT = 1 << 26
"""Maximum size of a config or a settings file in bytes: 64 MiB."""
ALWAYS = 1 << 30
"""Decompressed size in bytes that is accepted for every file: 1 GiB."""
TIMES = 64
"""Maximum ratio of decompressed to stored size of larger files. Images and text shrink by less, a zip bomb by 1000."""


# --- writing ----------------------------------------------------------------------------------------------------------


@contextmanager
def atomic(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path in the same directory; it replaces ``path`` if the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    # Not tempfile, whose files only their owner can read.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: Path | str, content: str | bytes) -> None:
    """Write a whole file atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_arrays(path: Path | str, /, **arrays: Any) -> Path:
    """Write arrays, lists of strings or tensors on the CPU into an .npz file, atomically. Returns the path."""
    import numpy as np

    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)
    return Path(path)


def sweep(*paths: Path) -> None:
    """Remove temporary files of ``atomic`` that killed processes left. Call it while the directory is locked."""
    for path in paths:
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            left.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, message: str, wait: float = -1) -> Iterator[None]:
    """Hold a lock between processes and threads. A killed process releases it.

    Args:
        path: the lock file.
        message: text of the error.
        wait: seconds to wait for the lock; -1 for no limit.

    Raises:
        UserError: another process held the lock for longer than ``wait``.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise UserError(message) from None
    try:
        yield
    finally:
        # Removed while the lock is held, so that nobody waits for a removed file: filelock checks this after locking.
        with suppress(OSError):  # Windows does not remove open files
            path.unlink()
        lock.release()


def sync(path: Path) -> None:
    """Flush a file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush(file: IO[Any]) -> None:
    """Flush an open file to disk."""
    file.flush()
    os.fsync(file.fileno())


# --- reading ----------------------------------------------------------------------------------------------------------


def regular_size(path: Path) -> int:
    """Return the size of a regular file in bytes. Pipes and devices are refused: reading one may never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path}: not a regular file (a pipe, a device or a directory): copy its content into a file")
    return found.st_size


def read_text(path: Path) -> str:
    """Return the text of a regular file of at most 64 MiB, such as a config."""
    size = regular_size(path)
    if size > MOST_TEXT:
        raise UserError(f"{path}: {size:,} bytes: expected at most {MOST_TEXT:,}")
    return path.read_bytes().decode()  # text mode would hide changed line ends from the digests


def check_decoded(name: Path | str, n_bytes: int, stored: int) -> None:
    """Raise a UserError if a file with ``stored`` bytes on disk claims too many decompressed bytes."""
    if n_bytes > max(ALWAYS, TIMES * stored):
        raise UserError(
            f"{name}: says that it holds {n_bytes:,} bytes, but it has {stored:,}; more than {ALWAYS:,} are read "
            f"only of files that shrank to no less than 1/{TIMES}: get it again, or store it without compression"
        )


class Bounded(io.RawIOBase):
    """A stream that raises a UserError once more was read than ``check_decoded`` allows.

    Args:
        stream: the decompressed stream.
        name: name of the file, for the message.
        stored: size of the file on disk in bytes.
    """

    def __init__(self, stream: BinaryIO, name: Path | str, stored: int) -> None:
        self._stream, self._name, self._stored, self._read = stream, name, stored, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes. Memory grows with what the stream holds, not with ``size``."""
        pieces = []
        while size and (piece := self._stream.read(1 << 20 if size < 0 else min(size, 1 << 20))):
            self._read += len(piece)
            check_decoded(self._name, self._read, self._stored)
            pieces.append(piece)
            size -= len(piece) if size > 0 else 0
        return b"".join(pieces)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, decompressed if its name ends in .gz, within the bounds on its size."""
    stored = regular_size(path)
    with telling_damage(path), gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        yield cast(BinaryIO, Bounded(cast(BinaryIO, file), path, stored))


@contextmanager
def telling_damage(path: Path | str, what: str = "a damaged file") -> Iterator[None]:
    """Turn an error of a decoder into a UserError of one line that names the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # decoders of damaged files raise any kind of error
        # EINVAL: a damaged archive may name a position before the beginning of the file.
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)):
            if isinstance(error, OSError):
                error.filename = error.filename or str(path)  # errors of reading do not name the file
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: {what} ({reason}): get it again") from error


def home() -> Path:
    """Return the directory of data sets and caches: BFN_HOME, or ~/.cache/bfn."""
    return Path(os.environ.get("BFN_HOME") or Path.home() / ".cache" / "bfn").expanduser()
