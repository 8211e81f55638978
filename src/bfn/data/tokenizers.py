"""Tokenizers: text as classes, one a token, and back.

A tokenizer is plain values, so that it is stored with a model (``model.info``) and travels with it. Three kinds: the
characters of an :class:`Alphabet`; a :class:`TokenList`, cut by a regular expression or by longest match; a
:class:`bfn.data.TokenizerFile`, any tokenizer of the ``tokenizers`` package. None has tokens for padding or for the
unknown: a shorter text has fewer tokens, and a token outside the vocabulary is an error that names its position.
"""

from __future__ import annotations

import json
import math
import re
import string
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from bfn._utils.arguments import check_text, check_whole, require
from bfn._utils.files import atomic_write
from bfn.core.codec import Codec, Encoded
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Flow

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MOST_LENGTH = 10**9
_MOST_TOKENS = 8192  # found in data: beyond it, the pattern does not fit the data or the network would be all embedding

PATTERNS: Mapping[str, str] = {
    # By the grammar of OpenSMILES: atoms in brackets, of two letters, ring numbers of two digits; then the single ones:
    # organic and aromatic atoms, ring numbers, bonds, branches, dots.
    "smiles": r"\[[^\[\]]+\]|Br|Cl|%[0-9][0-9]|[BCNOPSFIbcnops*0-9=#$:/\\~().>-]",
    # By the grammar of SELFIES (Krenn et al., 2020): every symbol is in brackets, and any row of them is a molecule.
    "selfies": r"\[[^\[\]]+\]|\.",
    "words": r"\w+|\s+|[^\w\s]",
}
"""Regular expressions that cut texts into tokens, by name."""
NOTATIONS = ("smiles", "selfies")
"""Those of them whose texts stand for molecules."""


class Tokenizer(ABC):
    """Text as classes 0 .. K - 1 and back; K is its length."""

    registry: ClassVar[str] = "tokenizer"

    unit: ClassVar[str] = "tokens"
    """What one class stands for, in the plural."""

    @property
    def notation(self) -> str | None:
        """How the texts stand for molecules, a name of ``NOTATIONS``; None where they do not."""
        return None

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

        Where the text itself has "_", let another sign stand for what is unknown.

        >>> TEXT8.encode_prompt("a_c", 4)
        (tensor([1, 0, 3, 0]), tensor([ True, False,  True, False]))
        """
        check_text("prompt", prompt)
        check_text("unknown", unknown)
        check_whole("length", length, 1, MOST_LENGTH)
        if not unknown:
            raise UserError("unknown='': expected the sign that stands for what is to be filled in, such as '_'")
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

    def outside(self, piece: str, position: int) -> UserError:
        """The error that a piece of a text is no token."""
        shown = ", ".join(map(repr, self.pieces[:12])) + (", ..." if len(self) > 12 else "")
        hint = did_you_mean(piece, self.pieces) if len(piece) > 1 else ""
        return UserError(f"{piece!r} at position {position} is not among the {len(self)} tokens {shown}{hint}")


@dataclass(frozen=True)
class Alphabet(Tokenizer):
    """The symbols of a text, a class each character; their order gives the classes 0 .. K - 1."""

    symbols: str
    unit: ClassVar[str] = "characters"

    def __post_init__(self) -> None:
        check_text("alphabet", self.symbols)
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
        check_text("text", text)
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
        for token in self.tokens:
            check_text("token", token)
        if not isinstance(self.pattern, str | None):
            raise UserError(f"pattern of type {type(self.pattern).__name__}: expected a regular expression or its name")
        object.__setattr__(self, "pattern", PATTERNS.get(self.pattern or "", self.pattern))
        if len(self.tokens) < 2:
            raise UserError(f"tokens {self.tokens}: expected at least 2")
        if "" in self.tokens:
            raise UserError(f"token number {self.tokens.index('')} is empty: expected each to be some text")
        if len(self._numbers) < len(self.tokens):
            twice = next(token for number, token in enumerate(self.tokens) if self._numbers[token] != number)
            raise UserError(f"token {twice!r} is in the list more than once: expected each once")
        if self.pattern is not None:
            self._expression

    @classmethod
    def from_texts(cls, texts: Iterable[str], pattern: str, most: int = _MOST_TOKENS) -> Self:
        """Of every match of ``pattern``, a regular expression or a name of ``PATTERNS``, in the texts.

        Data with more than ``most`` different tokens are refused.
        """
        expression = _compiled(PATTERNS.get(pattern, pattern))
        found: set[str] = set()
        for text in texts:
            found.update(_cut(text, expression))
            if len(found) > most:
                raise UserError(
                    f"more than {most} different tokens by the pattern {expression.pattern!r}: expected at most that "
                    "many; take another pattern, or a tokenizer file with pieces of words"
                )
        return cls(tuple(sorted(found)), expression.pattern)

    @property
    def pieces(self) -> tuple[str, ...]:
        return self.tokens

    @property
    def notation(self) -> str | None:
        return next((name for name in NOTATIONS if PATTERNS[name] == self.pattern), None)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(token) for token in self.tokens}, reverse=True)

    def encode(self, text: str) -> Tensor:
        check_text("text", text)
        pieces = self._longest(text) if self.pattern is None else _cut(text, self._expression)
        try:
            return torch.tensor([self._numbers[piece] for piece in pieces], dtype=torch.int64)
        except KeyError as error:
            first = pieces.index(error.args[0])
            raise self.outside(pieces[first], sum(map(len, pieces[:first]))) from None

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return _compiled(self.pattern or "")

    def _longest(self, text: str) -> list[str]:
        """The longest token at each place; a character that begins none stands for itself."""
        pieces, position = [], 0
        while position < len(text):
            fits = (text[position : position + length] for length in self._lengths)
            pieces.append(next((piece for piece in fits if piece in self._numbers), text[position]))
            position += len(pieces[-1])
        return pieces


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"pattern {pattern!r}: not a regular expression: {error}") from None
    if compiled.match(""):
        raise UserError(f"pattern {pattern!r}: matches nothing at all too: expected matches of one character or more")
    return compiled


def _cut(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Pieces that together are the text: the matches; a character that no match covers stands for itself."""
    pieces: list[str] = pattern.findall(text) if pattern.groups == 0 else []
    if sum(map(len, pieces)) == len(text) and "" not in pieces:
        return pieces
    pieces, end = [], 0
    for match in pattern.finditer(text):
        pieces += [*text[end : match.start()], match.group()]
        end = match.end()
    return [piece for piece in (*pieces, *text[end:]) if piece]


