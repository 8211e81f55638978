"""Cells of a table's column as plain numbers or texts, and back to the type that a pandas DataFrame had them in."""

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


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Quantiles:
    """An increasing map of numbers to those of a standard normal: straight between stored pairs, so is its inverse.

    values: increasing. normal: their places, as increasing. decimals: of data that are rounded, None for others.
    offset, step: rounded data are (offset + step k) / 10^decimals with whole k, and values are of k.
    """

    values: tuple[float, ...]
    normal: tuple[float, ...]
    decimals: int | None = None
    offset: int = 0
    step: int = 1

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(self.values) != len(self.normal):
            raise UserError(f"{len(self.values)} values, {len(self.normal)} places: expected as many, at least 2")
        if np.any(np.diff(self.values) <= 0) or np.any(np.diff(self.normal) <= 0):
            raise UserError("quantiles that do not increase")

    @cached_property
    def _pairs(self) -> tuple[Floats, Floats]:
        return np.array(self.values), np.array(self.normal)

    def _coordinate(self, raw: Raw) -> Floats:
        """What is interpolated: the number itself, or k."""
        if self.decimals is None:
            return raw.astype(np.float64)
        # Whole numbers beyond 2^53 lose nothing as long as their steps from the offset are fewer.
        scaled = np.rint(raw * 10.0**self.decimals).astype(np.int64) if raw.dtype.kind == "f" else raw
        steps, rest = np.divmod(scaled - self.offset, self.step)
        return steps.astype(np.float64) + rest / self.step

    def encode(self, raw: Raw) -> Floats:
        """Places on the normal scale; beyond the ends the outermost pieces go on."""
        return _interpolate(self._coordinate(raw), *self._pairs)

    def decode(self, z: Floats) -> Raw:
        """The numbers, none beyond the ends: float64, or int64 for rounded data without decimals."""
        values, normal = self._pairs
        y = np.clip(_interpolate(z, normal, values), values[0], values[-1])
        if self.decimals is None:
            return y
        whole = self.offset + self.step * np.rint(y).astype(np.int64)
        return whole / 10.0**self.decimals if self.decimals else whole

    def log_slope(self, raw: Raw) -> Floats:
        """log dz/dvalue; of rounded data log dz/dk, the log of a share where a density is multiplied by it."""
        values, normal = self._pairs
        piece = np.clip(np.searchsorted(values, self._coordinate(raw), side="right") - 1, 0, len(values) - 2)
        slopes: Floats = np.log(np.diff(normal) / np.diff(values))[piece]
        return slopes


def _interpolate(x: Floats, xs: Floats, ys: Floats) -> Floats:
    """Straight lines through the pairs, exact at them, and on beyond the ends."""
    piece = np.clip(np.searchsorted(xs, x, side="right") - 1, 0, len(xs) - 2)
    x0, x1, y0, y1 = xs[piece], xs[piece + 1], ys[piece], ys[piece + 1]
    # From the nearer end of the piece: both ends come out to the last digit.
    lower = y0 + (x - x0) * ((y1 - y0) / (x1 - x0))
    upper = y1 - (x1 - x) * ((y1 - y0) / (x1 - x0))
    nearer: Floats = np.where(x - x0 <= x1 - x, lower, upper)
    return nearer


