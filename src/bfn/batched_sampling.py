"""Old form of ``model.sample(n, batch=...)`` for callers with generators or processes of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bfn.conditions import ConditionTensors, HasConditions
from bfn.controls.particles import Particles
from bfn.core.sampling import Request, Samples, Step
from bfn.core.solver import Plan
from bfn.errors import UserError
from bfn.processes import ALONE, Processes
from bfn.progress import Progress, Shown
from bfn.seeds import block_generator

__all__ = ["BatchedSamples", "block_size", "sample_in_batches"]


@dataclass(frozen=True, eq=False)
class BatchedSamples(HasConditions):
    """Samples on the CPU and how they were drawn."""

    x: Any
    conditions: ConditionTensors
    plan: Plan
    calls: int
    seconds: float
    effective_sample_size: Tensor | None = None


Generators = Callable[[int], Mapping[str, Any]]


def sample_in_batches(
    model: Any,
    n: int,
    solver: Any = "auto",
    nfe: int | None = None,
    *,
    batch: int = 256,
    seed: int | Generators = 0,
    on_step: Callable[[Step], object] | None = None,
    first: int = 0,
    processes: Processes = ALONE,
    progress: Shown = False,
    **options: Any,
) -> BatchedSamples:
    """Draw n samples in batches, each with a generator of its own."""
    if n < 1 or batch < 1:
        raise UserError(f"n={n}, batch={batch}: expected at least 1 of each")
    given = {name: options.pop(name) for name in ("class_generator", "autocast") if name in options}
    bound = Request.from_options(solver, nfe, **options).bind(model, n)
    batch, table = max(1, batch // bound.n_particles), bound.plan.table
    if first % batch:
        raise UserError(f"first={first}: expected a multiple of the {batch} samples of a batch")
    drawn: list[Samples] = []
    began = time.perf_counter()
    with Progress(n, "sampling", "sample", progress) as bar:

        def after_step(step: Step) -> None:
            bar.update(len(step.u) * processes.count / table.nfe / bound.n_particles)
            if on_step is not None:
                on_step(step)

        for index, start in processes.own(enumerate(range(0, n, batch), first // batch)):
            own = seed(index) if callable(seed) else {"generator": block_generator(seed, index, model.device)}
            rows = bound.rows(slice(start, min(n, start + batch)))
            drawn.append(rows.draw(on_step=after_step, **own, **given))
    all_of = Samples.joined(processes.gather(drawn))
    seconds, calls = time.perf_counter() - began, math.ceil(n / batch) * table.nfe
    return BatchedSamples(all_of.x, all_of.conditions, bound.plan, calls, seconds, all_of.effective_sample_size)


def block_size(batch: int, particles: int | Particles | None = None) -> int:
    """Return how many samples are drawn together where ``batch`` states go through the network."""
    return max(1, batch // (particles.count if isinstance(particles, Particles) else max(1, particles or 1)))
