"""Plain numpy files: pickled objects are never loaded, and headers are checked before numpy makes room for them."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bfn.data.bounds import check_decoded, telling_damage
from bfn.files import regular_size

__all__ = ["load_npy", "load_npz", "numpy_shapes"]

_NOT_PLAIN = "not a plain numpy file (pickled objects are never loaded)"


def load_npy(path: Path) -> NDArray[Any]:
    """The array, mapped copy-on-write: torch wants memory that it may write to, the file stays as it is."""
    size = regular_size(path)
    with telling_damage(path, _NOT_PLAIN):
        with path.open("rb") as file:
            _checked_shape(file, size)
        return np.lib.format.open_memmap(path, mode="c")


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an archive, by name."""
    arrays = {}
    with _open_npz(path) as (archive, members):
        for key, entry in members.items():
            with archive.open(entry) as file:
                _checked_shape(file, entry.file_size)
            with archive.open(entry) as file:
                arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def numpy_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a file, from their headers alone; that of an ``.npy`` file is called x."""
    if path.suffix.lower() == ".npy":
        return {"x": load_npy(path).shape}
    shapes = {}
    with _open_npz(path) as (archive, members):
        for key, entry in members.items():
            with archive.open(entry) as file:
                shapes[key] = _checked_shape(file, entry.file_size)
    return shapes


@contextmanager
def _open_npz(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    stored = regular_size(path)
    with telling_damage(path, _NOT_PLAIN), zipfile.ZipFile(path) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        check_decoded(path, sum(entry.file_size for entry in members.values()), stored)
        yield archive, members


def _checked_shape(file: IO[bytes], size: int) -> tuple[int, ...]:
    """The shape of an array. One of another size than its file has is refused, before numpy makes room for it."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format: expected 1.0 or 2.0")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("objects in the array")
    expected, found = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or expected != found:
        raise ValueError(f"the header says an array of shape {shape}, {expected:,} bytes; the file has {found:,}")
    return shape
