"""The one loop: initial state, rows of a table, callbacks, final prediction. The network is called in one place."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn import grids, solvers
from bfn.conditioning import Guidance, Guided, Known, KnownAt, Predict, Steered, Steering, check_known, check_known_at
from bfn.error_curve import ErrorCurve
from bfn.errors import NetworkError, UserError
from bfn.eval_mode import evaluating
from bfn.flows import Flow, Level, Shape
from bfn.heads import Output
from bfn.sde import optimal_initial
from bfn.solvers.table import BoundTable, Solver, Table, check_nfe


class Predictor(Protocol):
    """All that sampling and losses ask of a model: a network with its head, or an exact posterior."""

    @property
    def flow(self) -> Flow:
        """The kind of data."""

    @property
    def data_shape(self) -> Shape:
        """Shape of one sample."""

    @property
    def dtype(self) -> torch.dtype:
        """Type that states are kept in."""

    @property
    def device(self) -> torch.device:
        """Where states are kept."""

    @property
    def starts_at_zero(self) -> bool:
        """Whether the prediction is defined at t = 0."""

    @property
    def error_curve(self) -> ErrorCurve | None:
        """How wrong its prediction is at each time, if known."""

    @property
    def tables(self) -> Mapping[int, Table]:
        """Solvers tuned to this model, by their number of calls."""

    def output(self, u: Tensor, level: Level, label: Tensor | None = None) -> Output:
        """Distribution over the data given the state u at that level: one network call."""


@dataclass(frozen=True)
class Step:
    """What ``on_step`` is shown after each network call: the state it was made on, and what it predicted."""

    index: int
    t: float
    u: Tensor
    prediction: Tensor


@dataclass(frozen=True)
class Samples:
    """x: the samples. prediction: the last call's x_hat or class probabilities. u: the last state. nfe: calls made."""

    x: Tensor
    prediction: Tensor
    u: Tensor
    nfe: int
    times: tuple[float, ...]


@dataclass(frozen=True)
class InitialGaussian:
    """The paper's optimal isotropic start (app. D.1), from the mean and variance of the message.

    >>> InitialGaussian(*bfn.sde.message_moments(flow, x))  # doctest: +SKIP
    """

    mean: Tensor
    variance: float

    def __call__(self, flow: Flow, t_start: float, noise: Tensor) -> Tensor:
        """u / sqrt(kappa) at t_start from standard normal noise."""
        mean, std = optimal_initial(flow, self.mean, self.variance, t_start)
        return noise * std + mean.to(noise)


LEAST_T_START = 1e-3
"""Where a solver that starts at t = 0 starts instead if the network predicts noise, which is 0/0 there, or the grid has
no point there."""


def tuned_table(
    tables: Mapping[int, Table],
    solver: str | Solver,
    nfe: int | None,
    grid: str | Sequence[float] | Tensor | None = None,
    t_start: float | None = None,
    g: float | None = None,
) -> Table | None:
    """The model's own table, if these settings mean it: "tuned" does, and "auto" where there is one for the calls."""
    free = grid is None and t_start is None and g is None
    if solver in ("auto", "tuned") and free and nfe is not None and nfe in tables:
        return tables[nfe]
    if solver == "tuned":
        known = f"only at {', '.join(map(str, sorted(tables)))} calls" if tables else "none"
        given = "" if free else " with a grid, t_start or g"
        raise UserError(
            f"solver='tuned', nfe={nfe}{given}: the model has tables of its own: {known}, each with its grid and dial; "
            "bfn tune makes one"
        )
    return None


