"""Text as classes, one for each character or token: one long text, which may stay on disk, or many short ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Self

import torch
from torch import Tensor

from bfn._utils.files import open_file
from bfn.core.errors import UserError
from bfn.data.images import check_held_out
from bfn.data.tokenizers import Alphabet, Tokenizer, make_tokenizer

_PIECE = 1 << 24  # bytes that are counted at a time


@dataclass(frozen=True, eq=False)
class Text:
    """A long text as classes.

    Attributes:
        codes: one number for each character or token, (n,), as stored: bytes of a mapped file, or classes.
        classes: class of each code, int64, so that one look-up turns a window of codes into classes.
        tokenizer: tokenizer of the text; its tokens are the classes.
        note: remark on the version of a standard set.
    """

    codes: Tensor
    classes: Tensor
    tokenizer: Tokenizer
    note: str = ""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, stretch: slice) -> Text:
        """Return a stretch of the text. Nothing is copied."""
        return replace(self, codes=self.codes[stretch])

    @property
    def n_classes(self) -> int:
        """Number of characters or tokens in the vocabulary."""
        return len(self.tokenizer)

    def to_classes(self) -> Tensor:
        """Return the whole text as classes, int64, (n,)."""
        return self.classes[self.codes.long()]

    def windows(self, n: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Return ``n`` windows from random places as classes, int64, (n, length)."""
        self._check_length(length)
        starts = torch.randint(len(self) - length + 1, (n,), generator=generator)
        return self.classes[self.codes.unfold(0, length, 1)[starts].long()]

    def tiles(self, length: int, n: int | None = None) -> Tensor:
        """Return adjacent windows from the start as classes, int64, (n, length).

        Args:
            length: length of a window.
            n: number of windows, evenly spread over the text; None for all.
        """
        self._check_length(length)
        count = len(self) // length
        if n is not None and not 0 < n <= count:
            raise UserError(f"n={n}: {len(self)} {self.tokenizer.unit} hold 1 to {count} windows of length {length}")
        rows = self.codes[: count * length].view(count, length)
        if n is not None:
            rows = rows[torch.arange(n) * count // n]
        return self.classes[rows.long()]

    def split(self, held_out: float | int = 0.05) -> tuple[Text, Text]:
        """Return (the rest, the end of the text); ``held_out`` is the share (a float) or length (an int) of the end."""
        n = check_held_out(held_out, len(self), self.tokenizer.unit)
        return self[: len(self) - n], self[len(self) - n :]

    def _check_length(self, length: int) -> None:
        if not 0 < length <= len(self):
            found = f"the text has {len(self)} {self.tokenizer.unit}"
            raise UserError(f"length={length}: {found}, windows hold 1 to that many")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Texts of different lengths as classes of their tokens. Selecting some of them copies no tokens.

    Attributes:
        codes: tokens of all texts, one text after the other, (total,).
        starts, lengths: position of the first token and number of tokens of each text, (n,).
        tokenizer: tokenizer of the texts.
        longest: length of the longest text of the whole column; selections keep it.
    """

    codes: Tensor
    starts: Tensor
    lengths: Tensor
    tokenizer: Tokenizer
    longest: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: slice | Tensor) -> Self:
        return replace(self, starts=self.starts[index], lengths=self.lengths[index])

    @property
    def n_classes(self) -> int:
        """Number of tokens in the vocabulary."""
        return len(self.tokenizer)

    def padded(self, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Return classes, int64, with 0 after the end of a text, and where they are present, bool: both (n, length).

        Args:
            length: length to pad to; that of the longest text if None.
        """
        longest = int(self.lengths.max()) if len(self) else 0
        length = longest if length is None else length
        if length < longest:
            raise UserError(f"length={length}: the longest text has {longest} {self.tokenizer.unit}; expected as many")
        place = torch.arange(length)
        present = place < self.lengths[:, None]
        index = (self.starts[:, None] + place).clamp(max=max(len(self.codes) - 1, 0))
        return self.codes[index].long().where(present, 0), present

    def texts(self) -> list[str]:
        """Return the texts that the tokens stand for."""
        return self.tokenizer.decode(*self.padded()) if len(self) else []


# --- reading files ----------------------------------------------------------------------------------------------------


def read_text(path: Path | str, tokenizer: Tokenizer | str | None = None) -> Text:
    """Read a text file in UTF-8.

    If all symbols are single bytes, the file stays on disk behind a memory map. Otherwise it is decoded once.

    Args:
        path: the file.
        tokenizer: tokenizer, or its name (see :func:`bfn.data.tokenizers.make_tokenizer`); the characters that are
            found in the text if None.
    """
    path = Path(path)
    if not isinstance(tokenizer, Alphabet | None):
        return _read_tokens(path, tokenizer)
    size = path.stat().st_size
    if size == 0:
        raise UserError(f"{path}: an empty file: expected text")
    codes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    counts = torch.stack([torch.bincount(piece, minlength=256) for piece in torch.split(codes, _PIECE)]).sum(0)
    found = counts.nonzero().flatten()
    if found[0] == 0:
        raise UserError(f"{path}: byte {_first_place(codes, 0)} is zero: this is not a text file")
    if found[-1] >= 0x80 and (tokenizer is None or not tokenizer.symbols.isascii()):
        return _read_tokens(path, tokenizer)
    alphabet = tokenizer or Alphabet("".join(map(chr, found.tolist())))
    classes = torch.full((0x100,), -1)
    for number, symbol in enumerate(alphabet.symbols):
        classes[min(ord(symbol), 0xFF)] = number  # a text with bytes above 0x7F has no such symbol here
    foreign = found[classes[found] < 0]
    if len(foreign):
        offset = min(_first_place(codes, byte) for byte in foreign.tolist())
        symbol = bytes(codes[offset : offset + 4].tolist()).decode("utf-8", "replace")[0]
        known = f"the {len(alphabet)} symbols {alphabet.symbols!r}"
        raise UserError(f"{path}: {symbol!r} at byte {offset} is not among {known}: clean the text, or give none")
    return Text(codes, classes, alphabet)


def _read_tokens(path: Path, tokenizer: Tokenizer | str | None) -> Text:
    """Read a text as tokens or as symbols of several bytes, kept in as few bytes as their numbers need."""
    text = decode_utf8(path, path.read_bytes())
    try:
        made = make_tokenizer(tokenizer, [text])
        codes = made.encode(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Text(codes.to(smallest_type(len(made))), torch.arange(len(made)), made)


def smallest_type(n: int) -> torch.dtype:
    """Return the smallest type that holds the classes 0 .. n - 1."""
    return torch.uint8 if n <= 0x100 else torch.int16 if n <= 0x8000 else torch.int32


def _first_place(codes: Tensor, code: int) -> int:
    """Return the first position of a code that is known to be there."""
    pieces = enumerate(torch.split(codes, _PIECE))
    return next(number * _PIECE + int((piece == code).int().argmax()) for number, piece in pieces if code in piece)


def file_kind(path: Path) -> str:
    """Return the ending of a file's name in lower case, without ``.gz``."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def csv_separator(path: Path, header: str) -> str:
    """Return what separates the values of a CSV or TSV file with that first line: a tab, a semicolon or a comma."""
    if file_kind(path) == ".tsv":
        return "\t"
    return ";" if ";" in header and "," not in header else ","


def decode_utf8(path: Path, content: bytes) -> str:
    """Return the text of a file. Raises a UserError that names the line of a byte that is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        raise UserError(f"{path}: line {line}: byte 0x{byte:02x} is not UTF-8: save it as UTF-8") from None


def read_lines(path: Path, expected: str = "") -> list[tuple[int, str]]:
    """Return the numbered lines of a text without their ends. Empty lines at the end of the file are left out.

    Args:
        path: the file.
        expected: what every line has, such as "a record"; lines may be empty if it is.
    """
    with open_file(path) as file:
        text = decode_utf8(path, file.read()).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise UserError(f"{path}: an empty file: expected records")
    lines = list(enumerate(text.rstrip("\n").split("\n"), 1))
    for number, line in lines:
        if "\0" in line:
            raise UserError(f"{path}: line {number}: has a zero byte: this is not a text file")
        if expected and not line.strip():
            raise UserError(f"{path}: line {number}: empty: expected {expected} in every line")
    return lines


# --- cleaning Wikipedia for text8 -------------------------------------------------------------------------------------

_BLOCK = 1 << 20
_DIGITS = (b"zero", b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"eight", b"nine")

# In this order: later rules rely on what earlier ones removed.
_RULES: tuple[tuple[re.Pattern[bytes], bytes], ...] = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, replacement, flags in (
        (rb"<ref[^<]*</ref>", b"", 0),
        (rb"<[^>]*>", b"", 0),
        (rb"\[http:[^] ]*", b"[", 0),  # an external link keeps its visible text
        (rb"\|thumb", b"", re.I),  # an image keeps its caption
        (rb"\|left", b"", re.I),
        (rb"\|right", b"", re.I),
        (rb"\|[0-9]+px", b"", re.I),
        (rb"\[\[image:[^\[\]]*\|", b"", re.I),
        (rb"\[\[category:([^|\]]*)[^]]*\]\]", rb"[[\1]]", re.I),
        (rb"\[\[[a-z\-]*:[^\]]*\]\]", b"", 0),  # links to other languages
        (rb"\[\[[^|\]]*\|", b"[[", 0),  # a wiki link keeps its visible text
        (rb"\{\{[^}]*\}\}", b"", 0),
        (rb"\{[^}]*\}", b"", 0),
        (rb"[\[\]]", b"", 0),
        (rb"&[^;]*;", b" ", 0),
    )
)
_TAG_AT_END = re.compile(rb"<.*>")
_REDIRECT = re.compile(rb"#redirect", re.I)
_LETTERS = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 0x20 for byte in range(256))


def clean(dump: BinaryIO) -> Iterator[bytes]:
    """Yield the visible words of a Wikipedia XML dump, by the recipe of text8. Each piece begins with a space."""
    inside = False
    for record in _records(iter(lambda: dump.read(_BLOCK), b"")):
        inside = (inside or b"<text " in record) and not _REDIRECT.search(record)
        if inside and (words := _visible_words(record)):
            yield b" " + b" ".join(words)
        inside = inside and b"</text>" not in record


def _records(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Split a stream of blocks after every ``>``. The rest after the last one is a record too."""
    pending: list[bytes] = []
    for block in blocks:
        head, *rest = block.split(b">")
        pending.append(head)
        for part in rest:
            yield b"".join(pending) + b">"
            pending = [part]
    if last := b"".join(pending):
        yield last


def _visible_words(record: bytes) -> list[bytes]:
    text = _TAG_AT_END.sub(b"", record, count=1)
    text = text.replace(b"&amp;", b"&").replace(b"&lt;", b"<").replace(b"&gt;", b">")
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = text.lower()
    for digit, word in enumerate(_DIGITS):
        text = text.replace(b"%d" % digit, b" " + word + b" ")
    return text.translate(_LETTERS).split()
