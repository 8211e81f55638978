"""Cells of a table's column as plain numbers or texts, and back to the type that a pandas DataFrame had them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bfn.data.optional_packages import require
from bfn.errors import UserError

__all__ = ["CellType", "pandas"]

Raw = NDArray[Any]
"""Cells without their type: int64 (whole numbers, truth values, times, codes of categories), float64, or texts."""

TIME_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y",
    "%d/%m/%Y", "%H:%M:%S", "%H:%M",
)  # fmt: skip
"""Ways to write a time that are recognised in texts: the first that gives every text of a column back."""


def pandas() -> Any:
    """The package pandas, which tables need."""
    return require("pandas", "for tables")


@dataclass(frozen=True)
class CellType:
    """How the cells of a column are kept.

    kind: "whole", "real", "truth", "text", "category", "time" or "duration". dtype: the column's, as pandas writes it.
    unit: of times and durations, such as "us". format: of times that are written as texts.
    categories, categories_dtype, ordered: of a column of type category, which is kept by its codes.
    """

    kind: str
    dtype: str
    unit: str = ""
    format: str = ""
    categories: tuple[Any, ...] = ()
    categories_dtype: str = ""
    ordered: bool = False

    @property
    def is_scale(self) -> bool:
        """Whether one cell may be between two others: numbers and times."""
        return self.kind in ("whole", "real", "time", "duration")

    @classmethod
    def of(cls, series: Any) -> CellType:
        """The type of a pandas Series; a UserError for what has none of these kinds."""
        types = pandas().api.types
        dtype, name = series.dtype, series.name
        if isinstance(dtype, pandas().CategoricalDtype):
            values = dtype.categories
            if not all(isinstance(value, str | int | float | bool) for value in values.tolist()):
                raise UserError(
                    f"column {name!r}: categories of type {values.dtype}: expected texts or numbers; convert them, "
                    f"df[{name!r}].astype(str)"
                )
            return cls("category", "category", "", "", tuple(values.tolist()), str(values.dtype), bool(dtype.ordered))
        if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
            kind = "time" if types.is_datetime64_any_dtype(dtype) else "duration"
            return cls(kind, str(dtype), series.dt.unit)
        for kind, fits in (
            ("truth", types.is_bool_dtype), ("whole", types.is_integer_dtype), ("real", types.is_float_dtype),
        ):  # fmt: skip
            if fits(dtype):
                return cls(kind, str(dtype))
        if types.is_object_dtype(dtype) or types.is_string_dtype(dtype):
            return cls._of_objects(series)
        raise UserError(f"column {name!r}: type {dtype}: expected numbers, texts, categories, truth values or times")

    @classmethod
    def _of_objects(cls, series: Any) -> CellType:
        there = series[series.notna()]
        kinds = [_kind_of(value) for value in there]
        first = next(iter(kinds), "text")
        if first in ("whole", "real") and set(kinds) <= {"whole", "real"}:
            return cls("real" if "real" in kinds else "whole", str(series.dtype))
        wrong = next((i for i, kind in enumerate(kinds) if kind != first or not kind), None)
        if wrong is not None:
            row = int(np.flatnonzero(series.notna())[wrong])
            value = there.iloc[wrong]
            expected = f"{first}, as in the rows before" if first else "numbers, texts, truth values or times"
            raise UserError(
                f"column {series.name!r}, row {row}: {shown(value)} is of type {type(value).__name__}: "
                f"expected {expected}"
            )
        if first != "text":
            return cls(first, str(series.dtype))
        form = next((form for form in TIME_FORMATS if len(there) and _is_written(there, form)), "")
        return cls("time", str(series.dtype), "s", form) if form else cls("text", str(series.dtype))

    def raw(self, series: Any) -> tuple[Raw, NDArray[np.bool_]]:
        """The cells, with anything where they are missing, and where they are missing; checked."""
        pd, name = pandas(), series.name
        missing = series.isna().to_numpy(dtype=bool)
        if self.kind == "category":
            if not isinstance(series.dtype, pd.CategoricalDtype) or tuple(series.cat.categories) != self.categories:
                codes = self._categories.get_indexer(series.astype(object))
                self._refuse(series, (codes < 0) & ~missing, f"one of {_some(self.categories)}")
                return codes.astype(np.int64), missing
            return series.cat.codes.to_numpy().astype(np.int64), missing
        if self.kind in ("time", "duration"):
            return self._raw_times(series, missing), missing
        if self.kind == "text":
            self._refuse(series, [not isinstance(value, str) for value in series] & ~missing, "a text")
            values = np.full(len(series), "", dtype=object)
            values[~missing] = series.to_numpy(dtype=object)[~missing]
            return values, missing
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "ifb":
            filled = np.where(missing, np.zeros((), series.dtype), series.to_numpy())
        else:
            fill = False if pd.api.types.is_bool_dtype(series.dtype) else 0
            filled = np.where(missing, fill, series.to_numpy(dtype=object))
            self._refuse(series, [_kind_of(value) not in ("whole", "real", "truth") for value in filled], "a number")
        if self.kind == "real":
            reals = filled.astype(np.float64)
            self._refuse(series, ~np.isfinite(reals), "a finite number")
            return reals, missing
        try:
            wholes = filled.astype(np.int64)
        except (OverflowError, ValueError):
            raise UserError(f"column {name!r}: whole numbers beyond 64 bits: convert them, .astype(float)") from None
        self._refuse(series, wholes != filled, "a whole number")
        self._refuse(series, (wholes < 0) | (wholes > 1) if self.kind == "truth" else None, "true or false")
        return wholes, missing

    def _raw_times(self, series: Any, missing: NDArray[np.bool_]) -> Raw:
        pd = pandas()
        if self.format:
            texts = series.astype(object).where(~missing, None)
            parsed = pd.to_datetime(texts, format=self.format, errors="coerce")
            self._refuse(series, parsed.isna().to_numpy() & ~missing, f"a time written as {self.format}")
        elif self.kind == "duration":
            parsed = pd.to_timedelta(series)
        else:
            parsed = pd.to_datetime(series)
            parsed = parsed if parsed.dt.tz is None else parsed.dt.tz_convert("UTC").dt.tz_localize(None)
        numpy_kind = "timedelta64" if self.kind == "duration" else "datetime64"
        whole = parsed.to_numpy().astype(f"{numpy_kind}[{self.unit}]").astype(np.int64)
        return np.where(missing, 0, whole)

    def _refuse(self, series: Any, wrong: Any, expected: str) -> None:
        if wrong is None or not np.any(wrong):
            return
        row = int(np.flatnonzero(wrong)[0])
        raise UserError(f"column {series.name!r}, row {row}: {shown(series.iloc[row])}: expected {expected}")

    def series(self, raw: Raw, missing: NDArray[np.bool_], name: str) -> Any:
        """The cells in the type of the column, a pandas Series."""
        pd = pandas()
        if self.kind == "category":
            codes = np.where(missing, -1, raw).astype(np.int64)
            return pd.Series(pd.Categorical.from_codes(codes, self._categories, ordered=self.ordered), name=name)
        values = pd.Series(raw, name=name, dtype=object if self.kind == "text" else None)
        if self.kind in ("time", "duration"):
            numpy_kind = "timedelta64" if self.kind == "duration" else "datetime64"
            values = pd.Series(raw.astype(np.int64).view(f"{numpy_kind}[{self.unit}]"), name=name)
            if self.format:
                values = values.dt.strftime(self.format)
            elif ", " in self.dtype:  # a time zone
                values = values.dt.tz_localize("UTC")
        elif self.kind == "truth":
            values = values.astype(bool)
        values = values.astype(self.dtype)
        return values.mask(missing) if missing.any() else values

    @property
    def _categories(self) -> Any:
        return pandas().Index(list(self.categories), dtype=self.categories_dtype)


def shown(value: Any) -> str:
    """A cell in a message."""
    return repr(value.item() if isinstance(value, np.generic) else value)[:60]


def _kind_of(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "truth"
    if isinstance(value, int | np.integer):
        return "whole"
    if isinstance(value, float | np.floating):
        return "real"
    return "text" if isinstance(value, str) else ""


def _is_written(texts: Any, form: str) -> bool:
    """Whether every text is a time in this form, to the letter."""
    pd = pandas()
    for some in (texts.iloc[:20], texts):  # most forms fail at once
        parsed = pd.to_datetime(some.astype(object), format=form, errors="coerce")
        if parsed.isna().any() or (parsed.dt.strftime(form).to_numpy(object) != some.to_numpy(object)).any():
            return False
    return True


def _some(values: tuple[Any, ...]) -> str:
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")
