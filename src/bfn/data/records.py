"""Records: sequences, numbers and classes, one of each column for every record, and the files that they are read from.

A reader, chosen by the ending of a file's name, returns the columns as they are stored, a :class:`RawTable`.
:func:`make_records` makes sequences, numbers and classes of those columns that :class:`Columns` names.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn._utils.arguments import require
from bfn._utils.files import check_decoded, regular_size, telling_damage
from bfn.core.errors import UserError, did_you_mean
from bfn.data.images import load_npy, load_npz, random_split
from bfn.data.text import Sequences, csv_separator, file_kind, read_lines, smallest_type
from bfn.data.tokenizers import Tokenizer, make_tokenizer, smiles_problem

MOST_CLASSES = 1 << 16  # maximum number of classes of a column
LABELS = ("label", "labels", "y")  # names of arrays that are labels if nothing else is said
PRESENCE = ("present", "lengths")  # names of arrays that say which values of the others are data


@dataclass(frozen=True, eq=False)
class _Values:
    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice | Tensor) -> Self:
        return replace(self, values=self.values[index])


@dataclass(frozen=True, eq=False)
class Numbers(_Values):
    """Numbers, float32, (n, ...): a number or an array of numbers for each record."""


@dataclass(frozen=True, eq=False)
class Categories(_Values):
    """Classes, int64, (n, ...): a class or an array of classes for each record; ``names`` has their names."""

    names: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.names)

    def shares(self) -> tuple[float, ...]:
        """Return the frequency of each class."""
        counts = torch.bincount(self.values.flatten(), minlength=self.n_classes)
        return tuple((counts.double() / max(1, self.values.numel())).tolist())


Column = Sequences | Numbers | Categories
"""Values of one column, one for each record."""


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a file. Columns that are not named are not read.

    All arguments but the label take one name or several, and are kept as tuples.

    Args:
        sequence: texts that are the sample, or a part of it.
        parts: other columns that belong to the sample: numbers, classes, arrays. If ``sequence`` and ``parts`` name one
            column, this is the sample; if they name several, a sample is a mapping.
        label: the class of each record.
        conditions: numbers or classes on which samples can be conditioned.
        classes: columns among these whose values are classes although they look like numbers.
    """

    sequence: str | Sequence[str] = ()
    parts: str | Sequence[str] = ()
    label: str | None = None
    conditions: str | Sequence[str] = ()
    classes: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("sequence", "parts", "conditions", "classes"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        twice = repeated((*self.samples, *self.conditions, *self._label))
        if twice is not None:
            raise UserError(f"column {twice!r} has several roles: expected one of sample, condition and label")

    @property
    def _label(self) -> tuple[str, ...]:
        return () if self.label is None else (self.label,)

    @property
    def samples(self) -> tuple[str, ...]:
        """Names of the columns that make up a sample."""
        return tuple(dict.fromkeys((*self.sequence, *self.parts)))

    @property
    def named(self) -> tuple[str, ...]:
        """Names of all columns that have a role."""
        return tuple(dict.fromkeys((*self.samples, *self.conditions, *self._label, *self.classes)))


@dataclass(frozen=True, eq=False)
class Records:
    """The records of a file.

    Attributes:
        columns: the columns by name.
        roles: what the columns are for.
        present: bool, (n, length), True where the arrays of the records are data and False in their padding; None if
            nothing is padded.
        source: absolute path of the file.
        note: remark on the version of a standard set.
    """

    columns: Mapping[str, Column]
    roles: Columns
    present: Tensor | None = None
    source: str = ""
    note: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: slice | Tensor) -> Records:
        """Return the records at ``index``, a slice or int64 positions."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, columns=columns, present=None if self.present is None else self.present[index])

    def split(self, held_out: float | int = 0.05, seed: int = 0) -> tuple[Records, Records]:
        """Return (the rest, held-out records), chosen at random by the seed.

        Args:
            held_out: share (a float) or number (an int) of held-out records.
            seed: seed of the choice.
        """
        rest, held = random_split(len(self), held_out, seed, "records")
        return self[rest], self[held]

    @property
    def samples(self) -> dict[str, Column]:
        """The columns that make up a sample, by name."""
        return {name: self.columns[name] for name in self.roles.samples}

    def padded(self, length: int | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parts of the samples, and bool tensors of the same shapes that are True where these are data.

        Args:
            length: length to which sequences are padded; that of the longest one of each column if None.
        """
        x, present = {}, {}
        for name, column in self.samples.items():
            if isinstance(column, Sequences):
                x[name], present[name] = column.padded(length)
            else:
                x[name], present[name] = column.values, self.present_in(column)
        return x, present

    def present_in(self, column: Numbers | Categories) -> Tensor:
        """Return a bool tensor like the values of a column that is True where they are data."""
        shape = column.values.shape
        if self.present is None or len(shape) < 2:
            return torch.ones(shape, dtype=torch.bool)
        return self.present.reshape(*self.present.shape, *[1] * (len(shape) - 2)).expand(shape)

    @property
    def label(self) -> Categories | None:
        """The classes of the records, if they have any."""
        column = None if self.roles.label is None else self.columns[self.roles.label]
        return column if isinstance(column, Categories) else None

    @property
    def conditions(self) -> dict[str, Numbers | Categories]:
        """The conditions other than the label, by name."""
        found = {name: self.columns[name] for name in self.roles.conditions}
        return {name: column for name, column in found.items() if not isinstance(column, Sequences)}