@dataclass(frozen=True)
class TableColumn:
    """One column. levels: values that are classes. missing: whether cells may be. quantiles: of all other numbers."""

    name: str
    cells: CellType
    levels: tuple[Any, ...] = ()
    missing: bool = False
    quantiles: Quantiles | None = None

    @property
    def n_states(self) -> int:
        """Levels, missing, a number: as many of these as there are."""
        return len(self.levels) + self.missing + (self.quantiles is not None)

    @property
    def missing_state(self) -> int | None:
        """The state of missing cells, if there may be any."""
        return len(self.levels) if self.missing else None

    @property
    def number_state(self) -> int:
        """The state of cells that are numbers; -1 in a column that has none."""
        return -1 if self.quantiles is None else self.n_states - 1

    @property
    def kind(self) -> str:
        """What it is as a whole: "number", "class", "constant", or "number and classes"."""
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
        """The state of every cell, and the plain values; a value that cannot be is refused with its row.

        fill_missing: the state of a missing cell where the column has none.
        """
        raw, missing = self.cells.raw(series)
        found = np.full(len(raw), self.number_state)
        if self.levels:
            levels, order = self._sorted_levels
            place = np.clip(np.searchsorted(levels, raw), 0, len(levels) - 1)
            found = np.where(levels[place] == raw, order[place], found)
            if self.quantiles is None and self.cells.is_scale:
                found = self._nearest(found, raw, place, missing, series)
        absent = self.missing_state if self.missing else fill_missing
        found = np.where(missing, -1 if absent is None else absent, found)
        if (found < 0).any():
            row = int(np.flatnonzero(found < 0)[0])
            what = f"column {self.name!r}, row {row}: "
            if missing[row]:
                raise UserError(f"{what}missing, which no cell of the column was: fill it, or impute it")
            known = self.cells.series(np.array(self.levels[:8]), np.zeros(len(self.levels[:8]), bool), self.name)
            texts = [str(value) for value in known.tolist()]
            more = ", ..." if len(self.levels) > 8 else ""
            hint = did_you_mean(str(series.iloc[row]), [str(level) for level in self.levels])
            raise UserError(f"{what}{shown(series.iloc[row])}: expected one of {', '.join(texts)}{more}{hint}")
        return found.astype(np.int64), raw

    def _nearest(self, found: NDArray[np.int64], raw: Raw, place: Raw, missing: Raw, series: Any) -> NDArray[np.int64]:
        """Numbers and times among the levels that no cell had are taken for the nearest, with a warning."""
        new = (found < 0) & ~missing
        if not new.any():
            return found
        levels, order = self._sorted_levels
        below = np.maximum(place - 1, 0)
        nearest = np.where(raw - levels[below] < levels[place] - raw, below, place)
        row = int(np.flatnonzero(new)[0])
        taken = self._state_cells.iloc[order[nearest[row]]]
        more = f", and {int(new.sum()) - 1} more" if new.sum() > 1 else ""
        warnings.warn(
            f"column {self.name!r}, row {row}: {shown(series.iloc[row])}, which no training row had, is taken for the "
            f"nearest, {shown(taken)}{more}",
            stacklevel=2,
        )
        return np.where(new, order[nearest], found)

    @cached_property
    def _state_cells(self) -> Any:
        """The cell of every state of a column without numbers."""
        raw = np.resize(self._levels, self.n_states)
        return self.cells.series(raw, np.arange(self.n_states) == self.missing_state, self.name)

    def series(self, states: NDArray[np.int64], z: Floats | None) -> Any:
        """The column of these states and numbers."""
        if self.quantiles is None:
            return self._state_cells.take(states).reset_index(drop=True)
        raw = np.concatenate([self._levels, np.zeros(2, self._levels.dtype)])[states]
        number = states == self.number_state
        if z is not None and number.any():
            raw[number] = self.quantiles.decode(z[number])
        missing = states == self.missing_state if self.missing else np.zeros(len(states), bool)
        return self.cells.series(raw, missing, self.name)


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, in their order, and the way to parts of joint data and back."""

    columns: tuple[TableColumn, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"column {twice!r} is there twice: rename one")
        if not self.class_columns and not self.number_columns:
            raise UserError(f"{len(names)} columns without two different values in any: nothing to learn")

    def __getitem__(self, name: str) -> TableColumn:
        found = next((column for column in self.columns if column.name == name), None)
        if found is None:
            raise UserError(f"column {name!r}: expected one of {', '.join(self.names)}{did_you_mean(name, self.names)}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Of all columns, in their order."""
        return tuple(column.name for column in self.columns)

    @property
    def class_columns(self) -> tuple[TableColumn, ...]:
        """Those with a class part, which has their name."""
        return tuple(column for column in self.columns if column.n_states > 1)

    @property
    def number_columns(self) -> tuple[TableColumn, ...]:
        """Those with a number, in their order in the part of all numbers."""
        return tuple(column for column in self.columns if column.quantiles is not None)

    @property
    def numbers_part(self) -> str:
        """The name of the part of all numbers."""
        name = "numbers"
        while name in self.names:
            name += "_"
        return name

    def encode(self, table: Any, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """The parts of a pandas DataFrame. generator: of the noise where cells have no number; seeded 0 if None."""
        return self._encode(table, generator, known=False)[0]

    def encode_known(
        self, table: Any, names: Iterable[str] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parts, and bool tensors like them: True for what the cells of these columns that are not missing tell."""
        return self._encode(table, None, known=True, names=self.names if names is None else tuple(names))

    def _encode(
        self, table: Any, generator: torch.Generator | None, known: bool, names: tuple[str, ...] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        wanted = self.names if names is None else names
        for name in wanted:
            if list(table.columns).count(self[name].name) != 1:
                raise UserError(
                    f"column {name!r}: the table has {', '.join(map(str, table.columns))}; expected it once"
                )
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        n = len(table)
        numbers = torch.randn(n, len(self.number_columns), generator=generator, dtype=torch.float64)
        told = torch.zeros(numbers.shape, dtype=torch.bool)
        parts: dict[str, Tensor] = {self.numbers_part: numbers} if self.number_columns else {}
        masks: dict[str, Tensor] = {self.numbers_part: told} if self.number_columns else {}
        place = {column.name: i for i, column in enumerate(self.number_columns)}
        for column in self.columns:
            states, there = np.zeros(n, np.int64), np.zeros(n, bool)
            if column.name in wanted:
                series = table[column.name]
                there = ~series.isna().to_numpy(dtype=bool) if known else np.ones(n, bool)
                states, raw = column.states(series, fill_missing=0 if known else None)
                number = (states == column.number_state) & there
                if column.quantiles is not None and number.any():
                    j = place[column.name]
                    numbers[torch.from_numpy(number), j] = torch.from_numpy(column.quantiles.encode(raw[number]))
                    told[:, j] = torch.from_numpy(number)
            if column.n_states > 1:
                parts[column.name] = torch.from_numpy(states)
                masks[column.name] = torch.from_numpy(there)
        return parts, masks

    def decode(self, parts: Mapping[str, Tensor]) -> Any:
        """A pandas DataFrame of the parts, with the types, categories and order of the columns."""
        numbers = parts[self.numbers_part].detach().cpu().double().numpy() if self.number_columns else None
        n = len(next(iter(parts.values())))
        place = {column.name: i for i, column in enumerate(self.number_columns)}
        found = {}
        for column in self.columns:
            states = parts[column.name].cpu().numpy() if column.n_states > 1 else np.zeros(n, np.int64)
            z = None if numbers is None or column.name not in place else numbers[:, place[column.name]]
            found[column.name] = column.series(states, z)
        return pandas().DataFrame(found)

    def example(self, n: int = 1) -> dict[str, Tensor]:
        """Parts of n rows without a missing cell, for what wants to see the types."""
        parts: dict[str, Tensor] = {self.numbers_part: torch.zeros(n, len(self.number_columns), dtype=torch.float64)}
        for column in self.class_columns:
            parts[column.name] = torch.full((n,), 0 if column.levels else column.number_state)
        return parts

    def log_slopes(self, table: Any) -> Floats:
        """What turns the log-density of the numbers on the normal scale into that of the table, (n,)."""
        total = np.zeros(len(table))
        for column in self.number_columns:
            states, raw = column.states(table[column.name])
            number = states == column.number_state
            assert column.quantiles is not None
            total[number] += column.quantiles.log_slope(raw[number])
        return total


@dataclass(frozen=True)
class TableCodec(Codec):
    """Rows of a table as a pandas DataFrame.

    Args:
        columns: the columns.
    """

    form: ClassVar[str] = "parts"
    noun: ClassVar[str] = "rows"
    columns: TableColumns

    def encode(self, data: Any) -> Encoded:
        return self.columns.encode(data), None

    def decode(self, x: Mapping[str, Tensor], present: Any = None) -> Any:
        return self.columns.decode(x)

    def lines(self, x: Mapping[str, Tensor], present: Any = None) -> list[str]:
        table = self.decode(x)
        return ["  ".join(f"{name}={cell}" for name, cell in row.items()) for row in table.to_dict("records")]

    def html(self, x: Mapping[str, Tensor], present: Any = None) -> str:
        table: str = self.decode(x)._repr_html_()
        return table

    def arrays(self, x: Mapping[str, Tensor], present: Any = None) -> dict[str, Any]:
        return dict(self.decode(x).items())

    def write(self, path: Path, x: Any, present: Any = None, labels: Any = None, names: Any = ()) -> list[Path]:
        atomic_write(path.with_suffix(".csv"), self.decode(x).to_csv(index=False))
        return [path.with_suffix(".csv")]
