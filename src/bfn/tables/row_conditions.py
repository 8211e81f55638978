"""What single cells are asked to meet, as ``country=FR`` or ``age>40``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn.data.table_cells import pandas
from bfn.data.table_columns import TableColumn, TableColumns
from bfn.errors import UserError

__all__ = ["CellCondition", "cell_conditions"]

Bools = NDArray[np.bool_]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne,
}  # fmt: skip
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|=|<|>|\sin\s)\s*(.*)", re.DOTALL)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class CellCondition:
    """One condition on the cells of a column. operator: "=", "in", or one of COMPARISONS. value: as the table has it.

    "=" with None asks for a missing cell; no other condition is met by one. "in" has a tuple of values.
    """

    column: TableColumn
    operator: str
    value: Any

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.column.name} missing"
        value = ", ".join(map(str, self.value)) if self.operator == "in" else str(self.value)
        return f"{self.column.name} {self.operator} {value}"

    def meets(self, raw: Any) -> Bools:
        """Whether plain values of the column, none missing, meet it."""
        if self.operator in ("=", "in"):
            values = self.value if self.operator == "in" else () if self.value is None else (self.value,)
            return np.isin(raw, self.raw(values)) if values else np.zeros(len(raw), bool)
        if self.operator != "!=" and not self._ordered:
            raise UserError(f"{self}: the values of this column have no order; take = or != or in")
        found: Bools = np.asarray(COMPARISONS[self.operator](raw, self.raw((self.value,))[0]), dtype=bool)
        return found

    def of_rows(self, rows: Any) -> Bools:
        """Which rows of a DataFrame meet it."""
        raw, missing = self.column.cells.raw(rows[self.column.name])
        return missing if self.value is None else self.meets(raw) & ~missing

    def raw(self, values: Iterable[Any]) -> Any:
        """Plain values of the column from values as the table has them; a level that is not there is refused."""
        series = pandas().Series(list(values), name=self.column.name, dtype=object)
        if self.column.cells.kind == "whole" and self.operator in ("<", "<=", ">", ">="):
            return series.to_numpy(dtype=float)  # between whole numbers there may be a bound
        try:
            raw = self.column.cells.raw(series)[0]
            if self.operator in ("=", "in", "!=") and self.column.quantiles is None:
                self.column.states(series)
        except UserError as error:
            raise UserError(str(error).replace(", row 0", "")) from None
        except (ValueError, TypeError):
            raise UserError(f"{self}: expected a value like those of the column") from None
        return raw

    @property
    def states(self) -> Bools:
        """The states of the column that can meet it; of numbers, whether any within the table's range does."""
        column = self.column
        met = np.zeros(column.n_states, bool)
        if self.value is None:
            if column.missing_state is not None:
                met[column.missing_state] = True
            return met
        if column.levels:
            levels = np.array(column.levels, dtype=object if column.cells.kind == "text" else None)
            met[: len(levels)] = self.meets(levels)
        if column.quantiles is not None:
            ends = column.quantiles.decode(np.array(column.quantiles.normal)[[0, -1]])
            wanted = self.raw(self.value) if self.operator == "in" else ends[self.meets(ends)]
            met[column.number_state] = any(ends[0] <= value <= ends[1] for value in wanted)
        return met

    @property
    def _ordered(self) -> bool:
        cells = self.column.cells
        return cells.kind != "text" and (cells.kind != "category" or cells.ordered)


def cell_conditions(given: Any, columns: TableColumns) -> list[CellCondition]:
    """Conditions from {column: value}, a list of values standing for any of them, or from texts as "age>40"."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        found = []
        for name, value in given.items():
            several = isinstance(value, list | tuple | set | frozenset)
            found.append(CellCondition(columns[name], "in" if several else "=", _plain(value, several)))
        return found
    texts = [given] if isinstance(given, str) else list(given)
    return [text if isinstance(text, CellCondition) else _parsed(text, columns) for text in texts]


def _plain(value: Any, several: bool) -> Any:
    if several:
        return tuple(value)
    missing = pandas().isna(value)
    return None if isinstance(missing, bool | np.bool_) and missing else value


def _parsed(text: Any, columns: TableColumns) -> CellCondition:
    if not isinstance(text, str):
        raise UserError(f"a condition of type {type(text).__name__}: expected a text such as 'age>40'")
    plain = text.strip()
    # Names may hold anything: the longest column that the text begins with.
    for name in sorted(columns.names, key=len, reverse=True):
        start = next((start for start in (f"`{name}`", name) if plain.startswith(start)), None)
        match = None if start is None else _OPERATOR.fullmatch(plain[len(start) :])
        if match:
            sign, value = match.group(1).strip(), match.group(2).strip()
            column = columns[name]
            if sign == "in":
                return CellCondition(column, "in", tuple(_value(column, one.strip()) for one in value.split(",")))
            if not value and sign not in ("=", "=="):
                raise UserError(f"{text!r}: expected a value after {sign}")
            return CellCondition(column, "=" if sign == "==" else sign, _value(column, value) if value else None)
    name = re.split(r"[<>=!]|\sin\s", plain)[0].strip()
    if name == plain:
        raise UserError(f"{text!r}: expected a condition such as country=FR, 'age>40' or 'country in FR, IT'")
    columns[name]  # tells which columns there are
    raise UserError(f"{text!r}: expected a condition such as country=FR or 'age>40'")


def _value(column: TableColumn, text: str) -> Any:
    """What a text means in a column."""
    kind, what = column.cells.kind, f"column {column.name!r}: {text!r}"
    if kind in ("whole", "real"):
        try:
            number = float(text)
        except ValueError:
            raise UserError(f"{what}: expected a number") from None
        if not np.isfinite(number):
            raise UserError(f"{what}: expected a finite number")
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else int(number) if number.is_integer() else number
    if kind == "truth":
        if text.lower() not in _TRUTH:
            raise UserError(f"{what}: expected true or false")
        return _TRUTH[text.lower()]
    if kind == "category":
        return next((level for level in column.cells.categories if str(level) == text), text)
    if kind in ("time", "duration") and not column.cells.format:
        convert = pandas().Timestamp if kind == "time" else pandas().Timedelta
        try:
            return convert(text)
        except ValueError:
            raise UserError(f"{what}: expected a {kind}, such as {'2024-05-31' if kind == 'time' else '2h'}") from None
    return text
