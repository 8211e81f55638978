"""Samples of a model: everything that one may ask for, made ready for the one loop and read from its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bfn.arguments import check_seed, check_whole
from bfn.conditioning import Guidance, Steering, conditioned, conditions_for
from bfn.conditions import Conditions, HasConditions
from bfn.controls import Noise, controlled, fixed_noise, starting_data
from bfn.errors import UserError
from bfn.eval_mode import evaluating
from bfn.grids import Grid
from bfn.info import LARGEST, Label
from bfn.known import Known, KnownAt, anything_known
from bfn.loop import End, Range, Run, Step, walk
from bfn.particles import Particles, Population, solver_with_noise
from bfn.presence import present_of
from bfn.progress import Shown
from bfn.sde import InitialGaussian
from bfn.solvers.base import Solver
from bfn.solvers.path import Path
from bfn.solvers.plan import plan
from bfn.solvers.table import Table

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["End", "Run", "Samples", "Step", "clip_range", "sample", "walk"]

MOST_NUMBERS = 2**36
"""In the states of one batch: 256 GiB of float32. More samples are drawn in batches (``bfn.batched_sampling``)."""


@dataclass(frozen=True)
class Samples(HasConditions):
    """Samples, and how they were made.

    x: the samples, floats or int64 classes; of joint data a mapping of parts.
    final: the prediction that x was read from, x_hat or class probabilities: the last one, or the mix of the last few
    that the solver says. prediction: the last call's. u: the last state. nfe, times: the network calls.
    conditions: those that were asked for or drawn, by name, each (n, ...).
    effective_sample_size: of the particles of each sample at each call, (n, nfe), the last one by the final weights.
    log_normaliser: what the particles of each sample estimate of the log of how likely the condition is, (n,).
    """

    x: Any
    final: Tensor
    prediction: Tensor
    u: Tensor
    nfe: int
    times: tuple[float, ...]
    conditions: Conditions = field(default_factory=dict)
    effective_sample_size: Tensor | None = None
    log_normaliser: Tensor | None = None


@torch.no_grad()
def sample(
    model: Model,
    n: int,
    solver: str | Solver | Table = "auto",
    nfe: int | None = None,
    *,
    grid: str | Grid | Sequence[float] | Tensor | None = None,
    t_start: float | None = None,
    g: float | None = None,
    path: Path | None = None,
    clip: Range | Literal[False] | None = None,
    initial: Tensor | InitialGaussian | None = None,
    label: Label | None = None,
    condition: Mapping[str, Any] | None = None,
    guidance: float | Mapping[str, float] | Guidance | None = None,
    present: Any = None,
    lengths: Any = None,
    steer: Callable[[Tensor], Tensor] | Steering | None = None,
    known: Tensor | Mapping[str, Any] | None = None,
    known_mask: Tensor | Mapping[str, Tensor] | None = None,
    known_at: KnownAt = "data",
    temperature: float = 1.0,
    allowed: Any = None,
    start_from: Any = None,
    particles: int | Particles | None = None,
    noise: Noise = "fresh",
    seed: int | None = None,
    generator: torch.Generator | None = None,
    class_generator: torch.Generator | None = None,
    on_step: Callable[[Step], None] | None = None,
    autocast: torch.dtype | None = None,
    progress: Shown = False,
) -> Samples:
    """Draw n samples with a number of network calls that is counted exactly.

    solver: a name from ``bfn.solvers.names()``, a solver, or a table. nfe: network calls to spend, 10 if None.
    grid: None for the solver's own; a name from ``bfn.grids.GRIDS`` or a grid; or increasing times, best in float64.
    t_start: where the grid starts, the paper's eta. g: the stochasticity dial, for solvers that have one.
    path: of joint data whose parts have times of their own, how to go through them: "together" (as None); the name of a
        part, or several in order, to draw first, one after another, before the rest; the times of each part at each
        call, {part: times}; or a function from the grid's time to {part: time}.
    clip: range that predicted data are clipped to, as the released code does on images; None for the range that the
        model's info has, False for no clipping.
    initial: u / sqrt(kappa) at the first time, (n, *state_shape); standard normal if None, which is the exact prior at
        t = 0 and the paper's choice at t_start; or an :class:`InitialGaussian`.
    label: classes for a class-conditional network, one for all or one a sample, numbers or names; -1 is the network
        without classes. If None they are drawn by their shares in the training data, or left out where data are known
        or started from, or another condition is given.
    condition: any conditions that the network takes, by name: one value for all or one a sample. If nothing is asked
        for they are drawn from the training data's own; those that are not named are left out.
    guidance: scale by which the conditions count, without a classifier: 1 as they are, 2 twice as much; one for all, or
        by name; or a :class:`bfn.Guidance`. Each call then sees twice the batch (one more for each scale), and still
        counts once.
    present: bool, like the data, True where a sample has data; the rest is padding, 0 in x.
    lengths: the samples' lengths, one for all or one each, instead of ``present``; drawn from the training data's own
        if neither is given.
    steer: function of the predicted data, (batch, *state_shape) -> (batch,), that samples should make large; or a
        :class:`bfn.Steering`.
    known, known_mask: data, and a bool tensor, True where they are known: (n, *data_shape) or data_shape. The
        sample has them to the last bit, the rest is filled in. Of joint data mappings: whole parts, or
        pieces of those that known_mask has.
    known_at: where the network is shown the known part, at the "data" end or on its noisy "path"
        (:class:`bfn.known.Known`).
    temperature: the logits of classes are divided by it at every call: below 1 samples are surer and less diverse.
    allowed: bool tensor, True for classes that may be drawn, (K,), (*data_shape, K) or (n, *data_shape, K); all others
        have probability 0 at every call. One True forces a class. Of joint data a mapping of parts.
    start_from: data, (n, *data_shape) or data_shape, of joint data a mapping of parts, that are noised to ``t_start``,
        a time in (0, 1), for the initial state: the later, the more of them stays.
    particles: draw each sample from so many, weighed so that ``steer`` or ``known``, or what a
        :class:`bfn.particles.Particles` says ``must`` hold, is met exactly and not by approximation:
        p(x) exp(steer(x)), p(x | known), p(x | must). The batch is that many times as large, also for ``initial`` and
        ``on_step``, and a call is made twice where something leads, counted once. The solver must have noise; "auto" is
        then "fast-sde" at g = 1. A dial beyond 1 asks for far more particles.
    noise: "fresh" at each noisy row; or "fixed", the initial state's in all of them (:func:`bfn.controls.fixed_noise`),
        so that a seed gives about the same sample whatever the number of calls.
    seed: of a generator that is made here, instead of one that is given.
    generator: draws conditions and lengths where none are given, then, in the state's shape and dtype, the initial
        state and the noise of each noisy row (a solver that draws classes takes one uniform number a variable before
        that row's noise).
    class_generator: draws those uniform numbers instead: samplers with and without drawn classes then see the same
        Gaussian noise.
    on_step: called after each network call with a :class:`Step`.
    autocast: dtype to run the network in, such as torch.bfloat16; the state keeps its own.
    """
    group = particles if particles is None or isinstance(particles, Particles) else Particles(particles)
    if group is not None:
        solver, g = solver_with_noise(solver, g)
    free = undisturbed(
        known=known, known_mask=known_mask, steer=steer, allowed=allowed, guidance=guidance, particles=particles,
        temperature=temperature,
    )  # fmt: skip
    table = plan(model, solver, nfe, grid=grid, t_start=t_start, g=g, path=path, whole=free).table
    if isinstance(n, int) and n < 1:
        raise UserError(f"n={n}: expected at least 1 sample")
    each = 1 if group is None else group.count
    check_whole("n", n, 1, MOST_NUMBERS // each // math.prod(model.flow.state_shape(model.data_shape)))
    if group is not None:
        group.check(table, steer is not None or anything_known(known, known_mask), noise)
    generator = _generator(model, seed, generator)
    bounds = clip_range(model, clip)
    given_data = anything_known(known, known_mask) or start_from is not None
    # A condition drawn at random might contradict what is known.
    conditions = conditions_for(model.info, n, label, condition, generator, model.device, drawn=not given_data)
    predict, given = conditioned(
        model, n, conditions=conditions, guidance=guidance, steer=steer, known=known, known_mask=known_mask,
        known_at=known_at, each=each,
    )  # fmt: skip
    there = present_of(model.flow, model.data_shape, n, present, lengths, model.info.lengths, generator, model.device)
    there = there if there is None or given is None else there | given.mask[::each]  # what is known exists
    if there is not None:
        conditions["present"] = there
    predict = controlled(model, n, predict, given, temperature=temperature, allowed=allowed, each=each)
    start = None
    if start_from is not None:
        if initial is not None:
            raise UserError("start_from beside initial: both say what the first state is; give one of them")
        # A table and a grid of times say themselves where they start.
        says_itself = isinstance(solver, Table) or not (grid is None or isinstance(grid, str | Grid))
        start = starting_data(model, n, start_from, table.times[0] if says_itself else t_start)
        start = start.repeat_interleave(each, 0)
    u, first = _initial_state(model, n * each, table, initial, start, given, generator)
    bound = fixed_noise(table, model.flow, noise).bind(model.flow, u)

    def draw() -> Tensor:
        return first if noise == "fixed" else torch.randn(u.shape, generator=generator, dtype=u.dtype, device=u.device)

    def finish(prediction: Tensor) -> Tensor:
        x = model.flow.decode(prediction)
        x = x if given is None else given.restore(x)
        return x if there is None else torch.where(there.repeat_interleave(each, 0), x, torch.zeros_like(x))

    population = None
    if group is not None:
        base, _ = conditioned(model, n, conditions=conditions, guidance=guidance)
        base = controlled(model, n, base, temperature=temperature, allowed=allowed, each=each)
        steering = Steering(steer) if callable(steer) else steer
        population = Population(
            group, n, model.flow, bound, base, None if steering is None and given is None else predict, finish,
            steering=steering, known=given, generator=generator,
        )  # fmt: skip
    with evaluating(model):
        end = walk(
            population or predict, bound, u, population.noise if population else draw,
            conditions={name: value.repeat_interleave(each, 0) for name, value in conditions.items()},
            clip=bounds, class_generator=class_generator or generator, on_step=on_step,
            select=population.select if population else None, autocast=autocast, progress=progress,
        )  # fmt: skip
        x = finish(end.final)
        report: dict[str, Tensor] = {}
        if population is not None:
            end, x, report = population.choose(end, x)
    return Samples(model.flow.unpack(x), end.final, end.prediction, end.u, table.nfe, table.times, conditions, **report)


def undisturbed(**settings: Any) -> bool:
    """Whether predictions are the network's own: only then can it draw whole strings from them."""
    bent = ("known", "known_mask", "steer", "allowed", "guidance", "particles")
    temperature = settings.get("temperature", 1.0)
    usual = isinstance(temperature, int | float) and temperature == 1  # what is no number is refused where it is used
    return usual and all(settings.get(name) is None for name in bent)


def _generator(model: Model, seed: int | None, generator: torch.Generator | None) -> torch.Generator | None:
    if seed is None:
        return generator
    if generator is not None:
        raise UserError(f"seed={seed} beside a generator: give one of them")
    return torch.Generator(model.device).manual_seed(check_seed(seed))


def clip_range(model: Model, clip: Range | Literal[False] | None = None) -> Range | None:
    """What predictions are clipped to: ``clip`` as in :func:`sample`."""
    if clip is None:
        return model.info.value_range if model.flow.has_range else None
    if clip is False:
        return None
    if not model.flow.has_range:
        raise UserError(f"clip={clip}: only predictions of continuous data can be clipped")
    if (
        not isinstance(clip, Sequence)
        or isinstance(clip, str)
        or len(clip) != 2
        or not -LARGEST < clip[0] < clip[1] < LARGEST
    ):
        raise UserError(f"clip={clip}: expected (lowest, highest), such as (-1, 1)")
    return clip


def _initial_state(
    model: Model,
    n: int,
    table: Table,
    initial: Tensor | InitialGaussian | None,
    start: Tensor | None,
    given: Known | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """The first state, and the standard normal noise in it."""
    shape = (n, *model.flow.state_shape(model.data_shape))
    if isinstance(initial, Tensor):
        if tuple(initial.shape) != shape:
            raise UserError(f"initial of shape {tuple(initial.shape)}: expected {shape}")
        # In its own type: that of a network without weights is not known.
        unit = noise = initial.to(model.device)
    else:
        unit = noise = torch.randn(shape, generator=generator, dtype=model.dtype, device=model.device)
        if initial is None:
            unit = noise * table.start if table.start != 1 else noise
        else:
            unit = initial(model.flow, table.times[0], noise)
            if not isinstance(unit, Tensor) or unit.shape != noise.shape:
                given_shape = tuple(unit.shape) if isinstance(unit, Tensor) else type(unit).__name__
                raise UserError(f"initial gives {given_shape}: expected a tensor of shape {shape}")
    if start is None and given is None:
        return unit * model.flow.noise_scale(unit), noise
    s = model.flow.noise_levels(table.told(model.flow)[:1], n, unit.ndim - 1, unit)[0].s
    u = unit * model.flow.noise_scale(unit) if start is None else model.flow.noised(start, s, noise)
    return u if given is None else given.start(u, noise, s), noise
