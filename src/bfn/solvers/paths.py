"""Paths through the times of the parts of joint data: together, one part after another, or through given points.

A solver's table belongs to one part and its times. A part that waits while others go on has rows that make their call
but no step. Later rows use the last prediction that was made at each of the part's times, since that one knows most of
the other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from torch import Tensor

from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Flow
from bfn.core.solver import Solver, side_by_side, table_of
from bfn.core.table import Row, Table

Path = str | Sequence[str] | Mapping[str, Sequence[float]] | Callable[[float], Mapping[str, float]]
"""Path of a sample through the times of its parts: "together"; the name of a part, or several in order, that are drawn
one after another before the rest; the times of each part at each call; or a function from the time of the grid to the
time of each part."""

Lay = Callable[[Flow, int], Tensor]
"""(flow, number of intervals) -> times of a grid by the schedule of the flow."""


def table_along(
    solvers: Mapping[str, Solver], flow: Flow, path: Path, times: tuple[float, ...], lay: Lay | None
) -> Table:
    """Make the table of parts that go along a path.

    Args:
        solvers: solver of each part.
        flow, path, times, lay: see ``path_times``.
    """
    columns = path_times(path, flow, times, lay)
    makers = {name: partial(table_of, solver, flow.parts[name]) for name, solver in solvers.items()}
    return side_by_side({name: waiting(make, columns[name]) for name, make in makers.items()}, flow)


def path_times(path: Path, flow: Flow, times: Sequence[float], lay: Lay | None) -> dict[str, tuple[float, ...]]:
    """Return the times of each part at each call.

    Args:
        path: the path.
        flow: flow of all parts.
        times: times of the grid.
        lay: the rule of the grid; None if its times were given.
    """
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
            raise UserError(f"path: part {name!r} has {len(own)} times: expected one for each of {len(times)} calls")
        if not all(0 <= t <= 1 for t in own) or any(b < a for a, b in pairwise(own)):
            raise UserError(f"path: part {name!r} has times that decrease or leave [0, 1]: expected increasing ones")
    return found


def waiting(table: Callable[[tuple[float, ...]], Table], times: Sequence[float]) -> Table:
    """Make the table of a part at times of which some are equal: it waits there.

    Args:
        table: makes the table for increasing times.
        times: time of each call.
    """
    last = {t: i for i, t in enumerate(times)}
    calls, moving = list(last.values()), table(tuple(last))
    if moving.nfe == len(times):
        return moving
    if moving.nfe != len(last):
        raise UserError("path: this solver calls the network between the points of a path; give a multistep solver")

    def spread(weights: Sequence[float], k: int) -> tuple[float, ...]:
        """Turn weights of the predictions at the times k, k - 1, ... into weights of all predictions, newest first."""
        found = [0.0] * (calls[k] - calls[k - len(weights) + 1] + 1 if weights else 0)
        for j, weight in enumerate(weights):
            found[calls[k] - calls[k - j]] = weight
        return tuple(found)

    rows = [Row(t) for t in times]
    for k, row in enumerate(moving.rows):
        rows[calls[k]] = replace(row, b=spread(row.b, k))
    return replace(moving, rows=tuple(rows), final=spread(moving.final, len(last) - 1))


def _one_after_another(names: Sequence[str], flow: Flow, calls: int, lay: Lay | None) -> dict[str, tuple[float, ...]]:
    """Return times for the named parts in order, then all others; each uses the whole grid in a share of the steps."""
    _check_names(names, flow)
    if len(set(names)) != len(names):
        raise UserError(f"path={names}: expected each part once")
    if lay is None:
        raise UserError(f"path={names} beside a grid of times: give the times of each part, path={{part: times}}")
    rest, steps = [name for name in flow.parts if name not in names], calls - 1
    stages = [*([name] for name in names), *([rest] if rest else [])]
    if steps < len(stages):
        raise UserError(f"nfe={calls}: a path of {len(stages)} stages needs at least {len(stages) + 1} calls")
    found = {}
    for i, stage in enumerate(stages):
        first, end = i * steps // len(stages), (i + 1) * steps // len(stages)
        for name in stage:
            own = lay(flow.parts[name], end - first).tolist()
            found[name] = (*own[:1] * first, *own, *own[-1:] * (steps - end))
    return found


def _check_names(names: Iterable[str], flow: Flow) -> None:
    wrong = next((name for name in names if name not in flow.parts), None)
    if wrong is not None:
        hint = did_you_mean(wrong, flow.parts)
        raise UserError(f"path: part {wrong!r}: expected 'together' or parts of {', '.join(flow.parts)}{hint}")
