"""Tokenizers by name: those of files, the kinds that can be stored, and the one that a user asks for."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from bfn.arguments import check_text
from bfn.data.optional_packages import require
from bfn.data.tokenizers import AMINO_ACIDS, PATTERNS, Alphabet, Tokenizer, TokenList
from bfn.errors import UserError, did_you_mean

__all__ = ["TOKENIZERS", "TokenizerFile", "make_tokenizer"]

_LARGEST_FILE = 1 << 24  # it goes into the config of a model, which may have four times that with its escapes


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
        check_text("text", text)
        found = self._found(text)
        if self._unknown in found.ids:
            start, end = found.offsets[found.ids.index(self._unknown)]
            raise self.outside(text[start:end], start)
        if _loses(text, found.offsets):
            # What was dropped shifts the positions after it: the shortest beginning that loses ends at it.
            ends = range(1, len(text) + 1)
            place = bisect_left(ends, True, key=lambda end: _loses(text[:end], self._found(text[:end]).offsets))
            raise self.outside(text[place], place)
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
