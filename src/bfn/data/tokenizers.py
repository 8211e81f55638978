"""Tokenizers: text as classes, one for each token, and back.

There are three kinds: the characters of an :class:`Alphabet`; a :class:`TokenList`, cut by a regular expression or by
longest match; a :class:`TokenizerFile`, any tokenizer of the ``tokenizers`` package. All consist of plain values, so
they are stored with a model. None has padding or unknown tokens: a shorter text has fewer tokens, and a token outside
the vocabulary is an error that names its position.
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
"""Maximum length of a text that a prompt begins."""

MOST_TOKENS = 8192
"""Maximum number of tokens that are found in data. With more, the pattern does not fit the data."""

LARGEST_FILE = 1 << 24
"""Maximum size of a tokenizer file, in bytes. It is stored in the config of a model."""

PATTERNS: Mapping[str, str] = {
    # The grammar of OpenSMILES: atoms in brackets, atoms of two letters, ring numbers of two digits, and then single
    # signs: organic and aromatic atoms, ring numbers, bonds, branches, dots.
    "smiles": r"\[[^\[\]]+\]|Br|Cl|%[0-9][0-9]|[BCNOPSFIbcnops*0-9=#$:/\\~().>-]",
    # The grammar of SELFIES (Krenn et al., 2020): every symbol is in brackets, and any sequence of them is a molecule.
    "selfies": r"\[[^\[\]]+\]|\.",
    "words": r"\w+|\s+|[^\w\s]",
}
"""Regular expressions that cut texts into tokens, by name."""

NOTATIONS = ("smiles", "selfies")
"""Patterns of texts that stand for molecules."""


class Tokenizer(ABC):
    """Base class: turns text into classes 0 .. K - 1 and back. ``len(tokenizer)`` is K.

    Attributes:
        unit: what a class stands for, in the plural.
    """

    registry: ClassVar[str] = "tokenizer"
    unit: ClassVar[str] = "tokens"

    @property
    def notation(self) -> str | None:
        """Name of the pattern if the texts stand for molecules, one of ``NOTATIONS``; None otherwise."""
        return None

    @property
    @abstractmethod
    def pieces(self) -> tuple[str, ...]:
        """The text of each class."""

    @abstractmethod
    def encode(self, text: str) -> Tensor:
        """Return the classes of the tokens of a text, int64, (length,).

        Raises:
            UserError: a token is not in the vocabulary. The message has its position, counted from 0.
        """

    def __len__(self) -> int:
        return len(self.pieces)

    def decode(self, classes: Tensor, present: Tensor | None = None) -> list[str]:
        """Return a string for each row of ``classes``, (..., length), without tokens that are not ``present``."""
        rows = classes.reshape(1, -1) if classes.ndim == 1 else classes.flatten(0, -2)
        if present is None:
            return [self._join(row) for row in rows.tolist()]
        masks = present.to(rows.device).expand_as(classes).reshape(rows.shape)
        return [self._join(row[mask].tolist()) for row, mask in zip(rows, masks, strict=True)]

    def _join(self, classes: list[int]) -> str:
        return "".join([self.pieces[number] for number in classes])

    def encode_prompt(self, prompt: str, length: int, unknown: str = "_") -> tuple[Tensor, Tensor]:
        """Return classes, and a bool mask that is True where they are known, both (length,).

        Args:
            prompt: beginning of a text.
            length: length of the text; what follows the prompt is not known.
            unknown: sign in the prompt that stands for a token that is not known.

        >>> TEXT8.encode_prompt("a_c", 4)
        (tensor([1, 0, 3, 0]), tensor([ True, False,  True, False]))
        """
        check_text("prompt", prompt)
        check_text("unknown", unknown)
        check_whole("length", length, 1, MOST_LENGTH)
        if not unknown:
            raise UserError("unknown='': expected the sign that stands for what is to be filled in, such as '_'")
        known: list[int] = []
        mask: list[bool] = []
        for number, stretch in enumerate(prompt.split(unknown)):
            try:
                found = self.encode(stretch).tolist() if stretch else []
            except UserError as error:
                where = repr(prompt) + (f", piece {stretch!r}" if stretch != prompt else "")
                one = self.unit.removesuffix("s")
                raise UserError(f"prompt {where}: {error}; {unknown!r} stands for a {one} to fill in") from None
            gap = number > 0
            known += [0] * gap + found
            mask += [False] * gap + [True] * len(found)
        rest = length - len(known)
        if rest < 0:
            raise UserError(f"a prompt of {len(known)} {self.unit}: the model's texts have {length}; shorten it")
        return torch.tensor(known + [0] * rest), torch.tensor(mask + [False] * rest)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.pieces)}

    def check_pieces(self) -> None:
        """Raise a UserError for a vocabulary that is too small or has a piece more than once."""
        if len(self) < 2:
            raise UserError(f"vocabulary {self.pieces}: expected at least 2 {self.unit}")
        if len(self._numbers) < len(self):
            twice = next(piece for number, piece in enumerate(self.pieces) if self._numbers[piece] != number)
            raise UserError(f"vocabulary: {twice!r} is in it more than once: expected each once")

    def look_up(self, pieces: Sequence[str]) -> Tensor:
        """Return the classes of the pieces of a text, int64. Raises a UserError for a piece that is no token."""
        try:
            return torch.tensor([self._numbers[piece] for piece in pieces], dtype=torch.int64)
        except KeyError as error:
            first = pieces.index(error.args[0])
            raise self.outside(pieces[first], sum(map(len, pieces[:first]))) from None

    def outside(self, piece: str, position: int) -> UserError:
        """Return the error that a piece of a text is not in the vocabulary."""
        shown = ", ".join(map(repr, self.pieces[:12])) + (", ..." if len(self) > 12 else "")
        hint = did_you_mean(piece, self.pieces) if len(piece) > 1 else ""
        return UserError(f"{piece!r} at position {position} is not among the {len(self)} tokens {shown}{hint}")


@dataclass(frozen=True)
class Alphabet(Tokenizer):
    """Single characters as tokens. The order of the symbols gives the classes 0 .. K - 1."""

    symbols: str
    unit: ClassVar[str] = "characters"

    def __post_init__(self) -> None:
        check_text("alphabet", self.symbols)
        self.check_pieces()

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Self:
        """Make an alphabet of all characters in the texts."""
        return cls("".join(sorted(set().union(*texts))))

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        return tuple(self.symbols)

    def encode(self, text: str) -> Tensor:
        check_text("text", text)
        return self.look_up(text)

    def outside(self, piece: str, position: int) -> UserError:
        return UserError(f"{piece!r} at position {position} is not among the symbols {self.symbols!r}")


@dataclass(frozen=True)
class TokenList(Tokenizer):
    """A list of tokens.

    Args:
        tokens: the text of each token.
        pattern: regular expression whose matches are tokens, or a name of ``PATTERNS``. If None, the longest token that
            fits is taken at each position.

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
        if "" in self.tokens:
            raise UserError(f"token number {self.tokens.index('')} is empty: expected each to be some text")
        self.check_pieces()
        if self.pattern is not None:
            _compile(self.pattern)

    @classmethod
    def from_texts(cls, texts: Iterable[str], pattern: str, most: int = MOST_TOKENS) -> Self:
        """Make a list of all tokens in the texts.

        Args:
            texts: the texts.
            pattern: regular expression whose matches are tokens, or a name of ``PATTERNS``.
            most: maximum number of different tokens; a UserError is raised if there are more.
        """
        expression = _compile(PATTERNS.get(pattern, pattern))
        found: set[str] = set()
        for text in texts:
            found.update(_cut(text, expression))
            if len(found) > most:
                found_many = f"more than {most} different tokens by the pattern {expression.pattern!r}"
                raise UserError(f"{found_many}: expected fewer; take another pattern, or a tokenizer file")
        return cls(tuple(sorted(found)), expression.pattern)

    @property
    def pieces(self) -> tuple[str, ...]:
        return self.tokens

    @property
    def notation(self) -> str | None:
        return next((name for name in NOTATIONS if PATTERNS[name] == self.pattern), None)

    def encode(self, text: str) -> Tensor:
        check_text("text", text)
        return self.look_up(self._longest(text) if self.pattern is None else _cut(text, _compile(self.pattern)))

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(token) for token in self.tokens}, reverse=True)

    def _longest(self, text: str) -> list[str]:
        """Cut a text into the longest token at each position, or single characters where none fits."""
        pieces, position = [], 0
        while position < len(text):
            fits = (text[position : position + length] for length in self._lengths)
            pieces.append(next((piece for piece in fits if piece in self._numbers), text[position]))
            position += len(pieces[-1])
        return pieces


