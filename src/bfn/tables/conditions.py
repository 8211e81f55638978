"""Conditions on the cells of a column, such as ``country=FR`` or ``age>40``, and rules for whole rows."""

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

from bfn.core.codec import CODEC
from bfn.core.errors import UserError, did_you_mean
from bfn.data.table_columns import TableCodec, TableColumn, TableColumns, pandas

Bools = NDArray[np.bool_]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne,
}  # fmt: skip
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|=|<|>|\sin\s)\s*(.*)", re.DOTALL)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def columns_of(model: Any, name: str = "model") -> TableColumns:
    """Return the columns of a model of a table. ``name`` is the model's name in the error message."""
    codec = model.info[CODEC]
    if not isinstance(codec, TableCodec):
        raise UserError(f"{name}: a model of something else than a table: bfn.load(...) reads it")
    return codec.columns


def number_range(column: TableColumn) -> Any:
    """Return the lowest and the highest number of a column in the training table, as raw values."""
    assert column.quantiles is not None
    return column.quantiles.decode(np.array(column.quantiles.normal)[[0, -1]])


# --- cells ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellCondition:
    """A condition on the cells of a column. Missing cells meet no condition but "=" with None.

    Attributes:
        column: the column.
        operator: "=", "in", or one of ``COMPARISONS``.
        value: a value as in the table; None for a missing cell, a tuple of values for "in".
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
        """Return which raw values of the column, none of them missing, meet the condition."""
        if self.operator in ("=", "in"):
            values = self.value if self.operator == "in" else () if self.value is None else (self.value,)
            return np.isin(raw, self.raw(values)) if values else np.zeros(len(raw), bool)
        cells = self.column.cells
        ordered = cells.kind != "text" and (cells.kind != "category" or cells.ordered)
        if self.operator != "!=" and not ordered:
            raise UserError(f"{self}: the values of this column have no order; take = or != or in")
        found: Bools = np.asarray(COMPARISONS[self.operator](raw, self.raw((self.value,))[0]), dtype=bool)
        return found

    def of_rows(self, rows: Any) -> Bools:
        """Return which rows of a DataFrame meet the condition."""
        raw, missing = self.column.cells.raw(rows[self.column.name])
        return missing if self.value is None else self.meets(raw) & ~missing

    def raw(self, values: Iterable[Any]) -> Any:
        """Return raw values of the column. Raise a UserError for classes that the column does not have."""
        series = pandas().Series(list(values), name=self.column.name, dtype=object)
        if self.column.cells.kind == "whole" and self.operator in ("<", "<=", ">", ">="):
            return series.to_numpy(dtype=float)  # a bound may lie between whole numbers
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
        """Mask of the states of the column that can meet the condition.

        The state of numbers can if some number within the table's range does.
        """
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
            ends = number_range(column)
            wanted = self.raw(self.value) if self.operator == "in" else ends[self.meets(ends)]
            met[column.number_state] = any(ends[0] <= value <= ends[1] for value in wanted)
        return met


def cell_conditions(given: Any, columns: TableColumns) -> list[CellCondition]:
    """Return conditions on cells.

    Args:
        given: {column: value}, with a list of values for any of them and None for a missing cell; or texts such as
            "age>40".
        columns: the columns of the table.
    """
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [_equal(columns[name], value) for name, value in given.items()]
    texts = [given] if isinstance(given, str) else list(given)
    return [text if isinstance(text, CellCondition) else _parsed(text, columns) for text in texts]


def _equal(column: TableColumn, value: Any) -> CellCondition:
    if isinstance(value, list | tuple | set | frozenset):
        return CellCondition(column, "in", tuple(value))
    missing = pandas().isna(value)
    return CellCondition(column, "=", None if isinstance(missing, bool | np.bool_) and missing else value)


def _parsed(text: Any, columns: TableColumns) -> CellCondition:
    """Return the condition that a text such as "age>40" states."""
    if not isinstance(text, str):
        raise UserError(f"a condition of type {type(text).__name__}: expected a text such as 'age>40'")
    plain = text.strip()
    # Names of columns may contain anything: take the longest one that the text begins with.
    for name in sorted(columns.names, key=len, reverse=True):
        start = next((start for start in (f"`{name}`", name) if plain.startswith(start)), None)
        match = None if start is None else _OPERATOR.fullmatch(plain[len(start) :])
        if match:
            return _comparison(text, columns[name], match.group(1).strip(), match.group(2).strip())
    name = re.split(r"[<>=!]|\sin\s", plain)[0].strip()
    if name == plain:
        raise UserError(f"{text!r}: expected a condition such as country=FR, 'age>40' or 'country in FR, IT'")
    columns[name]  # an unknown column is an error that lists the columns
    raise UserError(f"{text!r}: expected a condition such as country=FR or 'age>40'")


def _comparison(text: str, column: TableColumn, sign: str, value: str) -> CellCondition:
    if sign == "in":
        return CellCondition(column, "in", tuple(_value(column, one.strip()) for one in value.split(",")))
    if not value and sign not in ("=", "=="):
        raise UserError(f"{text!r}: expected a value after {sign}")
    return CellCondition(column, "=" if sign == "==" else sign, _value(column, value) if value else None)


def _value(column: TableColumn, text: str) -> Any:
    """Return the value of a column that a text stands for."""
    kind, what = column.cells.kind, f"column {column.name!r}: {text!r}"
    if kind in ("whole", "real"):
        return _number(text, what)
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


def _number(text: str, what: str) -> int | float:
    try:
        number = float(text)
    except ValueError:
        raise UserError(f"{what}: expected a number") from None
    if not np.isfinite(number):
        raise UserError(f"{what}: expected a finite number")
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else int(number) if number.is_integer() else number


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    """A rule that rows are checked by.

    Attributes:
        name: the rule in words, for reports and messages.
        check: function of a DataFrame that returns a truth value for each row.
    """

    name: str
    check: Callable[[Any], Any]

    def __str__(self) -> str:
        return self.name

    def of_rows(self, rows: Any) -> Bools:
        """Return which rows meet the rule; missing results count as not met."""
        try:
            found = self.check(rows)
        except (TypeError, KeyError) as error:
            raise UserError(f"constraint {self.name!r}: {type(error).__name__}: {error}") from None
        series = pandas().Series(np.asarray(found), dtype=object)
        met = series.where(series.notna(), False).to_numpy()
        if len(met) != len(rows) or not all(isinstance(value, bool | np.bool_) for value in met):
            raise UserError(f"constraint {self.name!r}: expected True or False for each of {len(rows)} rows")
        result: Bools = met.astype(bool)
        return result


def constraints_of(constraints: Any, columns: TableColumns) -> list[Constraint]:
    """Return rules for rows.

    Args:
        constraints: texts such as "start <= end", DataFrames of allowed combinations, or functions of a DataFrame.
        columns: the columns of the table.
    """
    if constraints is None:
        return []
    several = constraints if isinstance(constraints, list | tuple | set | frozenset) else [constraints]
    return [_constraint(one, columns) for one in several]


def _constraint(rule: Any, columns: TableColumns) -> Constraint:
    if isinstance(rule, Constraint):
        return rule
    if isinstance(rule, str):
        return _expression(rule, columns)
    if isinstance(rule, pandas().DataFrame):
        return _combinations(rule, columns)
    if callable(rule):
        return Constraint(getattr(rule, "__name__", "function"), rule)
    raise UserError(f"a constraint of type {type(rule).__name__}: expected a text, a function or a DataFrame")


def _combinations(allowed: Any, columns: TableColumns) -> Constraint:
    names = [columns[name].name for name in allowed.columns]
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
    """Return the rule of a Python expression: columns, constants, arithmetic, comparisons, and, or, not, in."""
    quoted: dict[str, str] = {}

    def put(match: re.Match[str]) -> str:
        key = f"_column_{len(quoted)}_"
        quoted[key] = match.group(1)
        return key

    try:
        tree = ast.parse(re.sub(r"`([^`]+)`", put, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"constraint {text!r}: expected a rule such as 'start <= end' or 'a + b == total'") from None
    negated = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    if not negated and not isinstance(tree, ast.Compare | ast.BoolOp):
        raise UserError(f"constraint {text!r}: expected a comparison, such as 'start <= end'")
    for node in ast.walk(tree):
        name = quoted.get(node.id, node.id) if isinstance(node, ast.Name) else None
        if name is not None and name not in columns.names:
            hint = did_you_mean(name, columns.names)
            raise UserError(f"constraint {text!r}: no column {name!r}{hint}; a name that is no word goes in ``")

    def check(rows: Any) -> Any:
        return _evaluate(tree, lambda name: rows[quoted.get(name, name)], text)

    rule = Constraint(text, check)
    rule.of_rows(columns.decode(columns.example(2)))  # raises what is wrong with the rule before anything is drawn
    return rule


def _evaluate(node: ast.AST, column: Callable[[str], Any], text: str) -> Any:
    """Return the value of a piece of a rule for all rows."""
    match node:
        case ast.Name():
            series = column(node.id)
            unordered = isinstance(series.dtype, pandas().CategoricalDtype) and not series.dtype.ordered
            return series.astype(series.cat.categories.dtype) if unordered else series
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.Tuple() | ast.List():
            return [_evaluate(one, column, text) for one in node.elts]
    signs, operands = _operation(node)
    if not operands or any(type(sign) not in _OPERATIONS for sign in signs):
        raise UserError(
            f"constraint {text!r}: {ast.unparse(node)!r}: expected columns, numbers, texts and comparisons alone"
        )
    values = [_evaluate(one, column, text) for one in operands]
    if isinstance(node, ast.Compare):
        pairs = zip(signs, values[:-1], values[1:], strict=True)
        return reduce(operator.and_, (_OPERATIONS[type(sign)](left, right) for sign, left, right in pairs))
    operation = _OPERATIONS[type(signs[0])]
    return operation(values[0]) if len(values) == 1 else reduce(operation, values)


def _operation(node: ast.AST) -> tuple[list[Any], list[ast.expr]]:
    """Return the operators and the operands of a node; no operands if it is no operation."""
    match node:
        case ast.BinOp():
            return [node.op], [node.left, node.right]
        case ast.UnaryOp():
            return [node.op], [node.operand]
        case ast.BoolOp():
            return [node.op], node.values
        case ast.Compare():
            return [*node.ops], [node.left, *node.comparators]
    return [], []
