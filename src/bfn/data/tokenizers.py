"""Tokenizers: text as classes, one a token, and back.

A tokenizer is plain values, so that it is stored with a model (``model.info``) and travels with it. Three kinds: the
characters of an :class:`Alphabet`; a :class:`TokenList`, cut by a regular expression or by longest match; a
:class:`TokenizerFile`, any tokenizer of the ``tokenizers`` package. None of them has tokens for padding or for the
unknown: a shorter text has fewer tokens, and a token outside the vocabulary is an error that names its position.
"""

from __future__ import annotations

import json
import re
import string
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bfn.data.optional_packages import require
from bfn.errors import UserError, did_you_mean

__all__ = ["AMINO_ACIDS", "PATTERNS", "TEXT8", "TOKENIZERS", "Alphabet", "TokenList", "Tokenizer", "TokenizerFile"]

_MOST_TOKENS = 8192  # found in data: beyond it, the pattern does not fit the data or the network would be all embedding
_LARGEST_FILE = 1 << 26

PATTERNS: Mapping[str, str] = {
    # The grammar of OpenSMILES: atoms in brackets, organic atoms, aromatic atoms, ring numbers, bonds, branches.
    "smiles": r"\[[^\[\]]+\]|Br|Cl|[BCNOPSFIbcnops*]|%[0-9][0-9]|[0-9]|[-=#$:/\\~]|[().>]",
    "words": r"\w+|\s+|[^\w\s]",
}
"""Regular expressions that cut texts into tokens, by name."""


class Tokenizer(ABC):
    """Text as classes 0 .. K - 1 and back; K is its length."""

    unit: ClassVar[str] = "tokens"
    """What one class stands for, in the plural."""

    @property
    @abstractmethod
    def pieces(self) -> tuple[str, ...]:
        """The text of each class, in their order."""

    @abstractmethod
    def encode(self, text: str) -> Tensor:
        """Classes of the tokens of ``text``, int64, shape (length,). Positions in errors count characters from 0."""

    def __len__(self) -> int:
        return len(self.pieces)

    def decode(self, classes: Tensor, present: Tensor | None = None) -> list[str]:
        """One string for each row of ``classes``, shape (..., length), of those tokens that are ``present``."""
        rows = classes.reshape(1, -1) if classes.ndim == 1 else classes.flatten(0, -2)
        if present is None:
            return [self._join(row) for row in rows.tolist()]
        masks = present.to(rows.device).expand_as(classes).reshape(rows.shape)
        return [self._join(row[mask].tolist()) for row, mask in zip(rows, masks, strict=True)]

    def _join(self, classes: list[int]) -> str:
        return "".join([self.pieces[number] for number in classes])

    def encode_prompt(self, prompt: str, length: int, unknown: str = "_") -> tuple[Tensor, Tensor]:
        """Classes and where they are known, both (length,); ``unknown`` and what is after the prompt are not.

        >>> TEXT8.encode_prompt("a_c", 4)
        (tensor([1, 0, 3, 0]), tensor([ True, False,  True, False]))
        """
        known: list[int] = []
        places: list[int] = []
        for number, stretch in enumerate(prompt.split(unknown)):
            try:
                found = self.encode(stretch).tolist() if stretch else []
            except UserError as error:
                where = repr(prompt) + (f", piece {stretch!r}" if stretch != prompt else "")
                one = self.unit.removesuffix("s")
                raise UserError(f"prompt {where}: {error}; {unknown!r} stands for a {one} to fill in") from None
            known += [0] * (number > 0)
            places += range(len(known), len(known) + len(found))
            known += found
        if len(known) > length:
            raise UserError(f"a prompt of {len(known)} {self.unit}: the model's texts have {length}; shorten it")
        classes, mask = torch.zeros(length, dtype=torch.int64), torch.zeros(length, dtype=torch.bool)
        classes[: len(known)], mask[places] = torch.tensor(known, dtype=torch.int64), True
        return classes, mask

    def _outside(self, piece: str, position: int) -> UserError:
        shown = ", ".join(map(repr, self.pieces[:12])) + (", ..." if len(self) > 12 else "")
        hint = did_you_mean(piece, self.pieces) if len(piece) > 1 else ""
        return UserError(f"{piece!r} at position {position} is not among the {len(self)} tokens {shown}{hint}")


