"""Readers of records: numpy arrays, one a line, SMILES lists, FASTA, CSV and TSV, Parquet.

Each gives a :class:`bfn.data.records.RawTable`, the names and values as they are; what they are for is decided there.
Text is UTF-8 and may be compressed (``.gz``). What is wrong in a file is told in one line with its place.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn._utils.files import regular_size
from bfn._utils.packages import check_decoded, open_file, require, telling_damage
from bfn.core.errors import UserError, did_you_mean
from bfn.data.images import load_npy, load_npz
from bfn.data.records import Columns, RawTable, Records, make_records, tabular
from bfn.data.tokenizers import Tokenizer

_FASTA_LETTERS = re.compile(r"[A-Za-z*-]*")
_SMILES_HEADER = re.compile(r"(canonical_|isomeric_)?smiles?\b", re.IGNORECASE)

_Lines = Iterator[tuple[int, str]]


def read_records(path: Path | str, columns: Columns | None = None, tokenizer: Tokenizer | str | None = None) -> Records:
    """The records of a file, by what its name ends with.

    ``.npy``, ``.npz``; ``.txt`` (one record a line), ``.smi`` and ``.smiles`` (a SMILES a line, names after it),
    ``.fasta``, ``.fa`` and ``.faa``, ``.csv`` and ``.tsv``, all of these also with ``.gz``; ``.parquet``.

    Args:
        path: The file.
        columns: What its columns are for; guessed where there is one possibility only.
        tokenizer: How sequences are cut: "characters" (default, those found; of SMILES lists "smiles"), "smiles",
            "amino-acids", "words", the path of a tokenizer file (``.json``) or of a list of tokens (``.txt``), or a
            tokenizer.
    """
    path = Path(path).expanduser().absolute()
    if not path.exists():
        raise UserError(f"{path}: no such file")
    kind = _kind(path)
    if kind not in _READERS:
        known = ", ".join(_READERS)
        raise UserError(f"{path}: records are read from files ending with {known}{did_you_mean(kind, _READERS)}")
    if regular_size(path) == 0:
        raise UserError(f"{path}: an empty file: expected records")
    return make_records(_READERS[kind](path), columns, tokenizer)


def is_record_file(path: Path) -> bool:
    """Whether the name of a file alone says that it holds records."""
    return _kind(path) in _READERS.keys() - {".npy", ".npz", ".txt"}


def _kind(path: Path) -> str:
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def _read_text(path: Path) -> str:
    """The whole text of a file with its line ends as \\n; errors name the line."""
    with open_file(path) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: line {line}: byte 0x{content[error.start]:02x} is not UTF-8: save the file in this encoding"
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}: line {line}: has a zero byte: this is not a text file")
    if not text.strip():
        raise UserError(f"{path}: an empty file: expected records")
    return text


def _lines(text: str) -> _Lines:
    """Numbered lines without their ends; empty ones at the end of the file are left out."""
    return enumerate(text.rstrip("\n").split("\n"), 1)


def _placed(
    path: Path,
    columns: Mapping[str, list[str]],
    lines: list[int],
    sequence: str | None = None,
    tokenizer: str | None = None,
) -> RawTable:
    return RawTable(str(path), columns, lambda number: f"line {lines[number]}", sequence, tokenizer)


def _read_lines(path: Path) -> RawTable:
    records = []
    for line, text in _lines(_read_text(path)):
        if not text.strip():
            raise UserError(f"{path}: line {line}: empty: expected a record in every line")
        records.append(text)
    return _placed(path, {"sequence": records}, [*range(1, len(records) + 1)], "sequence")


def _read_smiles(path: Path) -> RawTable:
    """SMILES first in every line, names after them; the first line may be a header."""
    numbered = [(line, text.split()) for line, text in _lines(_read_text(path))]
    header = numbered.pop(0)[1] if _SMILES_HEADER.match("".join(numbered[0][1][:1])) else ["smiles", "name"]
    if len(set(header)) < len(header):
        raise UserError(f"{path}: line 1: columns {', '.join(header)}: expected each name once")
    for line, fields in numbered:
        if not fields:
            raise UserError(f"{path}: line {line}: empty: expected a SMILES in every line")
    names = header[: min((len(fields) for _, fields in numbered), default=1)]
    # What is beyond the last column belongs to it: names may have spaces.
    cut = [[*fields[: len(names) - 1], " ".join(fields[len(names) - 1 :])] for _, fields in numbered]
    if len(names) == 1:
        cut = [fields[:1] for _, fields in numbered]
    columns = {name: [fields[number] for fields in cut] for number, name in enumerate(names)}
    return _placed(path, columns, [line for line, _ in numbered], names[0], "smiles")


def _read_fasta(path: Path) -> RawTable:
    """Records of a header, ``>name ...``, and lines of a sequence, whose letters are made capitals."""
    names: list[str] = []
    pieces: list[list[str]] = []
    places: list[int] = []

    def close() -> None:
        if pieces and not any(pieces[-1]):
            raise UserError(f"{path}: line {places[-1]}: {names[-1]!r} is empty: expected a sequence below it")

    for line, text in _lines(_read_text(path)):
        if text.startswith(">"):
            close()
            names.append(text[1:].strip())
            pieces.append([])
            places.append(line)
            continue
        letters = text.strip()
        good = _FASTA_LETTERS.match(letters)
        end = good.end() if good else 0
        if letters and not names:
            raise UserError(
                f"{path}: line {line}: {letters[:20]!r} before the first header: expected a line with > first"
            )
        if end < len(letters):
            raise UserError(f"{path}: line {line}: {letters[end]!r} in a sequence: expected letters, * and -")
        if letters:
            pieces[-1].append(letters.upper())
    close()
    return _placed(path, {"sequence": ["".join(piece) for piece in pieces], "name": names}, places, "sequence")


def _read_csv(path: Path) -> RawTable:
    """Rows of values below a header with the names of the columns."""
    text = _read_text(path)
    first = text.partition("\n")[0]
    delimiter = "\t" if _kind(path) == ".tsv" else ";" if ";" in first and "," not in first else ","
    rows, lines = [], []
    # A field may go over several lines: a row is told by the line that it begins at.
    reader, line = csv.reader(io.StringIO(text.rstrip("\n"), newline=""), delimiter=delimiter, strict=True), 1
    try:
        for row in reader:
            rows.append(row)
            lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f'{path}: line {line}: {error}: expected values between {delimiter!r}, quoted by "') from None
    header = [" ".join(name.split()) for name in rows[0]]
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None or not all(header):
        shown = "an empty name" if not all(header) else f"{twice!r} more than once"
        raise UserError(f"{path}: line 1: the header has {shown}: expected a name of its own for each column")
    if all(re.fullmatch(r"[-+0-9.eE]+", name) for name in header):
        raise UserError(
            f"{path}: line 1: {delimiter.join(header)[:60]!r} are values: expected the names of the columns"
        )
    for place, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            what = "is empty" if not row else f"has {len(row)} values"
            raise UserError(f"{path}: line {place}: {what}: expected {len(header)}, one a column")
    columns = {name: [row[number] for row in rows[1:]] for number, name in enumerate(header)}
    return _placed(path, columns, lines[1:])


def _read_npy(path: Path) -> RawTable:
    return _arrays(path, {"x": load_npy(path)})


def _read_npz(path: Path) -> RawTable:
    return _arrays(path, load_npz(path))


def _arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> RawTable:
    """Single numbers beside the arrays are remarks, not columns."""
    return RawTable(str(path), {name: array for name, array in arrays.items() if array.ndim})


def _read_parquet(path: Path) -> RawTable:
    parquet = require("pyarrow.parquet", "to read Parquet files")
    with telling_damage(path, "not a Parquet file that can be read"), parquet.ParquetFile(path) as file:
        described = file.metadata
        groups = [described.row_group(number) for number in range(described.num_row_groups)]
        # Values that come again are stored once: rows count beside bytes.
        least = 8 * described.num_rows * described.num_columns
        check_decoded(path, max(sum(group.total_byte_size for group in groups), least), regular_size(path))
        table = file.read()
        if len(set(table.column_names)) < len(table.column_names):
            raise UserError(f"{path}: columns {', '.join(table.column_names)}: expected each name once")
        columns = {name: _from_arrow(table.column(name)) for name in table.column_names}
    return RawTable(str(path), columns, lambda number: f"row {number + 1}")


def _from_arrow(column: Any) -> NDArray[Any]:
    """Numbers as they are, NaN where one is missing; lists of one length as arrays; anything else as objects."""
    array: NDArray[Any] = column.to_numpy()
    if array.dtype != object:
        return tabular(array)
    values = column.to_pylist()
    if values and all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
        return np.array(values)
    array[:] = values
    return array


_READERS: dict[str, Callable[[Path], RawTable]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".txt": _read_lines,
    ".smi": _read_smiles,
    ".smiles": _read_smiles,
    ".fasta": _read_fasta,
    ".fa": _read_fasta,
    ".faa": _read_fasta,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