def make_table(
    flow: Flow,
    solver: str | Solver,
    nfe: int | None = None,
    grid: str | Sequence[float] | Tensor | None = None,
    t_start: float | None = None,
    g: float | None = None,
    starts_at_zero: bool = True,
    tables: Mapping[int, Table] = MappingProxyType({}),
    curve: ErrorCurve | None = None,
) -> Table:
    """The rows that a call of :func:`sample` with these settings runs through.

    starts_at_zero: whether the model's prediction is defined at t = 0.
    tables: the model's tuned ones; "auto" takes one where it has the calls and nothing else is asked for.
    curve: how wrong the model is at each time, for the grids and solvers that are made from it.
    """
    own = tuned_table(tables, solver, nfe, grid, t_start, g)
    if own is not None:
        return own
    times = None if grid is None or isinstance(grid, str) else grids.check_times(grid)
    calls = nfe if times is None else len(times)
    if times is not None and t_start is not None:
        raise UserError(f"t_start={t_start:g} beside a grid of times: it starts at its first one; leave t_start out")
    if calls is None:
        raise UserError("nfe=None: say how many network calls to spend, or give a tensor of times as the grid")
    check_nfe(calls)
    chosen = solvers.get(solver, flow.kind).resolve(flow, calls).with_curve(curve)
    if g is not None:
        chosen = chosen.with_dial(g)
    singular = not (starts_at_zero or chosen.from_prior)
    if times is None:
        named = grids.get(grid if isinstance(grid, str) else chosen.grid, curve)
        undefined = chosen.t_start == 0 and (singular or named.needs_start)
        own_start = LEAST_T_START if undefined else chosen.t_start
        times = chosen.nodes(flow, named, calls, own_start if t_start is None else t_start)
        times = grids.check_times(times, f"grid {named.name!r} of {len(times)} times")
    if singular and float(times[0]) == 0:
        raise UserError(
            f"a grid that starts at t = 0 with solver {chosen.name!r}: x_hat = (u - eps_hat) / s is 0/0 there; "
            f"start at {LEAST_T_START}, or take a network that predicts the data"
        )
    table = chosen.table(flow, times.tolist())
    if nfe is not None and nfe != table.nfe:
        raise UserError(f"nfe={nfe}: the given grid of {len(times)} times makes {table.nfe} calls; leave nfe out")
    return table


class Run:
    """The way of one batch through a table, for this module's loop and for loops that others own (``bfn.interop``).

    At each row: :meth:`prediction` of the network's output, :meth:`keep` it, then :meth:`step` unless :attr:`at_end`,
    where :meth:`final` is the sample. u: the first state.
    """

    def __init__(self, table: BoundTable, u: Tensor, clip: tuple[float, float] | None = None) -> None:
        self.table, self.clip, self.index = table, clip, 0
        self._predictions: deque[Tensor] = deque(maxlen=max(1, table.depth))
        self._base = u

    @property
    def at_end(self) -> bool:
        """Whether this is the last row, which makes its call but no step."""
        return self.index == self.table.nfe - 1

    def prediction(self, output: Output, generator: torch.Generator | None = None) -> Tensor:
        """What this row takes from the output: its mean, or a draw where the table draws; clipped."""
        prediction = output.mean if not self.table.draws else output.mode if self.at_end else output.draw(generator)
        prediction = prediction.to(self._base.dtype)
        return prediction if self.clip is None else prediction.clamp(*self.clip)

    def keep(self, prediction: Tensor) -> None:
        """Make this the newest prediction."""
        self._predictions.appendleft(prediction)

    def step(self, u: Tensor, noise: Callable[[], Tensor]) -> Tensor:
        """The next state from the one that the network was called on."""
        if self.index == 0 or self.table.rows[self.index - 1].commit:
            self._base = u
        u = self.table.rows[self.index](self._base, self._predictions, noise)
        self.index += 1
        return u

    def final(self) -> Tensor:
        """The mix of the last predictions that the table says is the sample."""
        if len(self.table.final) == 1:
            return self._predictions[0]
        weighted = [weight * p for weight, p in zip(self.table.final, self._predictions, strict=False)]
        mix = torch.stack(weighted).sum(0)
        return mix if self.clip is None else mix.clamp(*self.clip)


@dataclass(frozen=True)
class End:
    """Where the loop ended. final: the mix that is the sample. prediction: the last one. u: the last state."""

    final: Tensor
    prediction: Tensor
    u: Tensor