TEXT8 = Alphabet(" " + string.ascii_lowercase)
"""The alphabet of text8: space and a to z."""

AMINO_ACIDS = Alphabet("ACDEFGHIKLMNPQRSTVWY")
"""The twenty amino acids of proteins, in the order of their letters."""


LONGEST, PAPER = 6, 255
"""Maximum number of characters of a token in a picture; grey value of the background."""


def text_picture(theta: Tensor, pieces: Sequence[str], columns: int = 64, present: Tensor | None = None) -> Picture:
    """Draw the likeliest tokens of probabilities, (n, length, K), fainter where they are less probable.

    Args:
        pieces: text of each token. Those longer than LONGEST characters are cut.
        columns: number of characters in a line.
        present: bool, (n, length), True where there is text.
    """
    from PIL import Image, ImageDraw, ImageFont

    wide = min(LONGEST, max(map(len, pieces)))
    columns = max(1, columns // wide)
    font, width, height = ImageFont.load_default(14), 10 * wide, 18
    top, symbol = theta.max(-1)
    floor = 1 / theta.shape[-1]
    ink = ((top - floor) / (1 - floor)).clamp(0, 1).mul(PAPER).round().int()
    ink = ink if present is None else ink.where(present, 0)
    n, length = symbol.shape
    rows = math.ceil(length / columns)
    block = rows * height + height // 2
    picture = Image.new("L", ((min(length, columns) + 2) * width, n * block + height), PAPER)
    draw = ImageDraw.Draw(picture)
    for i in range(n):
        for j, (k, dark) in enumerate(zip(symbol[i].tolist(), ink[i].tolist(), strict=True)):
            left = width + (j % columns) * width + width // 2
            below = height // 2 + i * block + (j // columns) * height
            draw.text((left, below), pieces[k][:wide], fill=PAPER - dark, font=font, anchor="ma")
    return picture


@dataclass(frozen=True)
class Text(Codec):
    """Strings, one for each sample: characters, words, SMILES.

    Args:
        tokenizer: cuts strings into tokens, one for each class.

    >>> Text(Alphabet("abc")).encode(["cab", "b"])
    (tensor([[2, 0, 1],
            [1, 0, 0]]), tensor([[ True,  True,  True],
            [ True, False, False]]))
    """

    form: ClassVar[str] = "text"
    noun: ClassVar[str] = "texts"
    tokenizer: Tokenizer

    def encode(self, data: Sequence[str]) -> Encoded:
        rows = [self.tokenizer.encode(text) for text in ([data] if isinstance(data, str) else data)]
        lengths = torch.tensor([len(row) for row in rows])
        x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        present = torch.arange(x.shape[1]) < lengths[:, None]
        return x, None if bool(present.all()) else present

    def decode(self, x: Tensor, present: Tensor | None = None) -> list[str]:
        return self.tokenizer.decode(x.flatten(1), None if present is None else present.flatten(1))

    def lines(self, x: Tensor, present: Tensor | None = None) -> list[str]:
        return self.decode(x, present)

    def picture(self, x: Tensor, present: Tensor | None = None) -> Picture:
        theta = x if x.is_floating_point() else torch.nn.functional.one_hot(x.long(), len(self.tokenizer)).float()
        return text_picture(theta, self.tokenizer.pieces, present=present)

    def prompt(self, text: str, length: int, unknown: str = "_") -> tuple[Tensor, Tensor]:
        return self.tokenizer.encode_prompt(text, length, unknown)

    def write(
        self, path: Path, x: Tensor, present: Any = None, labels: Any = None, class_names: Any = ()
    ) -> list[Path]:
        atomic_write(path.with_suffix(".txt"), "".join(f"{line}\n" for line in self.lines(x, present)))
        return [path.with_suffix(".txt")]

    def check(self, flow: Flow) -> None:
        own = flow.parts.get("")
        n_values = None if own is None else own.n_values
        if n_values != len(self.tokenizer):
            raise UserError(
                f"{len(self.tokenizer)} {self.tokenizer.unit}: the flow has {n_values} classes; expected as many"
            )


_LARGEST_FILE = 1 << 24  # it goes into the config of a model, which may have four times that with its escapes


@dataclass(frozen=True)
class TokenizerFile(Tokenizer):
    """A tokenizer of the ``tokenizers`` package, kept as its JSON: byte pairs, unigrams, word pieces.

    Its own truncation, padding and special tokens around a text are left out. Decoding gives the text back as far as
    the tokenizer itself keeps it.
    """

    content: str

    def __post_init__(self) -> None:
        self._tokenizer

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


BONDS = frozenset("-=#$:/\\~")


def smiles_problem(tokens: Iterable[str]) -> str | None:
    """What is wrong with a string that is cut into tokens of SMILES, with its position from 0; None if nothing is."""
    depth, position, last = 0, 0, "."
    rings: set[str] = set()
    for token in tokens:
        here = f"at position {position}"
        position += len(token)
        if token in BONDS or token == "(":
            if last in BONDS or last == "." or (token == last == "("):
                return f"{token!r} {here}, where an atom is expected"
            depth += token == "("
        elif token == ")":
            depth -= 1
            if depth < 0 or last in BONDS or last == "(":
                return f"')' {here} closes nothing"
        elif token.lstrip("%").isdigit():
            if last in (".", "("):
                return f"ring number {token} {here} without an atom before it"
            rings ^= {token.lstrip("%").lstrip("0") or "0"}
        elif len(token) == 1 and not (token.isalpha() or token in "*.>"):
            return f"{token!r} {here} is no part of SMILES"
        elif len(token) == 1 and token.isalpha() and token not in "BCNOPSFIbcnops":
            return f"{token!r} {here} is no atom outside brackets"
        last = token
    if last in BONDS:
        return f"a bond {last!r} at its end that leads nowhere"
    if depth:
        return f"{depth} '(' that are not closed"
    if rings:
        return f"ring number {min(rings)}, which comes an odd number of times"
    return None
