"""Integrators of the likelihood's ODE: equal steps, or steps that each sample chooses by itself."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from bfn._utils.arguments import MOST_COUNT, check_real, check_whole
from bfn.core.conditions import rows_of, sum_over_present
from bfn.core.errors import NetworkError, UserError
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.heads import Output
from bfn.core.joint import SlicedPart as Part
from bfn.core.joint import flat, sliced_parts
from bfn.core.schedules import as_float64
from bfn.core.solver import LEAST_T_START
from bfn.likelihood.bits import Batch, Likelihood

if TYPE_CHECKING:
    from bfn.core.model import Model


Slope = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows, c, y) -> dy/dc of those rows of the batch."""

ADAMS_BASHFORTH = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12))
ADAMS_MOULTON = ((1 / 2, 1 / 2), (5 / 12, 8 / 12, -1 / 12), (9 / 24, 19 / 24, -5 / 24, 1 / 24))


def adams(f: Slope, y: Tensor, slope: Tensor, c: float, c_end: float, nfe: int) -> Tensor:
    """Equal steps, one call each: Adams of order 3, each step redone with order 4 once the next slope is known."""
    rows = torch.arange(len(y), device=y.device)
    h = (c_end - c) / (nfe - 1)
    slopes = [slope]
    for i in range(1, nfe):
        order = min(len(slopes), len(ADAMS_BASHFORTH)) - 1
        predicted = y + h * _mix(ADAMS_BASHFORTH[order], slopes)
        c_new = c_end if i == nfe - 1 else c + i * h
        slopes = [f(rows, y.new_full((len(y),), c_new), predicted), *slopes[: len(ADAMS_BASHFORTH)]]
        y = y + h * _mix(ADAMS_MOULTON[order], slopes)
    return y


# Dormand & Prince (1980), 5(4): stages, and the difference between the two solutions.
NODES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def dormand_prince(
    f: Slope, y: Tensor, slope: Tensor, c_start: float, c_end: float, tolerance: float, max_nfe: int
) -> tuple[Tensor, Tensor]:
    """Steps that each sample chooses by itself, so that a result does not depend on what else is in the batch.

    The error of a step is the norm of that of the state and of the log-densities, which are of one unit: a change of v
    by dv changes log N(v) by v . dv.
    """
    y, slope = y.clone(), slope.clone()
    c, h = y.new_full((len(y),), c_start), y.new_full((len(y),), (c_end - c_start) / 20)
    calls = torch.ones(len(y), dtype=torch.int64, device=y.device)
    rows = torch.arange(len(y), device=y.device)
    # What steps miss adds up: the error in the end is several times that of a step.
    allowed = tolerance / 10
    while len(rows):
        if int(calls.max()) + len(NODES) > max_nfe:
            raise UserError(
                f"tolerance={tolerance:g}: not reached within {max_nfe} calls; take a larger one, more calls (nfe), or "
                "a model in float64"
            )
        left = c_end - c[rows]
        last = h[rows] <= left
        step = torch.where(last, left, h[rows])
        column, slopes = step.unsqueeze(1), [slope[rows]]
        for node, stage in zip(NODES, STAGES, strict=True):
            new = y[rows] + column * _mix(stage, slopes)
            at = torch.where(last & (node == 1), c_end, c[rows] + node * step)
            slopes.append(f(rows, at, new))
        calls[rows] += len(NODES)
        error = (column * _mix(ERROR, slopes)).norm(dim=1)
        good = error <= allowed
        done = rows[good]
        y[done], slope[done], c[done] = new[good], slopes[-1][good], at[good]
        h[rows] = step * (0.9 * (allowed / error.clamp(min=1e-300)) ** 0.2).clamp(0.2, 5)
        rows = rows[~(good & last)]
    return y, calls


