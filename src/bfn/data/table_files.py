"""What the columns of a table are, found from its cells; and tables from files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from bfn._utils.arguments import require
from bfn.core.errors import UserError, did_you_mean
from bfn.data.sources import SOURCES, fetch
from bfn.data.table_columns import CellType, Quantiles, Raw, TableColumn, TableColumns, pandas

MOST_LEVELS = 150
"""Numbers with so many different values are classes, where each is there often enough."""
PER_LEVEL = 10
"""Cells a value, on average, from which on a number's values are classes."""
MOST_TEXTS = 1000
"""Different texts that are classes."""
SPIKE = 0.05
"""The share of a column's cells from which on a single number is a class of its own."""
N_QUANTILES = 500
MOST_DECIMALS = 12
EXACT = 2**53
"""Whole numbers up to here are exact in float64."""
KINDS = ("number", "class")
Part = Literal["train", "test"]
"""The parts of a standard table."""


class UnlearnableColumnsError(UserError):
    """Columns that there is nothing to learn of, identifiers and free text, or that are empty; reasons by name.

    others: the columns that there are beside these, if any.
    """

    def __init__(self, reasons: Mapping[str, str], others: TableColumns | None) -> None:
        self.reasons, self.others = dict(reasons), others
        several = [f"column {name!r}: {reason}" for name, reason in self.reasons.items()]
        super().__init__(
            f"{'; '.join(several)}: leave out what is not to be learned, drop={list(reasons)}, or keep what is, "
            f"kinds={{{next(iter(reasons))!r}: 'class'}} (or 'number')"
        )


def infer_columns(
    table: Any, kinds: Mapping[str, str] | None = None, drop: Collection[str] = (), *, most_levels: int = MOST_LEVELS
) -> TableColumns:
    """The columns of a pandas DataFrame or a pyarrow Table.

    Texts, categories and truth values are classes. So are numbers and times of few different values (at most
    ``most_levels``, each in ten cells on average); others are numbers, with a class for each value that more than one
    in twenty cells has. Missing cells are a state of their own. Identifiers, free text and empty columns are refused,
    all in one :class:`UnlearnableColumnsError`: name them in ``drop``.

    kinds: "number" or "class" by the name of a column, where the guess is wrong. drop: columns to leave out.
    """
    table = as_frame(table)
    check_columns_named(list(table.columns), kinds, drop)
    counts = {name: _counted(table[name]) for name in table.columns if name not in {*drop}}
    return columns_of(counts, kinds, len(table), most_levels)


@dataclass(frozen=True, eq=False)
class ColumnCounts:
    """The different values of a column, increasing, how many cells have each, and how many are missing."""

    cells: CellType
    levels: Raw
    counts: Raw
    missing: int


def _counted(series: Any) -> ColumnCounts:
    cells = CellType.of(series)
    raw, absent = cells.raw(series)
    levels, counts = np.unique(raw[~absent], return_counts=True)
    return ColumnCounts(cells, levels, counts, int(absent.sum()))


def check_kinds_and_drop(kinds: Mapping[str, str] | None, drop: Collection[str]) -> None:
    """Raise a UserError unless these are kinds by the names of columns, and names of columns to leave out."""
    if kinds is not None and not isinstance(kinds, Mapping):
        raise UserError(f"kinds of type {type(kinds).__name__}: expected kinds by column, such as {{'age': 'number'}}")
    wrong = next((name for name, kind in (kinds or {}).items() if kind not in KINDS), None)
    if kinds is not None and wrong is not None:
        raise UserError(f"kinds[{wrong!r}]={kinds[wrong]!r}: expected one of {', '.join(KINDS)}")
    if isinstance(drop, str) or not isinstance(drop, Collection) or not all(isinstance(name, str) for name in drop):
        raise UserError(f"drop of type {type(drop).__name__}: expected names of columns, such as ['id']")


def check_columns_named(names: Sequence[str], kinds: Mapping[str, str] | None, drop: Collection[str]) -> None:
    """Raise a UserError unless the columns that are named have these names."""
    check_kinds_and_drop(kinds, drop)
    for name in (*(kinds or {}), *drop):
        if name not in names:
            raise UserError(f"column {name!r}: expected one of {', '.join(names)}{did_you_mean(name, names)}")


