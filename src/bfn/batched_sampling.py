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

from bfn.conditioning import conditions_for
from bfn.conditions import Conditions, HasConditions, rows_of
from bfn.errors import UserError
from bfn.grids import Grid
from bfn.info import Label
from bfn.particles import Particles, solver_with_noise
from bfn.processes import ALONE, Processes
from bfn.progress import Progress, Shown
from bfn.sampling import Step, sample, undisturbed
from bfn.seeds import block_generator
from bfn.solvers import Plan, Solver, Table, plan

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["BatchedSamples", "block_size", "sample_in_batches"]


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
    first: int = 0,
    processes: Processes = ALONE,
    progress: Shown = False,
    **settings: Any,
) -> BatchedSamples:
    """n samples by :func:`bfn.sample`, which has the settings, at most ``batch`` at a time, particles counted.

    seed: each batch has a generator of its own, from the seed and its number (:func:`bfn.seeds.block_generator`), so
        that samples depend on how many there are in a batch, and on nothing else of how they are drawn; or what gives
        each its own. What is given for each sample (label, known, known_mask, start_from, allowed, present, lengths,
        initial) is cut up.
    first: the number of the first sample, a multiple of ``batch``, where these are some of more.
    processes: draw the batches in turn; all get all samples. on_step, seconds, and progress are of this process.
    """
    if n < 1 or batch < 1:
        raise UserError(f"n={n}, batch={batch}: expected at least 1 of each")
    if particles is not None:
        solver, g = solver_with_noise(solver, g)
    each = _each(particles)
    batch = block_size(batch, particles)
    if first % batch:
        raise UserError(f"first={first}: expected a multiple of the {batch} samples of a batch")
    free = undisturbed(particles=particles, **settings)
    planned = plan(model, solver, nfe, grid=grid, t_start=t_start, g=g, whole=free)
    asked = None
    if label is not None or condition:
        asked = conditions_for(model.info, n, label, condition, drawn=False)
    calls = math.ceil(n / batch) * planned.table.nfe
    drawn: list[Any] = []
    began = time.perf_counter()
    blocks = processes.own(enumerate(range(0, n, batch), first // batch))
    with Progress(n, "sampling", "sample", progress) as bar:

        def after_step(step: Step) -> None:
            bar.update(len(step.u) * processes.count / planned.table.nfe / each)
            if on_step is not None:
                on_step(step)

        for index, start in blocks:
            rows = slice(start, min(n, start + batch))
            own = seed(index) if callable(seed) else {"generator": block_generator(seed, index, model.device)}
            out = sample(
                model, rows.stop - rows.start, planned.table, on_step=after_step,
                condition=None if asked is None else rows_of(asked, rows),
                particles=particles, **own, **_of_rows(settings, rows, model.data_shape),
            )  # fmt: skip
            drawn.append((_on_cpu(out.x), _on_cpu(out.conditions), _on_cpu(out.effective_sample_size)))
    x, conditions, sizes = zip(*processes.gather(drawn), strict=True)
    seconds = time.perf_counter() - began
    size = None if sizes[0] is None else torch.cat(sizes)
    return BatchedSamples(_joined(x), _joined(conditions), planned, calls, seconds, size)


def block_size(batch: int, particles: int | Particles | None = None) -> int:
    """Samples that are drawn together with a generator of their own, where so many states go through the network."""
    return max(1, batch // _each(particles))


def _each(particles: int | Particles | None) -> int:
    return 1 if particles is None else particles.count if isinstance(particles, Particles) else max(1, particles)


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


def _on_cpu(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: value.cpu() for name, value in values.items()}
    return None if values is None else values.cpu()


def _joined(batches: Sequence[Any]) -> Any:
    """All samples."""
    if isinstance(batches[0], Mapping):
        return {name: torch.cat([x[name] for x in batches]) for name in batches[0]}
    return torch.cat([*batches])
