"""Rows that meet conditions: given cells by infilling, ranges and rules by drawing until they hold.

Where a range of classes is rare, drawing until it holds takes long. Then the classes are taken from the rows found so
far, a draw of the model's own distribution cut to the range, and the other cells are drawn given these. Cutting the
prediction at each call instead would leave the other columns behind: they learn of a class only when the state shows
it (measured on an exact model in the tests of this file).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn._utils.arguments import check_seed, check_whole
from bfn._utils.estimate import share_estimate
from bfn._utils.pieces import ALONE, Processes, derived_generator
from bfn.controls.guidance import Steering
from bfn.controls.particles import Particles
from bfn.core.errors import UserError
from bfn.core.model import BFN, Model
from bfn.core.sampling import sample, sample_in_batches
from bfn.data.table_columns import TableColumn, TableColumns, pandas
from bfn.tables.conditions import CellCondition, Constraint, cell_conditions, constraints_of

Bools = NDArray[np.bool_]


CALLS = 20
"""Network calls of a sample."""
ROWS = 4096
"""Rows that are drawn at a time."""
BLOCK = 1024
"""Of these, rows with a generator of their own: what a process draws at a time."""
TRIES = 100
"""Rows that are drawn at most for each that is asked for, where conditions are met by drawing again."""
LEAST_DRAWN = 10_000
"""So many may always be drawn: below it a small share cannot be told from none."""
RARE, ENOUGH = 0.2, 200
"""Below this share of drawn rows classes are taken from those found, as soon as there are so many of them."""
STEEPNESS = 50.0
"""How hard particles are led towards a range of numbers, by the squared distance on the normal scale."""


@dataclass
class SamplingReport:
    """How conditions were met.

    known: given cells. met: of all drawn rows, how many met each check. taken: by which rows found so far the classes
    of later ones were drawn, where a range is rare; 0 if none was found and predictions were cut at each call instead.
    """

    known: list[str] = field(default_factory=list)
    met: dict[str, int] = field(default_factory=dict)
    drawn: int = 0
    accepted: int = 0
    taken: int | None = None
    particles: int | None = None

    def asdict(self) -> dict[str, Any]:
        """For JSON; the acceptance rate has its 95 % interval."""
        values: dict[str, Any] = {"known": self.known, "drawn": self.drawn}
        if self.met:
            values["acceptance_rate"] = share_estimate(self.accepted, self.drawn).asdict()
            values["met"] = {name: count / self.drawn for name, count in self.met.items()}
        more = {"classes_taken_from": self.taken, "particles": self.particles}
        return values | {name: value for name, value in more.items() if value is not None}

    def lines(self) -> list[str]:
        """For people; empty where nothing was asked for."""
        found = [f"given exactly: {', '.join(self.known)}"] if self.known else []
        if self.met:
            rate = share_estimate(self.accepted, self.drawn)
            found.append(f"{self.accepted} of {self.drawn} drawn rows met all checks: {rate}")
            found += [f"  {name}: met by {count / self.drawn:.4f}" for name, count in self.met.items()]
        if self.taken is not None:
            found.append(f"a rare range: its classes were taken from {self.taken} rows that met it")
        return found


@dataclass(frozen=True, eq=False)
class RowRequest:
    """What is asked of rows, read once. row: the given cells as they will be in the rows, None for none.

    known, known_mask: one row of parts. allowed: by class part, the states that ranges leave. checks: of drawn rows.
    """

    columns: TableColumns
    given: tuple[CellCondition, ...]
    row: Any
    known: dict[str, Tensor]
    known_mask: dict[str, Tensor]
    allowed: dict[str, Tensor]
    checks: tuple[CellCondition | Constraint, ...]

    @classmethod
    def read(cls, columns: TableColumns, given: Any = None, constraints: Any = None) -> RowRequest:
        """Conditions and constraints as users give them; one that can never be met is refused."""
        conditions = cell_conditions(given, columns)
        rules = constraints_of(constraints, columns)
        equal = {c.column.name: c for c in conditions if c.operator == "="}
        for condition in conditions:
            same = equal.get(condition.column.name)
            if same is not None and same is not condition and not _agree(same, condition):
                raise UserError(f"{same} and {condition}: no cell can meet both")
        known: tuple[dict[str, Tensor], dict[str, Tensor], Any] = ({}, {}, None)
        if equal:
            known = _known_cells(columns, {name: condition.value for name, condition in equal.items()})
        allowed: dict[str, Tensor] = {}
        ranges = [condition for condition in conditions if condition.column.name not in equal]
        for condition in ranges:
            column = condition.column
            states = torch.from_numpy(condition.states)
            allowed[column.name] = allowed.get(column.name, torch.ones_like(states)) & states
            if not bool(allowed[column.name].any()):
                raise UserError(f"{condition}: no value of this column can meet it{_range_of(condition)}")
        classes = {column.name for column in columns.class_columns}
        allowed = {name: mask for name, mask in allowed.items() if name in classes}
        parts, mask, row = known
        return cls(columns, tuple(equal.values()), row, parts, mask, allowed, (*ranges, *rules))

    def check(self, rows: Any, report: SamplingReport | None = None) -> Bools:
        """Which rows meet everything that is met by drawing again."""
        met = np.ones(len(rows), bool)
        for one in self.checks:
            own = one.of_rows(rows)
            if report is not None:
                report.met[str(one)] += int(own.sum())
            met &= own
        return met

    def classes_met(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Which drawn rows have classes that the ranges leave."""
        met = torch.ones(len(next(iter(parts.values()))), dtype=torch.bool)
        for name, mask in self.allowed.items():
            met &= mask[parts[name]]
        return met

    def decode(self, parts: Any) -> Any:
        """Rows with the given cells as they were given: the network knows them in single precision."""
        rows = self.columns.decode(parts)
        if self.row is None:
            return rows
        again = {name: [self.row[name][0]] * len(rows) for name in self.row}
        return rows.assign(**again).astype(self.row.dtypes)

    @property
    def example(self) -> Any:
        """A row of the table's types."""
        return self.columns.decode(self.columns.example())

    def report(self, particles: int | None = None) -> SamplingReport:
        """A report of rows still to be drawn."""
        return SamplingReport([*map(str, self.given)], dict.fromkeys(map(str, self.checks), 0), particles=particles)

    def settings(self, n: int) -> dict[str, Any]:
        """What :func:`bfn.sample` is asked for n rows with the given cells."""
        if not self.known:
            return {}
        return {
            "known": {part: x.repeat_interleave(n, 0) for part, x in self.known.items()},
            "known_mask": {part: mask.repeat_interleave(n, 0) for part, mask in self.known_mask.items()},
        }

    def with_classes(self, classes: Mapping[str, Tensor]) -> dict[str, Any]:
        """The same for as many rows as there are of these classes, which are given too."""
        n = len(next(iter(classes.values())))
        found = self.settings(n) or {
            "known": {part: x.repeat_interleave(n, 0) for part, x in self.columns.example().items()},
            "known_mask": {part: torch.zeros(n, *x.shape[1:], dtype=torch.bool)
                           for part, x in self.columns.example().items()},
        }  # fmt: skip
        for name, states in classes.items():
            found["known"][name], found["known_mask"][name] = states, torch.ones(n, dtype=torch.bool)
        return found

    def with_particles(self, model: Model, count: int) -> dict[str, Any]:
        """What leads a sample's particles to what is asked for, and rules out those that miss it."""

        def must(x: Any) -> Tensor:
            return torch.from_numpy(self.check(self.decode(x)))

        steer = self._steering(model)
        return {"particles": Particles(count, must=must, draws=1), **({} if steer is None else {"steer": steer})}

    def _steering(self, model: Model) -> Steering | None:
        """Towards the ranges of numbers, 0 within them; None where there is none that is a number alone."""
        part = next((p for p in model.flow.layout if p.name == self.columns.numbers_part), None)
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
        if part is None or not bounds:
            return None
        first = part.state.start

        def towards(x: Tensor) -> Tensor:
            short = [((place - x[:, first + j]) * sign).clamp(min=0).square() for j, place, sign in bounds]
            return -STEEPNESS * torch.stack(short).sum(0)

        return Steering(towards)


