"""Paths through the times of the parts of joint data: together, one part after another, or through given points.

A solver's table belongs to one part and its own times. Where a part waits while others go on, its table has rows that
make their call and no step; the predictions that a later row needs are the last ones made at each of the part's times,
which know most of the other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from torch import Tensor

from bfn.core.solver import Solver, side_by_side, table_of
from bfn.core.table import Row, Table
from bfn.errors import UserError, did_you_mean
from bfn.flows import Flow

__all__ = ["Path", "path_times", "table_along", "waiting"]

Path = str | Sequence[str] | Mapping[str, Sequence[float]] | Callable[[float], Mapping[str, float]]
"""How a sample goes through the times of its parts: "together"; the name of a part, or several in order, that come
first, one after another, before the rest; the times of each part at each call; or a function from the grid's time to
the time of each part."""

Lay = Callable[[Flow, int], Tensor]
"""The times of a grid with that many intervals, by the schedule of a flow."""


def table_along(
    solvers: Mapping[str, Solver], flow: Flow, path: Path, times: tuple[float, ...], lay: Lay | None
) -> Table:
    """Make the table of parts that go along a path. The arguments are those of :func:`path_times`."""
    columns = path_times(path, flow, times, lay)
    tables = {
        name: waiting(partial(table_of, solver, flow.parts[name]), columns[name]) for name, solver in solvers.items()
    }
    return side_by_side(tables, flow)


def path_times(path: Path, flow: Flow, times: Sequence[float], lay: Lay | None) -> dict[str, tuple[float, ...]]:
    """The times of each part at each call. times: of the grid; lay: the grid, None where its times were given."""
    if not flow.time_shape:
        raise UserError(
            f"path={repr(path)[:60]}: this model's parts share one time; a path needs JointFlow(..., times='separate')"
        )
    if callable(path):
        at = [path(t) for t in times]
        found = {name: tuple(float(each.get(name, -1)) for each in at) for name in flow.parts}
    elif isinstance(path, Mapping):
        _check_names(path, flow)
        found = {name: tuple(map(float, path.get(name, ()))) for name in flow.parts}
    else:
        found = _one_after_another([path] if isinstance(path, str) else [*path], flow, len(times), lay)
    for name, own in found.items():
        if len(own) != len(times):
            raise UserError(f"path: part {name!r} has {len(own)} times: expected one a call for each part")
        if not all(0 <= t <= 1 for t in own) or any(b < a for a, b in pairwise(own)):
            raise UserError(f"path: part {name!r} has times that fall or leave [0, 1]: expected ones that never fall")
    return found


def waiting(table: Callable[[tuple[float, ...]], Table], times: Sequence[float]) -> Table:
    """A part's table at times of which some are equal: it waits there. table: makes the one at increasing times."""
    last = {t: i for i, t in enumerate(times)}
    calls, moving = list(last.values()), table(tuple(last))
    if moving.nfe == len(times):
        return moving
    if moving.nfe != len(last):
        raise UserError("path: this solver calls the network between the points of a path; take a multistep one")

    def spread(weights: Sequence[float], k: int) -> tuple[float, ...]:
        """Weights of the predictions at the times k, k - 1, ... as weights of all predictions, newest first."""
        found = [0.0] * (calls[k] - calls[k - len(weights) + 1] + 1 if weights else 0)
        for j, weight in enumerate(weights):
            found[calls[k] - calls[k - j]] = weight
        return tuple(found)

    rows = [Row(t) for t in times]
    for k, row in enumerate(moving.rows):
        rows[calls[k]] = replace(row, b=spread(row.b, k))
    return replace(moving, rows=tuple(rows), final=spread(moving.final, len(last) - 1))


def _one_after_another(names: Sequence[str], flow: Flow, calls: int, lay: Lay | None) -> dict[str, tuple[float, ...]]:
    """Named parts in order, then all others together, each on the whole of the grid in a share of the steps."""
    _check_names(names, flow)
    if len(set(names)) != len(names):
        raise UserError(f"path={names}: expected each part once")
    if lay is None:
        raise UserError(f"path={names} beside a grid of times: give the times of each part, path={{part: times}}")
    rest = [name for name in flow.parts if name not in names]
    stretches = [*([name] for name in names), *([rest] if rest else [])]
    steps = calls - 1
    if steps < len(stretches):
        raise UserError(f"nfe={calls}: a path of {len(stretches)} stretches needs at least {len(stretches) + 1} calls")
    found = {}
    for i, stretch in enumerate(stretches):
        first, end = i * steps // len(stretches), (i + 1) * steps // len(stretches)
        for name in stretch:
            own = lay(flow.parts[name], end - first).tolist()
            found[name] = (*own[:1] * first, *own, *own[-1:] * (steps - end))
    return found


def _check_names(names: Sequence[str] | Mapping[str, object], flow: Flow) -> None:
    wrong = next((name for name in names if name not in flow.parts), None)
    if wrong is not None:
        hint = did_you_mean(wrong, flow.parts)
        raise UserError(f"path: part {wrong!r}: expected 'together' or parts of {', '.join(flow.parts)}{hint}")
