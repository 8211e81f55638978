"""Rows of a table as plain numbers: what the measures of tables are taken on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.data.table_cells import CellType
from bfn.data.table_inference import as_frame
from bfn.errors import UserError, did_you_mean

__all__ = ["Floats", "JudgedColumn", "TableFeatures"]

Floats = NDArray[np.float64]
MOST_TARGET_CLASSES = 10
"""Whole numbers of so many different values, to be predicted, are classes."""


@dataclass(frozen=True)
class JudgedColumn:
    """A column as the real table has it. cells: how its numbers are read; None for a category, which has levels."""

    name: str
    cells: CellType | None = None
    levels: tuple[str, ...] = ()

    @classmethod
    def of(cls, series: Any) -> JudgedColumn:
        """Numbers, times and durations are numbers; texts, categories and truth values are categories."""
        cells = CellType.of(series)
        if cells.kind in ("whole", "real"):
            return cls(series.name, replace(cells, kind="real"))  # a judge also takes rows that are not rounded
        if cells.kind in ("time", "duration"):
            return cls(series.name, cells)
        return cls(series.name, None, tuple(sorted(series.dropna().astype(str).unique())))

    @property
    def is_number(self) -> bool:
        """Whether it has an order and distances."""
        return self.cells is not None

    def values(self, series: Any) -> Floats:
        """Numbers, or the places of levels; NaN where a cell is missing. Levels that are not known share one place."""
        if self.cells is not None:
            raw, missing = self.cells.raw(series)
            found: Floats = np.where(missing, np.nan, raw.astype(np.float64))
            return found
        missing = series.isna().to_numpy(dtype=bool)
        places = {level: float(place) for place, level in enumerate(self.levels)}
        values = np.full(len(series), np.nan)
        values[~missing] = [places.get(str(value), len(self.levels)) for value in series[~missing].tolist()]
        return values


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """The columns of a real table, and its range: what makes other rows comparable with it.

    columns: those that are judged. low, high: the least and the largest number of each, over the real table.
    """

    columns: tuple[JudgedColumn, ...]
    low: Floats
    high: Floats

    @classmethod
    def of(cls, table: Any, leave_out: Collection[str] = ()) -> TableFeatures:
        """Of a real table; columns without a single value are left out, as are those that are named."""
        table = as_frame(table)
        names = [name for name in table.columns if name not in leave_out and bool(table[name].notna().any())]
        if len(table) < 2 or not names:
            raise UserError(
                f"a table of {len(table)} rows and {len(names)} columns: expected at least 2 rows, 1 column"
            )
        columns = tuple(JudgedColumn.of(table[name]) for name in names)
        matrix = cls(columns, np.empty(0), np.empty(0)).matrix(table)
        return cls(columns, np.nanmin(matrix, 0), np.nanmax(matrix, 0))

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [column.name for column in self.columns]

    @property
    def is_number(self) -> NDArray[np.bool_]:
        """Of each column, whether it is a number."""
        return np.array([column.is_number for column in self.columns])

    def place(self, name: str) -> int:
        """The place of a column among those judged."""
        if name not in self.names:
            raise UserError(f"column {name!r}: expected one of {', '.join(self.names)}{did_you_mean(name, self.names)}")
        return self.names.index(name)

    def matrix(self, table: Any) -> Floats:
        """(n, columns) numbers and places of levels, NaN for missing cells."""
        table = as_frame(table)
        absent = next((name for name in self.names if name not in table.columns), None)
        if absent is not None:
            raise UserError(f"column {absent!r}: the table to judge has {', '.join(table.columns)}; expected it too")
        if len(table) == 0:
            raise UserError("a table without rows: expected at least 1")
        return np.stack([column.values(table[column.name]) for column in self.columns], 1)

    def vectors(self, matrix: Floats) -> Tensor:
        """(n, d) for distances: numbers over the real range as [0, 1], each level and "missing" a place with 1."""
        found = []
        for j, column in enumerate(self.columns):
            values, missing = matrix[:, j], np.isnan(matrix[:, j])
            if column.is_number:
                reach = self.high[j] - self.low[j] or 1.0
                scaled = np.where(missing, 0.5, (values - self.low[j]) / reach)
                found.append(np.stack([scaled, missing.astype(np.float64)], 1))
            else:
                places = np.where(missing, len(column.levels), values).astype(np.int64)
                found.append(np.eye(len(column.levels) + 1)[np.minimum(places, len(column.levels))])
        return torch.from_numpy(np.concatenate(found, 1))

    def is_class(self, j: int, matrix: Floats) -> bool:
        """Whether column j of the real table is to be predicted as classes: a category, or a few whole numbers."""
        values = matrix[~np.isnan(matrix[:, j]), j]
        few = len(np.unique(values)) <= MOST_TARGET_CLASSES and bool((values == np.rint(values)).all())
        return not self.columns[j].is_number or few
