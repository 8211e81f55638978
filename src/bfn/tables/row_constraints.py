"""Rules between the columns of a row, as ``start <= end``, a list of allowed combinations, or a function."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn.data.table_cells import pandas
from bfn.data.table_columns import TableColumns
from bfn.errors import UserError, did_you_mean

__all__ = ["Constraint", "constraints_of"]

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Constraint:
    """A rule that whole rows are checked by. check: a DataFrame to a truth value a row."""

    name: str
    check: Callable[[Any], Any]

    def __str__(self) -> str:
        return self.name

    def of_rows(self, rows: Any) -> Bools:
        """Which rows meet it; a result that is missing is not met."""
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
        return _value(tree, lambda name: rows[quoted.get(name, name)], text)

    rule = Constraint(text, check)
    rule.of_rows(columns.decode(columns.example(2)))  # what is wrong in it is told before anything is drawn
    return rule


def _value(node: ast.AST, column: Callable[[str], Any], text: str) -> Any:
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
            return [_value(one, column, text) for one in node.elts]
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
    values = [_value(one, column, text) for one in operands]
    if isinstance(node, ast.Compare):
        pairs = zip(operations, values[:-1], values[1:], strict=True)
        return reduce(operator.and_, (_OPERATIONS[type(op)](left, right) for op, left, right in pairs))
    operation = _OPERATIONS[type(operations[0])]
    return operation(values[0]) if len(values) == 1 else reduce(operation, values)
