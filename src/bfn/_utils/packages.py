"""Packages that only the data readers need: imported when used, with one line that says how to get them."""

from __future__ import annotations

import errno
import gzip
import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast

from bfn._utils.files import regular_size
from bfn.core.errors import UserError

EXTRAS = {"records": ("pandas", "pyarrow", "tokenizers"), "chem": ("rdkit", "selfies", "fcd"), "tables": ("xgboost",)}
"""Packages that come with an extra of their own; all others come with ``data``."""


def require(module: str, purpose: str) -> ModuleType:
    """Import an optional package, or say what it is for and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        package = {"PIL": "Pillow", "sklearn": "scikit-learn"}.get(top, top)
        extra = next((name for name, packages in EXTRAS.items() if top in packages), "data")
        raise ImportError(f"{package} is needed {purpose}: pip install 'bayesian-flow[{extra}]'") from error


ALWAYS = 1 << 30
"""Decoded bytes that any file may have, 1 GiB."""
TIMES = 64
"""How often its own size a larger one may have. Pictures and text as they are shrink by less; a bomb by a thousand."""


def check_decoded(name: Path | str, n_bytes: int, stored: int) -> None:
    """Refuse what would be more than a file of so many stored bytes may hold."""
    if n_bytes > max(ALWAYS, TIMES * stored):
        raise UserError(
            f"{name}: says that it holds {n_bytes:,} bytes, but it has {stored:,}; more than {ALWAYS:,} are read "
            f"only of files that shrank to no less than 1/{TIMES}: get it again, or store it without compression"
        )


class Bounded(io.RawIOBase):
    """A stream of which no more is read than a file of so many stored bytes may hold."""

    def __init__(self, stream: BinaryIO, name: Path | str, stored: int) -> None:
        self._stream, self._name, self._stored, self._read = stream, name, stored, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to so many bytes; memory grows with what is there, not with what is asked for."""
        pieces = []
        while size and (piece := self._stream.read(1 << 20 if size < 0 else min(size, 1 << 20))):
            self._read += len(piece)
            check_decoded(self._name, self._read, self._stored)
            pieces.append(piece)
            size -= len(piece) if size > 0 else 0
        return b"".join(pieces)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a regular file, unpacked where its name ends in .gz, within bounds and with damage told."""
    stored = regular_size(path)
    with telling_damage(path), gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        yield cast(BinaryIO, Bounded(cast(BinaryIO, file), path, stored))


@contextmanager
def telling_damage(path: Path | str, what: str = "a damaged file") -> Iterator[None]:
    """What a decoder raises within, as one line that says which file it was."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # decoders of damaged files raise whatever they meet
        # A place before the beginning of a file, as a damaged archive may name, is an invalid argument to the system.
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)):
            if isinstance(error, OSError):
                error.filename = error.filename or str(path)  # reading, unlike opening, does not say which file it was
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: {what} ({reason}): get it again") from error
