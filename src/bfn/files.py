"""Files that are whole or not there: written beside their place, flushed to disk, then renamed."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["atomic", "atomic_write", "flush", "home", "sync", "write_arrays"]


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


def atomic_write(path: Path | str, content: str | bytes) -> None:
    """Write a whole file atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_arrays(path: Path | str, **arrays: "Tensor") -> Path:
    """Write tensors into an .npz file, atomically; returns the file."""
    import numpy as np

    with atomic(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **{name: tensor.cpu().numpy() for name, tensor in arrays.items()})  # type: ignore[arg-type]
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