def columns_of(
    counts: Mapping[str, ColumnCounts], kinds: Mapping[str, str] | None, n: int, most_levels: int = MOST_LEVELS
) -> TableColumns:
    """The columns of a table of n rows, of which the cells have been counted."""
    kinds = kinds or {}
    if n < 2 or not counts:
        raise UserError(f"a table of {n} rows and {len(counts)} columns: expected at least 2 rows and 1 column")
    found = {name: _infer(name, own, kinds.get(name), most_levels) for name, own in counts.items()}
    reasons = {name: one for name, one in found.items() if isinstance(one, str)}
    learnable = tuple(one for one in found.values() if isinstance(one, TableColumn))
    if reasons:
        raise UnlearnableColumnsError(reasons, TableColumns(learnable) if learnable else None)
    return TableColumns(learnable)


def as_frame(table: Any) -> Any:
    """A pandas DataFrame of a DataFrame, a pyarrow Table or a path, with names that are texts, each once."""
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
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"column {twice!r} is there {names.count(twice)} times: rename or drop all but one")
    return table


def table_kind(path: Path) -> str:
    """What a file is by its name: .csv, .tsv or .parquet."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    kind = Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()
    if kind not in (".csv", ".tsv", ".parquet"):
        raise UserError(f"{path}: tables are read from files ending with .csv, .tsv or .parquet")
    return kind


def read_table(path: Path | str, part: Part = "train", n_rows: int | None = None) -> Any:
    """A pandas DataFrame of a ``.csv``, ``.tsv`` (also with ``.gz``) or ``.parquet`` file; UTF-8, names in line 1.

    Or, by its name, a part of a standard table: "adult", "magic". n_rows: so many of a text file's, all if None.
    """
    if isinstance(path, str) and path in SOURCES and SOURCES[path].is_table:
        if part not in get_args(Part):
            raise UserError(f"part={part!r}: expected one of {', '.join(get_args(Part))}")
        path = fetch(path, progress=False, verify=False) / f"{part}.csv"
    pd, path = pandas(), Path(path).expanduser()
    kind = table_kind(path)
    try:
        if kind == ".parquet":
            return as_frame(pd.read_parquet(path))
        separator = "\t" if kind == ".tsv" else ","
        header = list(pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0])
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"column {twice!r} is there {header.count(twice)} times: rename all but one")
        table = pd.read_csv(path, sep=separator, low_memory=False, index_col=False, nrows=n_rows)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except pd.errors.EmptyDataError:
        raise UserError(f"{path}: an empty file: expected names of columns in the first line") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {error.reason} at byte {error.start}: save the file as UTF-8") from None
    except (pd.errors.ParserError, OSError, ValueError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    return table


def _infer(name: str, counted: ColumnCounts, kind: str | None, most_levels: int) -> TableColumn | str:
    """The column, or why it is none to learn."""
    cells, levels, counts = counted.cells, counted.levels, counted.counts
    there, missing = int(counts.sum()), counted.missing > 0
    if not len(levels):
        return f"all {counted.missing} cells are missing"
    if cells.kind in ("text", "category", "truth"):
        if kind == "number":
            raise UserError(f"kinds[{name!r}]='number': its cells are of type {cells.dtype}; expected numbers or times")
        n_most = min(MOST_TEXTS, max(20, there / 2))
        if kind is None and cells.kind == "text" and len(levels) > n_most:
            return f"{len(levels)} different texts in {there} cells, as identifiers and free text have"
    elif kind != "class" and len(levels) > 1:
        if kind is None and _counts_rows(cells, levels, there + counted.missing):
            return f"the whole numbers from {levels[0]} to {levels[-1]}, each once, as identifiers have"
        spikes = _spikes(levels, counts, kind, most_levels)
        if spikes is not None:
            rest = ~np.isin(levels, spikes)
            quantiles = _quantiles(cells, levels[rest], counts[rest], name)
            return TableColumn(name, cells, tuple(spikes.tolist()), missing, quantiles)
    return TableColumn(name, cells, tuple(levels.tolist()), missing)


def _spikes(levels: Raw, counts: Any, kind: str | None, most_levels: int) -> Raw | None:
    """Values that are classes beside the numbers; None where all are."""
    n = int(counts.sum())
    if kind == "number":
        return levels[:0]
    if len(levels) <= max(2, min(most_levels, n // PER_LEVEL)):
        return None
    often: Raw = levels[counts >= max(PER_LEVEL, SPIKE * n)]
    return often if len(levels) - len(often) >= 2 else None


def _counts_rows(cells: CellType, levels: Raw, n: int) -> bool:
    """Whether a column numbers the rows."""
    return cells.kind == "whole" and len(levels) == n >= 20 and int(levels[-1]) - int(levels[0]) == n - 1


def _quantiles(cells: CellType, values: Raw, counts: Any, name: str) -> Quantiles:
    """Each value in the middle of its share of the normal distribution; of many values, some."""
    decimals = _decimals(values, cells.dtype) if cells.kind == "real" else 0
    offset, step, coordinate = 0, 1, values
    if decimals is not None:
        whole = np.rint(values * 10.0**decimals).astype(np.int64) if decimals or cells.kind == "real" else values
        offset, reach = int(whole[0]), int(whole[-1]) - int(whole[0])
        step = int(np.gcd.reduce(whole - offset)) if reach < 2**63 else 1
        if reach // step > EXACT:
            raise UserError(
                f"column {name!r}: whole numbers from {whole[0]} to {whole[-1]}, too far apart to be kept exactly: "
                "convert them, .astype(float)"
            )
        coordinate = (whole - offset) // step
    share = (np.cumsum(counts) - counts / 2) / counts.sum()
    keep = np.arange(len(values))
    if len(keep) > N_QUANTILES:
        # Half of them at even shares, half at even places on the normal scale, for the tails.
        low, high = torch.special.ndtri(torch.tensor(share[[0, -1]])).tolist()
        even = torch.linspace(low, high, N_QUANTILES // 2, dtype=torch.float64)
        wanted = [np.linspace(share[0], share[-1], N_QUANTILES // 2), torch.special.ndtr(even).numpy()]
        keep = np.unique([0, *np.searchsorted(share, np.concatenate(wanted)).clip(max=keep[-1]), keep[-1]])
    pairs = coordinate[keep].astype(np.float64), torch.special.ndtri(torch.from_numpy(share[keep])).numpy()
    return Quantiles(tuple(pairs[0].tolist()), tuple(pairs[1].tolist()), decimals, offset, step)


def _decimals(values: Raw, dtype: str) -> int | None:
    """The least number of decimals that all values are rounded to, if any."""
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


PIECE = 65_536
"""Rows that are in memory at a time."""
LARGE = 1 << 28
"""Bytes of a .parquet file from which on it is read in pieces; of texts four times as many."""
MOST_COUNTED = 200_000
"""Different numbers of a column that are counted; of more, neighbours are counted together."""


def open_table(table: Any) -> Any:
    """A DataFrame of what is given, or a :class:`TableStream` of a large file."""
    if isinstance(table, str | Path):
        path = Path(table).expanduser()
        if path.is_file() and path.stat().st_size > (LARGE if path.suffix == ".parquet" else 4 * LARGE):
            return TableStream.open(path)
    return table if isinstance(table, TableStream) else as_frame(table)


def columns_in(table: Any, kinds: Mapping[str, str] | None = None, drop: Collection[str] = ()) -> TableColumns:
    """What the columns of a DataFrame or a TableStream are."""
    return table.columns(kinds, drop) if isinstance(table, TableStream) else infer_columns(table, kinds, drop)


@dataclass(frozen=True)
class TableStream:
    """A .csv, .tsv or .parquet file, a piece at a time; dtypes: of its columns, as the whole would have them."""

    path: Path
    dtypes: Mapping[str, Any]
    n: int

    @classmethod
    def open(cls, path: Path | str) -> TableStream:
        """The first pass."""
        pd, path = pandas(), Path(path).expanduser()
        heads: list[Any] = []
        n = 0
        for piece in _pieces(path, None):
            n += len(piece)
            empty = piece.head(0)
            if not heads or not heads[-1].dtypes.equals(empty.dtypes):
                heads = [pd.concat([*heads, empty])]
        if not heads:
            raise UserError(f"{path}: a table of 0 rows: expected at least 2")
        return cls(path, dict(heads[0].dtypes), n)

    def __len__(self) -> int:
        return self.n

    def pieces(self) -> Iterator[Any]:
        """DataFrames with the types of the whole, rows numbered on."""
        first = 0
        for piece in _pieces(self.path, self.dtypes):
            piece.index = pandas().RangeIndex(first, first + len(piece))
            first += len(piece)
            yield piece

    def columns(
        self, kinds: Mapping[str, str] | None = None, drop: Collection[str] = (), most_levels: int = MOST_LEVELS
    ) -> TableColumns:
        """What its columns are, as :func:`bfn.data.infer_columns` finds it of the whole."""
        check_columns_named(list(self.dtypes), kinds, drop)
        counted = {name: _Counts() for name in self.dtypes if name not in {*drop}}
        for piece in self.pieces():
            for name, counts in counted.items():
                counts.add(piece[name])
        return columns_of({name: own.result() for name, own in counted.items()}, kinds, self.n, most_levels)

    def encoded(self, columns: TableColumns, pack: Callable[[Mapping[str, Tensor]], Tensor], file: Path) -> Tensor:
        """Its rows as the network sees them, (n, ...) float32, in a file that is mapped into memory."""
        generator, first = torch.Generator().manual_seed(0), 0
        mapped: Any = None
        for piece in self.pieces():
            rows = pack(columns.encode(piece, generator)).float().numpy()
            if mapped is None:
                mapped = np.memmap(file, np.float32, "w+", shape=(self.n, *rows.shape[1:]))
            mapped[first : first + len(rows)] = rows
            first += len(rows)
        mapped.flush()
        return torch.from_numpy(mapped)


def _pieces(path: Path, dtypes: Mapping[str, Any] | None) -> Iterator[Any]:
    pd = pandas()
    if table_kind(path) == ".parquet":
        parquet = require("pyarrow.parquet", "to read Parquet files")
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):  # all at once would be read ahead
                for batch in file.iter_batches(PIECE, row_groups=[group], use_threads=False):
                    piece = batch.to_pandas()
                    yield piece if dtypes is None else piece.astype(dict(dtypes))
        return
    read_table(path, n_rows=1)  # the header's errors, each in its line
    separator = "\t" if table_kind(path) == ".tsv" else ","
    texts = {name: str for name, dtype in (dtypes or {}).items() if pd.api.types.is_object_dtype(dtype)}
    try:
        for piece in pd.read_csv(path, sep=separator, index_col=False, chunksize=PIECE, dtype=texts):
            yield piece if dtypes is None else piece.astype(dict(dtypes))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {error.reason} at byte {error.start}: save the file as UTF-8") from None
    except (pd.errors.ParserError, OSError, ValueError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


@dataclass
class _Counts:
    """Values of one column so far, increasing, and how many cells have each."""

    cells: CellType | None = None
    levels: Raw = field(default_factory=lambda: np.zeros(0))
    counts: Raw = field(default_factory=lambda: np.zeros(0, np.int64))
    missing: int = 0
    thinned: int = 0

    def add(self, series: Any) -> None:
        """Count the cells of a further piece."""
        there = series[series.notna()]
        self.missing += len(series) - len(there)
        if not len(there):
            return
        cells = CellType.of(there)
        if self.cells is not None and cells != self.cells:
            cells = self._agreed(cells, series.name)
        self.cells = cells
        levels, counts = np.unique(cells.raw(there)[0], return_counts=True)
        if len(self.levels):
            levels, place = np.unique(np.concatenate([self.levels, levels]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([self.counts, counts]), len(levels)).astype(np.int64)
        if cells.kind == "text" and len(levels) > 100 * MOST_TEXTS:
            levels, counts = levels[: 100 * MOST_TEXTS], counts[: 100 * MOST_TEXTS]  # enough to be refused
        if len(levels) > MOST_COUNTED and cells.kind != "text":
            self.thinned += 1
            levels, counts = _thinned(levels, counts, self.thinned % 2)
        self.levels, self.counts = levels, counts

    def _agreed(self, cells: CellType, name: str) -> CellType:
        """Of texts of which only some pieces are times: texts; their values so far are written out again."""
        own = self.cells
        assert own is not None
        if {own.kind, cells.kind} == {"text", "time"}:
            if own.format:
                written = own.series(self.levels, np.zeros(len(self.levels), bool), name).to_numpy(object)
                order = np.argsort(written)
                self.levels, self.counts = written[order], self.counts[order]
            return own if own.kind == "text" else cells
        raise UserError(f"column {name!r}: {own.kind} in some rows, {cells.kind} in others: expected one of them")

    def result(self) -> ColumnCounts:
        """What has been counted."""
        cells = self.cells or CellType("text", "object")
        return ColumnCounts(cells, self.levels, self.counts, self.missing)


def _thinned(levels: Raw, counts: Raw, upper: int) -> tuple[Raw, Raw]:
    """Of every two neighbours the lower or the upper with the cells of both; the two ends stay."""
    end = 1 + (len(levels) - 2) // 2 * 2
    pairs, cells = levels[1:end].reshape(-1, 2), counts[1:end].reshape(-1, 2)
    return (
        np.concatenate([levels[:1], pairs[:, upper], levels[end:]]),
        np.concatenate([counts[:1], cells.sum(1), counts[end:]]),
    )
