"""The probability-flow ODE, run backward: densities of continuous data, bounds for levels and classes.

du/ds = w_hat carries the exact prior N(0, kappa I) at s = 0 to the data end, so that a state there has the density

    log p(u) = log N(u(0); 0, kappa I) - integral of div w_hat ds,      run backward from u.

It is integrated in coordinates in which Gaussian data of standard deviation d stand still, u = sqrt(kappa) cosh(c) v
with s = sinh(c) / d: what is left, dv/dc = w_hat / (sqrt(kappa) d) - tanh(c) v, is small and smooth at both ends.

- Continuous data: u = s x at the data end. What is computed is the density of u / s there, log p(u) + D log s: a true,
  normalised density, that of the model's samples (of data with noise of standard deviation 1/s left on them, so that
  it tends to the density of x itself as s grows).
- Continuous data on a grid of levels: log P(x) = log of the integral over the bin of x, bounded from below by draws
  x' ~ q in the bin, log P(x) >= E log mean_k [ p(x'_k) / q(x'_k) ] (dequantisation).
- Discrete data: log P(x) >= E log mean_k [ p(u_k) P(x | u_k) / q(u_k | x) ] with draws u_k ~ q(u | x) = N(s w(x), K I)
  and the model's own classes P(x | u) at the data end. A shift of all K components of a variable changes no softmax:
  p and q agree along it, and the state is kept without it.
- Joint data: numbers as they are, classes as draws, all at once: a bound on the density of the numbers times the
  probability of the classes. Each part has its own c, a function of the time that all share; the parts run together
  along the c of one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bfn.conditions import rows_of
from bfn.core.joint import SlicedPart as Part
from bfn.core.joint import flat, sliced_parts
from bfn.core.solver import LEAST_T_START
from bfn.errors import NetworkError
from bfn.flows import Flow, NoiseLevel
from bfn.heads import Output
from bfn.likelihood.batches import Batch
from bfn.likelihood.bits import Likelihood
from bfn.likelihood.integrators import adams, dormand_prince
from bfn.likelihood.settings import Settings
from bfn.presence import sum_over_present
from bfn.schedules import as_float64

__all__ = ["Ode"]


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
