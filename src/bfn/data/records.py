"""Whether a string can be SMILES at all: parentheses, ring numbers and bonds by the grammar, without any chemistry.

What a molecule may be like, such as how many bonds an atom has, RDKit knows (``bfn.quality``). This needs no package,
and reads a hundred thousand strings in a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.core.errors import UserError, did_you_mean
from bfn.data.text import smallest_type
from bfn.data.tokenizers import Tokenizer, make_tokenizer

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


@dataclass(frozen=True, eq=False)
class Sequences:
    """Texts of different lengths as classes of their tokens; stretches of one long row of codes, nothing is copied.

    codes: all tokens, one text after the other, shape (total,). starts, lengths: where each text is in them, (n,).
    longest: length of the longest text of the whole column, which parts of it keep.
    """

    codes: Tensor
    starts: Tensor
    lengths: Tensor
    tokenizer: Tokenizer
    longest: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: slice | Tensor) -> Sequences:
        return replace(self, starts=self.starts[index], lengths=self.lengths[index])

    @property
    def n_classes(self) -> int:
        """How many tokens there are to choose from."""
        return len(self.tokenizer)

    def padded(self, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Classes, int64, with 0 after the end of a text, and where they are present, bool: both (n, length).

        length: of the longest text if None.
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
        """The texts that the tokens stand for."""
        return self.tokenizer.decode(*self.padded()) if len(self) else []


@dataclass(frozen=True, eq=False)
class Numbers:
    """Floats, (n, ...): a number or an array of numbers each record."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice | Tensor) -> Numbers:
        return Numbers(self.values[index])


@dataclass(frozen=True, eq=False)
class Categories:
    """Classes, int64, (n, ...): one or an array of them each record. names: of the classes, in their order."""

    values: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice | Tensor) -> Categories:
        return replace(self, values=self.values[index])

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.names)

    def shares(self) -> tuple[float, ...]:
        """The share of the values that each class has."""
        counts = torch.bincount(self.values.flatten(), minlength=self.n_classes)
        return tuple((counts.double() / max(1, self.values.numel())).tolist())