def walk(
    predict: Predict,
    table: BoundTable,
    u: Tensor,
    noise: Callable[[], Tensor],
    *,
    label: Tensor | None = None,
    clip: tuple[float, float] | None = None,
    class_generator: torch.Generator | None = None,
    on_step: Callable[[Step], None] | None = None,
    autocast: torch.dtype | None = None,
    progress: bool = False,
) -> End:
    """The one loop: from the first state through all rows of a table; gradients flow where they are asked for.

    predict: called once at each row. noise: called at each row with noise, for standard normal numbers like u.
    The rest as in :func:`sample`.
    """
    run = Run(table, u, clip)
    shape, prediction = u.shape, u
    totals = torch.empty(table.nfe, dtype=torch.float32, device=u.device)
    cast = nullcontext() if autocast is None else torch.autocast(u.device.type, autocast)
    for index, level in enumerate(tqdm(table.levels, disable=not progress, desc="sampling", unit="call")):
        try:
            with cast:
                output = predict(u, level, label) if label is not None else predict(u, level)
        except NetworkError as error:
            raise NetworkError(f"call {index}: {error}") from None
        prediction = run.prediction(output, class_generator)
        if prediction.shape != shape:
            raise NetworkError(
                f"the network's prediction at call {index} (t={table.times[index]:.6g}) has shape "
                f"{tuple(prediction.shape)}: expected {tuple(shape)}"
            )
        totals[index] = output.mean.detach().sum(dtype=torch.float32)
        run.keep(prediction)
        if on_step is not None:
            on_step(Step(index, table.times[index], u, prediction))
        if not run.at_end:
            u = run.step(u, noise)
    # One look at all totals after the loop: a look at each would stall a GPU at every step.
    if not bool(torch.isfinite(totals).all()):
        first = int((~torch.isfinite(totals)).nonzero()[0])
        raise NetworkError(
            f"the network's prediction at call {first} (t={table.times[first]:.6g}) has NaN or infinite values"
        )
    return End(run.final(), prediction, u)


@torch.no_grad()
def sample(
    model: Predictor,
    n: int,
    solver: str | Solver = "auto",
    nfe: int | None = None,
    *,
    grid: str | Sequence[float] | Tensor | None = None,
    t_start: float | None = None,
    g: float | None = None,
    clip: tuple[float, float] | None = None,
    initial: Tensor | InitialGaussian | None = None,
    label: Tensor | None = None,
    guidance: float | Guidance | None = None,
    steer: Callable[[Tensor], Tensor] | Steering | None = None,
    known: Tensor | None = None,
    mask: Tensor | None = None,
    known_at: KnownAt = "data",
    generator: torch.Generator | None = None,
    class_generator: torch.Generator | None = None,
    on_step: Callable[[Step], None] | None = None,
    autocast: torch.dtype | None = None,
    progress: bool = False,
) -> Samples:
    """Draw n samples with a number of network calls that is counted exactly.

    solver: a name from ``bfn.solvers.names()``, a solver, or "tuned" for the model's own table at that nfe, which
        "auto" takes too if there is one. nfe: network calls to spend.
    grid: None for the solver's own; a name from ``bfn.grids.GRIDS``; or increasing times, best in float64.
    t_start: where the grid starts, the paper's eta. g: the stochasticity dial, for solvers that have one.
    clip: (-1, 1) clips the predicted data, as the released code does on images.
    initial: u / sqrt(kappa) at the first time, (n, *state_shape); standard normal if None, which is the exact prior at
        t = 0 and the paper's choice at t_start; or an :class:`InitialGaussian`.
    label: (n,) classes for a class-conditional network, -1 for none.
    guidance: scale by which the classes count, without a classifier: 1 as they are, 2 twice as much; or a
        :class:`bfn.Guidance`. Each call then sees twice the batch, and still counts once.
    steer: function of the predicted data, (batch, *state_shape) -> (batch,), that samples should make large; or a
        :class:`bfn.Steering`.
    known, mask: data, and a bool tensor that is True where they are known: (n, *data_shape) or data_shape. The sample
        has them to the last bit, the rest is filled in.
    known_at: where the network is shown the known part, at the "data" end or on its noisy "path"
        (:class:`bfn.conditioning.Known`).
    generator: draws, in the state's shape and dtype, the initial state and then the noise of each noisy row (a solver
        that draws classes takes one uniform number a variable before that row's noise).
    class_generator: draws those uniform numbers instead: samplers with and without drawn classes then see the same
        Gaussian noise.
    on_step: called after each network call with a :class:`Step`.
    autocast: dtype to run the network in, such as torch.bfloat16; the state keeps its own.
    """
    table = make_table(model.flow, solver, nfe, grid, t_start, g, model.starts_at_zero, model.tables, model.error_curve)
    label = None if label is None else _checked_label(label, n).to(model.device)
    predict, given = _conditioned(model, n, guidance, steer, label, known, mask, known_at)
    u = _initial_state(model, n, table, initial, given, generator)
    _check_clip(model.flow, clip)

    def noise() -> Tensor:
        return torch.randn(u.shape, generator=generator, dtype=u.dtype, device=u.device)

    with evaluating(model):
        end = walk(
            predict, BoundTable.bind(table, model.flow, u), u, noise, label=label, clip=clip,
            class_generator=class_generator or generator, on_step=on_step, autocast=autocast, progress=progress,
        )  # fmt: skip
    x = model.flow.decode(end.final)
    return Samples(x if given is None else given.restore(x), end.prediction, end.u, table.nfe, table.times)


