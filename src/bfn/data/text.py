"""Text as classes, one a character, read through a memory map."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bfn.errors import UserError

__all__ = ["TEXT8", "Alphabet", "Text", "read_text"]

_PIECE = 1 << 24


@dataclass(frozen=True)
class Alphabet:
    """The symbols of a text; their order gives the classes 0 .. K - 1."""

    symbols: str

    def __post_init__(self) -> None:
        if len(self.symbols) < 2:
            raise UserError(f"alphabet {self.symbols!r}: a text needs at least 2 symbols")
        if len(set(self.symbols)) < len(self.symbols):
            twice = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise UserError(f"alphabet {self.symbols!r}: {twice!r} is in it more than once")

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> Tensor:
        """Classes of the characters of ``text``, int64, shape (length,)."""
        numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        try:
            return torch.tensor([numbers[symbol] for symbol in text], dtype=torch.int64)
        except KeyError as error:
            raise UserError(f"{error.args[0]!r} is not among the symbols {self.symbols!r}") from error

    def encode_prompt(self, prompt: str, length: int, unknown: str = "_") -> tuple[Tensor, Tensor]:
        """Classes and where they are known, both (length,); ``unknown`` and what is after the prompt are not.

        >>> TEXT8.encode_prompt("a_c", 4)
        (tensor([1, 0, 3, 0]), tensor([ True, False,  True, False]))
        """
        if len(prompt) > length:
            raise UserError(f"a prompt of {len(prompt)} characters: the model's texts have {length}; shorten it")
        mask = torch.tensor([symbol != unknown for symbol in prompt.ljust(length, unknown)])
        try:
            classes = self.encode(prompt.ljust(length, unknown).replace(unknown, self.symbols[0]))
        except ValueError as error:
            raise UserError(f"prompt {prompt!r}: {error}; {unknown!r} stands for a character to fill in") from None
        return classes, mask

    def decode(self, classes: Tensor) -> list[str]:
        """One string for each row of ``classes``, shape (..., length)."""
        rows = classes.reshape(-1, classes.shape[-1]).tolist()
        return ["".join([self.symbols[number] for number in row]) for row in rows]


TEXT8 = Alphabet(" " + string.ascii_lowercase)
"""The alphabet of text8: space and a to z."""


@dataclass(frozen=True, eq=False)
class Text:
    """A stretch of text as classes.

    Args:
        codes: One number a character, as stored: bytes of a mapped file, or symbol numbers, shape (n,).
        classes: Class of each code, int64; turns a window of codes into classes by one look-up.
        alphabet: The symbols that the classes stand for.
        note: What a user should know of this version of the text, such as that it is only a piece of the whole.
    """

    codes: Tensor
    classes: Tensor
    alphabet: Alphabet
    note: str = ""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, stretch: slice) -> Text:
        """A stretch of the text; nothing is copied."""
        return replace(self, codes=self.codes[stretch])

    @property
    def n_classes(self) -> int:
        """How many symbols the alphabet has."""
        return len(self.alphabet)

    def to_classes(self) -> Tensor:
        """The whole stretch as int64 classes, shape (n,)."""
        return self.classes[self.codes.long()]

    def windows(self, n: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` windows from random places, int64 classes, shape (n, length)."""
        self._check_length(length)
        starts = torch.randint(len(self) - length + 1, (n,), generator=generator)
        return self.classes[self.codes.unfold(0, length, 1)[starts].long()]

    def tiles(self, length: int, n: int | None = None) -> Tensor:
        """Windows side by side from the start, always the same; all of them, or ``n`` evenly spread: (n, length)."""
        self._check_length(length)
        count = len(self) // length
        if n is not None and not 0 < n <= count:
            raise UserError(f"n={n}: {len(self)} characters hold 1 to {count} windows of length {length}")
        rows = self.codes[: count * length].view(count, length)
        if n is not None:
            rows = rows[torch.arange(n) * count // n]
        return self.classes[rows.long()]

    def split(self, held_out: float | int = 0.05) -> tuple[Text, Text]:
        """(The rest, the end of the text held out); ``held_out`` is a share or a number of characters."""
        n = round(held_out * len(self)) if isinstance(held_out, float) else held_out
        if not 0 < n < len(self):
            raise UserError(f"held_out={held_out}: of {len(self)} characters at least 1 must be on each side")
        return self[: len(self) - n], self[len(self) - n :]

    def _check_length(self, length: int) -> None:
        if not 0 < length <= len(self):
            raise UserError(f"length={length}: the text has {len(self)} characters, windows hold 1 to that many")


def read_text(path: Path | str, alphabet: Alphabet | None = None) -> Text:
    """A text file at character level: UTF-8, with the symbols of ``alphabet`` or, without one, those found in it.

    Where every symbol is one byte the file stays on disk behind a memory map; otherwise it is decoded once.
    """
    path = Path(path)
    size = path.stat().st_size
    if size == 0:
        raise UserError(f"{path}: an empty file: expected text")
    codes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    counts = torch.stack([torch.bincount(piece, minlength=256) for piece in torch.split(codes, _PIECE)]).sum(0)
    found = counts.nonzero().flatten()
    if found[0] == 0:
        raise UserError(f"{path}: byte {_first(codes, 0)} is zero: this is not a text file")
    if found[-1] >= 0x80 and (alphabet is None or not alphabet.symbols.isascii()):
        return _read_wide(path, alphabet)
    alphabet = alphabet or Alphabet("".join(map(chr, found.tolist())))
    classes = _classes(alphabet, 0x100)
    foreign = found[classes[found] < 0]
    if len(foreign):
        offset = min(_first(codes, byte) for byte in foreign.tolist())
        symbol = bytes(codes[offset : offset + 4].tolist()).decode("utf-8", "replace")[0]
        raise _foreign(path, symbol, offset, alphabet)
    return Text(codes, classes, alphabet)


def _read_wide(path: Path, alphabet: Alphabet | None) -> Text:
    """A text some of whose symbols take several bytes: held as symbol numbers in as few bytes as they need."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is 0x{error.object[error.start]:02x}, which is not UTF-8: "
            "this is not a text file, or it is in another encoding"
        ) from error
    points = torch.frombuffer(bytearray(text.encode("utf-32-le")), dtype=torch.int32).long()
    alphabet = alphabet or Alphabet("".join(sorted(set(text))))
    codes = _classes(alphabet, 0x110000)[points]
    foreign = (codes < 0).nonzero()
    if len(foreign):
        index = int(foreign[0])
        raise _foreign(path, text[index], len(text[:index].encode()), alphabet)
    small = torch.uint8 if len(alphabet) <= 0x100 else torch.int16 if len(alphabet) <= 0x8000 else torch.int32
    return Text(codes.to(small), torch.arange(len(alphabet)), alphabet)


def _classes(alphabet: Alphabet, n_codes: int) -> Tensor:
    """Class of every code point below ``n_codes``, -1 outside the alphabet."""
    classes = torch.full((n_codes,), -1)
    for number, symbol in enumerate(alphabet.symbols):
        if ord(symbol) < n_codes:
            classes[ord(symbol)] = number
    return classes


def _first(codes: Tensor, code: int) -> int:
    """Where ``code``, known to be there, comes first."""
    pieces = enumerate(torch.split(codes, _PIECE))
    return next(number * _PIECE + int((piece == code).int().argmax()) for number, piece in pieces if code in piece)


def _foreign(path: Path, symbol: str, offset: int, alphabet: Alphabet) -> UserError:
    return UserError(
        f"{path}: {symbol!r} at byte {offset} is not among the {len(alphabet)} symbols {alphabet.symbols!r}: "
        "clean the text, or let the alphabet be found in it"
    )
