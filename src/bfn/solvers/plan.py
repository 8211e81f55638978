"""From a model and a wish to a table: the one place that decides what a sample runs through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import hypot
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from bfn import grids
from bfn.arguments import check_real
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.grids import Grid, Mean, Uniform
from bfn.joint import JointFlow
from bfn.schedules import as_float64
from bfn.solvers.base import Solver, check_nfe
from bfn.solvers.named import get
from bfn.solvers.path import Path, path_times, waiting
from bfn.solvers.renoising import RENOISING
from bfn.solvers.table import Table
from bfn.solvers.whole import MOST_WHOLE, WHOLE

if TYPE_CHECKING:
    from bfn.info import ModelInfo

__all__ = ["CALLS", "LEAST_T_START", "Plan", "Planned", "plan"]

CALLS = 10
"""Network calls where nobody says how many."""

LEAST_T_START = 1e-3
"""Where a solver that starts at t = 0 starts instead on a grid that has no point there, or that is given, if the
network predicts noise."""

FIRST_S, FIRST_S_BY_CALLS = 0.5, 10.0
"""Where it starts if the network predicts noise, x_hat = (u - eps_hat) / s, which is 0/0 at s = 0 and noise near it: at
s = 1/2, with many calls at 10 / calls."""


class Planned(Protocol):
    """What a plan asks of a model; also fulfilled by what has the network elsewhere, such as a diffusers scheduler."""

    @property
    def flow(self) -> Flow:
        """Like ``Model.flow``."""

    @property
    def info(self) -> ModelInfo:
        """Like ``Model.info``."""

    @property
    def starts_at_zero(self) -> bool:
        """Like ``Model.starts_at_zero``."""


@dataclass(frozen=True)
class Plan:
    """What a sample runs through. solver: what made the table; None for a table of the model's own, or a given one."""

    table: Table
    solver: Solver | None = None

    def __str__(self) -> str:
        """One line for people."""
        what = "a tuned table" if self.solver is None else f"{self.solver.name} (order {self.solver.order}"
        dial = "" if self.solver is None else f", g = {self.solver.g:g}, grid {self.solver.grid})"
        first, last = self.table.times[0], self.table.times[-1]
        return f"{what}{dial}: {self.table.nfe} calls from t = {first:.4g} to {last:.4g}"


def plan(
    model: Planned,
    solver: str | Solver | Table = "auto",
    nfe: int | None = None,
    *,
    grid: str | Grid | Sequence[float] | Tensor | None = None,
    t_start: float | None = None,
    g: float | None = None,
    path: Path | None = None,
    whole: bool = True,
) -> Plan:
    """The plan of ``model.sample`` with these settings.

    "auto" takes the table that was tuned to the model for that number of calls, if there is one and nothing else is
    asked for; otherwise, of a distilled model, it noises again after each call, and with few calls it draws whole
    strings where the network can and may (``whole``). Where neither nfe nor a grid of times
    is given, there are :data:`CALLS` calls, or as many as a distilled model's largest table has.

    >>> import bfn
    >>> print(plan(bfn.exact.GaussianMixture([[0.0], [0.5]], stds=[0.1, 0.1]), "auto", 8))
    fast-ode (order 3, g = 0, grid log1p:13.8092:1.51991:1): 8 calls from t = 0 to 0.3804
    """
    t_start, g = check_real("t_start", t_start), check_real("g", g)
    if nfe is not None:
        check_nfe(nfe)
    path = None if isinstance(path, str) and path == "together" else path
    asked = {"grid": grid, "t_start": t_start, "g": g, "path": path}
    if isinstance(solver, Table):
        _check_given_table(solver, nfe, asked)
        return Plan(solver)
    wanted = get(solver)
    times = None if grid is None or isinstance(grid, str | Grid) else grids.check_times(grid)
    if times is not None and t_start is not None:
        raise UserError(f"t_start={t_start:g} beside a grid of times: it starts at its first one; leave t_start out")
    points = path if isinstance(path, Mapping) else None
    if points is not None and (grid is not None or t_start is not None):
        raise UserError("grid or t_start beside a path of given times: it has its own; leave them out")
    usual = max(model.info.tables, default=1) if model.info.maps_to_end else CALLS
    calls = len(times) if times is not None else usual if nfe is None else nfe
    calls = calls if points is None else len(next(iter(points.values()), ()))
    check_nfe(calls)
    if wanted.prefers_tuned and calls in model.info.tables and all(value is None for value in asked.values()):
        return Plan(model.info.tables[calls])
    if wanted.prefers_tuned and model.info.maps_to_end:
        wanted = RENOISING
    elif (
        wanted.prefers_tuned and whole and calls <= MOST_WHOLE and all(value is None for value in asked.values())
        and getattr(model, "draws_whole", False)
    ):  # fmt: skip
        wanted = WHOLE
    flows, info = model.flow.parts, model.info
    alone = len(flows) == 1
    chosen, alike = _solvers_for(wanted, model, calls, g)
    leader = chosen[model.flow.leading_part]
    singular = not (model.starts_at_zero or leader.from_prior)
    lay = None
    if times is None and points is None:
        if not alike:
            leader = replace(leader, grid=_common_grid({name: one.grid for name, one in chosen.items()}, model.flow))
        own = leader.grid
        named = grids.parse(grid) if isinstance(grid, str) else grid if isinstance(grid, Grid) else own
        start = LEAST_T_START if leader.t_start == 0 and named.needs_start else leader.t_start
        leading = flows[model.flow.leading_part]
        if singular and leader.t_start == 0:
            start = _first_time(leading, calls) if named is leader.grid and alone else LEAST_T_START
        start = start if t_start is None else t_start
        times = leader.nodes(leading, named.with_curve(info.error_curve), calls, start)
        times = grids.check_times(times, f"grid {str(named)!r} of {len(times)} times")
        # A part that comes first goes all its way.
        whole = grid is None or named.stops_short
        lay = partial(Uniform() if whole else named.with_curve(info.error_curve), t_start=start)
    nodes = (0.0,) * calls if times is None else tuple(times.tolist())
    columns = dict.fromkeys(flows, nodes) if path is None else path_times(path, model.flow, nodes, lay)
    if singular and min(own[0] for own in columns.values()) == 0:
        raise UserError(
            f"a grid that starts at t = 0 with solver {leader.name!r}: x_hat = (u - eps_hat) / s is 0/0 there; "
            f"start at {LEAST_T_START}, or take a network that predicts the data"
        )
    makers = {name: partial(_table_of, chosen[name], flow) for name, flow in flows.items()}
    tables = {n: make(nodes) if path is None else waiting(make, columns[n]) for n, make in makers.items()}
    table = Table.side_by_side(tables, model.flow.leading_part) if len(tables) > 1 else next(iter(tables.values()))
    if singular and leader.t_start == 0 and info.spread is not None and alone:
        # The state is as wide there as data that are normal make it.
        table = replace(table, start=hypot(1, float(model.flow.schedule.s(nodes[0])) * info.spread.std))
    if nfe is not None and nfe != table.nfe:
        raise UserError(f"nfe={nfe}: the given grid of {len(nodes)} times makes {table.nfe} calls; leave nfe out")
    return Plan(table, leader)


