"""Drawing rows of a table that meet conditions, and missing cells.

Given cells are kept exactly while the others are drawn. Ranges and rules are met by drawing rows until enough meet
them. If a range of classes is rare, this takes long. The classes are then taken from the rows found so far, which is a
draw from the model's own distribution restricted to the range, and the other cells are drawn given these classes.
Masking the predicted classes at every network call instead would be biased: the other columns learn of a class only
when the state shows it (measured on an exact model in the tests of this module).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn._utils.arguments import check_seed, check_whole
from bfn._utils.estimate import share_estimate
from bfn._utils.pieces import ALONE, Processes, derived_generator
from bfn.controls.classes import Allowed
from bfn.controls.guidance import Steering
from bfn.controls.known import Known
from bfn.controls.particles import Particles
from bfn.core.control import Control
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.core.samples import Samples
from bfn.core.sampling import Request, sample
from bfn.data.table_columns import TableColumn, TableColumns, pandas
from bfn.tables.conditions import CellCondition, Constraint, cell_conditions, columns_of, constraints_of, number_range

CALLS = 20
"""Default number of network calls."""
ROWS = 4096
"""Number of rows that are drawn at a time."""
BLOCK = 1024
"""Number of rows with the same generator, which one process draws."""
TRIES = 100
"""Default of the largest number of rows that are drawn for each row that is asked for."""
LEAST_DRAWN = 10_000
"""Number of rows that may always be drawn: with fewer, a small share cannot be told from none."""
RARE = 0.2
"""Share of the drawn rows below which the classes of a range count as rare."""
ENOUGH = 200
"""Number of rows with classes of a rare range from which the classes of later rows are taken."""
STEEPNESS = 50.0
"""Factor of the squared distance, on the normal scale, by which particles are steered to a range of numbers."""
PLAIN = Request()

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Parts = Mapping[str, Tensor]


@dataclass
class SamplingReport:
    """A report on how conditions were met.

    Attributes:
        known: given cells.
        met: number of drawn rows that met each check.
        drawn, accepted: number of rows that were drawn and that met all checks.
        taken: number of found rows from which the classes of a rare range were taken; 0 if none was found and
            predictions were masked at each call instead; None if no range was rare.
        particles: number of particles for each row, if any.
    """

    known: list[str] = field(default_factory=list)
    met: dict[str, int] = field(default_factory=dict)
    drawn: int = 0
    accepted: int = 0
    taken: int | None = None
    particles: int | None = None

    def asdict(self) -> dict[str, Any]:
        """Return the report as plain values; the acceptance rate has its 95 % interval."""
        values: dict[str, Any] = {"known": self.known, "drawn": self.drawn}
        if self.met:
            values["acceptance_rate"] = share_estimate(self.accepted, self.drawn).asdict()
            values["met"] = {name: count / self.drawn for name, count in self.met.items()}
        more = {"classes_taken_from": self.taken, "particles": self.particles}
        return values | {name: value for name, value in more.items() if value is not None}

    def lines(self) -> list[str]:
        """Return the report as lines of text; none if there were no conditions."""
        found = [f"given exactly: {', '.join(self.known)}"] if self.known else []
        if self.met:
            rate = share_estimate(self.accepted, self.drawn)
            found.append(f"{self.accepted} of {self.drawn} drawn rows met all checks: {rate}")
            found += [f"  {name}: met by {count / self.drawn:.4f}" for name, count in self.met.items()]
        if self.taken is not None:
            found.append(f"a rare range: its classes were taken from {self.taken} rows that met it")
        return found


# --- rows that meet conditions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowRequest:
    """Conditions on rows.

    Attributes:
        columns: columns of the table.
        given: conditions that give a cell exactly.
        row: a DataFrame of one row with the given cells as they will be in the samples; None for none.
        known, known_mask: the given cells as data of one row, by part, and where they are.
        allowed: mask of the states that ranges allow, for each column of classes with a range.
        checks: conditions that drawn rows are checked by.
    """

    columns: TableColumns
    given: tuple[CellCondition, ...]
    row: Any
    known: Parts
    known_mask: Parts
    allowed: Parts
    checks: tuple[CellCondition | Constraint, ...]

    @classmethod
    def read(cls, columns: TableColumns, given: Any = None, constraints: Any = None) -> RowRequest:
        """Read conditions and constraints as users give them. Raise a UserError for one that can never be met."""
        conditions = cell_conditions(given, columns)
        rules = constraints_of(constraints, columns)
        equal = {c.column.name: c for c in conditions if c.operator == "="}
        for condition in conditions:
            same = equal.get(condition.column.name)
            if same is not None and same is not condition and not _agree(same, condition):
                raise UserError(f"{same} and {condition}: no cell can meet both")
        ranges = [condition for condition in conditions if condition.column.name not in equal]
        known, mask, row = _known_cells(columns, {name: condition.value for name, condition in equal.items()})
        return cls(
            columns, tuple(equal.values()), row, known, mask, _allowed_states(columns, ranges), (*ranges, *rules)
        )

    def check(self, rows: Any, report: SamplingReport | None = None) -> Bools:
        """Return which rows meet all checks, and count in the report how many met each of them."""
        met = np.ones(len(rows), bool)
        for one in self.checks:
            own = one.of_rows(rows)
            if report is not None:
                report.met[str(one)] += int(own.sum())
            met &= own
        return met

    def decode(self, parts: Any) -> Any:
        """Return rows as a DataFrame. Given cells are exactly as given: the network has them in single precision."""
        rows = self.columns.decode(parts)
        if self.row is None:
            return rows
        again = {name: [self.row[name][0]] * len(rows) for name in self.row}
        return rows.assign(**again).astype(self.row.dtypes)

    @property
    def example(self) -> Any:
        """A row with the types of the table."""
        return self.columns.decode(self.columns.example())

    def report(self) -> SamplingReport:
        """Return an empty report for this request."""
        return SamplingReport([*map(str, self.given)], dict.fromkeys(map(str, self.checks), 0))

    def keep(self, n: int, classes: Parts | None = None) -> tuple[Control, ...]:
        """Return the control that keeps the given cells of n rows, and ``classes``, which have a value for each row."""
        classes = {} if classes is None else classes
        if not self.known and not classes:
            return ()
        x = {part: value.repeat_interleave(n, 0) for part, value in self.known.items()} | dict(classes)
        mask = {part: value.repeat_interleave(n, 0) for part, value in self.known_mask.items() if part not in classes}
        return (Known(x, mask),)  # parts without a mask are known entirely

    def guide(self, model: Model, particles: Particles) -> tuple[Control, ...]:
        """Return the controls that steer particles to what is asked for, and rule out those that miss it."""

        def must(x: Any) -> Tensor:
            return torch.from_numpy(self.check(self.decode(x)))

        return Particles(particles.count, must=must, draws=1), *self._steering(model)

    def _steering(self, model: Model) -> tuple[Control, ...]:
        """Return the control that steers numbers into their ranges; none if no range is one of numbers alone."""
        bounds = []
        for condition in self.checks:
            if not isinstance(condition, CellCondition) or condition.column.quantiles is None:
                continue
            column = condition.column
            alone = column.name not in self.allowed or int(self.allowed[column.name].sum()) == 1
            if alone and condition.operator in ("<", "<=", ">", ">="):
                place = float(condition.column.quantiles.encode(condition.raw((condition.value,)))[0])
                j = [c.name for c in self.columns.number_columns].index(column.name)
                bounds.append((j, place, 1.0 if condition.operator[0] == ">" else -1.0))
        if not bounds:
            return ()
        part = next(part for part in model.flow.layout if part.name == self.columns.numbers_part)

        def towards(x: Tensor) -> Tensor:
            numbers = part.state_of(x)
            short = [((place - numbers[:, j]) * sign).clamp(min=0).square() for j, place, sign in bounds]
            return -STEEPNESS * torch.stack(short).sum(0)

        return (Steering(towards),)


def draw_rows(
    model: Model, n: int, rows: RowRequest, report: SamplingReport, request: Request = PLAIN, *, seed: int = 0,
    tries: int = TRIES, batch: int = ROWS, processes: Processes = ALONE,
) -> Iterator[Any]:  # fmt: skip
    """Draw n rows that meet the conditions, as DataFrames of at most ``batch`` rows.

    Args:
        model: a model of a table.
        n: number of rows.
        rows: the conditions.
        report: report of the conditions, which is filled in.
        request: solver and options; 20 network calls if ``nfe`` is None. Particles are steered to the conditions.
        seed: seed of all random numbers.
        tries: maximum number of rows that are drawn for each row that is asked for.
        batch: number of rows that are drawn at a time.
        processes: processes that share the work. All of them get all rows, the same for any number of processes.
    """
    check_whole("n", n, 1, 10**12)
    check_whole("tries", tries, 1, 10**9)
    check_whole("batch", batch, 1, 10**6)
    check_seed(seed)
    particles = next((control for control in request.controls if isinstance(control, Particles)), None)
    controls = tuple(control for control in request.controls if control is not particles)
    if particles is not None:
        report.particles = particles.count
        controls += rows.guide(model, particles) if rows.checks else ()
    again = bool(rows.checks) and particles is None
    most = max(tries * n, LEAST_DRAWN)
    found, first, number = _FoundClasses(rows, report, min(most, tries * ENOUGH) // 2), 0, 0
    while report.accepted < n:
        count = min(batch, _n_wanted(n, report, most) if again else n - report.accepted)
        if count < 1:
            raise UserError(_failure(report, n))
        own = (*controls, *found.controls(count, derived_generator(seed, "chosen", number)))
        asked = replace(request, nfe=CALLS if request.nfe is None else request.nfe, controls=own)
        x = _draw_blocks(model, count, asked, (seed, "rows", number), processes).x
        drawn = rows.decode(x)
        report.drawn += count
        met = rows.check(drawn, report)
        if again:
            found.add(x)
        drawn = drawn[met].head(n - report.accepted)
        report.accepted += int(met.sum())
        number += 1
        if len(drawn):
            drawn.index = pandas().RangeIndex(first, first + len(drawn))
            first += len(drawn)
            yield drawn


def _draw_blocks(model: Model, n: int, request: Request, seed: tuple[int | str, ...], processes: Processes) -> Samples:
    """Draw n samples in blocks that have their own generators. The processes share the blocks, and all get all."""
    bound = request.bind(model, n)
    drawn = []
    for block, first in processes.own(enumerate(range(0, n, BLOCK))):
        generator = derived_generator(*seed, block, device=model.device)
        drawn.append(bound.rows(slice(first, min(n, first + BLOCK))).draw(generator))
    return Samples.joined(processes.gather(drawn))


@dataclass
class _FoundClasses:
    """Classes of drawn rows that meet the ranges. If the ranges are rare, later rows take their classes from them.

    Args:
        rows: the conditions.
        report: its ``taken`` is set once the ranges are known to be rare.
        limit: number of drawn rows at which rare ranges no longer wait for ``ENOUGH`` found rows.
    """

    rows: RowRequest
    report: SamplingReport
    limit: int
    found: list[Parts] = field(default_factory=list)

    def add(self, x: Parts) -> None:
        """Add the classes of drawn rows."""
        allowed, report = self.rows.allowed, self.report
        if not allowed or report.taken is not None:
            return
        met = torch.stack([mask[x[name]] for name, mask in allowed.items()]).all(0)
        self.found.append({name: x[name][met] for name in allowed})
        n = sum(len(next(iter(classes.values()))) for classes in self.found)
        if n < RARE * report.drawn and (n >= ENOUGH or report.drawn >= self.limit):
            report.taken = n

    def controls(self, n: int, generator: torch.Generator) -> tuple[Control, ...]:
        """Return the controls for the given cells and the classes of the next n rows."""
        if self.report.taken == 0:
            return *self.rows.keep(n), Allowed(self.rows.allowed)
        if self.report.taken is None:
            return self.rows.keep(n)
        chosen = torch.randint(self.report.taken, (n,), generator=generator)
        classes = {name: torch.cat([one[name] for one in self.found])[chosen] for name in self.rows.allowed}
        return self.rows.keep(n, classes)


def _n_wanted(n: int, report: SamplingReport, most: int) -> int:
    """Return how many rows to draw so that about as many are accepted as are still needed."""
    rate = max(report.accepted, 1) / max(report.drawn, 1)
    return min(max(math.ceil(1.1 * (n - report.accepted) / rate), 64), most - report.drawn)


def _failure(report: SamplingReport, n: int) -> str:
    fewest = min(report.met, key=lambda name: report.met[name])
    return (
        f"{report.accepted} of {report.drawn} drawn rows met all conditions and {n} are asked for; {fewest!r} was met "
        f"by {report.met[fewest]}: ask for less, lead to a range with particles=16, or draw more, tries={TRIES * 10}"
    )


def _agree(same: CellCondition, other: CellCondition) -> bool:
    """Return True if a cell that meets the first condition, an equality, meets the other one too."""
    if same.value is None or other.value is None:
        return same.value is None and other.value is None
    return bool(other.of_rows(pandas().DataFrame({same.column.name: [same.value]}, dtype=object))[0])


def _allowed_states(columns: TableColumns, ranges: list[CellCondition]) -> Parts:
    """Return the mask of allowed states of each column of classes with a range; ranges of numbers are checked only."""
    allowed: dict[str, Tensor] = {}
    for condition in ranges:
        name, states = condition.column.name, torch.from_numpy(condition.states)
        allowed[name] = allowed[name] & states if name in allowed else states
        if not bool(allowed[name].any()):
            known = f": the table has {_range_text(condition.column)}" if condition.column.quantiles is not None else ""
            known = ": no cell of it was missing" if condition.value is None else known
            raise UserError(f"{condition}: no value of this column can meet it{known}")
    return {name: mask for name, mask in allowed.items() if columns[name].n_states > 1}


def _range_text(column: TableColumn) -> str:
    low, high = column.cells.series(number_range(column), np.zeros(2, bool), column.name)
    return f"{low} to {high}"


def _known_cells(columns: TableColumns, given: dict[str, Any]) -> tuple[Parts, Parts, Any]:
    """Return one row of the given cells: its parts, the masks of what they tell, and the row as in the samples."""
    if not given:
        return {}, {}, None
    row = pandas().DataFrame({name: [value] for name, value in given.items()})
    try:
        parts, known = columns.encode_known(row, given)
    except UserError as error:
        raise UserError(str(error).replace(", row 0", "")) from None
    absent = [name for name in given if row[name].isna().any()]
    for name in absent:
        state = columns[name].missing_state
        if state is None:
            raise UserError(f"given[{name!r}]={given[name]!r}: no cell of this column was missing; leave it out")
        if columns[name].n_states > 1:
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


# --- missing cells ----------------------------------------------------------------------------------------------------

EARLY = 0.1
"""Time at which the probabilities of classes are read. At t = 0 a network has learned to ignore its input, and makes
too little of known cells: with one cell in five missing it then has 62 % of Magic's classes right, at 0.1 83 % (Adult
74.4 and 74.6)."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """The rows of a table that have missing cells.

    Attributes:
        model: a model of the table.
        table: the table, a DataFrame.
        columns: the columns of the model.
        rows: numbers of the rows with missing cells.
        known, known_mask: their cells as data, by part, and which of them are known.
    """

    model: Model
    table: Any
    columns: TableColumns
    rows: NDArray[np.int64]
    known: Parts
    known_mask: Parts

    @classmethod
    def of(cls, model: Model, table: Any) -> Gaps:
        """Find the missing cells of a table. Warn about numbers outside the range of the training table."""
        columns = columns_of(model)
        parts, masks = columns.encode_known(table)
        _warn_of_range(columns, table)
        rows = np.flatnonzero(table[list(columns.names)].isna().any(axis=1).to_numpy())
        index = torch.from_numpy(rows)
        known, known_mask = ({part: x[index] for part, x in some.items()} for some in (parts, masks))
        return cls(model, table, columns, rows, known, known_mask)

    def drawn(self, request: Request, seed: int) -> Any:
        """Return the table with its missing cells drawn. They never get the state "missing"."""
        return self.filled(self.columns.decode(self._draw(request, seed))) if len(self.rows) else self.table.copy()

    def expected(self, draws: int, request: Request, seed: int) -> Any:
        """Return the table with the mean or the most probable level in its missing cells.

        The probability of a class given the known cells is the network's prediction from the known cells alone, by one
        call at ``EARLY``. Means of numbers are taken over draws.
        """
        if not len(self.rows):
            return self.table.copy()
        cells, shares, tables = {}, self._probabilities(), []
        names = [column.name for column in self.columns.number_columns]
        if names and bool(self.table[names].isna().any(axis=None)):
            tables = [self.columns.decode(self._draw(request, seed + draw)) for draw in range(draws)]
        for column in self.columns.columns:
            if column.quantiles is None:
                cells[column.name] = _best(column, shares.get(column.name), len(self.rows))
            elif tables:
                raw = np.stack([column.cells.raw(table[column.name])[0] for table in tables])
                cells[column.name] = _as_cells(column, raw.astype(np.float64).mean(0))
        return self.filled(cells)

    def _draw(self, request: Request, seed: int) -> Any:
        allowed = self._allowed()
        controls: tuple[Control, ...] = (*request.controls, Known(self.known, self.known_mask))
        controls += (Allowed(allowed),) if allowed else ()
        return sample(self.model, len(self.rows), replace(request, controls=controls), batch=ROWS, seed=seed).x

    def _allowed(self) -> dict[str, Tensor]:
        """Return masks of the states that cells may have, which is all but "missing"."""
        return {
            column.name: torch.arange(column.n_states).ne(column.missing_state)
            for column in self.columns.class_columns
            if column.missing_state is not None
        }

    def _probabilities(self) -> dict[str, Floats]:
        """Return the probabilities of the states of each column of classes given the known cells, (rows, states)."""
        model, n = self.model, len(self.rows)
        nothing = torch.zeros(n, *model.flow.state_shape(model.data_shape), dtype=model.dtype, device=model.device)
        request = Request(grid=[EARLY], initial=nothing, controls=(Known(self.known, self.known_mask),))
        prediction = sample(model, n, request, batch=ROWS, seed=0).prediction.double()
        states = {part.name: part.state_of(prediction) for part in model.flow.layout}
        allowed, names = self._allowed(), [column.name for column in self.columns.class_columns]
        return {name: (states[name] * allowed.get(name, 1)).numpy() for name in names}

    def filled(self, cells: Any) -> Any:
        """Return the table with ``cells``, by column, in place of its missing ones. Filled columns get their type."""
        table = self.table.copy()
        for column in self.columns.columns:
            own = table[column.name]
            gaps = own.isna().to_numpy()[self.rows]
            if gaps.any():
                new = cells[column.name]
                values = own.astype(object).to_numpy(copy=True)
                values[self.rows[gaps]] = new.astype(object).to_numpy()[gaps]
                table[column.name] = type(own)(values, index=own.index, dtype=object).astype(new.dtype)
        return table


def _warn_of_range(columns: TableColumns, table: Any) -> None:
    """Warn, once for each column, about cells outside the range that the column had in the training table."""
    for column in columns.number_columns:
        series, (low, high) = table[column.name], number_range(column)
        states, raw = column.states(series, fill_missing=0)
        outside = np.flatnonzero((states == column.number_state) & series.notna() & ((raw < low) | (raw > high)))
        if len(outside):
            more = f", and {len(outside) - 1} more cells" if len(outside) > 1 else ""
            what = f"column {column.name!r}, row {outside[0]}: {series.iloc[outside[0]]}"
            text = f"{what} is outside the range of the training table, {_range_text(column)}{more}"
            warnings.warn(text, stacklevel=4)


def _best(column: TableColumn, p: Floats | None, n: int) -> Any:
    """Return the mean of numbers and times, and the most probable level of other columns."""
    if p is None:
        return column.series(np.zeros(n, np.int64), None)
    p = p[:, : len(column.levels)]
    if column.cells.is_scale:
        return _as_cells(column, p @ np.array(column.levels, np.float64) / p.sum(1))
    return column.series(p.argmax(1), None)


def _as_cells(column: TableColumn, raw: Floats) -> Any:
    """Return means as cells; whole numbers and times are rounded."""
    rounded = raw if column.cells.kind == "real" else np.rint(raw).astype(np.int64)
    return column.cells.series(rounded, np.zeros(len(raw), bool), column.name)
