"""Solvers on mixtures of Gaussians in the plane: how far each is from the truth, and the paths its particles take.

Two errors, as an ODE and an SDE are wrong in different ways:

    of the path          distance of a particle's end from that of the exact ODE from the same start, root mean square;
                         only for solvers of the ODE
    of the distribution  sliced Wasserstein distance of all ends from data of the model, for every solver
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, pi, sin

import torch
from torch import Tensor

from bfn.app.drawing import usable_solvers
from bfn.exact import GaussianMixture
from bfn.sampling import Step, sample
from bfn.solvers import Table, plan

__all__ = ["CALLS", "MIXTURES", "PARTICLES", "SolverErrors", "errors", "floor", "groups", "mixture_paths"]

CALLS = (4, 6, 8, 12, 16, 24, 32)
PARTICLES = 600
DATA = 8 * PARTICLES
REFERENCE_CALLS = 120
DIRECTIONS = 24


def _ring() -> GaussianMixture:
    angles = [2 * pi * k / 8 for k in range(8)]
    return GaussianMixture(torch.tensor([[cos(a), sin(a)] for a in angles]), stds=torch.full((8,), 0.08))


def _spiral() -> GaussianMixture:
    turns = [0.25 + 1.5 * k / 15 for k in range(16)]
    means = torch.tensor([[0.6 * r * cos(2 * pi * r), 0.6 * r * sin(2 * pi * r)] for r in turns])
    return GaussianMixture(means, stds=torch.full((16,), 0.06))


def _crossing() -> GaussianMixture:
    along = torch.tensor([[0.5, 0.46], [0.46, 0.5]])
    across = torch.tensor([[0.5, -0.46], [-0.46, 0.5]])
    return GaussianMixture(torch.zeros(2, 2), torch.stack([along, across]))


MIXTURES = {"eight on a ring": _ring, "a spiral": _spiral, "two that cross": _crossing}


@dataclass(frozen=True)
class SolverErrors:
    """Of one solver, or of several that do the same, at :data:`CALLS`; of_path is empty for solvers of the SDE."""

    names: tuple[str, ...]
    of_path: tuple[float, ...]
    of_distribution: tuple[float, ...]


def groups(model: GaussianMixture) -> list[tuple[str, ...]]:
    """Names of the solvers for data in the plane, those together whose tables are the same."""
    found: dict[tuple[Table, ...], list[str]] = {}
    for name in usable_solvers(model):
        found.setdefault(tuple(plan(model, name, calls).table for calls in CALLS), []).append(name)
    return [tuple(names) for names in found.values()]


def errors(model: GaussianMixture, seed: int = 0) -> Iterator[SolverErrors]:
    """Errors of each group of solvers, group by group."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn((PARTICLES, 2), generator=generator, dtype=model.dtype)
    goal = quantiles(model.sample_data(DATA, generator))
    truth: dict[float, Tensor] = {}
    for names in groups(model):
        of_path, of_distribution = [], []
        for calls in CALLS:
            rows = plan(model, names[0], calls).table
            # The first that this draws is the start: the same numbers for every solver, and none of them again.
            noise = torch.Generator().manual_seed(seed)
            ends = sample(model, PARTICLES, names[0], calls, generator=noise).x
            of_distribution.append(distance(ends, goal))
            if not any(row.c for row in rows.rows):
                first = rows.times[0]
                if first not in truth:
                    truth[first] = exact_ends(model, start, first)
                of_path.append(float((ends - truth[first]).square().sum(-1).mean().sqrt()))
        yield SolverErrors(names, tuple(of_path) if len(of_path) == len(CALLS) else (), tuple(of_distribution))


def exact_ends(model: GaussianMixture, start: Tensor, t_start: float) -> Tensor:
    """Where the ODE takes these starts, to an accuracy that no plotted solver reaches."""
    ends: Tensor = sample(model, len(start), "fast-ode", REFERENCE_CALLS, t_start=t_start, initial=start).x
    return ends


def floor(model: GaussianMixture, seed: int = 0) -> float:
    """The distance that 19 of 20 sets of data of the model itself stay below: no solver can be told to be better."""
    generator = torch.Generator().manual_seed(seed)
    goal = quantiles(model.sample_data(DATA, generator))
    drawn = sorted(distance(model.sample_data(PARTICLES, generator), goal) for _ in range(20))
    return drawn[-2]


def quantiles(x: Tensor) -> Tensor:
    """Of the projections of x (some PARTICLES, 2) on each direction, as many as there are particles."""
    return _projected(x).reshape(PARTICLES, -1, DIRECTIONS).mean(1)


def distance(x: Tensor, goal: Tensor) -> float:
    """Sliced Wasserstein-2 distance of the particles x from what these quantiles are of."""
    return float((_projected(x) - goal).square().mean().sqrt())


def _projected(x: Tensor) -> Tensor:
    angles = torch.arange(DIRECTIONS, dtype=x.dtype) * (pi / DIRECTIONS)
    return (x @ torch.stack([angles.cos(), angles.sin()])).sort(0).values


def mixture_paths(model: GaussianMixture, name: str, calls: int, particles: int, seed: int) -> Tensor:
    """The particles' paths by one solver, from starts that the seed alone decides: (calls + 1, particles, 2).

    They are taken in u / sqrt(1 + s^2), which is the noise at the start and the data at the end.
    """
    steps: list[Step] = []
    generator = torch.Generator().manual_seed(seed)
    ends = sample(model, particles, name, calls, generator=generator, on_step=steps.append).x
    levels = model.flow.schedule.s_of([step.t for step in steps])
    return torch.stack([step.u / (1 + s * s) ** 0.5 for step, s in zip(steps, levels, strict=True)] + [ends])
