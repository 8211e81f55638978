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
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bfn.errors import NetworkError
from bfn.flows import NoiseLevel
from bfn.heads import Output
from bfn.likelihood.bits import Likelihood
from bfn.likelihood.integrators import adams, dormand_prince
from bfn.likelihood.settings import Settings
from bfn.solvers.plan import LEAST_T_START

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["Ode"]


class Ode:
    """One batch on its way from the data end to the prior, every sample with ``draws`` states."""

    def __init__(
        self, model: Model, x: Tensor, label: Tensor | None, settings: Settings, generator: torch.Generator | None
    ) -> None:
        self.model, self.flow, self.settings = model, model.flow, settings
        self.d, self.draws = model.flow.unit_std, settings.importance
        self.state_shape = self.flow.state_shape(model.data_shape)
        self.probes = None if settings.is_exact(math.prod(self.state_shape)) else settings.probes
        self.x = x.repeat_interleave(self.draws, 0)
        self.label = None if label is None else label.repeat_interleave(self.draws)
        self.n_classes = None if self.flow.has_range else self.state_shape[-1]
        self.density = self.n_classes is None and settings.levels is None
        self.random = self.draws > 1 or self.probes is not None or not self.density
        first = 0.0 if model.starts_at_zero else LEAST_T_START
        s_end = float(self.flow.schedule.s(1.0))
        self.c_start = math.asinh(float(self.flow.schedule.s(first)) * self.d)
        self.c_end = math.asinh(s_end * self.d)
        self.free = math.prod(model.data_shape) * (1 if self.n_classes is None else self.n_classes - 1)
        u, self.log_volume = self._data_end(s_end, generator)
        self.v = u.double() / (math.sqrt(self.flow.kappa) * math.cosh(self.c_end))
        signs = torch.rand((self.probes or 0, *u.shape), generator=generator, device=u.device) < 0.5
        self.signs = signs.to(model.dtype) * 2 - 1

    def _data_end(self, s: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """States at the data end, and what turns the log-density of v there into the weight of the draw, (batch,)."""
        constant = torch.full((len(self.x),), -self.free * math.log(math.cosh(self.c_end)), dtype=torch.float64)
        constant = constant.to(self.x.device)
        if self.n_classes is not None:
            shape = (len(self.x), *self.state_shape)
            eps = torch.randn(shape, generator=generator, dtype=torch.float64, device=self.x.device)
            eps = eps - eps.mean(-1, keepdim=True)
            # The normalising constants of p and q are the same.
            return self.flow.noised(self.x, s, eps), constant + eps.flatten(1).square().sum(1) / 2
        constant = constant + self.free * (math.log(s) - math.log(2 * math.pi) / 2)
        x = self.x.double()
        if self.settings.levels is None:
            return s * x, constant
        edge = 1 / (self.settings.levels - 1)
        uniform = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=x.device)
        if self.settings.dequantise == "uniform":
            return s * (x + (2 * uniform - 1) * edge), constant + self.free * math.log(2 * edge)
        reach = torch.tensor(edge * s, dtype=torch.float64)
        inside = torch.special.ndtr(reach) - torch.special.ndtr(-reach)
        eps = torch.special.ndtri(torch.special.ndtr(-reach) + uniform * inside)
        log_q = -eps.square() / 2 - math.log(2 * math.pi) / 2 + math.log(s) - inside.log()
        return s * x + eps, constant - log_q.flatten(1).sum(1)

    def run(self) -> Likelihood:
        """Run with as many calls as the settings say; with a tolerance, with at most that many."""
        nfe, tolerance = self.settings.calls, self.settings.tolerance
        rows = torch.arange(len(self.v), device=self.v.device)
        columns = 1 if self.probes is None else self.probes
        y = torch.cat([self.v.flatten(1), self.v.new_zeros(len(rows), columns)], 1)
        output, slope = self._call(rows, torch.full((len(y),), self.c_end, dtype=y.dtype, device=y.device), y)
        reconstruction, log_volume = None, self.log_volume
        if self.n_classes is not None:
            reconstruction = -output.log_prob(self.x).double().flatten(1).sum(1)
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
        return Likelihood(log_prob, error, calls, self.x[0].numel(), not self.density, self.density, part)

    def slope(self, rows: Tensor, c: Tensor, y: Tensor) -> Tensor:
        """d/dc of the states v of these rows, flattened, and of the log-change of volume: one column a probe."""
        return self._call(rows, c, y)[1]

    def _call(self, rows: Tensor, c: Tensor, y: Tensor) -> tuple[Output, Tensor]:
        model, flow = self.model, self.flow
        v = y[:, : math.prod(self.state_shape)]
        cosh, s = c.cosh(), c.sinh() / self.d
        u = (v * (cosh * math.sqrt(flow.kappa)).unsqueeze(1)).to(model.dtype).view(-1, *self.state_shape)
        u.requires_grad_()
        t = flow.schedule.time_of_s(s).clamp(max=1)
        level = NoiseLevel(t.to(u), s.to(u).view(-1, *(1,) * (u.ndim - 1)))
        with torch.enable_grad():
            label = None if self.label is None else self.label[rows]
            output = model.output(u, level) if label is None else model.output(u, level, label)
            prediction = output.mean
            if prediction.shape != u.shape:
                raise NetworkError(
                    f"the network's prediction has shape {tuple(prediction.shape)}: expected {tuple(u.shape)}"
                )
            if not bool(torch.isfinite(prediction).all()):
                raise NetworkError(f"the network's prediction at t={float(t[0]):.6g} has NaN or infinite values")
            if self.probes is None:
                trace = _exact_trace(prediction, u, self.n_classes).unsqueeze(1)
            else:
                trace = _hutchinson_traces(prediction, u, self.signs[:, rows], level.s, self.n_classes)
        scale, shift = flow.message_map
        w_hat = (prediction.detach().double() * scale + shift).flatten(1)
        drift = w_hat / (math.sqrt(flow.kappa) * self.d) - c.tanh().unsqueeze(1) * v
        volume = trace.double() * (scale * cosh / self.d).unsqueeze(1) - (self.free * c.tanh()).unsqueeze(1)
        return output, torch.cat([drift, volume], 1)


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


