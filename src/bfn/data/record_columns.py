"""Columns as a file has them become records: sequences are cut into tokens, numbers and classes are told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.data.records import Categories, Column, Columns, Numbers, Records, Sequences
from bfn.data.smiles_syntax import smiles_problem
from bfn.data.text import smallest_type
from bfn.data.tokenizer_files import make_tokenizer
from bfn.data.tokenizers import Tokenizer
from bfn.errors import UserError, did_you_mean

__all__ = ["RawTable", "make_records", "tabular"]

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
                number,
                f"{name} is {text[:40]!r}: expected a number, as others are; or name the column in classes",
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
            number,
            f"{name} has a whole number outside 0..{_MOST_CLASSES - 1}, no class: save numbers as floats",
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
