"""Many samples, so many at a time, and what it took to draw them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn.conditioning import conditions_for
from bfn.conditions import Conditions, HasConditions, rows_of
from bfn.errors import UserError
from bfn.grids import Grid
from bfn.info import Label
from bfn.particles import Particles, solver_with_noise
from bfn.sampling import Step, sample
from bfn.solvers import Plan, Solver, Table, plan

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["BatchedSamples", "sample_in_batches"]


@dataclass(frozen=True, eq=False)
class BatchedSamples(HasConditions):
    """Samples on the CPU and how they were drawn.

    x: (n, *data_shape), of joint data a mapping of parts. conditions: those of each, by name. plan: what they ran
    through. calls: network calls of all batches together. effective_sample_size: as of :class:`bfn.Samples`, where
    there are particles.
    """

    x: Any
    conditions: Conditions
    plan: Plan
    calls: int
    seconds: float
    effective_sample_size: Tensor | None = None


Generators = Callable[[int], Mapping[str, Any]]
"""The arguments ``generator`` and ``class_generator`` of ``bfn.sample`` for the batch of that number."""


def sample_in_batches(
    model: Model,
    n: int,
    solver: str | Solver | Table = "auto",
    nfe: int | None = None,
    *,
    batch: int = 256,
    seed: int | Generators = 0,
    grid: str | Grid | Sequence[float] | Tensor | None = None,
    t_start: float | None = None,
    g: float | None = None,
    label: Label | None = None,
    condition: Mapping[str, Any] | None = None,
    particles: int | Particles | None = None,
    on_step: Callable[[Step], object] | None = None,
    progress: bool = False,
    **settings: Any,
) -> BatchedSamples:
    """n samples by :func:`bfn.sample`, which has the settings, at most ``batch`` at a time, particles counted.

    seed: of the one generator that all batches draw from, one after the other; or what gives each its own. on_step is
    called for all batches. What is given for each sample (known, known_mask, start_from, allowed, present, lengths,
    initial) is cut up.
    """
    if n < 1 or batch < 1:
        raise UserError(f"n={n}, batch={batch}: expected at least 1 of each")
    if particles is not None:
        solver, g = solver_with_noise(solver, g)
        batch = max(1, batch // (particles.count if isinstance(particles, Particles) else max(1, particles)))
    planned = plan(model, solver, nfe, grid=grid, t_start=t_start, g=g)
    one = None if callable(seed) else torch.Generator(model.device).manual_seed(seed)
    asked = None
    if label is not None or condition:
        asked = conditions_for(model.info, n, label, condition, drawn=False)
    calls = math.ceil(n / batch) * planned.table.nfe
    x, conditions, sizes = [], [], []
    start = time.perf_counter()
    with tqdm(total=calls, desc="sampling", unit="call", delay=1.0, leave=False, disable=not progress) as bar:

        def after_step(step: Step) -> None:
            bar.update()
            if on_step is not None:
                on_step(step)

        for index, first in enumerate(range(0, n, batch)):
            rows = slice(first, min(n, first + batch))
            out = sample(
                model, rows.stop - rows.start, planned.table, on_step=after_step,
                condition=None if asked is None else rows_of(asked, rows),
                particles=particles, **(seed(index) if callable(seed) else {"generator": one}),
                **_of_rows(settings, rows, model.data_shape),
            )  # fmt: skip
            x.append(out.x)
            conditions.append(out.conditions)
            sizes += [] if out.effective_sample_size is None else [out.effective_sample_size]
    seconds = time.perf_counter() - start
    together = {name: torch.cat([one[name].cpu() for one in conditions]) for name in conditions[0]}
    size = torch.cat(sizes) if sizes else None
    return BatchedSamples(_joined(x), together, planned, calls, seconds, size)


DIMS_OF_ALL = {"known": 0, "known_mask": 0, "start_from": 0, "present": 0, "allowed": 1}
"""Settings that may be given for all samples or one each: how many more dimensions than the data one for all has."""


def _of_rows(settings: Mapping[str, Any], rows: slice, data_shape: Any) -> dict[str, Any]:
    """The settings of some of the samples."""

    def cut(value: Any, n_dims: int) -> Any:
        return value[rows] if isinstance(value, Tensor | np.ndarray) and value.ndim > n_dims else value

    def own(name: str, value: Any) -> Any:
        if name in ("initial", "lengths"):
            return value[rows] if isinstance(value, list | tuple) else cut(value, 0)
        if name not in DIMS_OF_ALL:
            return value
        more = DIMS_OF_ALL[name]
        if not isinstance(data_shape, Mapping):
            return cut(value, len(data_shape) + more)
        if not isinstance(value, Mapping):
            return cut(value, 1)  # packed
        return {part: cut(each, len(data_shape.get(part, ())) + more) for part, each in value.items()}

    return {name: own(name, value) for name, value in settings.items()}


def _joined(batches: Sequence[Any]) -> Any:
    """All samples, on the CPU."""
    if isinstance(batches[0], Mapping):
        return {name: torch.cat([x[name].cpu() for x in batches]) for name in batches[0]}
    return torch.cat([x.cpu() for x in batches])