def _exact_trace(prediction: Tensor, u: Tensor, n_classes: int | None) -> Tensor:
    """sum_i d prediction_i / d u_i, (batch,): one backward pass a dimension.

    Class probabilities sum to 1 and do not change under shifts, so that the last class of each variable follows from
    the others: its diagonal term is minus the sum of what the others' gradients hold at its place.
    """
    flat = prediction.flatten(1)
    trace = u.new_zeros(len(u))
    for i in range(flat.shape[1]):
        last = None if n_classes is None else i - i % n_classes + n_classes - 1
        if i == last:
            continue
        (gradient,) = torch.autograd.grad(flat[:, i].sum(), u, retain_graph=True)
        gradient = gradient.flatten(1)
        trace = trace + gradient[:, i]
        if last is not None:
            trace = trace - gradient[:, last]
    return trace


def _hutchinson_traces(
    prediction: Tensor, u: Tensor, signs: Tensor, s: float | Tensor, n_classes: int | None
) -> Tensor:
    """e . J e for each probe e of random signs, (batch, probes): the trace of J on average.

    Of classes the Jacobian's blocks about the diagonal are known well, s (diag p - p p^T) were the model exact. What
    their own quadratic form misses of their trace, s (|p|^2 - (p . e)^2), is subtracted: 0 on average, and a good part
    of the estimate's noise.
    """
    traces = []
    for sign in signs:
        (gradient,) = torch.autograd.grad(prediction, u, sign, retain_graph=True)
        trace = (gradient * sign).flatten(1).sum(1)
        if n_classes is not None:
            p = prediction.detach()
            missed = p.square().sum(-1, keepdim=True) - (p * sign).sum(-1, keepdim=True).square()
            trace = trace - (s * missed).flatten(1).sum(1)
        traces.append(trace)
    return torch.stack(traces, 1)
