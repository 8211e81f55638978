"""A grid of one's own for a model: coordinate descent on a few trajectories, without gradients."""

import math

import torch
from torch import Tensor

from bfn.conditions import conditions_in_turn
from bfn.errors import UserError
from bfn.model import Model
from bfn.sampling import sample
from bfn.solvers import Solver, plan

__all__ = ["ROUNDS", "search_grid"]

ROUNDS = 6
"""Times that each time of a grid is moved, at most."""


@torch.no_grad()
def search_grid(
    model: Model,
    nfe: int,
    solver: str | Solver = "fast-ode",
    *,
    n: int = 64,
    reference: int = 100,
    rounds: int = ROUNDS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """(nfe,) times for ``sample(..., grid=times)`` that bring few steps nearest to where many steps end.

    Each time in turn is moved by a part of the way to its neighbours, in log(1 + 2s), where that lowers the mean
    distance of the n end points from those of ``fast-ode`` with ``reference`` calls from the same starts; a time that
    gains by no move takes half the part in the next round. At most 2 rounds (nfe - 1) nfe calls on n samples, with the
    model's classes in turn.
    """
    flow = model.flow
    for name, count, smallest in (("n", n, 1), ("reference", reference, 1), ("rounds", rounds, 0)):
        if count < smallest:
            raise UserError(f"{name}={count}: expected at least {smallest}")
    planned = plan(model, solver, nfe)
    own, chosen = planned.table, planned.solver
    if chosen is None or chosen.stochastic:
        name = "auto" if chosen is None else chosen.name
        raise UserError(f"solver={name!r} draws noise: a grid is searched along fixed paths, as of 'fast-ode'")
    if plan(model, solver, grid=own.times).table.nfe != nfe:
        raise UserError(f"solver={chosen.name!r} makes more than one call a step: search with a multistep solver")
    shape = (n, *flow.state_shape(model.data_shape))
    initial = torch.randn(shape, generator=generator, dtype=model.dtype, device=model.device)
    condition = conditions_in_turn(model.info, n)

    def end(by: Solver | str, calls: int | None, grid: Tensor | None) -> Tensor:
        return sample(model, n, by, calls, grid=grid, initial=initial, condition=condition).final

    def times_of(places: list[float]) -> Tensor:
        times = flow.schedule.time_of_s(torch.tensor(places, dtype=torch.float64).expm1() / 2).clamp(0, 1)
        times[0] = own.times[0]
        return times

    def error(places: list[float]) -> float:
        return float((end(solver, None, times_of(places)) - target).flatten(1).norm(dim=1).mean())

    target = end("fast-ode", reference, None)
    *places, last = (math.log1p(2 * s) for s in flow.schedule.s_of([*own.times, 1.0]))
    least, parts = error(places), [0.4] * nfe
    for _ in range(rounds):
        for i in range(1, nfe):
            below = places[i] - places[i - 1]
            above = (places[i + 1] - places[i]) if i + 1 < nfe else min(below, last - places[i])
            for way in (parts[i] * above, -parts[i] * below):
                moved = [*places[:i], places[i] + way, *places[i + 1 :]]
                if way and (found := error(moved)) < least:
                    places, least = moved, found
                    break
            else:
                parts[i] /= 2
    return times_of(places)