def _common_grid(own: Mapping[str, Grid], flow: Flow) -> Grid:
    """The grid of parts that share their times: the mean of those that each would have, by variables."""
    leading = own[flow.leading_part]
    if all(grid == leading and grid.in_t for grid in own.values()):
        return leading
    assert isinstance(flow, JointFlow)
    sizes = {part.name: float(part.data.stop - part.data.start) for part in flow.layout}
    return Mean(tuple(own.values()), tuple(flow.parts[name] for name in own), tuple(sizes[name] for name in own))


def _solvers_for(solver: Solver, model: Planned, calls: int, g: float | None) -> tuple[dict[str, Solver], bool]:
    """The solver of each part, and whether parts are alike: then they go as one of them would go alone.

    The columns of a table are never taken as alike: what the others are decides about their common grid.
    """
    flows, info = model.flow.parts, model.info

    def each(alone: bool) -> dict[str, Solver]:
        return {name: _solver_for(solver, flow, calls, info.of_part(name, alone), g) for name, flow in flows.items()}

    if len(flows) == 1 or info.columns is None:
        chosen = each(True)
        pairs = [*zip(flows.values(), chosen.values(), strict=True)]
        if all(pair == pairs[0] for pair in pairs):
            return chosen, True
    return each(False), False


def _solver_for(solver: Solver, flow: Flow, calls: int, info: ModelInfo, g: float | None) -> Solver:
    """The solver that does the work on one kind of data."""
    chosen = get(solver, flow.kind).resolve(flow, calls, info)
    return chosen if g is None else chosen.with_dial(g)


def _first_time(flow: Flow, calls: int) -> float:
    """Where a network that predicts noise is first called."""
    return float(flow.schedule.time_of_s(as_float64(min(FIRST_S, FIRST_S_BY_CALLS / calls))))


def _table_of(solver: Solver, flow: Flow, nodes: tuple[float, ...]) -> Table:
    """The solver's table. The last ones are kept: making one takes as long as a call of a small network."""
    try:
        return _kept_table(solver, flow, nodes)
    except TypeError:  # a solver or flow of the user's own that cannot be a key
        return solver.table(flow, nodes)


@lru_cache(maxsize=64)
def _kept_table(solver: Solver, flow: Flow, nodes: tuple[float, ...]) -> Table:
    return solver.table(flow, nodes)


def _check_given_table(table: Table, nfe: int | None, asked: Mapping[str, object]) -> None:
    """A table has its grid and dial already."""
    given = next((name for name, value in asked.items() if value is not None), None)
    if given is not None:
        raise UserError(f"{given}={asked[given]} beside a table, which has its own: leave it out")
    if nfe is not None and nfe != len(table.rows):
        raise UserError(f"nfe={nfe}: the given table makes {len(table.rows)} calls; leave nfe out")
