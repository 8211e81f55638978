"""Contents of small files, for the tests of data."""

import hashlib
import struct
from pathlib import Path

import numpy as np


def pixels(*shape: int) -> np.ndarray:
    """Return random bytes, the same ones every time."""
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """Return an array of bytes in the idx format."""
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def sha(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def write(path: Path, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


class Bomb:
    """An object that ends the test run when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)
