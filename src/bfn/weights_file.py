"""Weights on disk: a safetensors file that carries its own SHA-256, so that no changed byte goes unseen.

The digest stands in the file's metadata, and in ``config.json``. It is that of all bytes, with its own 64 digits as
zeros. The metadata also hold a copy of the config: renaming this one file into place stores a whole model.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from bfn.core.plain import StorageError
from bfn.errors import UserError
from bfn.files import atomic

__all__ = ["Header", "digest_of", "read", "read_header", "seal", "sealed_by", "verify", "write"]

ZEROS = "0" * 64
SEAL = re.compile(r'(?<!\\)"sha256": ?"([0-9a-f]{64})"')
MOST_HEADER = 100_000_000
"""Bytes of a header, as safetensors has it."""
DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int16: "I16", torch.uint8: "U8", torch.int8: "I8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What a file says of itself: shapes of its tensors, and its metadata."""

    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str]

    @property
    def digest(self) -> str | None:
        """The SHA-256 that the file says it has; None for files of other programs and earlier versions."""
        return self.metadata.get("sha256")


def seal(text: str, rest: Iterable[Any] = ()) -> str:
    """The text with its digest, and that of the bytes after it, in place of the zeros of ``"sha256": "000..."``."""
    return text.replace(ZEROS, digest_of(text, rest), 1)


def sealed_by(text: str) -> str | None:
    """The digest that a text says it has."""
    found = SEAL.search(text)
    return found and found[1]


def digest_of(text: str, rest: Iterable[Any] = ()) -> str:
    """SHA-256 of a text whose own digest counts as zeros, and of the bytes after it."""
    own = sealed_by(text)
    # The line ends of Windows, as some programs write on copying, are no damage.
    plain = (text if own is None else text.replace(own, ZEROS, 1)).replace("\r\n", "\n").encode()
    digest = hashlib.sha256(plain)
    for piece in rest:
        digest.update(piece)
    return digest.hexdigest()


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a file atomically; returns its digest."""
    foreign = next((name for name, value in tensors.items() if value.dtype not in DTYPES), None)
    if foreign is not None:
        raise UserError(f"{foreign} of {tensors[foreign].dtype}: expected one of {', '.join(map(str, DTYPES))}")
    # Wide types first, so that every tensor begins at a multiple of its own width.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    pieces = {name: tensors[name].detach().cpu().contiguous() for name in order}
    entries: dict[str, Any] = {"__metadata__": {"sha256": ZEROS, **(metadata or {})}}
    end = 0
    for name, value in pieces.items():
        start, end = end, end + value.nbytes
        entries[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"))
    data = [value.reshape(-1).view(torch.uint8).numpy() for value in pieces.values()]
    text += " " * (-len(text) % 8)
    length = len(text).to_bytes(8, "little")
    text = seal(text, [length, *data])
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.write(length + text.encode())
        for piece in data:
            file.write(piece.data)
    return str(sealed_by(text))


def read_header(path: Path) -> Header:
    """The header of a file, without its tensors."""
    text = _header_text(path)
    try:
        entries = json.loads(text)
        metadata = dict(entries.pop("__metadata__", None) or {})
        shapes = {str(name): tuple(int(side) for side in entry["shape"]) for name, entry in entries.items()}
        if any(side < 0 for shape in shapes.values() for side in shape):
            raise ValueError("a negative size")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _not_whole(path, error) from None
    if metadata.get("sha256") != sealed_by(text):
        raise _damaged(path)
    return Header(shapes, metadata)


def verify(path: Path) -> None:
    """Refuse a file whose bytes are not those that its digest was made of; one without a digest passes."""
    text = _header_text(path)
    own = sealed_by(text)
    if own is None:
        return
    with path.open("rb") as file:
        length = file.read(8)
        file.seek(len(text.encode()), os.SEEK_CUR)
        if digest_of(text, chain([length], iter(lambda: file.read(1 << 20), b""))) != own:
            raise _damaged(path)


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that is as it was written."""
    verify(path)
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _not_whole(path, error) from None


def _header_text(path: Path) -> str:
    if not path.is_file():  # a pipe is none: to open one may take for ever
        raise StorageError(f"{path}: not there: expected a directory with model.safetensors and config.json")
    try:
        with path.open("rb") as file:
            size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MOST_HEADER):
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            return file.read(length).decode()
    except (OSError, ValueError) as error:
        raise _not_whole(path, error) from None


def _not_whole(path: Path, error: BaseException) -> StorageError:
    return StorageError(f"{path}: not a whole safetensors file ({' '.join(str(error).split())}): {_advice(path)}")


def _damaged(path: Path) -> StorageError:
    return StorageError(f"{path}: damaged, its bytes are not those that were stored: {_advice(path)}")


def _advice(path: Path) -> str:
    return f"restore it from a copy, or try bfn info {path.parent} --repair"