@dataclass(frozen=True)
class Alphabet(Tokenizer):
    """The symbols of a text, a class each character; their order gives the classes 0 .. K - 1."""

    symbols: str
    unit: ClassVar[str] = "characters"

    def __post_init__(self) -> None:
        if len(self.symbols) < 2:
            raise UserError(f"alphabet {self.symbols!r}: a text needs at least 2 symbols")
        if len(set(self.symbols)) < len(self.symbols):
            twice = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise UserError(f"alphabet {self.symbols!r}: {twice!r} is in it more than once")

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Self:
        """Of every character in the texts."""
        found: set[str] = set()
        for text in texts:
            found.update(text)
        return cls("".join(sorted(found)))

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        return tuple(self.symbols)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    def encode(self, text: str) -> Tensor:
        try:
            return torch.tensor([self._numbers[symbol] for symbol in text], dtype=torch.int64)
        except KeyError as error:
            symbol, place = error.args[0], text.index(error.args[0])
            raise UserError(f"{symbol!r} at position {place} is not among the symbols {self.symbols!r}") from None


@dataclass(frozen=True)
class TokenList(Tokenizer):
    """A user's own tokens.

    Texts are cut by ``pattern``, a regular expression each of whose matches is a token, or a name of ``PATTERNS``;
    without one, the longest token that fits is taken at each place.

    >>> TokenList(("C", "Cl", "O", "=")).decode(torch.tensor([0, 3, 2]))
    ['C=O']
    """

    tokens: tuple[str, ...]
    pattern: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        object.__setattr__(self, "pattern", PATTERNS.get(self.pattern or "", self.pattern))
        if len(self.tokens) < 2:
            raise UserError(f"tokens {self.tokens}: expected at least 2")
        if "" in self.tokens:
            raise UserError(f"token number {self.tokens.index('')} is empty: expected each to be some text")
        if len(self._numbers) < len(self.tokens):
            twice = next(token for number, token in enumerate(self.tokens) if self._numbers[token] != number)
            raise UserError(f"token {twice!r} is in the list more than once: expected each once")
        if self.pattern is not None:
            _compiled(self.pattern)

    @classmethod
    def from_texts(cls, texts: Iterable[str], pattern: str, most: int = _MOST_TOKENS) -> Self:
        """Of every match of ``pattern``, a regular expression or a name of ``PATTERNS``, in the texts.

        Data with more than ``most`` different tokens are refused.
        """
        expression = _compiled(PATTERNS.get(pattern, pattern))
        found: set[str] = set()
        for text in texts:
            found.update(piece for piece, _ in _cut(text, expression))
            if len(found) > most:
                raise UserError(
                    f"more than {most} different tokens by the pattern {expression.pattern!r}: expected at most that "
                    "many; take another pattern, or a tokenizer file with pieces of words"
                )
        return cls(tuple(sorted(found)), expression.pattern)

    @property
    def pieces(self) -> tuple[str, ...]:
        return self.tokens

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(token) for token in self.tokens}, reverse=True)

    def encode(self, text: str) -> Tensor:
        cut = self._longest(text) if self.pattern is None else _cut(text, _compiled(self.pattern))
        classes = []
        for piece, position in cut:
            number = self._numbers.get(piece)
            if number is None:
                raise self._outside(piece, position)
            classes.append(number)
        return torch.tensor(classes, dtype=torch.int64)

    def _longest(self, text: str) -> Iterator[tuple[str, int]]:
        """The longest token at each place; a character that begins none stands for itself."""
        position = 0
        while position < len(text):
            fits = (text[position : position + length] for length in self._lengths)
            piece = next((piece for piece in fits if piece in self._numbers), text[position])
            yield piece, position
            position += len(piece)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"pattern {pattern!r}: not a regular expression: {error}") from None
    if compiled.match(""):
        raise UserError(f"pattern {pattern!r}: matches nothing at all too: expected matches of one character or more")
    return compiled