Column = Sequences | Numbers | Categories
"""The values of one name, one a record."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a file are for. Those that are not named are not read.

    sequence: texts that are the sample, or a part of it. parts: further columns that belong to the sample: numbers,
        classes, arrays. Where sequence and parts name one column, a sample is that; of several it is a mapping.
    label: the class of each record. conditions: what samples may be asked for by: numbers or classes.
    classes: columns among these whose values are classes although they look like numbers.
    Each but the label may be one name or several; they are kept as tuples.
    """

    sequence: str | Sequence[str] = ()
    parts: str | Sequence[str] = ()
    label: str | None = None
    conditions: str | Sequence[str] = ()
    classes: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("sequence", "parts", "conditions", "classes"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        label = () if self.label is None else (self.label,)
        roles = (*self.samples, *self.conditions, *label)
        twice = next((name for name in roles if roles.count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"column {twice!r} is named for several things: expected one of sample, condition and label"
            )

    @property
    def samples(self) -> tuple[str, ...]:
        """The columns that make up a sample."""
        return tuple(dict.fromkeys((*self.sequence, *self.parts)))

    @property
    def named(self) -> tuple[str, ...]:
        """Every column that is for something."""
        label = () if self.label is None else (self.label,)
        return tuple(dict.fromkeys((*self.samples, *self.conditions, *label, *self.classes)))


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one file: see :class:`Columns` for what its columns are for.

    present: where the arrays of the records are data and not padding, bool, (n, length); None if they are all data.
    source: the absolute path of the file. note: what a user should know of them.
    """

    columns: Mapping[str, Column]
    roles: Columns
    present: Tensor | None = None
    source: str = ""
    note: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: slice | Tensor) -> Records:
        """The records at ``index`` (a slice, or int64 positions)."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, columns=columns, present=None if self.present is None else self.present[index])

    def split(self, held_out: float | int = 0.05, seed: int = 0) -> tuple[Records, Records]:
        """A fixed random division into (the rest, held out); ``held_out`` is a share or a number of records."""
        n = round(held_out * len(self)) if isinstance(held_out, float) else held_out
        if not 0 < n < len(self):
            raise UserError(f"held_out={held_out}: of {len(self)} records at least 1 must be on each side")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self[order[n:].sort().values], self[order[:n].sort().values]

    @property
    def samples(self) -> dict[str, Column]:
        """The columns that make up a sample, by name."""
        return {name: self.columns[name] for name in self.roles.samples}

    def padded(self, length: int | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parts of the samples, and where they are present: bool tensors of the same shapes.

        length: that sequences are padded to; each to the longest of its column if None.
        """
        x, present = {}, {}
        for name, column in self.samples.items():
            if isinstance(column, Sequences):
                x[name], present[name] = column.padded(length)
            else:
                x[name], present[name] = column.values, self._present(column.values)
        return x, present

    def _present(self, values: Tensor) -> Tensor:
        if self.present is None or values.ndim < 2:
            return torch.ones(values.shape, dtype=torch.bool)
        return self.present.reshape(*self.present.shape, *[1] * (values.ndim - 2)).expand(values.shape)

    @property
    def label(self) -> Categories | None:
        """The class of each record, where they have one."""
        column = None if self.roles.label is None else self.columns[self.roles.label]
        return column if isinstance(column, Categories) else None

    @property
    def conditions(self) -> dict[str, Numbers | Categories]:
        """What samples may be asked for by; the label is not among them."""
        found = {name: self.columns[name] for name in self.roles.conditions}
        return {name: column for name, column in found.items() if not isinstance(column, Sequences)}


_MOST_CLASSES = 1 << 16  # a column with more different values is not one of classes
_LABELS, _PRESENCE = ("label", "labels", "y"), ("present", "lengths")  # names of arrays that say what they are for


@dataclass(frozen=True, eq=False)
class RawTable:
    """What a file holds before anything is made of it.

    columns: texts or an array each name, all of one length. place: of a record by its number, such as "line 7".
    sequence: the column that is the sample by the kind of file; tokenizer: how it is cut where nothing is asked for.
    """

    source: str
    columns: Mapping[str, Sequence[str] | NDArray[Any]]
    place: Callable[[int], str] = field(default=lambda number: f"record {number}")
    sequence: str | None = None
    tokenizer: str | None = None

    @classmethod
    def from_frame(cls, frame: Any, source: str = "the table") -> Self:
        """The columns of a pandas DataFrame; whole numbers are numbers there, as in a CSV file."""
        columns = {str(name): tabular(frame[name].to_numpy()) for name in frame.columns}
        return cls(source, columns, lambda number: f"row {number + 1}")

    def error(self, number: int, message: str) -> UserError:
        """A message on one record, with its place."""
        return UserError(f"{self.source}: {self.place(number)}: {message}")


def tabular(array: NDArray[Any]) -> NDArray[Any]:
    """A column of a table: of whole numbers, one a record, it is one of numbers; only arrays are made of classes."""
    return array.astype(np.float64) if array.ndim == 1 and array.dtype.kind in "iu" else array


def make_records(table: RawTable, roles: Columns | None = None, tokenizer: Tokenizer | str | None = None) -> Records:
    """Records from what a file holds.

    roles: what its columns are for; guessed where there is one possibility only. tokenizer: see
    ``bfn.data.tokenizers``; by default the characters that are found.
    """
    arrays = {name: values for name, values in table.columns.items() if isinstance(values, np.ndarray)}
    sizes = {name: len(values) if np.ndim(values) else -1 for name, values in table.columns.items()}
    if len(set(sizes.values())) != 1 or min(sizes.values()) < 1:
        counts = ", ".join(f"{name} {arrays[name].shape if name in arrays else size}" for name, size in sizes.items())
        raise UserError(f"{table.source}: {counts or 'nothing'}: expected as many records in each column, at least 1")
    roles = roles or Columns()
    if table.sequence is not None and not roles.samples:
        roles = replace(roles, sequence=table.sequence)
    roles = roles if roles.named else _guess(table)
    missing = next((name for name in roles.named if name not in table.columns), None)
    if missing is not None:
        hint = did_you_mean(missing, table.columns)
        raise UserError(f"{table.source}: no column {missing!r}: it has {', '.join(table.columns)}{hint}")
    if not roles.samples:
        raise UserError(
            f"{table.source}: no column is the sample: name one of {', '.join(table.columns)} as sequence or part"
        )
    as_classes = {*roles.classes, roles.label}
    columns: dict[str, Column] = {}
    for name in roles.named:
        if name in roles.sequence:
            columns[name] = _sequences(table, name, tokenizer)
        else:
            columns[name] = _column(table, name, name in as_classes)
    return Records(columns, roles, _present(table, roles), table.source)


def _guess(table: RawTable) -> Columns:
    """The one possibility that there is: an array x, the only array, the only column of texts."""
    given = {name: values for name, values in table.columns.items() if isinstance(values, np.ndarray)}
    label = next((name for name in _LABELS if name in given and given[name].ndim == 1), None)
    texts = [name for name, values in table.columns.items() if _is_text(values) and name != label]
    samples = [name for name in given if name not in (label, *_PRESENCE, *texts)]
    if not texts and ("x" in samples or len(samples) == 1):
        return Columns(parts=("x",) if "x" in samples else (samples[0],), label=label)
    words = [name for name in texts if len(table.columns) == 1 or _looks_like_sequences(table.columns[name])]
    if len(words) == 1:
        return Columns(sequence=words[0])
    raise UserError(
        f"{table.source}: which column is what? It has {', '.join(table.columns)}: name the sequence, the parts, the "
        "label or the conditions among them"
    )


def _is_text(values: Any) -> bool:
    return not isinstance(values, np.ndarray) or values.dtype.kind in "UO"


def _looks_like_sequences(values: Any) -> bool:
    """Texts that are no numbers, and seldom the same: what comes again and again is a class."""
    return 2 * len(set(values)) > len(values) and any(_number(value) is None for value in values[:100])


def _sequences(table: RawTable, name: str, wish: Tokenizer | str | None) -> Sequences:
    values = table.columns[name]
    if not _is_text(values):
        raise UserError(f"{table.source}: column {name} has numbers: expected texts; name it among the parts")
    texts = _texts(table, name)
    for number, text in enumerate(texts):
        if not text.strip():
            raise table.error(number, f"{name} is empty: expected a sequence")
    try:
        tokenizer = make_tokenizer(wish or table.tokenizer, texts)
    except UserError as error:
        raise UserError(f"{table.source}: {error}") from None
    codes, lengths, pieces = [], torch.empty(len(texts), dtype=torch.int64), tokenizer.pieces
    is_smiles = tokenizer.notation == "smiles"
    for number, text in enumerate(texts):
        try:
            found = tokenizer.encode(text)
        except UserError as error:
            raise table.error(number, str(error)) from None
        if not len(found):
            raise table.error(number, f"{name} is {text[:40]!r}, which has no tokens: expected some")
        problem = smiles_problem(pieces[k] for k in found.tolist()) if is_smiles else None
        if problem is not None:
            raise table.error(number, f"{name} is {text[:60]!r}, no molecule: {problem}; mend or remove the record")
        codes.append(found.to(smallest_type(len(tokenizer))))
        lengths[number] = len(found)
    return Sequences(torch.cat(codes), lengths.cumsum(0) - lengths, lengths, tokenizer, int(lengths.max()))


def _column(table: RawTable, name: str, as_classes: bool) -> Numbers | Categories:
    """Numbers where the values are numbers, classes where they are whole numbers of an array, or texts."""
    values = table.columns[name]
    if not _is_text(values):
        array = np.asarray(values)
        if array.dtype.kind in "biu":
            return _whole(table, name, array)
        if array.dtype.kind != "f":
            raise UserError(
                f"{table.source}: column {name} has values of type {array.dtype}: expected numbers or texts"
            )
        if as_classes:
            return _named(table, name, [repr(value).removesuffix(".0") for value in array.tolist()])
        return _finite(table, name, array)
    texts = [text.strip() for text in _texts(table, name)]
    if as_classes or all(_number(text) is None for text in texts):
        return _named(table, name, texts)
    numbers = np.empty(len(texts))
    for number, text in enumerate(texts):
        value = _number(text)
        if value is None:
            raise table.error(
                number, f"{name} is {text[:40]!r}: expected a number, as others are; or name the column in classes"
            )
        numbers[number] = value
    return _finite(table, name, numbers)


def _texts(table: RawTable, name: str) -> list[str]:
    texts = list(table.columns[name])
    wrong = next((number for number, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        raise table.error(
            wrong, f"{name} is {repr(texts[wrong])[:40]}: expected text, or an array as long as the others"
        )
    return list(map(str, texts))


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _finite(table: RawTable, name: str, array: NDArray[Any]) -> Numbers:
    with np.errstate(over="ignore"):
        values = torch.from_numpy(array.astype(np.float32))
    wrong = (~values.isfinite()).flatten(1).any(1) if values.ndim > 1 else ~values.isfinite()
    if wrong.any():
        number = int(wrong.int().argmax())
        shown = repr(float(array[number])) if array.ndim == 1 else "not finite"
        raise table.error(number, f"{name} is {shown}: expected finite numbers; mend or remove the record")
    return Numbers(values)


def _whole(table: RawTable, name: str, array: NDArray[Any]) -> Categories:
    rows = array.reshape(len(array), math.prod(array.shape[1:]))
    wrong = ((rows < 0) | (rows >= _MOST_CLASSES)).any(1)
    if wrong.any():
        number = int(wrong.argmax())
        raise table.error(
            number, f"{name} has a whole number outside 0..{_MOST_CLASSES - 1}, no class: save numbers as floats"
        )
    names = tuple(map(str, range(max(2, int(rows.max(initial=0)) + 1))))
    return Categories(torch.from_numpy(array.astype(np.int64)), names)


def _named(table: RawTable, name: str, texts: Sequence[str]) -> Categories:
    for number, text in enumerate(texts):
        if not text:
            raise table.error(number, f"{name} is empty: expected a class")
    names = sorted(set(texts), key=lambda text: (_number(text) is None, _number(text) or 0.0, text))
    if len(names) > _MOST_CLASSES or (len(names) > 100 and 2 * len(names) > len(texts)):
        raise UserError(
            f"{table.source}: column {name} has {len(names)} different texts: expected classes, which come again"
        )
    index = {text: number for number, text in enumerate(names)}
    return Categories(torch.tensor([index[text] for text in texts]), tuple(names))


def _present(table: RawTable, roles: Columns) -> Tensor | None:
    """The array ``present``, or ``lengths``, that says where the records' arrays are data."""
    name = next((name for name in _PRESENCE if name in table.columns and name not in roles.named), None)
    if name is None:
        return None
    given, n = np.asarray(table.columns[name]), len(table.columns[name])
    shapes = [np.shape(table.columns[part]) for part in roles.samples]
    length = min((shape[1] for shape in shapes if len(shape) > 1), default=0)
    fits = (given.dtype.kind in "iu", (n,)) if name == "lengths" else (given.dtype.kind == "b", (n, length))
    if not fits[0] or given.shape != fits[1]:
        raise UserError(
            f"{table.source}: {name} of type {given.dtype} and shape {given.shape}: expected "
            f"{'whole numbers' if name == 'lengths' else 'booleans'} of shape {fits[1]}, as the arrays are"
        )
    mask = np.arange(length) < given[:, None] if name == "lengths" else given
    wrong = ~mask.any(1) | ((given > length) if name == "lengths" else False)
    if wrong.any():
        number = int(wrong.argmax())
        raise table.error(number, f"{name} is {given[number]}: expected 1 to {length} values that are there")
    return torch.from_numpy(np.array(mask))