def _conditioned(
    model: Predictor,
    n: int,
    guidance: float | Guidance | None,
    steer: Callable[[Tensor], Tensor] | Steering | None,
    label: Tensor | None,
    known: Tensor | None,
    mask: Tensor | None,
    known_at: KnownAt,
) -> tuple[Predict, Known | None]:
    """What the loop calls: the model's output under all conditions, and the known part if there is one."""
    predict: Predict = model.output
    if guidance is not None:
        guidance = guidance if isinstance(guidance, Guidance) else Guidance(float(guidance))
        if label is None:
            raise UserError(
                f"guidance={guidance.scale:g}: it needs classes to guide to; give label, to a model that knows some"
            )
        predict = predict if guidance.scale == 1 else Guided(predict, guidance)
    if steer is not None:
        predict = Steered(predict, model.flow, steer if isinstance(steer, Steering) else Steering(steer))
    check_known_at(known_at)
    if known is None and mask is None:
        return predict, None
    if known is None or mask is None:
        raise UserError(f"{'known' if known is None else 'mask'}=None: known and mask are given together")
    x, mask = check_known(model.flow, model.data_shape, n, known, mask, model.device)
    if not bool(mask.any()):
        return predict, None
    given = Known(predict, model.flow, x, mask, known_at, model.dtype)
    return given, given


def _checked_label(label: Tensor, n: int) -> Tensor:
    """Classes of n samples; whether there are so many is for the network to know."""
    if tuple(label.shape) != (n,) or label.is_floating_point() or label.is_complex():
        raise UserError(
            f"label of shape {tuple(label.shape)} and type {label.dtype}: expected ({n},) whole numbers, -1 for none"
        )
    return label.long()


def _check_clip(flow: Flow, clip: tuple[float, float] | None) -> None:
    if clip is not None and flow.kind != "continuous":
        raise UserError(f"clip={clip}: only predictions of continuous data can be clipped")
    if clip is not None and not clip[0] < clip[1]:
        raise UserError(f"clip={clip}: expected (lowest, highest), such as (-1, 1)")


def _initial_state(
    model: Predictor,
    n: int,
    table: Table,
    initial: Tensor | InitialGaussian | None,
    given: Known | None,
    generator: torch.Generator | None,
) -> Tensor:
    if n < 1:
        raise UserError(f"n={n}: expected at least 1 sample")
    shape = (n, *model.flow.state_shape(model.data_shape))
    if isinstance(initial, Tensor):
        if tuple(initial.shape) != shape:
            raise UserError(f"initial of shape {tuple(initial.shape)}: expected {shape}")
        # In its own type: that of a network without weights is not known.
        unit = noise = initial.to(model.device)
    else:
        unit = noise = torch.randn(shape, generator=generator, dtype=model.dtype, device=model.device)
        if initial is not None:
            unit = initial(model.flow, table.times[0], noise)
    u = unit * math.sqrt(model.flow.kappa)
    return u if given is None else given.start(u, noise, float(model.flow.schedule.s(table.times[0])))


def strata(n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
    """n times in [0, 1), one in each stratum of width 1/n with one shared random shift: each is uniform by itself."""
    shift = torch.rand((), generator=generator, dtype=torch.float64, device=device)
    return (torch.arange(n, dtype=torch.float64, device=device) / n + shift) % 1


def batches(total: int, size: int) -> Iterator[int]:
    """Sizes of the batches that make up ``total``."""
    for start in range(0, total, size):
        yield min(size, total - start)
