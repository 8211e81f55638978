"""Text as classes, one a character, read through a memory map; or one a token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.data.tokenizers import Alphabet, Tokenizer, make_tokenizer

_PIECE = 1 << 24


@dataclass(frozen=True, eq=False)
class Text:
    """A stretch of text as classes.

    Args:
        codes: One number a character, as stored: bytes of a mapped file, or numbers of symbols or tokens, shape (n,).
        classes: Class of each code, int64; turns a window of codes into classes by one look-up.
        tokenizer: What the classes stand for: the symbols of an alphabet, or tokens.
        note: What a user should know of this version of the text, such as that it is only a piece of the whole.
    """

    codes: Tensor
    classes: Tensor
    tokenizer: Tokenizer
    note: str = ""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, stretch: slice) -> Text:
        """A stretch of the text; nothing is copied."""
        return replace(self, codes=self.codes[stretch])

    @property
    def n_classes(self) -> int:
        """How many symbols or tokens there are."""
        return len(self.tokenizer)

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
            raise UserError(f"n={n}: {len(self)} {self._unit} hold 1 to {count} windows of length {length}")
        rows = self.codes[: count * length].view(count, length)
        if n is not None:
            rows = rows[torch.arange(n) * count // n]
        return self.classes[rows.long()]

    def split(self, held_out: float | int = 0.05) -> tuple[Text, Text]:
        """(The rest, the end of the text held out); ``held_out`` is a share or a number of characters."""
        n = round(held_out * len(self)) if isinstance(held_out, float) else held_out
        if not 0 < n < len(self):
            raise UserError(f"held_out={held_out}: of {len(self)} {self._unit} at least 1 must be on each side")
        return self[: len(self) - n], self[len(self) - n :]

    @property
    def _unit(self) -> str:
        return self.tokenizer.unit

    def _check_length(self, length: int) -> None:
        if not 0 < length <= len(self):
            raise UserError(f"length={length}: the text has {len(self)} {self._unit}, windows hold 1 to that many")


def read_text(path: Path | str, tokenizer: Tokenizer | str | None = None) -> Text:
    """A text file, UTF-8, as characters: the symbols of an alphabet or, without one, those found in it; or as tokens.

    Where every symbol is one byte the file stays on disk behind a memory map; otherwise it is decoded once.
    """
    path = Path(path)
    if not (tokenizer is None or isinstance(tokenizer, Alphabet)):
        return _read_tokens(path, tokenizer)
    alphabet = tokenizer
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


def _read_tokens(path: Path, tokenizer: Tokenizer | str) -> Text:
    """A text as numbers of tokens."""
    text = _decoded(path)
    try:
        found = make_tokenizer(tokenizer, [text])
        codes = found.encode(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Text(codes.to(smallest_type(len(found))), torch.arange(len(found)), found)


def smallest_type(n: int) -> torch.dtype:
    """The smallest type that holds the classes 0 .. n - 1."""
    return torch.uint8 if n <= 0x100 else torch.int16 if n <= 0x8000 else torch.int32


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is 0x{error.object[error.start]:02x}, which is not UTF-8: "
            "this is not a text file, or it is in another encoding"
        ) from error


def _read_wide(path: Path, alphabet: Alphabet | None) -> Text:
    """A text some of whose symbols take several bytes: held as symbol numbers in as few bytes as they need."""
    text = _decoded(path)
    points = torch.frombuffer(bytearray(text.encode("utf-32-le")), dtype=torch.int32).long()
    alphabet = alphabet or Alphabet("".join(sorted(set(text))))
    codes = _classes(alphabet, 0x110000)[points]
    foreign = (codes < 0).nonzero()
    if len(foreign):
        index = int(foreign[0])
        raise _foreign(path, text[index], len(text[:index].encode()), alphabet)
    return Text(codes.to(smallest_type(len(alphabet))), torch.arange(len(alphabet)), alphabet)


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
    """Pieces of cleaned text from a Wikipedia XML dump; each begins with a space, their concatenation is the corpus."""
    inside = False
    for record in _records(iter(lambda: dump.read(_BLOCK), b"")):
        if b"<text " in record:
            inside = True
        if inside and _REDIRECT.search(record):
            inside = False
        if inside:
            if b"</text>" in record:
                inside = False
            words = _visible_words(record)
            if words:
                yield b" " + b" ".join(words)


def _records(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Split a stream of blocks after every ``>``; what follows the last one is a record too."""
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
