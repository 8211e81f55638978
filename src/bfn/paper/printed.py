"""The paper's figures as data: every table of results, with its place in the paper and what is doubtful in it.

``printed.json`` holds the numbers as printed. Figures 3, 4 and 6 draw tables 5, 6 and 3; the user study (figure 5) and
the sheets of random samples (figures 7 to 9) print no numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bfn.errors import UserError

__all__ = ["Column", "PrintedFigure", "PrintedTable", "Remark", "printed_table", "tables"]

FILE = Path(__file__).with_name("printed.json")


@dataclass(frozen=True)
class Column:
    """What a printed column was measured at: calls, truncation eta, step size, whichever it has."""

    nfe: int | None = None
    eta: float | None = None
    step: float | None = None


@dataclass(frozen=True)
class Remark:
    """A doubt about what is printed: of a whole table, or of one solver, or of one of its figures."""

    text: str
    solver: str | None = None
    nfe: int | None = None

    def concerns(self, solver: str | None, column: Column) -> bool:
        """Whether it is about this very figure (one about a table or a solver is about none in particular)."""
        return self.nfe is not None and (self.solver, self.nfe) == (solver, column.nfe)


@dataclass(frozen=True)
class PrintedFigure:
    """One printed number. solver: our name for the method; None where it is none of ours."""

    printed: str
    solver: str | None
    column: Column
    value: float
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrintedTable:
    """One table of results. better: "lower" or "higher"."""

    name: str
    label: str
    place: str
    caption: str
    data: str
    measure: str
    better: str
    n_samples: int | None
    columns: tuple[Column, ...]
    figures: tuple[PrintedFigure, ...]
    remarks: tuple[Remark, ...]

    @property
    def solvers(self) -> tuple[str, ...]:
        """Our names of the solvers it has, in the order of its rows."""
        return tuple(dict.fromkeys(f.solver for f in self.figures if f.solver is not None))

    def value(
        self, solver: str, *, nfe: int | None = None, eta: float | None = None, step: float | None = None
    ) -> float | None:
        """The printed number, or None where there is none."""
        column = Column(nfe, eta, step)
        return next((f.value for f in self.figures if f.solver == solver and f.column == column), None)


@cache
def tables() -> Mapping[str, PrintedTable]:
    """All tables of results, by name."""
    return {entry["name"]: _table(entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))["tables"]}


def printed_table(name: str) -> PrintedTable:
    """The table of that name."""
    if name not in tables():
        raise UserError(f"{name!r}: expected a table of the paper, one of {', '.join(tables())}")
    return tables()[name]


def _table(entry: Mapping[str, Any]) -> PrintedTable:
    columns = tuple(Column(**column) for column in entry["columns"])
    remarks = tuple(Remark(**remark) for remark in entry["remarks"])
    figures = tuple(
        PrintedFigure(
            row["printed"],
            row["solver"],
            column,
            float(value),
            tuple(remark.text for remark in remarks if remark.concerns(row["solver"], column)),
        )
        for row in entry["rows"]
        for column, value in zip(columns, row["values"], strict=True)
        if value is not None
    )
    plain = ("name", "label", "place", "caption", "data", "measure", "better", "n_samples")
    return PrintedTable(**{key: entry[key] for key in plain}, columns=columns, figures=figures, remarks=remarks)