def _mix(weights: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
    return torch.stack([w * slope for w, slope in zip(weights, slopes, strict=False)]).sum(0)


Method = Literal["ode", "bound", "n-step"]
"""How a likelihood is had: the probability-flow ODE, the continuous-time bound, or the bound of n steps."""
Divergence = Literal["exact", "hutchinson"]
"""How the divergence of the ODE is had: term by term, or by random probes."""
Dequantise = Literal["uniform", "noise"]
"""What is added to data of whole levels to give them a density."""

NFE = 100
"""Network calls a sample where neither their number nor a tolerance is given."""

MOST_NFE = 10_000
"""Calls after which adaptive steps give up: the tolerance is then finer than the network's rounding."""

EXACT_DEFAULT, EXACT_LIMIT = 100, 1024
"""Up to so many dimensions the divergence is exact if nothing is said, and at most if it is asked for."""


@dataclass(frozen=True)
class Settings:
    """The settings of :func:`bfn.likelihood.likelihood.log_likelihood`, which says what each means."""

    method: Method
    nfe: int | None
    tolerance: float | None
    divergence: Divergence | None
    probes: int
    importance: int
    levels: int | None
    dequantise: Dequantise
    variance: Tensor | None

    @property
    def calls(self) -> int:
        """Network calls a sample; with a tolerance, at most."""
        return self.nfe or (NFE if self.tolerance is None else MOST_NFE)

    def is_exact(self, n_states: int) -> bool:
        """Whether the divergence in so many dimensions is exact."""
        return n_states <= EXACT_DEFAULT if self.divergence is None else self.divergence == "exact"

    def check(self, model: Model, x: Tensor) -> None:
        """Refuse what does not fit together, in one line each."""
        for problem in self._problems(model.flow, math.prod(model.flow.state_shape(model.data_shape)), x):
            raise UserError(problem)

    def _problems(self, flow: Flow, n_states: int, x: Tensor) -> Iterator[str]:
        names = {"method": Method, "divergence": Divergence, "dequantise": Dequantise}
        for name, allowed in ((name, get_args(kind)) for name, kind in names.items()):
            if (value := getattr(self, name)) not in allowed and (name, value) != ("divergence", None):
                yield f"{name}={value!r}: expected one of {', '.join(allowed)}"
        if isinstance(self.nfe, int) and self.nfe < 5:
            yield f"nfe={self.nfe}: expected at least 5 network calls a sample"
        for name in ("nfe", "probes", "importance"):
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, 1, 10**6)
        if self.probes > 1 and self.method == "ode" and self.is_exact(n_states):
            yield f"probes={self.probes} with an exact divergence, which needs none: take divergence='hutchinson'"
        check_real("tolerance", self.tolerance)
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            yield f"tolerance={self.tolerance:g}: expected a positive error, such as 1e-4"
        if self.tolerance is not None and self.tolerance < sys.float_info.epsilon:
            yield f"tolerance={self.tolerance:g}: finer than any number is rounded; expected an error such as 1e-4"
        usual = {"tolerance": None, "divergence": None, "levels": None, "importance": 1, "probes": 1}
        for name in (name for name, value in usual.items() if getattr(self, name) != value and self.method != "ode"):
            yield f"{name} with method={self.method!r}: it belongs to method='ode'"
        if self.variance is not None:
            yield from self._variance_problems(flow, self.variance)
        if self.levels is not None:
            yield from self._level_problems(flow, self.levels, x)
        elif self.dequantise != "uniform":
            yield f"dequantise={self.dequantise!r} without levels: say how many values there are, such as levels=256"
        elif flow.has_range and self.importance > 1:
            yield f"importance={self.importance}: a density needs no draws; give levels to bound a probability"
        if self.importance > 1 and self.probes == 1 and not self.is_exact(n_states):
            yield (
                f"importance={self.importance} with divergence='hutchinson' and probes=1: weights as noisy as that of "
                "one probe give no bound; take probes=2 or more"
            )
        if self.divergence == "exact" and n_states > EXACT_LIMIT:
            yield (
                f"divergence='exact' in {n_states} dimensions: it takes a backward pass for each at every call (at "
                f"most {EXACT_LIMIT}); take 'hutchinson'"
            )

    def _variance_problems(self, flow: Flow, variance: Tensor) -> Iterator[str]:
        if self.method != "n-step" or not flow.has_range:
            yield f"variance with method={self.method!r} on {flow.kind} data: it is for 'n-step' on continuous data"
        if tuple(variance.shape) != (self.calls - 1,):
            yield f"variance of shape {tuple(variance.shape)}: expected one a step, nfe - 1 = {self.calls - 1} of them"
        if not bool(((variance >= 0) & variance.isfinite()).all()):
            yield f"variance from {float(variance.min()):g} on: expected finite numbers from 0 up"

    def _level_problems(self, flow: Flow, levels: int, x: Tensor) -> Iterator[str]:
        if not flow.has_range or not isinstance(levels, int) or levels < 2:
            yield (
                f"levels={levels} on {flow.kind} data: expected a whole number of values on [-1, 1] of "
                "continuous data, at least 2"
            )
        check_whole("levels", levels, 2, MOST_COUNT)
        # The values are 2 k / (levels - 1) - 1, to a hundredth of what lies between them.
        steps = (x.double() + 1) * (levels - 1) / 2
        off = ~((steps - steps.round().clamp(0, levels - 1)).abs() <= 0.01)
        if bool(off.any()):
            yield (
                f"levels={levels}: the data hold {float(x[off][0]):g}, which is none of so many values on [-1, 1]; "
                "say how many values the data take"
            )


