"""How good synthetic rows are: all measures of a table, between independent columns and real rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfn.data.table_inference import as_frame
from bfn.errors import UserError
from bfn.estimate import Estimate
from bfn.pieces import digest
from bfn.quality.judge import Measure
from bfn.quality.table_classifiers import learned, two_sample
from bfn.quality.table_features import Floats, TableFeatures
from bfn.quality.table_neighbours import MOST_ROWS, copies, nearer_to_training, precision_and_recall
from bfn.quality.table_shapes import ShapesAndTrends

__all__ = ["TableQuality"]

LEAST_ROWS = 30
"""Fewer rows, on either side, are not judged."""


@dataclass(frozen=True, eq=False)
class TableQuality:
    """Measures of rows against the table that a model was trained on, and rows of the same table that it has not seen.

        quality = TableQuality.of(train, held_out, target="income")
        quality.figures(rows), quality.real, quality.independent       # each scale with its two ends

    target: the column that is predicted, the last one if None. seed: of what is chosen at random.
    """

    features: TableFeatures
    train: Floats
    held_out: Floats
    target: str
    seed: int = 0

    @classmethod
    def of(cls, train: Any, held_out: Any, target: str | None = None, seed: int = 0) -> TableQuality:
        """From two DataFrames, pyarrow Tables or paths."""
        train, held_out = as_frame(train), as_frame(held_out)
        features = TableFeatures.of(train)
        tables = {"training": train, "held-out": held_out}
        few = next((name for name, table in tables.items() if len(table) < LEAST_ROWS), None)
        if few is not None:
            raise UserError(f"{len(tables[few])} {few} rows: expected at least {LEAST_ROWS} to judge others by")
        name = features.names[-1] if target is None else features.names[features.place(target)]
        return cls(features, features.matrix(train), features.matrix(held_out), name, seed)

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What there is, the one that ranks samplers first."""
        what = f"AUC of {self.target}" if self._target_is_class else f"R2 of {self.target}"
        high = {"better": "high", "digits": 3, "highest": 1.0}
        found = [
            Measure("two_sample", "two-sample score against training rows", **high),  # type: ignore[arg-type]
            Measure("two_sample_held_out", "two-sample score against held-out rows", **high),  # type: ignore[arg-type]
            Measure("learned", f"learned from the rows, tested on held-out ones: {what}", **high),  # type: ignore[arg-type]
            Measure("shape", "shape of the columns", **high),  # type: ignore[arg-type]
            Measure("trend", "trend of pairs of columns", **high),  # type: ignore[arg-type]
            Measure("alpha_precision", "alpha-precision", **high),  # type: ignore[arg-type]
            Measure("beta_recall", "beta-recall", "real", digits=3, highest=1.0),
            Measure("nearer_to_training", "nearer to training than to held-out rows", "real", "%", 100, 1, False, 1.0),
            Measure("copies", "copies of training rows", "real", "%", 100, 2, False, 1.0),
        ]
        single = len(self.features.columns) == 1
        return tuple(measure for measure in found if not (single and measure.key in ("learned", "trend")))

    def figures(self, rows: Any) -> dict[str, Estimate]:
        """All measures of a table of rows."""
        return self._figures(self._checked(self.features.matrix(rows)))

    @cached_property
    def real(self) -> Mapping[str, Estimate]:
        """What real rows get: the held-out ones in place of rows, training rows where held-out ones are the judges."""
        return {**self._against_training(self.held_out), **self._against_held_out(self.train, real=True)}

    @cached_property
    def independent(self) -> Mapping[str, Estimate]:
        """What rows get that have every column right and nothing between them."""
        return self._figures(self.independent_rows)

    @property
    def independent_rows(self) -> Floats:
        """The training rows with each column in an order of its own."""
        generator = self._generator()
        found = self.train.copy()
        for j in range(found.shape[1]):
            found[:, j] = found[torch.randperm(len(found), generator=generator).numpy(), j]
        return found

    @cached_property
    def key(self) -> str:
        """Names the real rows, the target and the seed."""
        matrices = [torch.from_numpy(np.nan_to_num(matrix, nan=-1e300)) for matrix in (self.train, self.held_out)]
        return digest("table-1", self.target, str(self.seed), str(self.features.names), *matrices)

    def shapes_and_trends(self, rows: Any) -> ShapesAndTrends:
        """Column by column and pair by pair, against training rows."""
        return ShapesAndTrends(self.features, self._checked(self.features.matrix(rows)), self.train)

    def _figures(self, rows: Floats) -> dict[str, Estimate]:
        found = {**self._against_training(rows), **self._against_held_out(rows)}
        return {measure.key: found[measure.key] for measure in self.measures if measure.key in found}

    def _against_training(self, rows: Floats) -> dict[str, Estimate]:
        own, seen = self._vectors(rows), self._vectors(self.train)
        return {
            "two_sample": two_sample(self.features, rows, self.train, self._generator()),
            **ShapesAndTrends(self.features, rows, self.train).estimates(self._generator()),
            **precision_and_recall(own, seen, self._generator()),
            "copies": copies(rows, self.train),
        }

    def _against_held_out(self, rows: Floats, real: bool = False) -> dict[str, Estimate]:
        target = self.features.place(self.target)
        own, seen, unseen = (self._vectors(matrix) for matrix in (rows, self.train, self.held_out))
        return {
            "two_sample_held_out": two_sample(self.features, rows, self.held_out, self._generator()),
            "learned": learned(
                self.features, rows, self.held_out, target, self._target_is_class, self._generator()
            ),
            # Of real rows that are neither it is one half by the toss that decides which are held out.
            "nearer_to_training": Estimate(0.5) if real else nearer_to_training(own, seen, unseen, self._generator()),
        }  # fmt: skip

    def _vectors(self, matrix: Floats) -> Tensor:
        """Of as many rows as neighbours are looked for: all levels of all rows of a large table would not fit."""
        some = torch.randperm(len(matrix), generator=self._generator())[:MOST_ROWS].numpy()
        return self.features.vectors(matrix if len(matrix) <= MOST_ROWS else matrix[some])

    @cached_property
    def _target_is_class(self) -> bool:
        return self.features.is_class(self.features.place(self.target), self.train)

    def _checked(self, rows: Floats) -> Floats:
        if len(rows) < LEAST_ROWS:
            raise UserError(f"{len(rows)} rows to judge: expected at least {LEAST_ROWS}")
        return rows

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)