def _compile(pattern: str) -> re.Pattern[str]:
    """Return a compiled regular expression. Raises a UserError if it is wrong or matches an empty text."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"pattern {pattern!r}: not a regular expression: {error}") from None
    if compiled.match(""):
        raise UserError(f"pattern {pattern!r}: matches the empty text: expected matches of one character or more")
    return compiled


def _cut(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Cut a text into the matches of a pattern and single characters between them."""
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
"""The twenty amino acids of proteins, by their letters."""


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
            found = f"{len(self.tokenizer)} {self.tokenizer.unit}"
            raise UserError(f"{found}: the flow has {n_values} classes; expected as many")


@dataclass(frozen=True)
class TokenizerFile(Tokenizer):
    """A tokenizer of the ``tokenizers`` package: byte pairs, unigrams, word pieces.

    Its truncation, padding and special tokens around a text are not used. Decoding returns what the tokenizer keeps.

    Args:
        content: the JSON of the tokenizer.
    """

    content: str

    def __post_init__(self) -> None:
        len(self)  # raises a UserError for wrong content

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a file such as ``tokenizer.json``."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise UserError(f"{path}: no such file: expected a tokenizer, such as tokenizer.json")
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path}: {path.stat().st_size:,} bytes: a tokenizer has at most {LARGEST_FILE:,}")
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
        """Class that the tokenizer gives to unknown text, if it has one."""
        model = json.loads(self.content).get("model", {})
        token, number = model.get("unk_token"), model.get("unk_id")
        number = self._tokenizer.token_to_id(token) if isinstance(token, str) else number
        return number if isinstance(number, int) else None

    def encode(self, text: str) -> Tensor:
        check_text("text", text)
        encoding = self._encoding(text)
        if self._unknown in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self._unknown)]
            raise self.outside(text[start:end], start)
        if _loses_text(text, encoding.offsets):
            # Dropped text shifts the offsets after it. So look for the shortest beginning that loses text.
            ends = range(1, len(text) + 1)
            place = bisect_left(ends, True, key=lambda n: _loses_text(text[:n], self._encoding(text[:n]).offsets))
            raise self.outside(text[place], place)
        return torch.tensor(encoding.ids, dtype=torch.int64)

    def _encoding(self, text: str) -> Any:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # the package raises Exception itself, such as for a word outside a word list
            raise UserError(f"{text[:60]!r}: the tokenizer cannot cut it: {error}") from None

    def _join(self, classes: list[int]) -> str:
        return str(self._tokenizer.decode(classes, skip_special_tokens=False))


