"""Rows like those of a table, in the manner of scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.arguments import check_whole
from bfn.batched_sampling import sample_in_batches
from bfn.data.table_cells import pandas
from bfn.data.table_columns import TableColumns
from bfn.data.table_inference import as_frame, infer_columns
from bfn.errors import UserError
from bfn.model import BFN, load
from bfn.tables.training import table_model, train

__all__ = ["TableSynthesizer"]

CALLS = 20
"""Network calls of a sample."""
ROWS = 4096
"""Rows that are drawn at a time."""
EPOCHS, LEAST_STEPS, MOST_STEPS = 200, 1500, 20_000
FEW_ROWS = 10_000
"""With fewer, features are dropped out in training."""


class TableSynthesizer:
    """Learns a table, and makes rows like its own.

        synthesizer = bfn.TableSynthesizer(seed=0).fit(table)           # a pandas DataFrame, or "people.csv"
        synthesizer.sample(1000, given={"country": "FR"})               # a DataFrame with the table's types
        synthesizer.impute(table)                                       # missing cells drawn given the others
        synthesizer.save("people");  bfn.load("people").sample(16)      # it is a model as any other

    Args:
        seed: of the weights, the held-out rows and all noise of training.
        kinds, drop: what columns are, and which to leave out: see :func:`bfn.data.infer_columns`.
        width, n_blocks: of the perceptron.
        dropout: share of features left out in training; None for what the number of rows asks for.
        steps, batch: the most steps of training, and rows in each; None for what the number of rows asks for.
        lr: the highest learning rate.
        progress: whether to show it, with the time left; None for where there is a terminal.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        kinds: Mapping[str, str] | None = None,
        drop: Collection[str] = (),
        width: int = 192,
        n_blocks: int = 3,
        dropout: float | None = None,
        steps: int | None = None,
        batch: int | None = None,
        lr: float = 2e-3,
        progress: bool | None = None,
    ) -> None:
        self.seed, self.kinds, self.drop = seed, kinds, drop
        self.width, self.n_blocks, self.dropout = width, n_blocks, dropout
        self.steps, self.batch, self.lr, self.progress = steps, batch, lr, progress
        self._model: BFN | None = None

    @property
    def model(self) -> BFN:
        """The model of the rows; ``model.info.columns`` has what the columns are."""
        if self._model is None:
            raise UserError("a TableSynthesizer that has seen no table: call fit(table) first")
        return self._model

    @property
    def columns(self) -> TableColumns:
        """What the columns are."""
        columns = self.model.info.columns
        assert columns is not None
        return columns

    def fit(self, table: Any) -> TableSynthesizer:
        """Learn a pandas DataFrame, a pyarrow Table, or a .csv or .parquet file; returns itself.

        One row in ten is held out: training ends where their loss falls no more, and keeps the best weights.
        """
        table = as_frame(table)
        columns = infer_columns(table, self.kinds, self.drop)
        n = len(table)
        batch = min(1024, max(64, 2 ** round(math.log2(n / 32)))) if self.batch is None else self.batch
        steps = min(MOST_STEPS, max(LEAST_STEPS, EPOCHS * n // batch)) if self.steps is None else self.steps
        check_whole("steps", steps, 1, 10**9)
        check_whole("batch", batch, 1, 10**9)
        dropout = (0.1 if n < FEW_ROWS else 0.0) if self.dropout is None else self.dropout
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = table_model(columns, self.width, self.n_blocks, dropout)
            x = model.as_data(columns.encode(table)).to(model.dtype)
            best, step, loss = train(model, x, steps, batch, self.lr, self.seed, self.progress)
        settings = {"steps": step, "batch": batch, "dropout": dropout, "lr": self.lr, "seed": self.seed}
        best.info.card = {"rows": n, "held_out_loss": loss, "table_training": settings}
        self._model = best.eval()
        return self

    def sample(
        self, n: int, given: Mapping[str, Any] | None = None, *, nfe: int = CALLS, seed: int = 0, **settings: Any
    ) -> Any:
        """n rows, a pandas DataFrame with the types and the order of the table's columns.

        given: values of columns that all rows have; the others are drawn given these. A column that is given as missing
        (None) is drawn as missing. nfe, settings: see :func:`bfn.sample`.
        """
        row = None
        if given:
            parts, known, row = self._given(given)
            settings = {
                **settings,
                "known": {part: x.repeat_interleave(n, 0) for part, x in parts.items()},
                "known_mask": {part: mask.repeat_interleave(n, 0) for part, mask in known.items()},
            }
        drawn = sample_in_batches(self.model, n, nfe=nfe, seed=seed, batch=ROWS, **settings)
        rows = self.columns.decode(drawn.x)
        # The network knows them in single precision: they are put back as they were given.
        return rows if row is None else rows.assign(**{name: [row[name][0]] * n for name in row}).astype(row.dtypes)

    def _given(self, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
        """One row of the given cells: its parts, masks of what they tell, and the row as it will be in the samples."""
        columns, row = self.columns, pandas().DataFrame({name: [value] for name, value in given.items()})
        parts, known = columns.encode_known(row, given)
        absent = [name for name in given if row[name].isna().any()]
        for name in absent:
            state = columns[name].missing_state
            if state is None:
                raise UserError(f"given[{name!r}]={given[name]!r}: no cell of this column was missing; leave it out")
            parts[name][:], known[name][:] = state, True
        back = columns.decode(parts)
        for name in set(given) - set(absent):
            (wanted,), (found,) = (columns[name].cells.raw(table[name])[0] for table in (row, back))
            if wanted != found and not (isinstance(wanted, float) and np.isclose(wanted, found, rtol=1e-9)):
                raise UserError(
                    f"given[{name!r}]={given[name]!r}: beyond the table's range or finer than its rounding; "
                    f"the nearest is {back[name][0]}"
                )
        return parts, known, back[list(given)]

    def impute(self, table: Any, *, draws: int | None = None, nfe: int = CALLS, seed: int = 0, **settings: Any) -> Any:
        """The table with its missing cells drawn given the others of their rows; all other cells as they are.

        draws: how many tables to make, a list of them; None for one table alone.
        """
        table, columns = as_frame(table), self.columns
        check_whole("draws", 1 if draws is None else draws, 1, 10**6)
        parts, known = columns.encode_known(table)
        rows = torch.from_numpy(np.flatnonzero(table[list(columns.names)].isna().any(axis=1).to_numpy()))
        found = []
        for draw in range(1 if draws is None else draws):
            filled = table.copy()
            if len(rows):
                allowed = {
                    column.name: torch.arange(column.n_states) != column.missing_state
                    for column in columns.class_columns
                    if column.missing
                }
                drawn = sample_in_batches(
                    self.model, len(rows), nfe=nfe, seed=seed + draw, batch=ROWS, allowed=allowed or None,
                    known={part: x[rows] for part, x in parts.items()},
                    known_mask={part: mask[rows] for part, mask in known.items()}, **settings,
                )  # fmt: skip
                _fill(filled, columns.decode(drawn.x), rows.numpy(), columns)
            found.append(filled)
        return found[0] if draws is None else found

    def log_likelihood(self, table: Any, **settings: Any) -> NDArray[np.float64]:
        """log p of each row, nats, (n,): a lower bound where there are classes.

        Of numbers it is the log-density, of rounded ones and whole ones the log-probability of the rounded value.
        settings: see :func:`bfn.likelihood.log_likelihood`.
        """
        table, columns = as_frame(table), self.columns
        parts = columns.encode(table)
        settings = {"generator": torch.Generator().manual_seed(0), **settings}
        result = self.model.log_likelihood(parts, **settings).log_prob.double().numpy() + columns.log_slopes(table)
        for i, column in enumerate(columns.number_columns):
            # Where a cell has no number the model was shown noise, which is no part of the row.
            if column.n_states > 1:
                z = parts[columns.numbers_part][:, i]
                noise = torch.where(parts[column.name] == column.number_state, 0.0, -(z**2 + math.log(2 * math.pi)) / 2)
                result = result - noise.numpy()
        found: NDArray[np.float64] = result
        return found

    def save(self, directory: Path | str) -> Path:
        """Store the model, which :func:`bfn.load` and :meth:`load` read."""
        return self.model.save(directory)

    @classmethod
    def load(cls, directory: Path | str) -> TableSynthesizer:
        """A synthesizer with a stored model."""
        model, found = load(directory), cls()
        if model.info.columns is None:
            raise UserError(f"{directory}: a model of something else than a table: bfn.load(...) reads it")
        found._model = model
        return found


def _fill(table: Any, drawn: Any, rows: NDArray[np.int64], columns: TableColumns) -> None:
    """Put drawn cells where the table's are missing; a column without gaps has its own type again."""
    for column in columns.columns:
        cells = table[column.name]
        gaps = cells.isna().to_numpy()[rows]
        if gaps.any():
            values = cells.astype(object).to_numpy(copy=True)
            values[rows[gaps]] = drawn[column.name].astype(object).to_numpy()[gaps]
            table[column.name] = type(cells)(values, index=cells.index, dtype=object).astype(drawn[column.name].dtype)
