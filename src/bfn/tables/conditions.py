"""What single cells are asked to meet, as ``country=FR`` or ``age>40``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn.core.errors import UserError, did_you_mean
from bfn.data.table_columns import TableColumn, TableColumns, pandas

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


RowConstraintsBools = NDArray[np.bool_]


@dataclass(frozen=True)
class Constraint:
    """A rule that whole rows are checked by. check: a DataFrame to a truth value a row."""

    name: str
    check: Callable[[Any], Any]

    def __str__(self) -> str:
        return self.name

    def of_rows(self, rows: Any) -> RowConstraintsBools:
        """Which rows meet it; a result that is missing is not met."""
        try:
            found = self.check(rows)
        except (TypeError, KeyError) as error:
            raise UserError(f"constraint {self.name!r}: {type(error).__name__}: {error}") from None
        series = pandas().Series(np.asarray(found), dtype=object)
        met = series.where(series.notna(), False).to_numpy()
        if len(met) != len(rows) or not all(isinstance(value, bool | np.bool_) for value in met):
            raise UserError(f"constraint {self.name!r}: expected True or False for each of {len(rows)} rows")
        result: RowConstraintsBools = met.astype(bool)
        return result


def constraints_of(constraints: Any, columns: TableColumns) -> list[Constraint]:
    """Rules from texts as "start <= end", DataFrames of allowed combinations, or functions of a DataFrame."""
    if constraints is None:
        return []
    if isinstance(constraints, str) or callable(constraints) or isinstance(constraints, pandas().DataFrame):
        constraints = [constraints]
    found = []
    for one in constraints:
        if isinstance(one, Constraint):
            found.append(one)
        elif isinstance(one, str):
            found.append(_expression(one, columns))
        elif isinstance(one, pandas().DataFrame):
            found.append(_combinations(one, columns))
        elif callable(one):
            found.append(Constraint(getattr(one, "__name__", "function"), one))
        else:
            raise UserError(f"a constraint of type {type(one).__name__}: expected a text, a function or a DataFrame")
    return found


def _combinations(allowed: Any, columns: TableColumns) -> Constraint:
    names = list(allowed.columns)
    for name in names:
        columns[name]
    keys = set(allowed.astype(object).itertuples(index=False, name=None))

    def check(rows: Any) -> list[bool]:
        return [row in keys for row in rows[names].astype(object).itertuples(index=False, name=None)]

    return Constraint(f"allowed combinations of {', '.join(names)}", check)


_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.invert,
    ast.And: operator.and_, ast.Or: operator.or_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda series, values: series.isin(values), ast.NotIn: lambda series, values: ~series.isin(values),
}  # fmt: skip


def _expression(text: str, columns: TableColumns) -> Constraint:
    """A rule in Python's own writing: columns, numbers, texts, arithmetic, comparisons, and, or, not, in."""
    quoted: dict[str, str] = {}

    def put(match: re.Match[str]) -> str:
        key = f"_column_{len(quoted)}_"
        quoted[key] = match.group(1)
        return key

    try:
        tree = ast.parse(re.sub(r"`([^`]+)`", put, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"constraint {text!r}: expected a rule such as 'start <= end' or 'a + b == total'") from None
    if not isinstance(tree, ast.Compare | ast.BoolOp) and not (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    ):
        raise UserError(f"constraint {text!r}: expected a comparison, such as 'start <= end'")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            name = quoted.get(node.id, node.id)
            if name not in columns.names:
                hint = did_you_mean(name, columns.names)
                raise UserError(f"constraint {text!r}: no column {name!r}{hint}; a name that is no word goes in ``")

    def check(rows: Any) -> Any:
        return _row_constraints_value(tree, lambda name: rows[quoted.get(name, name)], text)

    rule = Constraint(text, check)
    rule.of_rows(columns.decode(columns.example(2)))  # what is wrong in it is told before anything is drawn
    return rule


def _row_constraints_value(node: ast.AST, column: Callable[[str], Any], text: str) -> Any:
    """What a piece of a rule is for all rows."""
    operands: list[ast.expr] = []
    match node:
        case ast.Name():
            series = column(node.id)
            unordered = isinstance(series.dtype, pandas().CategoricalDtype) and not series.dtype.ordered
            return series.astype(series.cat.categories.dtype) if unordered else series
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.Tuple() | ast.List():
            return [_row_constraints_value(one, column, text) for one in node.elts]
        case ast.BinOp():
            operands = [node.left, node.right]
        case ast.UnaryOp():
            operands = [node.operand]
        case ast.BoolOp():
            operands = node.values
        case ast.Compare():
            operands = [node.left, *node.comparators]
    operations: list[Any] = [*node.ops] if isinstance(node, ast.Compare) else [getattr(node, "op", None)]
    if not operands or any(type(operation) not in _OPERATIONS for operation in operations):
        raise UserError(
            f"constraint {text!r}: {ast.unparse(node)!r}: expected columns, numbers, texts and comparisons alone"
        )
    values = [_row_constraints_value(one, column, text) for one in operands]
    if isinstance(node, ast.Compare):
        pairs = zip(operations, values[:-1], values[1:], strict=True)
        return reduce(operator.and_, (_OPERATIONS[type(op)](left, right) for op, left, right in pairs))
    operation = _OPERATIONS[type(operations[0])]
    return operation(values[0]) if len(values) == 1 else reduce(operation, values)