def _cut(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """Matches side by side with their positions; a character that no match covers stands for itself."""
    end = 0
    for match in pattern.finditer(text):
        yield from zip(text[end : match.start()], range(end, match.start()), strict=True)
        if match.end() > match.start():
            yield match.group(), match.start()
        end = match.end()
    yield from zip(text[end:], range(end, len(text)), strict=True)


@dataclass(frozen=True)
class TokenizerFile(Tokenizer):
    """A tokenizer of the ``tokenizers`` package, kept as its JSON: byte pairs, unigrams, word pieces.

    Its own truncation, padding and special tokens around a text are left out. Decoding gives the text back as far as
    the tokenizer itself keeps it.
    """

    content: str

    def __post_init__(self) -> None:
        self._tokenizer  # noqa: B018

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """From a file such as ``tokenizer.json``."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise UserError(f"{path}: no such file: expected a tokenizer, such as tokenizer.json")
        if path.stat().st_size > _LARGEST_FILE:
            raise UserError(f"{path}: {path.stat().st_size:,} bytes: a tokenizer has at most {_LARGEST_FILE:,}")
        try:
            return cls(json.dumps(json.loads(path.read_bytes()), ensure_ascii=False, separators=(",", ":")))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: not a tokenizer file: {' '.join(str(error).split())}") from None

    @cached_property
    def _tokenizer(self) -> Any:
        package = require("tokenizers", "for tokenizer files")
        try:
            tokenizer = package.Tokenizer.from_str(self.content)
        except Exception as error:  # the package raises Exception itself
            raise UserError(f"not a tokenizer of the tokenizers package: {error}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        by_number = {number: token for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items()}
        return tuple(by_number.get(number, "") for number in range(max(by_number, default=-1) + 1))

    @cached_property
    def _unknown(self) -> int | None:
        """The class that the tokenizer gives to what it does not know."""
        model = json.loads(self.content).get("model", {})
        token, number = model.get("unk_token"), model.get("unk_id")
        number = self._tokenizer.token_to_id(token) if isinstance(token, str) else number
        return number if isinstance(number, int) else None

    def encode(self, text: str) -> Tensor:
        found = self._found(text)
        if self._unknown in found.ids:
            start, end = found.offsets[found.ids.index(self._unknown)]
            raise self._outside(text[start:end], start)
        if _loses(text, found.offsets):
            # What was dropped shifts the positions after it: the shortest beginning that loses ends at it.
            ends = range(1, len(text) + 1)
            place = bisect_left(ends, True, key=lambda end: _loses(text[:end], self._found(text[:end]).offsets))
            raise self._outside(text[place], place)
        return torch.tensor(found.ids, dtype=torch.int64)

    def _found(self, text: str) -> Any:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # the package raises Exception itself, such as for a word outside a word list
            raise UserError(f"{text[:60]!r}: the tokenizer cannot cut it: {error}") from None

    def _join(self, classes: list[int]) -> str:
        text: str = self._tokenizer.decode(classes, skip_special_tokens=False)
        return text


def _loses(text: str, covered: Iterable[tuple[int, int]]) -> bool:
    """Whether some of a text is in no token: byte pairs without a token for the unknown drop it without a word."""
    seen = bytearray(len(text))
    for start, end in covered:
        seen[start:end] = b"\1" * (end - start)
    return any(not here and not symbol.isspace() for here, symbol in zip(seen, text, strict=True))


TOKENIZERS: dict[str, type[Tokenizer]] = {"characters": Alphabet, "tokens": TokenList, "file": TokenizerFile}
"""The kinds of tokenizers that a model may be stored with, by name."""

TEXT8 = Alphabet(" " + string.ascii_lowercase)
"""The alphabet of text8: space and a to z."""

AMINO_ACIDS = Alphabet("ACDEFGHIKLMNPQRSTVWY")
"""The twenty amino acids of proteins, in the order of their letters."""


def make_tokenizer(wish: Tokenizer | str | None, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that a user names, with the tokens of these texts where it is made from data.

    wish: "characters" (or None), "amino-acids", a name of ``PATTERNS``, the path of a tokenizer file (``.json``) or of
    a list of tokens, one a line (``.txt``), or a tokenizer.
    """
    if isinstance(wish, Tokenizer):
        return wish
    if wish in (None, "characters"):
        return Alphabet.from_texts(texts)
    if wish == "amino-acids":
        return AMINO_ACIDS
    if wish in PATTERNS:
        return TokenList.from_texts(texts, str(wish))
    path = Path(str(wish)).expanduser()
    if path.suffix == ".json":
        return TokenizerFile.read(path)
    if path.suffix == ".txt" and path.is_file():
        return TokenList(tuple(line for line in path.read_text(encoding="utf-8").split("\n") if line))
    known = ("characters", "amino-acids", *PATTERNS)
    raise UserError(
        f"tokenizer={wish!r}: expected one of {', '.join(known)}, a tokenizer file (.json) or a list of tokens, one a "
        f"line (.txt){did_you_mean(wish, known)}"
    )
