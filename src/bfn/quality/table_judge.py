"""The judge of a model of tables, and the real rows that it needs: those to learn from, and those held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn.data.own_paths import from_card
from bfn.data.sources import SOURCES
from bfn.data.table_columns import TableColumns
from bfn.data.table_inference import as_frame, read_table
from bfn.errors import UserError
from bfn.estimate import Estimate
from bfn.model import Model
from bfn.quality.judge import Judge, JudgePart, Measure
from bfn.quality.table_quality import LEAST_ROWS, TableQuality

__all__ = ["table_judge", "table_parts"]


@dataclass(frozen=True, eq=False)
class TableRows(JudgePart):
    """All measures of a table, of packed samples; real rows are given by their numbers among those held out."""

    model: Model
    quality: TableQuality

    @property
    def measures(self) -> tuple[Measure, ...]:
        return self.quality.measures

    @property
    def key(self) -> str:
        return self.quality.key

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]]:
        return "independent columns", self.quality.independent

    def problem(self, n: int) -> str | None:
        return None if n >= LEAST_ROWS else f"n={n}: a table is judged by at least {LEAST_ROWS} rows"

    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        columns = self.model.info.columns
        assert columns is not None
        return self.quality.figures(columns.decode(self.model.flow.unpack(x)))

    def figures_of_real(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return dict(self.quality.real)


def table_judge(model: Model, data: Any = None, train: Any = None, target: str | None = None) -> Judge:
    """The judge of a model of tables. data: held-out rows, train: training rows, as :func:`table_parts` takes them."""
    seen, held_out = table_parts(model, data, train)
    quality = TableQuality.of(seen, held_out, target)
    numbers = torch.arange(len(quality.held_out))
    return Judge("table", (TableRows(model, quality),), numbers, prepare=model.as_data)


def table_parts(model: Model, data: Any = None, train: Any = None) -> tuple[Any, Any]:
    """Training rows and held-out rows, with the columns of a model.

    data: held-out rows, train: training rows, a DataFrame or a file each; data alone may be the name of a standard
    table, which has both parts, and is the one that the model was trained on if None.
    """
    columns = model.info.columns
    if columns is None:
        raise UserError("a model of something else than a table: its samples are judged by other metrics")
    own = model.info.trained_on.get("name")
    source = data if data is not None or own is None else from_card(own)
    if train is None and isinstance(source, str | Path) and _is_table(str(source)):
        train, source = str(source), _Test(str(source))
    if train is None or source is None:
        lacking = "held-out rows: data=FILE" if source is None else "rows it was trained on: train=FILE"
        raise UserError(f"a table is judged beside training rows and rows that were held out: say the {lacking}")
    tables = [read_table(some.name, "test") if isinstance(some, _Test) else as_frame(some) for some in (train, source)]
    for table, what in zip(tables, ("training", "held-out"), strict=True):
        absent = next((name for name in columns.names if name not in table.columns), None)
        if absent is not None:
            raise UserError(f"{what} rows: column {absent!r} is missing: expected {', '.join(columns.names)}")
    first, second = (_as_texts(table[list(columns.names)], columns) for table in tables)
    return first, second


def _as_texts(table: Any, columns: TableColumns) -> Any:
    """With texts where the model has texts: a file of them that look like numbers is read as numbers."""
    texts = [column.name for column in columns.columns if column.cells.kind == "text"]
    numbers = [name for name in texts if table[name].dtype.kind in "iufb"]
    return table.assign(**{name: table[name].astype(object).map(str, na_action="ignore") for name in numbers})


@dataclass(frozen=True)
class _Test:
    """The test part of a standard table."""

    name: str


def _is_table(name: str) -> bool:
    return name in SOURCES and SOURCES[name].is_table
