"""Tables from files and DataFrames, and what their columns are.

Large files are read in pieces by a :class:`TableStream`; the columns are found from counts of the values.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from bfn._utils.arguments import require
from bfn._utils.files import open_file, telling_damage
from bfn.core.errors import UserError, did_you_mean
from bfn.data.records import read_parquet, repeated
from bfn.data.sources import SOURCES, fetch
from bfn.data.table_columns import CellType, Quantiles, Raw, TableColumn, TableColumns, pandas
from bfn.data.text import csv_separator, decode_utf8, file_kind

MOST_LEVELS = 150
"""Maximum number of different numbers that are classes, if each is in enough cells."""

PER_LEVEL = 10
"""Mean number of cells of each value from which on numbers are classes."""

MOST_TEXTS = 1000
"""Maximum number of different texts that are classes."""

SPIKE = 0.05
"""Share of the cells of a column from which on a single number is a class of its own."""

N_QUANTILES = 500
"""Maximum number of pairs of the scale of a column."""

MOST_DECIMALS = 12
"""Maximum number of decimals of rounded numbers."""

EXACT = 2**53
"""Integers up to here are exact in float64."""

KINDS = ("number", "class")
"""Kinds of columns that a user can ask for."""

PIECE = 65_536
"""Number of rows of a stream that are in memory at a time."""

LARGE = 1 << 28
"""Size of .parquet files from which on they are read in pieces, in bytes; four times as much for texts."""

MOST_COUNTED = 200_000
"""Maximum number of different numbers of a streamed column that are counted. Beyond it, neighbours are merged."""

Part = Literal["train", "test"]
"""A part of a standard table."""


# --- reading ----------------------------------------------------------------------------------------------------------


def read_table(path: Path | str, part: Part = "train") -> Any:
    """Read a table as a pandas DataFrame.

    Args:
        path: a ``.csv`` or ``.tsv`` file (also with ``.gz``) in UTF-8 with the names of the columns in its first line,
            a ``.parquet`` file, or the name of a standard table: "adult", "magic".
        part: part of a standard table.
    """
    if isinstance(path, str) and path in SOURCES and SOURCES[path].is_table:
        if part not in get_args(Part):
            raise UserError(f"part={part!r}: expected one of {', '.join(get_args(Part))}")
        path = fetch(path, progress=False, verify=False) / f"{part}.csv"
    path = Path(path).expanduser()
    if _table_kind(path) == ".parquet":
        return as_frame(read_parquet(path))
    with _open_csv(path, low_memory=False) as table:
        return table


def as_frame(table: Any) -> Any:
    """Return a DataFrame, a pyarrow Table or a file as a DataFrame. Column names must be different strings."""
    if isinstance(table, str | Path):
        return read_table(table)
    pd = pandas()
    if not isinstance(table, pd.DataFrame):
        if type(table).__module__.partition(".")[0] != "pyarrow":
            raise UserError(f"a table of type {type(table).__name__}: expected a pandas DataFrame or a path")
        table = table.to_pandas()
    names = list(table.columns)
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise UserError(f"column name {wrong!r}: expected texts; rename them, df.columns = map(str, df.columns)")
    twice = repeated(names)
    if twice is not None:
        raise UserError(f"column {twice!r} comes {names.count(twice)} times: rename or drop all but one")
    return table


def open_table(table: Any) -> Any:
    """Return a :class:`TableStream` for a large file, and a DataFrame for all other tables."""
    if isinstance(table, str | Path):
        path = Path(table).expanduser()
        if path.is_file() and path.stat().st_size > (LARGE if path.suffix == ".parquet" else 4 * LARGE):
            return TableStream.open(path)
    return table if isinstance(table, TableStream) else as_frame(table)


def _table_kind(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    kind = file_kind(path)
    if kind not in (".csv", ".tsv", ".parquet"):
        raise UserError(f"{path}: tables are read from files ending with .csv, .tsv or .parquet")
    return kind


@contextmanager
def _open_csv(path: Path, **options: Any) -> Iterator[Any]:
    """Yield what ``pandas.read_csv`` returns. Its errors become one line that names the file."""
    with open_file(path) as file:
        line = next((line for line in iter(file.readline, b"") if line.strip()), b"")
    header = decode_utf8(path, line).removeprefix("\ufeff")
    if not header:
        raise UserError(f"{path}: an empty file: expected names of columns in the first line")
    separator = csv_separator(path, header)
    names = next(csv.reader([header], delimiter=separator))
    twice = repeated(names)
    if twice is not None:
        raise UserError(f"{path}: column {twice!r} comes {names.count(twice)} times: rename all but one")
    pd = pandas()
    try:
        yield pd.read_csv(path, sep=separator, index_col=False, **options)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {error.reason} at byte {error.start}: save the file as UTF-8") from None
    except (pd.errors.ParserError, OSError, ValueError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class TableStream:
    """A .csv, .tsv or .parquet file that is read in pieces.

    Args:
        path: the file.
        dtypes: types of the columns, as the whole table would have them.
        n: number of rows.
    """

    path: Path
    dtypes: Mapping[str, Any]
    n: int

    @classmethod
    def open(cls, path: Path | str) -> TableStream:
        """Read a file once to find the types of its columns and the number of rows."""
        path = Path(path).expanduser()
        found = [(len(piece), piece.head(0)) for piece in _pieces(path, {})]
        if not found:
            raise UserError(f"{path}: a table of 0 rows: expected at least 2")
        lengths, heads = zip(*found, strict=True)
        return cls(path, dict(pandas().concat(heads).dtypes), sum(lengths))

    def __len__(self) -> int:
        return self.n

    def pieces(self) -> Iterator[Any]:
        """Yield DataFrames with the types of the whole table and consecutive row numbers."""
        first = 0
        for piece in _pieces(self.path, self.dtypes):
            typed = piece.astype(dict(self.dtypes))
            typed.index = pandas().RangeIndex(first, first + len(typed))
            first += len(typed)
            yield typed

    def encoded(self, columns: TableColumns, pack: Callable[[Mapping[str, Tensor]], Tensor], file: Path) -> Tensor:
        """Return the rows as the network sees them, (n, ...) float32, in a file that is mapped into memory."""
        generator = torch.Generator().manual_seed(0)
        mapped = np.memmap(file, np.float32, "w+", shape=(self.n, *pack(columns.example()).shape[1:]))
        for piece in self.pieces():
            mapped[piece.index[0] : piece.index[-1] + 1] = pack(columns.encode(piece, generator)).float().numpy()
        mapped.flush()
        return torch.from_numpy(mapped)


def _pieces(path: Path, dtypes: Mapping[str, Any]) -> Iterator[Any]:
    """Yield DataFrames of some rows, whose types may differ. Texts are read as texts if the types say it."""
    if _table_kind(path) == ".parquet":
        parquet = require("pyarrow.parquet", "to read Parquet files")
        with telling_damage(path, "not a Parquet file that can be read"), parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):  # reading all groups at once would fill the memory
                for batch in file.iter_batches(PIECE, row_groups=[group], use_threads=False):
                    yield batch.to_pandas()
        return
    texts = {name: str for name, dtype in dtypes.items() if pandas().api.types.is_object_dtype(dtype)}
    with _open_csv(path, chunksize=PIECE, dtype=texts) as pieces:
        yield from pieces


# --- finding the columns ----------------------------------------------------------------------------------------------


class UnlearnableColumnsError(UserError):
    """Some columns cannot be learned: they are empty, or they are identifiers or free text.

    Attributes:
        reasons: reason for each of these columns, by name.
        others: the other columns, None if there are none.
    """

    def __init__(self, reasons: Mapping[str, str], others: TableColumns | None) -> None:
        self.reasons, self.others = dict(reasons), others
        several = "; ".join(f"column {name!r}: {reason}" for name, reason in self.reasons.items())
        super().__init__(
            f"{several}: leave out what is not to be learned, drop={list(reasons)}, or keep what is, "
            f"kinds={{{next(iter(reasons))!r}: 'class'}} (or 'number')"
        )


def infer_columns(
    table: Any, kinds: Mapping[str, str] | None = None, drop: Collection[str] = (), *, most_levels: int = MOST_LEVELS
) -> TableColumns:
    """Find out what the columns of a table are.

    Texts, categories and truth values are classes. So are numbers and times with few different values (at most
    ``most_levels``, each in ten cells on average). Others are numbers, with a class for each value that is in more than
    one cell of twenty. Missing cells are a state of their own.

    Args:
        table: a pandas DataFrame, a pyarrow Table, a file or a :class:`TableStream`.
        kinds: "number" or "class" by the name of a column, if the guess is wrong.
        drop: columns to leave out.
        most_levels: maximum number of different numbers that are classes.

    Raises:
        UnlearnableColumnsError: columns that are not in ``drop`` are empty, identifiers or free text.
    """
    check_kinds_and_drop(kinds, drop)
    table, kinds = table if isinstance(table, TableStream) else as_frame(table), kinds or {}
    names = list(table.dtypes.keys())
    _check_named((*kinds, *drop), names)
    counts = _count(table, [name for name in names if name not in {*drop}])
    if len(table) < 2 or not counts:
        found = f"a table of {len(table)} rows and {len(counts)} columns"
        raise UserError(f"{found}: expected at least 2 rows and 1 column")
    inferred = {name: _infer(name, counted, kinds.get(name), most_levels) for name, counted in counts.items()}
    reasons = {name: found for name, found in inferred.items() if isinstance(found, str)}
    columns = tuple(found for found in inferred.values() if isinstance(found, TableColumn))
    if reasons:
        raise UnlearnableColumnsError(reasons, TableColumns(columns) if columns else None)
    return TableColumns(columns)


def _check_named(wanted: Sequence[str], names: Sequence[str]) -> None:
    unknown = next((name for name in wanted if name not in names), None)
    if unknown is not None:
        raise UserError(f"column {unknown!r}: expected one of {', '.join(names)}{did_you_mean(unknown, names)}")


def _count(table: Any, names: Sequence[str]) -> dict[str, _Counts]:
    """Return the counts of some columns of a DataFrame or a TableStream."""
    pieces, most = (table.pieces(), MOST_COUNTED) if isinstance(table, TableStream) else ([table], None)
    counts = {name: _Counts(most) for name in names}
    for piece in pieces:
        for name, counted in counts.items():
            counted.add(piece[name])
    return counts


def check_kinds_and_drop(kinds: Mapping[str, str] | None, drop: Collection[str]) -> None:
    """Raise a UserError unless these are kinds by the names of columns, and names of columns to leave out."""
    if not isinstance(kinds, Mapping | None):
        raise UserError(f"kinds of type {type(kinds).__name__}: expected kinds by column, such as {{'age': 'number'}}")
    for name, kind in (kinds or {}).items():
        if kind not in KINDS:
            raise UserError(f"kinds[{name!r}]={kind!r}: expected one of {', '.join(KINDS)}")
    if isinstance(drop, str) or not isinstance(drop, Collection) or not all(isinstance(name, str) for name in drop):
        raise UserError(f"drop of type {type(drop).__name__}: expected names of columns, such as ['id']")


@dataclass
class _Counts:
    """Different values of a column, increasing, and how many cells have each.

    Args:
        most: maximum number of different values that are kept; None for all.
    """

    most: int | None
    cells: CellType | None = None
    levels: Raw = field(default_factory=lambda: np.zeros(0))
    counts: Raw = field(default_factory=lambda: np.zeros(0, np.int64))
    missing: int = 0
    n_merges: int = 0

    def add(self, series: Any) -> None:
        """Count the cells of another piece of the column."""
        n_missing = int(series.isna().sum())
        self.missing += n_missing
        if n_missing == len(series):
            return
        cells = CellType.of(series)
        if self.cells is not None and cells != self.cells:
            cells = self._common_type(self.cells, cells, series.name)
        self.cells = cells
        raw, missing = cells.raw(series)
        levels, counts = np.unique(raw[~missing], return_counts=True)
        if len(self.levels):
            levels, place = np.unique(np.concatenate([self.levels, levels]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([self.counts, counts]), len(levels)).astype(np.int64)
        if self.most is not None and cells.kind == "text":
            levels, counts = levels[: 100 * MOST_TEXTS], counts[: 100 * MOST_TEXTS]  # enough to be refused
        elif self.most is not None and len(levels) > self.most:
            self.n_merges += 1
            levels, counts = _merge_neighbours(levels, counts, self.n_merges % 2)
        self.levels, self.counts = levels, counts

    def _common_type(self, own: CellType, other: CellType, name: str) -> CellType:
        """Return the type of texts that are times in some pieces only: texts. Earlier times are formatted again."""
        if {own.kind, other.kind} != {"text", "time"}:
            raise UserError(f"column {name!r}: {own.kind} in some rows, {other.kind} in others: expected one of them")
        if own.format:
            texts = own.series(self.levels, np.zeros(len(self.levels), bool), name).to_numpy(object)
            order = np.argsort(texts)
            self.levels, self.counts = texts[order], self.counts[order]
        return own if own.kind == "text" else other


def _merge_neighbours(levels: Raw, counts: Raw, upper: int) -> tuple[Raw, Raw]:
    """Merge pairs of neighbours to the lower or the upper one. The two ends stay."""
    end = 1 + (len(levels) - 2) // 2 * 2
    chosen, sums = levels[1:end].reshape(-1, 2)[:, upper], counts[1:end].reshape(-1, 2).sum(1)
    merged = ((levels, chosen), (counts, sums))
    levels, counts = (np.concatenate([old[:1], middle, old[end:]]) for old, middle in merged)
    return levels, counts


def _infer(name: str, counted: _Counts, kind: str | None, most_levels: int) -> TableColumn | str:
    """Return the column, or the reason why it cannot be learned."""
    cells, levels, counts = counted.cells, counted.levels, counted.counts
    if cells is None:
        return f"all {counted.missing} cells are missing"
    n, has_missing = int(counts.sum()), counted.missing > 0
    spikes = None
    if cells.is_scale:
        if kind is None and cells.kind == "whole" and _counts_rows(levels, n + counted.missing):
            return f"the whole numbers from {levels[0]} to {levels[-1]}, each once, as identifiers have"
        spikes = _spikes(levels, counts, kind, most_levels)
    elif kind == "number":
        raise UserError(f"kinds[{name!r}]='number': its cells are of type {cells.dtype}; expected numbers or times")
    elif kind is None and cells.kind == "text" and len(levels) > min(MOST_TEXTS, max(20, n / 2)):
        return f"{len(levels)} different texts in {n} cells, as identifiers and free text have"
    if spikes is None:
        return TableColumn(name, cells, tuple(levels.tolist()), has_missing)
    rest = ~np.isin(levels, spikes)
    quantiles = _quantiles(cells, levels[rest], counts[rest], name)
    return TableColumn(name, cells, tuple(spikes.tolist()), has_missing, quantiles)


def _counts_rows(levels: Raw, n: int) -> bool:
    """Return True if n cells have consecutive integers, each once."""
    return len(levels) == n >= 20 and int(levels[-1]) - int(levels[0]) == n - 1


def _spikes(levels: Raw, counts: Raw, kind: str | None, most_levels: int) -> Raw | None:
    """Return the values that are classes beside numbers; None if all values are classes."""
    n = int(counts.sum())
    if kind == "class" or len(levels) < 2:
        return None
    if kind == "number":
        return levels[:0]
    if len(levels) <= max(2, min(most_levels, n // PER_LEVEL)):
        return None
    frequent: Raw = levels[counts >= max(PER_LEVEL, SPIKE * n)]
    return frequent if len(levels) - len(frequent) >= 2 else None


def _quantiles(cells: CellType, values: Raw, counts: Raw, name: str) -> Quantiles:
    """Return the scale that maps each value to the middle of its share of the normal distribution.

    If there are many values, it has pairs of some of them only.
    """
    decimals = _decimals(values, cells.dtype) if cells.kind == "real" else 0
    coordinate, offset, step = values, 0, 1
    if decimals is not None:
        whole = np.rint(values * 10.0**decimals).astype(np.int64) if cells.kind == "real" else values
        offset, reach = int(whole[0]), int(whole[-1]) - int(whole[0])
        step = int(np.gcd.reduce(whole - offset)) if reach < 2**63 else 1
        if reach // step > EXACT:
            found = f"whole numbers from {whole[0]} to {whole[-1]}, too far apart to be kept exactly"
            raise UserError(f"column {name!r}: {found}: convert them, .astype(float)")
        coordinate = (whole - offset) // step
    share = (np.cumsum(counts) - counts / 2) / counts.sum()
    keep = _some_places(share)
    normal = torch.special.ndtri(torch.from_numpy(share[keep])).tolist()
    return Quantiles(tuple(coordinate[keep].astype(np.float64).tolist()), tuple(normal), decimals, offset, step)


def _some_places(share: Raw) -> Sequence[int]:
    """Return up to N_QUANTILES positions in increasing shares: half evenly, half by normal numbers, for the tails."""
    if len(share) <= N_QUANTILES:
        return range(len(share))
    low, high = torch.special.ndtri(torch.tensor(share[[0, -1]])).tolist()
    normal = torch.linspace(low, high, N_QUANTILES // 2, dtype=torch.float64)
    wanted = [np.linspace(share[0], share[-1], N_QUANTILES // 2), torch.special.ndtr(normal).numpy()]
    last = len(share) - 1
    found = np.unique([0, *np.searchsorted(share, np.concatenate(wanted)).clip(max=last), last])
    return [int(place) for place in found]


def _decimals(values: Raw, dtype: str) -> int | None:
    """Return the least number of decimals to which all values are rounded, or None."""
    single = "32" in dtype or dtype.lower().startswith("float[")
    for decimals in range(MOST_DECIMALS + 1):
        scaled = values * 10.0**decimals
        if np.abs(scaled).max() >= EXACT:
            return None
        rounded = np.rint(scaled) / 10.0**decimals
        same = rounded.astype(np.float32) == values.astype(np.float32) if single else rounded == values
        if same.all():
            return decimals
    return None