class Ode:
    """One batch on its way from the data end to the prior, every sample with ``draws`` states."""

    def __init__(self, batch: Batch, settings: Settings) -> None:
        model, generator = batch.model, batch.generator
        self.model, self.flow, self.settings, self.on_call = model, model.flow, settings, batch.on_call
        self.draws = settings.importance
        self.state_shape = self.flow.state_shape(model.data_shape)
        self.parts = sliced_parts(self.flow, model.data_shape)
        # Numbers resolve last; near t = 0 their s is the steepest, so that along theirs all others are smooth.
        self.leader = max(self.parts, key=lambda part: (part.flow.has_range, part.data.stop - part.data.start))
        self.probes = None if settings.is_exact(math.prod(self.state_shape)) else settings.probes
        self.x = batch.x.repeat_interleave(self.draws, 0)
        self.conditions = {name: value.repeat_interleave(self.draws, 0) for name, value in batch.conditions.items()}
        there = self.conditions.get("present")
        self.present = torch.ones_like(self.x, dtype=torch.bool) if there is None else there
        self.density = all(part.flow.has_range for part in self.parts) and settings.levels is None
        self.random = self.draws > 1 or self.probes is not None or not self.density
        first = 0.0 if model.starts_at_zero else LEAST_T_START
        self.c_start, self.c_end = (float(_c(self.leader.flow, as_float64(t))) for t in (first, 1.0))
        self.last_class = [last for part in self.parts for last in _last_classes(part)]
        u, self.log_volume = self._data_end(generator)
        exists = self.flow.over_variables(self.present, u.view(-1, *self.state_shape))
        self.exists = None if there is None else exists.expand(-1, *self.state_shape).flatten(1)
        u = u if self.exists is None else torch.where(self.exists, u, 0.0)
        at_end = torch.ones(1, dtype=torch.float64, device=u.device)
        self.v = u / self._over_state(lambda part: _scale(part.flow, at_end))
        signs = torch.rand((self.probes or 0, len(u), *self.state_shape), generator=generator, device=u.device) < 0.5
        self.signs = signs.to(model.dtype) * 2 - 1

    def _over_state(self, numbers: Callable[[Part], Tensor]) -> Tensor:
        """A number (n,) of each part on all of its places: (n, D)."""
        wide = [numbers(part).unsqueeze(1).expand(-1, part.state.stop - part.state.start) for part in self.parts]
        return torch.cat(wide, 1)

    def _free(self, part: Part) -> Tensor:
        """Dimensions of a part's state, without the one of each variable that no softmax sees: (n,) float64."""
        present = self.present if self.parts == (part,) else part.data_of(self.present)
        return flat(present).sum(1).double() * (1 if part.flow.has_range else part.state_shape[-1] - 1)

    def _data_end(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """States (batch, D) at the data end, and what turns the log-density of v there into the draw's weight."""
        ends = [self._part_at_end(part, generator) for part in self.parts]
        return torch.cat([flat(u) for u, _ in ends], 1), torch.stack([volume for _, volume in ends]).sum(0)

    def _part_at_end(self, part: Part, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        s, free = float(part.flow.schedule.s(1.0)), self._free(part)
        x, present = (own if self.parts == (part,) else part.data_of(own) for own in (self.x, self.present))
        log_cosh = math.log(math.cosh(math.asinh(s * part.flow.unit_std)))
        constant = -free * log_cosh
        if not part.flow.has_range:
            eps = torch.randn((len(x), *part.state_shape), generator=generator, dtype=torch.float64, device=x.device)
            eps = eps - eps.mean(-1, keepdim=True)
            # The normalising constants of p and q are the same.
            return part.flow.noised(x, s, eps), constant + sum_over_present(eps.square().sum(-1), present) / 2
        constant = constant + free * (math.log(s) - math.log(2 * math.pi) / 2)
        x = x.double()
        if self.settings.levels is None:
            return s * x, constant
        edge = 1 / (self.settings.levels - 1)
        uniform = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=x.device)
        if self.settings.dequantise == "uniform":
            return s * (x + (2 * uniform - 1) * edge), constant + free * math.log(2 * edge)
        reach = torch.tensor(edge * s, dtype=torch.float64)
        inside = torch.special.ndtr(reach) - torch.special.ndtr(-reach)
        eps = torch.special.ndtri(torch.special.ndtr(-reach) + uniform * inside)
        log_q = -eps.square() / 2 - math.log(2 * math.pi) / 2 + math.log(s) - inside.log()
        return s * x + eps, constant - sum_over_present(log_q, present)

    def run(self) -> Likelihood:
        """Run with as many calls as the settings say; with a tolerance, with at most that many."""
        nfe, tolerance = self.settings.calls, self.settings.tolerance
        rows = torch.arange(len(self.v), device=self.v.device)
        columns = 1 if self.probes is None else self.probes
        y = torch.cat([self.v.flatten(1), self.v.new_zeros(len(rows), columns)], 1)
        output, slope = self._call(rows, torch.full((len(y),), self.c_end, dtype=y.dtype, device=y.device), y)
        reconstruction, log_volume = None, self.log_volume
        classes = [part for part in self.parts if not part.flow.has_range]
        if classes:
            log_probs = torch.where(self.present, output.log_prob(self.x).double(), 0.0).flatten(1)
            reconstruction = -torch.cat([log_probs[:, part.data] for part in classes], 1).sum(1)
            log_volume = log_volume - reconstruction
        if tolerance is None:
            y = adams(self.slope, y, slope, self.c_end, self.c_start, nfe)
            calls = torch.full((len(y),), nfe, device=y.device)
        else:
            y, calls = dormand_prince(self.slope, y, slope, self.c_end, self.c_start, tolerance, nfe)
        v, log_change = y[:, :-columns], y[:, -columns:]
        # One column a probe: their mean is the draw's weight.
        weights = (log_volume - v.square().sum(1) / 2).unsqueeze(1) + log_change
        weights = weights.view(-1, self.draws, columns)
        log_prob, error = _average(weights, self.probes is None, self.random)
        calls = calls.view(-1, self.draws).sum(1)
        # With several draws there is no one reconstruction to tell.
        part = reconstruction if self.draws == 1 else None
        is_density = self.settings.levels is None and any(part.flow.has_range for part in self.parts)
        n_dims = float(flat(self.present).sum(1).double().mean())
        return Likelihood(log_prob, error, calls, n_dims, not self.density, is_density, part)

    def slope(self, rows: Tensor, c: Tensor, y: Tensor) -> Tensor:
        """d/dc of the states v of these rows, flattened, and of the log-change of volume: one column a probe."""
        return self._call(rows, c, y)[1]

    def _call(self, rows: Tensor, c: Tensor, y: Tensor) -> tuple[Output, Tensor]:
        model, flow = self.model, self.flow
        v = y[:, : math.prod(self.state_shape)]
        lead = self.leader.flow
        s_lead = c.sinh() / lead.unit_std
        t = lead.schedule.time_of_s(s_lead).clamp(max=1)
        pace = {part.name: _pace(part.flow, t) / _pace(lead, t) for part in self.parts}
        own_c = {part.name: c if part is self.leader else _c(part.flow, t) for part in self.parts}
        root = self._over_state(lambda part: own_c[part.name].cosh() * math.sqrt(part.flow.kappa))
        u = (v * root).to(model.dtype).view(-1, *self.state_shape)
        u.requires_grad_()
        if len(self.parts) == 1 and self.leader.flow is flow:
            level = NoiseLevel(t.to(u), s_lead.to(u).view(-1, *(1,) * (u.ndim - 1)))
        else:
            level = flow.noise_level(t, len(u), u.ndim - 1, u)
        with torch.enable_grad():
            output = model.output(u, level, **rows_of(self.conditions, rows))
            prediction = output.mean
            if prediction.shape != u.shape:
                raise NetworkError(
                    f"the network's prediction has shape {tuple(prediction.shape)}: expected {tuple(u.shape)}"
                )
            if not bool(torch.isfinite(prediction).all()):
                raise NetworkError(f"the network's prediction at t={float(t[0]):.6g} has NaN or infinite values")
            # What a change of the prediction with u is to the change of dv/dc with v: the same for a whole part.
            grows = self._over_state(
                lambda part: pace[part.name] * (part.flow.message_map[0] / part.flow.unit_std) * own_c[part.name].cosh()
            )
            if self.probes is None:
                trace = _exact_trace(prediction, u, grows, self.last_class).unsqueeze(1)
            else:
                trace = _hutchinson_traces(prediction, u, self.signs[:, rows], grows, level.s, self.parts)
        scale, shift = (self._over_state(lambda part, i=i: t.new_full((1,), part.flow.message_map[i])) for i in (0, 1))  # type: ignore[misc]
        per_c = self._over_state(lambda part: pace[part.name] / (math.sqrt(part.flow.kappa) * part.flow.unit_std))
        decay = self._over_state(lambda part: pace[part.name] * own_c[part.name].tanh())
        drift = (prediction.detach().double().flatten(1) * scale + shift) * per_c - decay * v
        drift = drift if self.exists is None else torch.where(self.exists[rows], drift, 0.0)
        shrinks = torch.stack(
            [self._free(part)[rows] * pace[part.name] * own_c[part.name].tanh() for part in self.parts]
        ).sum(0)
        self.on_call(len(rows))
        return output, torch.cat([drift, trace - shrinks.unsqueeze(1)], 1)


def _c(flow: Flow, t: Tensor) -> Tensor:
    """asinh(s d)."""
    return (flow.schedule.s(t) * flow.unit_std).asinh()


def _scale(flow: Flow, t: Tensor) -> Tensor:
    """sqrt(kappa) cosh(c): u over v."""
    return _c(flow, t).cosh() * math.sqrt(flow.kappa)


def _pace(flow: Flow, t: Tensor) -> Tensor:
    """dc/dt = d / cosh(c) beta' / (2 s); 0/0 at t = 0, so taken a little after it."""
    t = t.clamp(min=1e-14)
    return flow.unit_std / _c(flow, t).cosh() * flow.schedule.slope(t) / (2 * flow.schedule.s(t))


def _last_classes(part: Part) -> list[int | None]:
    """For each place of a part's state, where the last class of its variable is; None for numbers."""
    first, places = part.state.start, range(part.state.stop - part.state.start)
    if part.flow.has_range:
        return [None for _ in places]
    k = part.state_shape[-1]
    return [first + i - i % k + k - 1 for i in places]


def _average(weights: Tensor, exact: bool, random: bool) -> tuple[Tensor, Tensor]:
    """Log of the mean weight over the draws, (batch, draws, probes) -> (batch,), and its standard error.

    log mean_k w_k is the largest value of sum_k pi_k log w_k + H(pi) - log K over distributions pi, reached at pi = w.
    The log-weights of Hutchinson's probes are unbiased but noisy, and the logarithm of their mean would lie too high:
    each probe is therefore averaged with the pi of the others, which does not know its noise, and the bound stays one.
    """
    draws, probes = weights.shape[1:]
    others = weights if exact or probes == 1 else (weights.sum(2, keepdim=True) - weights) / (probes - 1)
    log_pi = torch.log_softmax(others, 1)
    pi = log_pi.exp()
    each = (pi * (weights - log_pi)).sum(1) - math.log(draws)
    errors = []
    if draws > 1:
        errors.append((pi.mean(2) * draws).std(1) / math.sqrt(draws))
    if probes > 1:
        errors.append(each.std(1) / math.sqrt(probes))
    if not errors:
        errors.append(each.new_full((len(each),), float("nan") if random else 0.0))
    return each.mean(1), torch.stack(errors).square().sum(0).sqrt()


def _exact_trace(prediction: Tensor, u: Tensor, weights: Tensor, last_class: Sequence[int | None]) -> Tensor:
    """sum_i weight_i d prediction_i / d u_i, (batch,) float64: one backward pass a dimension.

    Class probabilities sum to 1 and do not change under shifts, so that the last class of each variable follows from
    the others: its diagonal term is minus the sum of what the others' gradients hold at its place.
    """
    predicted = prediction.flatten(1)
    trace = torch.zeros_like(weights[:, 0])
    for i, last in enumerate(last_class):
        if i == last:
            continue
        (gradient,) = torch.autograd.grad(predicted[:, i].sum(), u, retain_graph=True)
        gradient = gradient.flatten(1)
        own = gradient[:, i] if last is None else gradient[:, i] - gradient[:, last]
        trace = trace + weights[:, i] * own
    return trace


def _hutchinson_traces(
    prediction: Tensor, u: Tensor, signs: Tensor, weights: Tensor, s: float | Tensor, parts: tuple[Part, ...]
) -> Tensor:
    """e . W J e for each probe e of random signs, (batch, probes): the weighted trace of J on average.

    Of classes the Jacobian's blocks about the diagonal are known well, s (diag p - p p^T) were the model exact. What
    their own quadratic form misses of their trace, s (|p|^2 - (p . e)^2), is subtracted: 0 on average, and a good part
    of the estimate's noise.
    """
    traces = []
    p, s = (
        prediction.detach().flatten(1),
        torch.as_tensor(s, dtype=u.dtype, device=u.device).flatten(1).expand(len(u), -1),
    )
    classes = [part for part in parts if not part.flow.has_range]
    for sign in signs.flatten(2):
        weighted = (sign * weights).to(u).view_as(u)
        (gradient,) = torch.autograd.grad(prediction, u, weighted, retain_graph=True)
        trace = (gradient.flatten(1) * sign).sum(1).double()
        for part in classes:
            own, drawn = part.state_of(p), part.state_of(sign)
            missed = own.square().sum(-1) - (own * drawn).sum(-1).square()
            first = min(part.state.start, s.shape[1] - 1)
            trace = trace - s[:, first] * weights[:, part.state.start] * flat(missed).sum(1)
        traces.append(trace)
    return torch.stack(traces, 1)
