"""Files that are whole or not there: written beside their place, flushed to disk, then renamed."""

import os
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bfn.core.errors import UserError

MOST_TEXT = 1 << 26
"""Bytes of a config or of settings, 64 MiB."""


@contextmanager
def atomic(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path in the same directory; it takes the place of ``path`` when the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    # Not tempfile: its files are for their owner only, this one is to be like any other.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sweep(*paths: Path) -> None:
    """Remove what kills in :func:`atomic` left of these files; only for who holds the lock of their directory."""
    for path in paths:
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            left.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, message: str, wait: float = -1) -> Iterator[None]:
    """Hold a lock between processes and threads; a UserError with the message where it is held for longer than wait.

    A process that is killed holds it no more. The lock file is removed while it is held, so that nobody waits for one
    that another has: filelock looks at this after locking.
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
        with suppress(OSError):  # Windows removes no open file
            path.unlink()
        lock.release()


def regular_size(path: Path) -> int:
    """The bytes of a file; a pipe, a device or a directory, which may have no end, is refused."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path}: not a regular file (a pipe, a device or a directory): copy its content into a file")
    return found.st_size


def read_text(path: Path) -> str:
    """The text of a regular file of at most 64 MiB, a config or settings."""
    size = regular_size(path)
    if size > MOST_TEXT:
        raise UserError(f"{path}: {size:,} bytes: expected at most {MOST_TEXT:,}")
    return path.read_bytes().decode()  # as it is: in text mode a changed end of line would go unseen


def atomic_write(path: Path | str, content: str | bytes) -> None:
    """Write a whole file atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_arrays(path: Path | str, /, **arrays: Any) -> Path:
    """Write arrays, lists of texts or tensors on the CPU into an .npz file, atomically; returns the file."""
    import numpy as np

    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)
    return Path(path)


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


def home() -> Path:
    """Where data sets and caches are kept: BFN_HOME, or ~/.cache/bfn."""
    return Path(os.environ.get("BFN_HOME") or Path.home() / ".cache" / "bfn").expanduser()
