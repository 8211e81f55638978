"""Tables larger than memory: read a piece at a time, what columns are from all pieces, encoded rows on disk.

Three passes over the file. The first finds the types of the columns, which a piece alone may not tell: whole numbers of
which one is missing further down are floats. The second counts values. The third writes rows as the network sees them
into a memory-mapped file, of which training reads the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.data.optional_packages import require
from bfn.data.table_cells import CellType, Raw, pandas
from bfn.data.table_columns import TableColumns
from bfn.data.table_inference import (
    MOST_LEVELS,
    MOST_TEXTS,
    ColumnCounts,
    as_frame,
    check_columns_named,
    columns_of,
    infer_columns,
    read_table,
    table_kind,
)
from bfn.errors import UserError

__all__ = ["TableStream", "columns_in", "open_table"]

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