def draw_rows(
    model: Model,
    n: int,
    request: RowRequest,
    report: SamplingReport,
    *,
    nfe: int = CALLS,
    seed: int = 0,
    tries: int = TRIES,
    particles: int | None = None,
    batch: int = ROWS,
    processes: Processes = ALONE,
    **settings: Any,
) -> Iterator[Any]:
    """n rows that meet the request, as DataFrames of at most ``batch`` rows; the report grows with them.

    processes: draw blocks in turn, each with a generator of its own; all get all rows, the same however many they are.
    """
    check_whole("n", n, 1, 10**12)
    check_whole("tries", tries, 1, 10**9)
    check_whole("batch", batch, 1, 10**6)
    check_seed(seed)
    led = {} if particles is None else request.with_particles(model, particles)
    led = led if request.checks else {}
    each = particles if led and particles is not None else 1
    again = bool(request.checks) and not led
    most = max(tries * n, LEAST_DRAWN)
    classes: list[dict[str, Tensor]] = []
    first = found_classes = number = 0
    while report.accepted < n:
        count = min(batch, _wanted(n, report, most) if again else n - report.accepted)
        if count < 1:
            raise UserError(_cannot(report, n))
        wishes = request.settings(count)
        if report.taken:
            together = {name: torch.cat([one[name] for one in classes]) for name in request.allowed}
            chosen = torch.randint(report.taken, (count,), generator=derived_generator(seed, "chosen", number))
            wishes = request.with_classes({name: states[chosen] for name, states in together.items()})
        elif report.taken == 0:
            wishes["allowed"] = request.allowed

        def generators(block: int, number: int = number) -> dict[str, Any]:
            return {"generator": derived_generator(seed, "rows", number, block, device=model.device)}

        drawn = sample_in_batches(
            model, count, nfe=nfe, seed=generators, batch=BLOCK * each, processes=processes, **settings,
            **wishes, **led,
        )  # fmt: skip
        number += 1
        rows = request.decode(drawn.x)
        report.drawn += count
        met = request.check(rows, report)
        if again and request.allowed and report.taken is None:
            kept = request.classes_met(drawn.x)
            classes.append({name: drawn.x[name][kept] for name in request.allowed})
            found_classes += int(kept.sum())
            rare = found_classes < RARE * report.drawn
            if rare and (found_classes >= ENOUGH or report.drawn >= min(most, tries * ENOUGH) // 2):
                report.taken = found_classes
        rows = rows[met].head(n - report.accepted)
        report.accepted += int(met.sum())
        if len(rows):
            rows.index = pandas().RangeIndex(first, first + len(rows))
            first += len(rows)
            yield rows


def _wanted(n: int, report: SamplingReport, most: int) -> int:
    """How many rows to draw so that about as many are met as are asked for, within what may be drawn."""
    rate = max(report.accepted, 1) / max(report.drawn, 1)
    return min(max(math.ceil(1.1 * (n - report.accepted) / rate), 64), most - report.drawn)


def _cannot(report: SamplingReport, n: int) -> str:
    fewest = min(report.met, key=lambda name: report.met[name])
    return (
        f"{report.accepted} of {report.drawn} drawn rows met all conditions and {n} are asked for; {fewest!r} was met "
        f"by {report.met[fewest]}: ask for less, lead to a range with particles=16, or draw more, tries={TRIES * 10}"
    )


def _agree(same: CellCondition, other: CellCondition) -> bool:
    if same.value is None or other.value is None:
        return same.value is None and other.value is None
    return bool(other.of_rows(pandas().DataFrame({same.column.name: [same.value]}, dtype=object))[0])


def _range_of(condition: CellCondition) -> str:
    column = condition.column
    if condition.value is None:
        return ": no cell of it was missing"
    if column.quantiles is None:
        return ""
    ends = column.quantiles.decode(np.array(column.quantiles.normal)[[0, -1]])
    low, high = column.cells.series(ends, np.zeros(2, bool), column.name)
    return f": the table has {low} to {high}"


def _known_cells(columns: TableColumns, given: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
    """One row of the given cells: its parts, masks of what they tell, and the row as it will be in the samples."""
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


EARLY = 0.1
"""When classes are asked for. At t = 0 a network has learned to see nothing in its input, and does not quite believe
what is known: with one cell in five gone it then has 62 % of Magic's classes right, at 0.1 83 % (Adult 74.4 and 74.6).
"""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gaps:
    """The rows of a table with missing cells, and what is known of each. rows: their numbers in the table."""

    model: BFN
    table: Any
    columns: TableColumns
    rows: NDArray[np.int64]
    known: dict[str, Tensor]
    known_mask: dict[str, Tensor]

    @classmethod
    def of(cls, model: BFN, table: Any) -> Gaps:
        """Those of a table with the columns of a model's."""
        columns = model.info.columns
        assert columns is not None
        parts, masks = columns.encode_known(table)
        rows = np.flatnonzero(table[list(columns.names)].isna().any(axis=1).to_numpy())
        index = torch.from_numpy(rows)
        known, known_mask = ({part: x[index] for part, x in some.items()} for some in (parts, masks))
        return cls(model, table, columns, rows, known, known_mask)

    def drawn(self, nfe: int, seed: int, **settings: Any) -> Any:
        """A table with the missing cells drawn; of a column that has a state for them, never that state."""
        if not len(self.rows):
            return self.table.copy()
        return self.filled(self.columns.decode(self._draw(nfe, seed, **settings)))

    def _draw(self, nfe: int, seed: int, **settings: Any) -> dict[str, Tensor]:
        drawn = sample_in_batches(
            self.model, len(self.rows), nfe=nfe, seed=seed, batch=ROWS, allowed=self._allowed() or None,
            known=self.known, known_mask=self.known_mask, **settings,
        )  # fmt: skip
        found: dict[str, Tensor] = drawn.x
        return found

    def expected(self, draws: int, nfe: int, seed: int, **settings: Any) -> Any:
        """A table with the missing cells by their mean, or the most probable level.

        What the network says of a class when it has seen the known cells alone is its probability given these: one
        call, at :data:`EARLY`, from the state that says nothing of the others. Of numbers the mean is taken over draws.
        """
        if not len(self.rows):
            return self.table.copy()
        cells = {}
        shares = self._probabilities()
        numbers = [self._draw(nfe, seed + draw, **settings) for draw in range(draws)] if self._lacks_numbers() else []
        tables = [self.columns.decode(x) for x in numbers]
        for column in self.columns.columns:
            if column.quantiles is not None and tables:
                raw = np.stack([column.cells.raw(table[column.name])[0] for table in tables])
                cells[column.name] = _as_cells(column, raw.astype(np.float64).mean(0))
            elif column.quantiles is None:
                cells[column.name] = _best(column, shares.get(column.name), len(self.rows))
        return self.filled(cells)

    def _lacks_numbers(self) -> bool:
        names = [column.name for column in self.columns.number_columns]
        return bool(self.table[names].isna().any(axis=None)) if names else False

    def _allowed(self) -> dict[str, Tensor]:
        """The states that cells may have by column: all but missing."""
        return {
            column.name: torch.arange(column.n_states).ne(column.missing_state)
            for column in self.columns.class_columns
            if column.missing_state is not None
        }

    def _probabilities(self) -> dict[str, Floats]:
        """Of the states of each class column, given what is known, (rows, states)."""
        found: dict[str, list[Floats]] = {}
        flow = self.model.flow
        nothing = torch.zeros(flow.state_shape(self.model.data_shape), dtype=self.model.dtype, device=self.model.device)
        for first in range(0, len(self.rows), ROWS):
            some = slice(first, first + ROWS)
            out = sample(
                self.model, len(self.rows[some]), grid=[EARLY], initial=nothing.expand(len(self.rows[some]), -1),
                generator=torch.Generator(self.model.device).manual_seed(0),
                known={part: x[some] for part, x in self.known.items()},
                known_mask={part: mask[some] for part, mask in self.known_mask.items()},
            )  # fmt: skip
            for part in flow.layout:
                if not part.flow.has_range:
                    found.setdefault(part.name, []).append(out.prediction[:, part.state].double().cpu().numpy())
        allowed = self._allowed()
        joined = {name: np.concatenate(pieces) for name, pieces in found.items()}
        return {name: p * allowed[name].numpy() if name in allowed else p for name, p in joined.items()}

    def filled(self, cells: Any) -> Any:
        """The table with cells, by column, where its own are missing; without gaps a column has its type again."""
        table = self.table.copy()
        for column, gaps in self._gaps():
            own, new = table[column.name], cells[column.name]
            values = own.astype(object).to_numpy(copy=True)
            values[self.rows[gaps]] = new.astype(object).to_numpy()[gaps]
            table[column.name] = type(own)(values, index=own.index, dtype=object).astype(new.dtype)
        return table

    def _gaps(self) -> Iterator[tuple[TableColumn, NDArray[np.bool_]]]:
        """Columns that lack cells, and in which of the rows."""
        for column in self.columns.columns:
            gaps = self.table[column.name].isna().to_numpy()[self.rows]
            if gaps.any():
                yield column, gaps


def _best(column: TableColumn, p: Floats | None, n: int) -> Any:
    """The mean of numbers and times, the most probable of other levels."""
    if p is None:
        return column.series(np.zeros(n, np.int64), None)
    p = p[:, : len(column.levels)]
    if column.cells.is_scale:
        return _as_cells(column, p @ np.array(column.levels, np.float64) / p.sum(1))
    return column.series(p.argmax(1), None)


def _as_cells(column: TableColumn, raw: Floats) -> Any:
    """Means as cells: whole numbers and times rounded, others as they are."""
    whole = column.cells.kind != "real"
    rounded = np.rint(raw).astype(np.int64) if whole else raw
    return column.cells.series(rounded, np.zeros(len(raw), bool), column.name)
