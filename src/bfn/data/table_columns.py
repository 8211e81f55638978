"""Columns of a table: the type of their cells, and the parts of joint data that the cells become.

``CellType`` turns the cells of a pandas Series into plain values and back. ``TableColumn`` turns plain values
into states and numbers on a normal scale, and ``TableColumns`` does so for all columns of a table.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn._utils.arguments import require
from bfn._utils.files import atomic_write
from bfn.core.codec import Codec, Encoded
from bfn.core.errors import UserError, did_you_mean
from bfn.data.records import repeated

Raw = NDArray[Any]
"""Plain values of cells: int64 (integers, booleans, times, codes of categories), float64, or strings."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

TIME_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y",
    "%d/%m/%Y", "%H:%M:%S", "%H:%M",
)  # fmt: skip
"""Formats of times that are recognised in texts. The first one that reproduces all texts of a column is used."""


def pandas() -> Any:
    """Import the package pandas, which tables need."""
    return require("pandas", "for tables")


@dataclass(frozen=True)
class CellType:
    """The type of the cells of a column.

    Args:
        kind: "whole", "real", "truth", "text", "category", "time" or "duration".
        dtype: type of the column, as pandas writes it.
        unit: unit of times and durations, such as "us".
        format: format of times that are written as texts.
        categories, categories_dtype, ordered: of a column of type category, whose plain values are codes.
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
        """True for numbers and times: a value can lie between two others."""
        return self.kind in ("whole", "real", "time", "duration")

    @classmethod
    def of(cls, series: Any) -> CellType:
        """Return the type of a pandas Series. Raises a UserError for types that tables cannot have."""
        types = pandas().api.types
        dtype, name = series.dtype, series.name
        if isinstance(dtype, pandas().CategoricalDtype):
            values = dtype.categories
            if not all(isinstance(value, str | int | float | bool) for value in values.tolist()):
                expected = f"texts or numbers; convert them, df[{name!r}].astype(str)"
                raise UserError(f"column {name!r}: categories of type {values.dtype}: expected {expected}")
            return cls("category", "category", "", "", tuple(values.tolist()), str(values.dtype), bool(dtype.ordered))
        if types.is_object_dtype(dtype) or types.is_string_dtype(dtype):
            return cls._of_objects(series)
        tests = {
            "time": types.is_datetime64_any_dtype, "duration": types.is_timedelta64_dtype,
            "truth": types.is_bool_dtype, "whole": types.is_integer_dtype, "real": types.is_float_dtype,
        }  # fmt: skip
        kind = next((kind for kind, fits in tests.items() if fits(dtype)), None)
        if kind is None:
            expected = "numbers, texts, categories, truth values or times"
            raise UserError(f"column {name!r}: type {dtype}: expected {expected}")
        return cls(kind, str(dtype), series.dt.unit if kind in ("time", "duration") else "")

    @classmethod
    def _of_objects(cls, series: Any) -> CellType:
        """Return the type of a Series of Python objects."""
        values, dtype = series[series.notna()], str(series.dtype)
        kinds = [_kind_of(value) for value in values]
        first = kinds[0] if kinds else "text"
        if set(kinds) == {"whole", "real"}:
            return cls("real", dtype)
        wrong = next((i for i, kind in enumerate(kinds) if kind != first or not kind), None)
        if wrong is not None:
            row, value = int(np.flatnonzero(series.notna())[wrong]), values.iloc[wrong]
            expected = f"{first}, as in the rows before" if first else "numbers, texts, truth values or times"
            found = f"{shown(value)} is of type {type(value).__name__}"
            raise UserError(f"column {series.name!r}, row {row}: {found}: expected {expected}")
        if first == "text" and len(values):
            for form in TIME_FORMATS:
                if _has_format(values, form):
                    return cls("time", dtype, "s", form)
        return cls(first, dtype)

    def raw(self, series: Any) -> tuple[Raw, Bools]:
        """Return the plain values of cells, and where cells are missing, both (n,).

        The values of missing cells are arbitrary.

        Raises:
            UserError: a cell does not fit the type of the column.
        """
        missing = series.isna().to_numpy(dtype=bool)
        if self.kind == "category":
            return self._raw_codes(series, missing), missing
        if self.kind in ("time", "duration"):
            return self._raw_times(series, missing), missing
        if self.kind == "text":
            self._check(series, missing | [isinstance(value, str) for value in series], "a text")
            values = np.full(len(series), "", dtype=object)
            values[~missing] = series.to_numpy(dtype=object)[~missing]
            return values, missing
        return self._raw_numbers(series, missing), missing

    def _raw_codes(self, series: Any, missing: Bools) -> Raw:
        own = isinstance(series.dtype, pandas().CategoricalDtype) and tuple(series.cat.categories) == self.categories
        codes = series.cat.codes.to_numpy() if own else self._categories.get_indexer(series.astype(object))
        some = ", ".join(map(str, self.categories[:8])) + (", ..." if len(self.categories) > 8 else "")
        self._check(series, missing | (codes >= 0), f"one of {some}")
        return np.asarray(codes, dtype=np.int64)

    def _raw_times(self, series: Any, missing: Bools) -> Raw:
        pd = pandas()
        if self.format:
            texts = series.astype(object).where(~missing, None)
            parsed = pd.to_datetime(texts, format=self.format, errors="coerce")
            self._check(series, missing | parsed.notna().to_numpy(), f"a time written as {self.format}")
        elif self.kind == "duration":
            parsed = pd.to_timedelta(series)
        else:
            parsed = pd.to_datetime(series)
            parsed = parsed if parsed.dt.tz is None else parsed.dt.tz_convert("UTC").dt.tz_localize(None)
        return np.where(missing, 0, parsed.to_numpy().astype(self._time_type).astype(np.int64))

    def _raw_numbers(self, series: Any, missing: Bools) -> Raw:
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "ifb":
            values = np.where(missing, np.zeros((), series.dtype), series.to_numpy())
        else:
            values = np.where(missing, 0, series.to_numpy(dtype=object))
            self._check(series, [_kind_of(value) in ("whole", "real", "truth") for value in values], "a number")
        if self.kind == "real":
            reals = values.astype(np.float64)
            self._check(series, np.isfinite(reals), "a finite number")
            return reals
        try:
            wholes = values.astype(np.int64)
        except (OverflowError, ValueError):
            name = series.name
            raise UserError(f"column {name!r}: whole numbers beyond 64 bits: convert them, .astype(float)") from None
        self._check(series, wholes == values, "a whole number")
        if self.kind == "truth":
            self._check(series, (wholes == 0) | (wholes == 1), "true or false")
        return wholes

    def _check(self, series: Any, fits: Any, expected: str) -> None:
        """Raise a UserError that names the first cell that does not fit."""
        if not np.all(fits):
            row = int(np.flatnonzero(~np.asarray(fits))[0])
            raise UserError(f"column {series.name!r}, row {row}: {shown(series.iloc[row])}: expected {expected}")

    def series(self, raw: Raw, missing: Bools, name: str) -> Any:
        """Return plain values as a pandas Series of the type of the column."""
        pd = pandas()
        if self.kind == "category":
            codes = np.where(missing, -1, raw).astype(np.int64)
            return pd.Series(pd.Categorical.from_codes(codes, self._categories, ordered=self.ordered), name=name)
        if self.kind in ("time", "duration"):
            values = pd.Series(raw.astype(np.int64).view(self._time_type), name=name)
            if self.format:
                values = values.dt.strftime(self.format)
            elif ", " in self.dtype:  # a time zone
                values = values.dt.tz_localize("UTC")
        else:
            types = {"text": object, "truth": bool}
            values = pd.Series(raw.astype(types.get(self.kind, raw.dtype)), name=name)
        values = values.astype(self.dtype)
        return values.mask(missing) if missing.any() else values

    @property
    def _time_type(self) -> str:
        return f"{'timedelta64' if self.kind == 'duration' else 'datetime64'}[{self.unit}]"

    @property
    def _categories(self) -> Any:
        return pandas().Index(list(self.categories), dtype=self.categories_dtype)


def shown(value: Any) -> str:
    """Return the value of a cell as messages show it."""
    return repr(value.item() if isinstance(value, np.generic) else value)[:60]


def _kind_of(value: object) -> str:
    """Return the kind of a Python object in a cell, "" for types that tables cannot have."""
    kinds = {(bool, np.bool_): "truth", (int, np.integer): "whole", (float, np.floating): "real", (str,): "text"}
    return next((kind for types, kind in kinds.items() if isinstance(value, types)), "")


def _has_format(texts: Any, form: str) -> bool:
    """Return True if every text is exactly a time in this format."""
    pd = pandas()
    for some in (texts.iloc[:20], texts):  # most formats fail in the first rows
        parsed = pd.to_datetime(some.astype(object), format=form, errors="coerce")
        if parsed.isna().any() or (parsed.dt.strftime(form).to_numpy(object) != some.to_numpy(object)).any():
            return False
    return True


# --- numbers on a normal scale ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantiles:
    """An increasing, piecewise linear map from numbers to those of a standard normal distribution.

    Args:
        values: increasing numbers.
        normal: the numbers that they are mapped to.
        decimals: number of decimals of rounded data, None for others.
        offset, step: rounded data are (offset + step k) / 10^decimals with integer k, and ``values`` are values of k.
    """

    values: tuple[float, ...]
    normal: tuple[float, ...]
    decimals: int | None = None
    offset: int = 0
    step: int = 1

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(self.values) != len(self.normal):
            found = f"{len(self.values)} values, {len(self.normal)} normal numbers"
            raise UserError(f"{found}: expected as many, at least 2")
        if np.any(np.diff(self.values) <= 0) or np.any(np.diff(self.normal) <= 0):
            raise UserError("quantiles: expected increasing values and increasing normal numbers")

    @cached_property
    def _pairs(self) -> tuple[Floats, Floats]:
        return np.array(self.values), np.array(self.normal)

    def _coordinate(self, raw: Raw) -> Floats:
        """Return the numbers that are interpolated: the data, or k."""
        if self.decimals is None:
            return raw.astype(np.float64)
        # Integers beyond 2^53 lose no digits as long as their distance from the offset is smaller.
        scaled = np.rint(raw * 10.0**self.decimals).astype(np.int64) if raw.dtype.kind == "f" else raw
        steps, rest = np.divmod(scaled - self.offset, self.step)
        return steps.astype(np.float64) + rest / self.step

    def encode(self, raw: Raw) -> Floats:
        """Return numbers on the normal scale. Beyond the ends the outermost pieces are extended."""
        return _interpolate(self._coordinate(raw), *self._pairs)

    def decode(self, z: Floats) -> Raw:
        """Return numbers of the data, clipped at the ends: float64, or int64 for rounded data without decimals."""
        values, normal = self._pairs
        y = np.clip(_interpolate(z, normal, values), values[0], values[-1])
        if self.decimals is None:
            return y
        whole = self.offset + self.step * np.rint(y).astype(np.int64)
        return whole / 10.0**self.decimals if self.decimals else whole

    def log_slope(self, raw: Raw) -> Floats:
        """Return log dz/dvalue. For rounded data this is log dz/dk, which turns a density into a probability."""
        values, normal = self._pairs
        piece = np.clip(np.searchsorted(values, self._coordinate(raw), side="right") - 1, 0, len(values) - 2)
        return np.asarray(np.log(np.diff(normal) / np.diff(values))[piece])


def _interpolate(x: Floats, xs: Floats, ys: Floats) -> Floats:
    """Interpolate linearly between pairs, exactly at them, and extrapolate beyond the ends."""
    piece = np.clip(np.searchsorted(xs, x, side="right") - 1, 0, len(xs) - 2)
    x0, x1, y0, y1 = xs[piece], xs[piece + 1], ys[piece], ys[piece + 1]
    # Computed from the nearer end of the piece, so that both ends are exact.
    lower = y0 + (x - x0) * ((y1 - y0) / (x1 - x0))
    upper = y1 - (x1 - x) * ((y1 - y0) / (x1 - x0))
    return np.where(x - x0 <= x1 - x, lower, upper)


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. The state of a cell is one of its levels, missing, or a number.

    Args:
        name: name of the column.
        cells: type of its cells.
        levels: values that are classes.
        missing: whether cells may be missing.
        quantiles: scale of all other values, which are numbers; None if there are none.
    """

    name: str
    cells: CellType
    levels: tuple[Any, ...] = ()
    missing: bool = False
    quantiles: Quantiles | None = None

    @property
    def n_states(self) -> int:
        """Number of states: the levels, then missing if cells may be missing, then a number if there are numbers."""
        return len(self.levels) + self.missing + (self.quantiles is not None)

    @property
    def missing_state(self) -> int | None:
        """State of missing cells; None if cells may not be missing."""
        return len(self.levels) if self.missing else None

    @property
    def number_state(self) -> int:
        """State of cells that are numbers; -1 in a column without numbers."""
        return -1 if self.quantiles is None else self.n_states - 1

    @property
    def kind(self) -> str:
        """Kind of the column: "number", "class", "constant", or "number and classes"."""
        if self.quantiles is None:
            return "class" if self.n_states > 1 else "constant"
        return "number and classes" if self.levels else "number"

    @cached_property
    def _levels(self) -> Raw:
        kinds = {"text": object, "real": np.float64}
        return np.array(self.levels, dtype=kinds.get(self.cells.kind, np.int64))

    @cached_property
    def _sorted_levels(self) -> tuple[Raw, NDArray[np.int64]]:
        order = np.argsort(self._levels, kind="stable")
        return self._levels[order], order

    def states(self, series: Any, fill_missing: int | None = None) -> tuple[NDArray[np.int64], Raw]:
        """Return the states and the plain values of cells, both (n,).

        Args:
            series: the cells.
            fill_missing: state of missing cells if the column has none.

        Raises:
            UserError: a cell has a value that the column cannot have. The message names the row.
        """
        raw, missing = self.cells.raw(series)
        found = np.full(len(raw), self.number_state)
        if self.levels:
            levels, order = self._sorted_levels
            place = np.clip(np.searchsorted(levels, raw), 0, len(levels) - 1)
            found = np.where(levels[place] == raw, order[place], found)
            if self.quantiles is None and self.cells.is_scale:
                found = self._nearest(found, raw, place, missing, series)
        missing_state = self.missing_state if self.missing else fill_missing
        found = np.where(missing, -1 if missing_state is None else missing_state, found)
        if (found < 0).any():
            row = int(np.flatnonzero(found < 0)[0])
            raise self._unknown_cell(row, series.iloc[row], bool(missing[row]))
        return found.astype(np.int64), raw

    def _unknown_cell(self, row: int, cell: Any, missing: bool) -> UserError:
        if missing:
            problem = "missing, which no cell of the column was: fill it, or impute it"
        else:
            some = self.cells.series(np.array(self.levels[:8]), np.zeros(len(self.levels[:8]), bool), self.name)
            known = ", ".join(map(str, some.tolist())) + (", ..." if len(self.levels) > 8 else "")
            problem = f"{shown(cell)}: expected one of {known}{did_you_mean(str(cell), [*map(str, self.levels)])}"
        return UserError(f"column {self.name!r}, row {row}: {problem}")

    def _nearest(self, found: Raw, raw: Raw, place: Raw, missing: Bools, series: Any) -> Raw:
        """Replace numbers and times that are not among the levels by the nearest level, with a warning."""
        new = (found < 0) & ~missing
        if not new.any():
            return found
        levels, order = self._sorted_levels
        below = np.maximum(place - 1, 0)
        nearest = order[np.where(raw - levels[below] < levels[place] - raw, below, place)]
        row = int(np.flatnonzero(new)[0])
        more = f", and {int(new.sum()) - 1} more" if new.sum() > 1 else ""
        warnings.warn(
            f"column {self.name!r}, row {row}: {shown(series.iloc[row])}, which no training row had, is replaced by "
            f"the nearest, {shown(self._state_cells.iloc[nearest[row]])}{more}",
            stacklevel=2,
        )
        return np.where(new, nearest, found)

    @cached_property
    def _state_cells(self) -> Any:
        """The cell of every state of a column without numbers."""
        raw = np.resize(self._levels, self.n_states)
        return self.cells.series(raw, np.arange(self.n_states) == self.missing_state, self.name)

    def encode(self, series: Any, fill_missing: int | None = None) -> tuple[NDArray[np.int64], Floats]:
        """Return the states of cells, and their numbers on the normal scale, NaN for cells of other states."""
        states, raw = self.states(series, fill_missing)
        z = np.full(len(states), np.nan)
        if self.quantiles is not None:
            is_number = states == self.number_state
            z[is_number] = self.quantiles.encode(raw[is_number])
        return states, z

    def series(self, states: NDArray[np.int64], z: Floats | None) -> Any:
        """Return cells of these states as a pandas Series; ``z`` has the numbers on the normal scale."""
        if self.quantiles is None:
            return self._state_cells.take(states).reset_index(drop=True)
        raw = np.concatenate([self._levels, np.zeros(2, self._levels.dtype)])[states]
        is_number = states == self.number_state
        if z is not None and is_number.any():
            raw[is_number] = self.quantiles.decode(z[is_number])
        missing = states == self.missing_state if self.missing else np.zeros(len(states), bool)
        return self.cells.series(raw, missing, self.name)


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, which encode its rows as parts of joint data.

    Each column with several states is a part of classes with its name. All numbers together are one more part.

    Args:
        columns: the columns in their order.
    """

    columns: tuple[TableColumn, ...]

    def __post_init__(self) -> None:
        twice = repeated(self.names)
        if twice is not None:
            raise UserError(f"column {twice!r} comes twice: rename one")
        if not self.class_columns and not self.number_columns:
            raise UserError(f"{len(self.names)} columns without two different values in any: nothing to learn")

    def __getitem__(self, name: str) -> TableColumn:
        found = next((column for column in self.columns if column.name == name), None)
        if found is None:
            raise UserError(f"column {name!r}: expected one of {', '.join(self.names)}{did_you_mean(name, self.names)}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns in their order."""
        return tuple(column.name for column in self.columns)

    @property
    def class_columns(self) -> tuple[TableColumn, ...]:
        """Columns with a part of classes, which has their name."""
        return tuple(column for column in self.columns if column.n_states > 1)

    @property
    def number_columns(self) -> tuple[TableColumn, ...]:
        """Columns with numbers, in their order in the part of all numbers."""
        return tuple(column for column in self.columns if column.quantiles is not None)

    @property
    def numbers_part(self) -> str:
        """Name of the part of all numbers."""
        name = "numbers"
        while name in self.names:
            name += "_"
        return name

    def encode(self, table: Any, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return a pandas DataFrame as parts.

        Args:
            table: the rows.
            generator: source of the noise that stands for the numbers of cells without a number; seed 0 if None.
        """
        return self._encode(table, generator, self.names, partly=False)[0]

    def encode_known(
        self, table: Any, names: Iterable[str] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parts, and bool tensors like them that are True where the cells are known.

        Args:
            table: rows; missing cells are not known.
            names: columns that are known; all if None.
        """
        return self._encode(table, None, self.names if names is None else tuple(names), partly=True)

    def _encode(
        self, table: Any, generator: torch.Generator | None, names: tuple[str, ...], partly: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        for name in names:
            if list(table.columns).count(self[name].name) != 1:
                has = ", ".join(map(str, table.columns))
                raise UserError(f"column {name!r}: the table has {has}; expected it once")
        n, parts, masks = len(table), {}, {}
        if self.number_columns:
            generator = torch.Generator().manual_seed(0) if generator is None else generator
            numbers = torch.randn(n, len(self.number_columns), generator=generator, dtype=torch.float64)
            parts[self.numbers_part] = numbers
            masks[self.numbers_part] = torch.zeros(numbers.shape, dtype=torch.bool)
        place = {column.name: j for j, column in enumerate(self.number_columns)}
        for column in self.columns:
            states, known, z = np.zeros(n, np.int64), np.zeros(n, bool), np.full(n, np.nan)
            if column.name in names:
                series = table[column.name]
                known = ~series.isna().to_numpy(dtype=bool) if partly else np.ones(n, bool)
                states, z = column.encode(series, fill_missing=0 if partly else None)
            if column.name in place:
                is_number = torch.from_numpy(known & ~np.isnan(z))
                parts[self.numbers_part][is_number, place[column.name]] = torch.from_numpy(z)[is_number]
                masks[self.numbers_part][:, place[column.name]] = is_number
            if column.n_states > 1:
                parts[column.name] = torch.from_numpy(states)
                masks[column.name] = torch.from_numpy(known)
        return parts, masks

    def decode(self, parts: Mapping[str, Tensor]) -> Any:
        """Return parts as a pandas DataFrame with the types, categories and order of the columns."""
        numbers = parts[self.numbers_part].detach().cpu().double().numpy() if self.number_columns else None
        n = len(next(iter(parts.values())))
        place = {column.name: j for j, column in enumerate(self.number_columns)}
        found = {}
        for column in self.columns:
            states = parts[column.name].cpu().numpy() if column.n_states > 1 else np.zeros(n, np.int64)
            z = None if numbers is None or column.name not in place else numbers[:, place[column.name]]
            found[column.name] = column.series(states, z)
        return pandas().DataFrame(found)

    def example(self, n: int = 1) -> dict[str, Tensor]:
        """Return parts of n rows without missing cells, which show the types of the columns."""
        numbers = torch.zeros(n, len(self.number_columns), dtype=torch.float64)
        states = {column.name: 0 if column.levels else column.number_state for column in self.class_columns}
        return {self.numbers_part: numbers, **{name: torch.full((n,), state) for name, state in states.items()}}

    def log_slopes(self, table: Any) -> Floats:
        """Return log dz/dvalue summed over the numbers of each row, (n,).

        Added to the log-density on the normal scale, this gives the log-density of the table's own numbers.
        """
        total = np.zeros(len(table))
        for column in self.number_columns:
            states, raw = column.states(table[column.name])
            is_number = states == column.number_state
            if column.quantiles is not None:
                total[is_number] += column.quantiles.log_slope(raw[is_number])
        return total


@dataclass(frozen=True)
class TableCodec(Codec):
    """Rows of a table as a pandas DataFrame.

    Args:
        columns: the columns.
    """

    form: ClassVar[str] = "parts"
    noun: ClassVar[str] = "rows"
    is_table: ClassVar[bool] = True
    columns: TableColumns

    def encode(self, data: Any) -> Encoded:
        return self.columns.encode(data), None

    def decode(self, x: Mapping[str, Tensor], present: Any = None) -> Any:
        return self.columns.decode(x)

    def lines(self, x: Mapping[str, Tensor], present: Any = None) -> list[str]:
        table = self.decode(x)
        return ["  ".join(f"{name}={cell}" for name, cell in row.items()) for row in table.to_dict("records")]

    def html(self, x: Mapping[str, Tensor], present: Any = None) -> str:
        return str(self.decode(x)._repr_html_())

    def arrays(self, x: Mapping[str, Tensor], present: Any = None) -> dict[str, Any]:
        return dict(self.decode(x).items())

    def write(self, path: Path, x: Any, present: Any = None, labels: Any = None, names: Any = ()) -> list[Path]:
        atomic_write(path.with_suffix(".csv"), self.decode(x).to_csv(index=False))
        return [path.with_suffix(".csv")]