@dataclass(frozen=True, eq=False)
class RawTable:
    """The columns of a file as they are stored.

    Args:
        source: name of the file, for messages.
        columns: strings or an array for each name, all of one length.
        place: function that returns the place of a record in the file, such as "line 7", by its number.
        sequence: column that is the sample in files of this kind.
        tokenizer: default tokenizer of the sequences.
    """

    source: str
    columns: Mapping[str, Sequence[str] | NDArray[Any]]
    place: Callable[[int], str] = field(default=lambda number: f"record {number}")
    sequence: str | None = None
    tokenizer: str | None = None

    @classmethod
    def from_frame(cls, frame: Any, source: str = "the table") -> Self:
        """Return the columns of a pandas DataFrame. Integers are numbers, as in a CSV file."""
        columns = {str(name): _scalars_as_floats(frame[name].to_numpy()) for name in frame.columns}
        return cls(source, columns, lambda number: f"row {number + 1}")

    def error(self, number: int, message: str) -> UserError:
        """Return an error about one record that names its place."""
        return UserError(f"{self.source}: {self.place(number)}: {message}")

    def strings(self, name: str) -> list[str]:
        """Return a column of strings. Raises a UserError if it has other values."""
        values = list(self.columns[name])
        wrong = next((number for number, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            found = repr(values[wrong])[:40]
            raise self.error(wrong, f"{name} is {found}: expected text, or an array as long as the others")
        return list(map(str, values))


def make_records(table: RawTable, roles: Columns | None = None, tokenizer: Tokenizer | str | None = None) -> Records:
    """Make records from the columns of a file.

    Args:
        table: the columns.
        roles: what the columns are for; guessed if there is one possibility only.
        tokenizer: see :func:`read_records`; that of the kind of file if None.
    """
    sizes = {name: len(values) if np.ndim(values) else -1 for name, values in table.columns.items()}
    if len(set(sizes.values())) != 1 or min(sizes.values()) < 1:
        shapes = {name: getattr(values, "shape", sizes[name]) for name, values in table.columns.items()}
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
        raise UserError(f"{table.source}: {found}: expected as many records in each column, at least 1")
    roles = _complete_roles(table, roles or Columns())
    columns = {
        name: _make_sequences(table, name, tokenizer or table.tokenizer) if name in roles.sequence
        else _make_values(table, name, name in (*roles.classes, roles.label))
        for name in roles.named
    }  # fmt: skip
    return Records(columns, roles, _make_presence(table, roles), table.source)


def _complete_roles(table: RawTable, roles: Columns) -> Columns:
    """Return the roles with the default sample, guessed if none are given. Raises a UserError for unknown columns."""
    if table.sequence is not None and not roles.samples:
        roles = replace(roles, sequence=table.sequence)
    roles = roles if roles.named else _guess_roles(table)
    missing = next((name for name in roles.named if name not in table.columns), None)
    known = ", ".join(table.columns)
    if missing is not None:
        raise UserError(f"{table.source}: no column {missing!r}: it has {known}{did_you_mean(missing, table.columns)}")
    if not roles.samples:
        raise UserError(f"{table.source}: no column is the sample: name one of {known} as sequence or part")
    return roles


def _guess_roles(table: RawTable) -> Columns:
    """Return the only possible sample: an array x, the only array, or the only column of texts."""
    columns = table.columns
    label = next((name for name in LABELS if getattr(columns.get(name), "ndim", 0) == 1), None)
    texts = [name for name in columns if name != label and _is_text(columns[name])]
    arrays = [name for name in columns if name not in (label, *PRESENCE, *texts)]
    arrays = ["x"] if "x" in arrays else arrays
    if len(arrays) == 1 and not texts:
        return Columns(parts=arrays, label=label)
    if len(columns) > 1:
        texts = [name for name in texts if _looks_like_sequences(columns[name])]
    if len(texts) == 1:
        return Columns(sequence=texts)
    known = ", ".join(columns)
    wanted = "name the sequence, the parts, the label or the conditions among them"
    raise UserError(f"{table.source}: which column is what? It has {known}: {wanted}")


def _is_text(values: Sequence[str] | NDArray[Any]) -> bool:
    return not isinstance(values, np.ndarray) or values.dtype.kind in "UO"


def _looks_like_sequences(values: Any) -> bool:
    """Return True for strings that are not numbers and mostly different; repeated ones are names of classes."""
    return 2 * len(set(values)) > len(values) and any(_number(value) is None for value in values[:100])


def _make_sequences(table: RawTable, name: str, tokenizer: Tokenizer | str | None) -> Sequences:
    if not _is_text(table.columns[name]):
        raise UserError(f"{table.source}: column {name} has numbers: expected texts; name it among the parts")
    texts = table.strings(name)
    empty = next((number for number, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise table.error(empty, f"{name} is empty: expected a sequence")
    try:
        made = make_tokenizer(tokenizer, texts)
    except UserError as error:
        raise UserError(f"{table.source}: {error}") from None
    smallest = smallest_type(len(made))
    codes = [_encode(table, name, number, text, made).to(smallest) for number, text in enumerate(texts)]
    lengths = torch.tensor([len(code) for code in codes])
    return Sequences(torch.cat(codes), lengths.cumsum(0) - lengths, lengths, made, int(lengths.max()))


def _encode(table: RawTable, name: str, number: int, text: str, tokenizer: Tokenizer) -> Tensor:
    """Return the tokens of a record. Raises a UserError if there are none, or if a SMILES string is malformed."""
    try:
        codes = tokenizer.encode(text)
    except UserError as error:
        raise table.error(number, str(error)) from None
    if not len(codes):
        raise table.error(number, f"{name} is {text[:40]!r}, which has no tokens: expected some")
    if tokenizer.notation == "smiles":
        problem = smiles_problem([tokenizer.pieces[code] for code in codes.tolist()])
        if problem is not None:
            raise table.error(number, f"{name} is {text[:60]!r}, not a molecule: {problem}; fix or remove the record")
    return codes


def _make_values(table: RawTable, name: str, as_classes: bool) -> Numbers | Categories:
    """Return numbers or classes. Integers of an array are classes, and so are strings that are not numbers."""
    values = table.columns[name]
    if not _is_text(values):
        return _from_array(table, name, np.asarray(values), as_classes)
    texts = [text.strip() for text in table.strings(name)]
    numbers = [_number(text) for text in texts]
    if as_classes or all(number is None for number in numbers):
        return _named_classes(table, name, texts)
    if None in numbers:
        wrong = numbers.index(None)
        expected = "expected a number, as others are; or name the column in classes"
        raise table.error(wrong, f"{name} is {texts[wrong][:40]!r}: {expected}")
    return _finite_numbers(table, name, np.array(numbers, dtype=np.float64))


def _from_array(table: RawTable, name: str, array: NDArray[Any], as_classes: bool) -> Numbers | Categories:
    if array.dtype.kind in "biu":
        return _numbered_classes(table, name, array)
    if array.dtype.kind != "f":
        raise UserError(f"{table.source}: column {name} has values of type {array.dtype}: expected numbers or texts")
    if as_classes:
        return _named_classes(table, name, [repr(value).removesuffix(".0") for value in array.tolist()])
    return _finite_numbers(table, name, array)


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _finite_numbers(table: RawTable, name: str, array: NDArray[Any]) -> Numbers:
    with np.errstate(over="ignore"):
        values = torch.from_numpy(array.astype(np.float32))
    wrong = (~values.isfinite()).reshape(len(values), -1).any(1)
    if wrong.any():
        number = int(wrong.int().argmax())
        found = repr(float(array[number])) if array.ndim == 1 else "not finite"
        raise table.error(number, f"{name} is {found}: expected finite numbers; fix or remove the record")
    return Numbers(values)


def _numbered_classes(table: RawTable, name: str, array: NDArray[Any]) -> Categories:
    rows = array.reshape(len(array), math.prod(array.shape[1:]))
    wrong = ((rows < 0) | (rows >= MOST_CLASSES)).any(1)
    if wrong.any():
        found = f"{name} has a whole number outside 0..{MOST_CLASSES - 1}, not a class"
        raise table.error(int(wrong.argmax()), f"{found}: save numbers as floats")
    names = tuple(map(str, range(max(2, int(rows.max(initial=0)) + 1))))
    return Categories(torch.from_numpy(array.astype(np.int64)), names)


def _named_classes(table: RawTable, name: str, texts: Sequence[str]) -> Categories:
    if "" in texts:
        raise table.error(texts.index(""), f"{name} is empty: expected a class")
    names = sorted(set(texts), key=lambda text: (_number(text) is None, _number(text) or 0.0, text))
    if len(names) > MOST_CLASSES or (len(names) > 100 and 2 * len(names) > len(texts)):
        found = f"column {name} has {len(names)} different texts"
        raise UserError(f"{table.source}: {found}: expected classes, each of several records")
    numbers = {text: number for number, text in enumerate(names)}
    return Categories(torch.tensor([numbers[text] for text in texts]), tuple(names))


def _make_presence(table: RawTable, roles: Columns) -> Tensor | None:
    """Return where the arrays of the records are data, (n, length), by an array called ``present`` or ``lengths``."""
    name = next((name for name in PRESENCE if name in table.columns and name not in roles.named), None)
    if name is None:
        return None
    values = np.asarray(table.columns[name])
    shapes: list[tuple[int, ...]] = [getattr(table.columns[part], "shape", ()) for part in roles.samples]
    length = min((shape[1] for shape in shapes if len(shape) > 1), default=0)
    expected = {"lengths": ("whole numbers", "iu", (len(values),)), "present": ("booleans", "b", (len(values), length))}
    what, kinds, shape = expected[name]
    if values.dtype.kind not in kinds or values.shape != shape:
        found = f"{name} of type {values.dtype} and shape {values.shape}"
        raise UserError(f"{table.source}: {found}: expected {what} of shape {shape}, as the arrays are")
    lengths = values if name == "lengths" else values.sum(1)
    wrong = (lengths < 1) | (lengths > length)
    if wrong.any():
        number = int(wrong.argmax())
        raise table.error(number, f"{name} is {values[number]}: expected 1 to {length} values that are data")
    return torch.from_numpy(np.arange(length) < values[:, None] if name == "lengths" else values.copy())


# --- files ------------------------------------------------------------------------------------------------------------


def read_records(path: Path | str, columns: Columns | None = None, tokenizer: Tokenizer | str | None = None) -> Records:
    """Read the records of a file. The ending of its name says how it is read.

    The endings are ``.npy``, ``.npz``; ``.txt`` (a record in each line), ``.smi`` and ``.smiles`` (a SMILES string and
    then a name in each line), ``.fasta``, ``.fa`` and ``.faa``, ``.csv`` and ``.tsv``, all of these also with ``.gz``;
    ``.parquet``. Texts are UTF-8.

    Args:
        path: the file.
        columns: what the columns are for; guessed if there is one possibility only.
        tokenizer: "characters" (default: those in the data; for SMILES lists "smiles"), "smiles", "selfies",
            "amino-acids", "words", the path of a tokenizer file (``.json``) or of a list of tokens (``.txt``), or a
            tokenizer.

    Raises:
        UserError: something in the file is wrong; the message names the place.
    """
    path = Path(path).expanduser().absolute()
    if not path.exists():
        raise UserError(f"{path}: no such file")
    kind = file_kind(path)
    if kind not in _READERS:
        known = ", ".join(_READERS)
        raise UserError(f"{path}: records are read from files ending with {known}{did_you_mean(kind, _READERS)}")
    if regular_size(path) == 0:
        raise UserError(f"{path}: an empty file: expected records")
    return make_records(_READERS[kind](path), columns, tokenizer)


def is_record_file(path: Path) -> bool:
    """Return True if the name of a file says that it has records, and cannot be one of images or a text."""
    return file_kind(path) in _READERS.keys() - {".npy", ".npz", ".txt"}


def repeated(names: Iterable[Any]) -> Any:
    """Return the first name that comes more than once, or None."""
    names = list(names)
    return next((name for name in names if names.count(name) > 1), None)


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a pyarrow Table.

    Raises:
        UserError: the file is damaged, would unpack to a very large size, or has a column name twice.
    """
    parquet = require("pyarrow.parquet", "to read Parquet files")
    with telling_damage(path, "not a Parquet file that can be read"), parquet.ParquetFile(path) as file:
        metadata = file.metadata
        groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
        # Repeated values are stored once, so the size is also estimated from the number of rows.
        check_decoded(path, max(sum(groups), 8 * metadata.num_rows * metadata.num_columns), regular_size(path))
        table = file.read()
    if repeated(table.column_names) is not None:
        raise UserError(f"{path}: columns {', '.join(table.column_names)}: expected each name once")
    return table


def _read_text_lines(path: Path) -> RawTable:
    columns = {"sequence": [line for _, line in read_lines(path, "a record")]}
    return RawTable(str(path), columns, lambda number: f"line {number + 1}", "sequence")


def _read_smiles(path: Path) -> RawTable:
    """Read lines of a SMILES string and names. The first line may be a header."""
    lines = read_lines(path, "a SMILES")
    has_header = re.match(r"\s*(canonical_|isomeric_)?smiles?\b", lines[0][1], re.IGNORECASE)
    header = lines.pop(0)[1].split() if has_header else ["smiles", "name"]
    if repeated(header) is not None:
        raise UserError(f"{path}: line 1: columns {', '.join(header)}: expected each name once")
    names = header[: min((len(line.split()) for _, line in lines), default=1)]
    # The last column has the rest of the line, since names may have spaces. A single column has the first word only.
    last = len(names) - 1
    fields = [line.split(maxsplit=last or 1) for _, line in lines]
    columns = {name: [" ".join(row[number].split()) for row in fields] for number, name in enumerate(names)}
    return RawTable(str(path), columns, lambda row: f"line {lines[row][0]}", names[0], "smiles")


def _read_fasta(path: Path) -> RawTable:
    """Read records of a header, ``>name ...``, and lines of a sequence, whose letters become upper case."""
    names: list[str] = []
    sequences: list[str] = []
    places: list[int] = []
    for number, line in read_lines(path):
        if line.startswith(">"):
            names.append(line[1:].strip())
            sequences.append("")
            places.append(number)
            continue
        letters = line.strip()
        if letters and not names:
            found = f"{letters[:20]!r} before the first header"
            raise UserError(f"{path}: line {number}: {found}: expected a line with > first")
        wrong = re.search(r"[^A-Za-z*-]", letters)
        if wrong:
            raise UserError(f"{path}: line {number}: {wrong.group()!r} in a sequence: expected letters, * and -")
        if letters:
            sequences[-1] += letters.upper()
    if "" in sequences:
        empty = sequences.index("")
        raise UserError(f"{path}: line {places[empty]}: {names[empty]!r} is empty: expected a sequence below it")
    return RawTable(str(path), {"sequence": sequences, "name": names}, lambda row: f"line {places[row]}", "sequence")


def _read_csv(path: Path) -> RawTable:
    """Read rows of values below a header with the names of the columns."""
    text = "\n".join(line for _, line in read_lines(path))
    separator = csv_separator(path, text.partition("\n")[0])
    # A value may span several lines: a row is named by the line at which it begins.
    rows, lines, line = [], [], 1
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            rows.append(row)
            lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f'{path}: line {line}: {error}: expected values between {separator!r}, quoted by "') from None
    header = [" ".join(name.split()) for name in rows[0]]
    _check_header(path, header, separator)
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            found = f"has {len(row)} values" if row else "is empty"
            raise UserError(f"{path}: line {line}: {found}: expected {len(header)}, one for each column")
    columns = {name: [row[number] for row in rows[1:]] for number, name in enumerate(header)}
    return RawTable(str(path), columns, lambda row: f"line {lines[row + 1]}")


def _check_header(path: Path, header: list[str], separator: str) -> None:
    twice = repeated(header)
    if twice is not None or "" in header:
        found = "an empty name" if "" in header else f"{twice!r} more than once"
        raise UserError(f"{path}: line 1: the header has {found}: expected a different name for each column")
    if all(re.fullmatch(r"[-+0-9.eE]+", name) for name in header):
        found = repr(separator.join(header)[:60])
        raise UserError(f"{path}: line 1: {found} are values: expected the names of the columns")


def _read_arrays(path: Path) -> RawTable:
    """Read the arrays of a NumPy file. Single numbers beside arrays are remarks, not columns."""
    arrays = {"x": load_npy(path)} if file_kind(path) == ".npy" else load_npz(path)
    return RawTable(str(path), {name: array for name, array in arrays.items() if array.ndim})


def _read_parquet_columns(path: Path) -> RawTable:
    table = read_parquet(path)
    columns = {name: _from_arrow(table.column(name)) for name in table.column_names}
    return RawTable(str(path), columns, lambda number: f"row {number + 1}")


def _from_arrow(column: Any) -> NDArray[Any]:
    """Return numbers with NaN where one is missing, lists of equal length as arrays, and other values as objects."""
    array: NDArray[Any] = column.to_numpy()
    if array.dtype != object:
        return _scalars_as_floats(array)
    values = column.to_pylist()
    if values and all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
        return np.array(values)
    array[:] = values
    return array


def _scalars_as_floats(array: NDArray[Any]) -> NDArray[Any]:
    """Return single integers of a table as floats, as a CSV file has them. Integers in arrays stay classes."""
    return array.astype(np.float64) if array.ndim == 1 and array.dtype.kind in "iu" else array


_READERS: Mapping[str, Callable[[Path], RawTable]] = {
    **dict.fromkeys((".npy", ".npz"), _read_arrays),
    ".txt": _read_text_lines,
    **dict.fromkeys((".smi", ".smiles"), _read_smiles),
    **dict.fromkeys((".fasta", ".fa", ".faa"), _read_fasta),
    **dict.fromkeys((".csv", ".tsv"), _read_csv),
    ".parquet": _read_parquet_columns,
}
