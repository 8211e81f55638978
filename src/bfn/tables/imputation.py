"""Missing cells of a table: drawn given the other cells of their rows, or filled by what errs least."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.batched_sampling import sample_in_batches
from bfn.data.table_columns import TableColumn, TableColumns
from bfn.model import BFN
from bfn.sampling import sample
from bfn.tables.row_sampling import ROWS

__all__ = ["Gaps"]

EARLY = 0.1
"""When classes are asked for. At t = 0 a network has learned to see nothing in its input, and does not quite believe
what is known: with one cell in five gone it then has 62 % of Magic's classes right, at 0.1 83 % (Adult 74.4 and 74.6).
"""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gaps:
    """The rows of a table with missing cells, and what is known of each. rows: their numbers in the table."""

    model: BFN
    table: Any
    columns: TableColumns
    rows: NDArray[np.int64]
    known: dict[str, Tensor]
    known_mask: dict[str, Tensor]

    @classmethod
    def of(cls, model: BFN, table: Any) -> Gaps:
        """Those of a table with the columns of a model's."""
        columns = model.info.columns
        assert columns is not None
        parts, masks = columns.encode_known(table)
        rows = np.flatnonzero(table[list(columns.names)].isna().any(axis=1).to_numpy())
        index = torch.from_numpy(rows)
        known, known_mask = ({part: x[index] for part, x in some.items()} for some in (parts, masks))
        return cls(model, table, columns, rows, known, known_mask)

    def drawn(self, nfe: int, seed: int, **settings: Any) -> Any:
        """A table with the missing cells drawn; of a column that has a state for them, never that state."""
        if not len(self.rows):
            return self.table.copy()
        return self.filled(self.columns.decode(self._draw(nfe, seed, **settings)))

    def _draw(self, nfe: int, seed: int, **settings: Any) -> dict[str, Tensor]:
        drawn = sample_in_batches(
            self.model, len(self.rows), nfe=nfe, seed=seed, batch=ROWS, allowed=self._allowed() or None,
            known=self.known, known_mask=self.known_mask, **settings,
        )  # fmt: skip
        found: dict[str, Tensor] = drawn.x
        return found

    def expected(self, draws: int, nfe: int, seed: int, **settings: Any) -> Any:
        """A table with the missing cells by their mean, or the most probable level.

        What the network says of a class when it has seen the known cells alone is its probability given these: one
        call, at :data:`EARLY`, from the state that says nothing of the others. Of numbers the mean is taken over draws.
        """
        if not len(self.rows):
            return self.table.copy()
        cells = {}
        shares = self._probabilities()
        numbers = [self._draw(nfe, seed + draw, **settings) for draw in range(draws)] if self._lacks_numbers() else []
        tables = [self.columns.decode(x) for x in numbers]
        for column in self.columns.columns:
            if column.quantiles is not None and tables:
                raw = np.stack([column.cells.raw(table[column.name])[0] for table in tables])
                cells[column.name] = _as_cells(column, raw.astype(np.float64).mean(0))
            elif column.quantiles is None:
                cells[column.name] = _best(column, shares.get(column.name), len(self.rows))
        return self.filled(cells)

    def _lacks_numbers(self) -> bool:
        names = [column.name for column in self.columns.number_columns]
        return bool(self.table[names].isna().any(axis=None)) if names else False

    def _allowed(self) -> dict[str, Tensor]:
        """The states that cells may have by column: all but missing."""
        return {
            column.name: torch.arange(column.n_states).ne(column.missing_state)
            for column in self.columns.class_columns
            if column.missing_state is not None
        }

    def _probabilities(self) -> dict[str, Floats]:
        """Of the states of each class column, given what is known, (rows, states)."""
        found: dict[str, list[Floats]] = {}
        flow = self.model.flow
        nothing = torch.zeros(flow.state_shape(self.model.data_shape), dtype=self.model.dtype, device=self.model.device)
        for first in range(0, len(self.rows), ROWS):
            some = slice(first, first + ROWS)
            out = sample(
                self.model, len(self.rows[some]), grid=[EARLY], initial=nothing.expand(len(self.rows[some]), -1),
                generator=torch.Generator(self.model.device).manual_seed(0),
                known={part: x[some] for part, x in self.known.items()},
                known_mask={part: mask[some] for part, mask in self.known_mask.items()},
            )  # fmt: skip
            for part in flow.layout:
                if not part.flow.has_range:
                    found.setdefault(part.name, []).append(out.prediction[:, part.state].double().cpu().numpy())
        allowed = self._allowed()
        joined = {name: np.concatenate(pieces) for name, pieces in found.items()}
        return {name: p * allowed[name].numpy() if name in allowed else p for name, p in joined.items()}

    def filled(self, cells: Any) -> Any:
        """The table with cells, by column, where its own are missing; without gaps a column has its type again."""
        table = self.table.copy()
        for column, gaps in self._gaps():
            own, new = table[column.name], cells[column.name]
            values = own.astype(object).to_numpy(copy=True)
            values[self.rows[gaps]] = new.astype(object).to_numpy()[gaps]
            table[column.name] = type(own)(values, index=own.index, dtype=object).astype(new.dtype)
        return table

    def _gaps(self) -> Iterator[tuple[TableColumn, NDArray[np.bool_]]]:
        """Columns that lack cells, and in which of the rows."""
        for column in self.columns.columns:
            gaps = self.table[column.name].isna().to_numpy()[self.rows]
            if gaps.any():
                yield column, gaps


def _best(column: TableColumn, p: Floats | None, n: int) -> Any:
    """The mean of numbers and times, the most probable of other levels."""
    if p is None:
        return column.series(np.zeros(n, np.int64), None)
    p = p[:, : len(column.levels)]
    if column.cells.is_scale:
        return _as_cells(column, p @ np.array(column.levels, np.float64) / p.sum(1))
    return column.series(p.argmax(1), None)


def _as_cells(column: TableColumn, raw: Floats) -> Any:
    """Means as cells: whole numbers and times rounded, others as they are."""
    whole = column.cells.kind != "real"
    rounded = np.rint(raw).astype(np.int64) if whole else raw
    return column.cells.series(rounded, np.zeros(len(raw), bool), column.name)