def _loses_text(text: str, offsets: Iterable[tuple[int, int]]) -> bool:
    """Return True if some of a text is in no token. Byte pairs without an unknown token drop what they do not know."""
    covered = bytearray(len(text))
    for start, end in offsets:
        covered[start:end] = b"\1" * (end - start)
    return any(not used and not symbol.isspace() for used, symbol in zip(covered, text, strict=True))


def make_tokenizer(tokenizer: Tokenizer | str | None, texts: Iterable[str]) -> Tokenizer:
    """Make the tokenizer that a user names.

    Args:
        tokenizer: "characters" (or None), "amino-acids", a name of ``PATTERNS``, the path of a tokenizer file
            (``.json``) or of a list of tokens, one in each line (``.txt``), or a tokenizer.
        texts: texts in which characters and tokens are found, for tokenizers that are made from data.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if tokenizer in (None, "characters"):
        return Alphabet.from_texts(texts)
    if tokenizer == "amino-acids":
        return AMINO_ACIDS
    if tokenizer in PATTERNS:
        return TokenList.from_texts(texts, str(tokenizer))
    path = Path(str(tokenizer)).expanduser()
    if path.suffix == ".json":
        return TokenizerFile.read(path)
    if path.suffix == ".txt" and path.is_file():
        return TokenList(tuple(line for line in path.read_text(encoding="utf-8").split("\n") if line))
    known = ("characters", "amino-acids", *PATTERNS)
    files = "a tokenizer file (.json) or a list of tokens, one in each line (.txt)"
    hint = did_you_mean(tokenizer, known)
    raise UserError(f"tokenizer={tokenizer!r}: expected one of {', '.join(known)}, {files}{hint}")


# --- SMILES -----------------------------------------------------------------------------------------------------------

_BONDS = frozenset("-=#$:/\\~")
_NOT_AFTER = {"bond": _BONDS | {"."}, "(": _BONDS | {".", "("}, ")": _BONDS | {"("}, "ring": {".", "("}}
_NO_ATOM = ", where an atom is expected"
_FAULTS = {"bond": _NO_ATOM, "(": _NO_ATOM, ")": " closes nothing", "ring": " without an atom before it"}


def smiles_problem(tokens: Iterable[str]) -> str | None:
    """Return what is wrong with the grammar of a SMILES string, with its position from 0; None if nothing is.

    This checks parentheses, ring numbers and bonds without any package, for a hundred thousand strings in a second. The
    chemistry, such as the number of bonds of an atom, is left to RDKit (``bfn.quality``).

    Args:
        tokens: the tokens of the string.
    """
    depth, position, last = 0, 0, "."
    rings: set[str] = set()
    for token in tokens:
        role = _role(token)
        if last in _NOT_AFTER.get(role, ()) or (role == ")" and not depth):
            name = f"ring number {token}" if role == "ring" else repr(token)
            return f"{name} at position {position}{_FAULTS[role]}"
        if role == "sign" and token not in "BCNOPSFIbcnops*.>":
            fault = "atom outside brackets" if token.isalpha() else "part of SMILES"
            return f"{token!r} at position {position} is no {fault}"
        depth += (token == "(") - (token == ")")
        rings ^= {token.lstrip("%").lstrip("0") or "0"} if role == "ring" else set()
        position, last = position + len(token), token
    return _unfinished(last, depth, rings)


def _role(token: str) -> str:
    if token.lstrip("%").isdigit():
        return "ring"
    if token in _BONDS:
        return "bond"
    if token in ("(", ")"):
        return token
    return "sign" if len(token) == 1 else "atom"


def _unfinished(last: str, depth: int, rings: set[str]) -> str | None:
    """Return what is open at the end of a SMILES string, or None."""
    if last in _BONDS:
        return f"a bond {last!r} at its end that leads nowhere"
    if depth:
        return f"{depth} '(' that are not closed"
    return f"ring number {min(rings)}, which comes an odd number of times" if rings else None
