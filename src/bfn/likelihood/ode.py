"""The probability-flow ODE of a likelihood, and its integrators.

The ODE du/ds = w_hat is integrated from the data end to the prior in coordinates in which normal data stand still:

    v = u / (sqrt(kappa) cosh c)          c = asinh(s d), d the typical standard deviation of w(x) / sqrt(kappa)

    dv/dc = w_hat / (sqrt(kappa) d) - tanh(c) v

Parts of joint data have a c of their own; all of them follow that of the leading part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from bfn.core.errors import NetworkError, UserError
from bfn.core.flows import PartFlow
from bfn.core.heads import Output
from bfn.core.joint import SlicedPart as Part
from bfn.core.joint import flat, sliced_parts
from bfn.core.losses import sum_over_present
from bfn.core.schedules import as_float64
from bfn.core.solver import LEAST_T_START
from bfn.likelihood.bits import Batch, Likelihood

# --- integrators ------------------------------------------------------------------------------------------------------

Slope = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows, c, y) -> dy/dc of those rows of the batch."""

ADAMS_BASHFORTH = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12))
ADAMS_MOULTON = ((1 / 2, 1 / 2), (5 / 12, 8 / 12, -1 / 12), (9 / 24, 19 / 24, -5 / 24, 1 / 24))

# Dormand and Prince (1980), 5(4): nodes and stages, and the difference between the two solutions.
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


def adams(f: Slope, y: Tensor, slope: Tensor, c: float, c_end: float, nfe: int) -> Tensor:
    """Integrate with equal steps of one call each: Adams of order 3, corrected by order 4 with the next slope.

    Args:
        f: the derivative.
        y, slope: first value, (batch, columns), and its derivative.
        c, c_end: start and end of the interval.
        nfe: number of calls, that of ``slope`` included.
    """
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


def dormand_prince(
    f: Slope, y: Tensor, slope: Tensor, c_start: float, c_end: float, tolerance: float, max_nfe: int
) -> tuple[Tensor, Tensor]:
    """Integrate with adaptive steps; each sample has its own, so that it does not depend on the rest of the batch.

    The error of a step is the norm of the errors of the state and the log-densities. They have the same unit: a change
    of v by dv changes log N(v) by v . dv. The arguments are those of ``adams``.

    Returns:
        The last values, and the number of calls of each sample, (batch,).
    """
    y, slope = y.clone(), slope.clone()
    c, h = y.new_full((len(y),), c_start), y.new_full((len(y),), (c_end - c_start) / 20)
    calls = torch.ones(len(y), dtype=torch.int64, device=y.device)
    rows = torch.arange(len(y), device=y.device)
    # The errors of the steps add up: the error at the end is several times that of a step.
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


# --- the ODE ----------------------------------------------------------------------------------------------------------

Dequantise = Literal["uniform", "noise"]
"""Noise that is added to data on a grid of values, which gives them a density."""

LOG_ROOT_2_PI = math.log(2 * math.pi) / 2


class Ode:
    """The probability-flow ODE of one batch, from the data end to the prior.

    Args:
        batch: the data.
        probes: number of random vectors for the divergence; None for the exact divergence.
        draws: number of states at the data end for each sample.
        levels, dequantise: see ``bfn.likelihood.log_likelihood``.
    """

    def __init__(
        self, batch: Batch, probes: int | None, draws: int = 1, levels: int | None = None,
        dequantise: Dequantise = "uniform",
    ) -> None:  # fmt: skip
        model, device = batch.model, batch.x.device
        self.model, self.flow, self.on_call = model, model.flow, batch.on_call
        self.random: dict[str, Any] = {"generator": batch.generator, "dtype": torch.float64, "device": device}
        self.probes, self.draws, self.levels, self.dequantise = probes, draws, levels, dequantise
        shape = self.flow.shape_of(batch.x, model.data_shape)
        self.parts, self.state_shape = sliced_parts(self.flow, shape), self.flow.state_shape(shape)
        self.classes = [part for part in self.parts if not part.flow.has_range]
        # The s of numbers is the steepest near t = 0; along it the other parts are smooth.
        self.leader = max(self.parts, key=lambda part: (part not in self.classes, part.n_variables))
        sizes = [part.state.stop - part.state.start for part in self.parts]
        self.part_of_state = torch.repeat_interleave(torch.tensor(sizes, device=device))
        constants = [(part.flow.unit_std, math.sqrt(part.flow.kappa), *part.flow.message_map) for part in self.parts]
        rows = torch.tensor(constants, dtype=torch.float64, device=device)
        self.unit_std, self.root_kappa, self.scale, self.shift = rows[self.part_of_state].T
        self.x = batch.x.repeat_interleave(draws, 0)
        self.conditions = {name: value.repeat_interleave(draws, 0) for name, value in batch.conditions.items()}
        self.present = self.conditions.get("present", torch.ones_like(self.x, dtype=torch.bool))
        self.is_density = not self.classes and levels is None
        first = 0.0 if model.starts_at_zero else LEAST_T_START
        self.c_start, self.c_end = (float(_c(self.leader.flow, as_float64(t))) for t in (first, 1.0))
        ends = [self._data_end(part) for part in self.parts]
        v = torch.cat([flat(own) for own, _ in ends], 1)
        state = v.view(-1, *self.state_shape)
        self.exists = self.flow.over_variables(self.present, state).expand_as(state).flatten(1)
        self.v, self.log_volume = torch.where(self.exists, v, 0.0), torch.stack([volume for _, volume in ends]).sum(0)
        signs = torch.rand((probes or 0, *state.shape), generator=batch.generator, device=device) < 0.5
        self.signs = (signs.to(model.dtype) * 2 - 1).flatten(2)

    def _free(self, part: Part) -> Tensor:
        """Return the free dimensions of a part's state, (batch,): softmax ignores one of each variable of classes."""
        free = part.state_shape[-1] - 1 if part in self.classes else 1
        return flat(self.present)[:, part.data].sum(1).double() * free

    def _data_end(self, part: Part) -> tuple[Tensor, Tensor]:
        """Draw states v of a part at the data end.

        Returns:
            The states, and the term that turns their log-density into the log-weight of the draw, (batch,).
        """
        s, free = float(part.flow.schedule.s(1.0)), self._free(part)
        x, present = part.data_of(flat(self.x)), part.data_of(flat(self.present))
        cosh_c = math.cosh(math.asinh(s * part.flow.unit_std))
        log_volume = -free * math.log(cosh_c)
        if part in self.classes:
            eps = torch.randn((len(x), *part.state_shape), **self.random)
            eps = eps - eps.mean(-1, keepdim=True)
            u = part.flow.noised(x, s, eps)
            # The normalising constants of p and q are the same.
            log_volume = log_volume + sum_over_present(eps.square().sum(-1), present) / 2
        else:
            u, log_q = s * x.double(), torch.zeros_like(x, dtype=torch.float64)
            if self.levels is not None:
                noise, log_q = self._draw_in_bin(x, s, 1 / (self.levels - 1))
                u = u + noise
            log_volume = log_volume + free * (math.log(s) - LOG_ROOT_2_PI) - sum_over_present(log_q, present)
        return u / (cosh_c * math.sqrt(part.flow.kappa)), log_volume

    def _draw_in_bin(self, x: Tensor, s: float, edge: float) -> tuple[Tensor, Tensor]:
        """Draw the difference of the state from s x for data in the bin x +- edge; return it and the log-density."""
        uniform = torch.rand(x.shape, **self.random)
        if self.dequantise == "uniform":
            return s * (2 * uniform - 1) * edge, torch.full_like(uniform, -math.log(2 * edge))
        reach = torch.tensor(edge * s, dtype=torch.float64)
        inside = torch.special.ndtr(reach) - torch.special.ndtr(-reach)
        eps = torch.special.ndtri(torch.special.ndtr(-reach) + uniform * inside)
        return eps, -eps.square() / 2 - LOG_ROOT_2_PI + math.log(s) - inside.log()

    def run(self, nfe: int, tolerance: float | None = None) -> Likelihood:
        """Integrate, and return the likelihood of each sample.

        Args:
            nfe: number of network calls; with a tolerance, the largest number.
            tolerance: error of log p for adaptive steps.
        """

        def slope_of(rows: Tensor, c: Tensor, y: Tensor) -> Tensor:
            return self._call(rows, c, y)[1]

        columns = self.probes or 1
        y = torch.cat([self.v, self.v.new_zeros(len(self.v), columns)], 1)
        rows, c = torch.arange(len(y), device=y.device), y.new_full((len(y),), self.c_end)
        output, slope = self._call(rows, c, y)
        reconstruction, log_volume = None, self.log_volume
        if self.classes:
            log_probs = flat(torch.where(self.present, output.log_prob(self.x).double(), 0.0))
            reconstruction = -torch.cat([log_probs[:, part.data] for part in self.classes], 1).sum(1)
            log_volume = log_volume - reconstruction
        calls = torch.full((len(y),), nfe, device=y.device)
        if tolerance is None:
            y = adams(slope_of, y, slope, self.c_end, self.c_start, nfe)
        else:
            y, calls = dormand_prince(slope_of, y, slope, self.c_end, self.c_start, tolerance, nfe)
        v, log_change = y[:, :-columns], y[:, -columns:]
        # One column for each probe: their mean is the log-weight of the draw.
        weights = (log_volume - v.square().sum(1) / 2).unsqueeze(1) + log_change
        is_random = self.draws > 1 or self.probes is not None or not self.is_density
        log_prob, error = _average(weights.view(-1, self.draws, columns), is_random)
        return Likelihood(
            log_prob, error, calls.view(-1, self.draws).sum(1), float(flat(self.present).sum(1).double().mean()),
            is_bound=not self.is_density, is_density=self.levels is None and len(self.classes) < len(self.parts),
            reconstruction=reconstruction if self.draws == 1 else None,
        )  # fmt: skip

    def _call(self, rows: Tensor, c: Tensor, y: Tensor) -> tuple[Output, Tensor]:
        """Call the network for some rows of the batch.

        Returns:
            Its output, and d/dc of the states v and of their log-volume, which has one column for each probe.
        """
        v, lead = y[:, : self.v.shape[1]], self.leader.flow
        t = lead.schedule.time_of_s(c.sinh() / lead.unit_std).clamp(max=1)
        # One column for each part: c, and how fast it changes with the c of the leading part.
        cs = torch.stack([c if part is self.leader else _c(part.flow, t) for part in self.parts], 1)
        pace = torch.stack([_pace(part.flow, t) for part in self.parts], 1) / _pace(lead, t).unsqueeze(1)
        wide_c, wide_pace = cs[:, self.part_of_state], pace[:, self.part_of_state]
        u = (v * wide_c.cosh() * self.root_kappa).to(self.model.dtype).view(-1, *self.state_shape).requires_grad_()
        level = self.flow.noise_level(t, len(u), u.ndim - 1, u)
        with torch.enable_grad():
            output = self.model.output(u, level, **{name: value[rows] for name, value in self.conditions.items()})
            prediction = output.mean
            if (shape := tuple(prediction.shape)) != u.shape:
                raise NetworkError(f"the network's prediction has shape {shape}: expected {tuple(u.shape)}")
            if not bool(torch.isfinite(prediction).all()):
                raise NetworkError(f"the network's prediction at t={float(t[0]):.6g} has NaN or infinite values")
            # Factor from d prediction / du to d(dv/dc) / dv; it is constant on each part.
            factor = wide_pace * wide_c.cosh() * self.scale / self.unit_std
            if self.probes is None:
                trace = self._exact_trace(prediction, u, factor).unsqueeze(1)
            else:
                trace = self._random_traces(prediction, u, self.signs[:, rows], factor, cs)
        w_hat = prediction.detach().double().flatten(1) * self.scale + self.shift
        drift = wide_pace * (w_hat / (self.root_kappa * self.unit_std) - wide_c.tanh() * v)
        free = torch.stack([self._free(part)[rows] for part in self.parts], 1)
        self.on_call(len(rows))
        shrinkage = (free * pace * cs.tanh()).sum(1, keepdim=True)
        return output, torch.cat([torch.where(self.exists[rows], drift, 0.0), trace - shrinkage], 1)

    def _exact_trace(self, prediction: Tensor, u: Tensor, factor: Tensor) -> Tensor:
        """Return sum_i factor_i d prediction_i / d u_i, (batch,) float64, with one backward pass for each dimension.

        Class probabilities sum to 1 and do not change under shifts. So the last class of each variable needs no pass:
        its diagonal term is minus the sum of the entries that the gradients of the other classes have for it.
        """
        predicted = prediction.flatten(1)
        trace = torch.zeros_like(factor[:, 0])
        for part in self.parts:
            first, k = part.state.start, part.state_shape[-1] if part in self.classes else 0
            for i in range(first, part.state.stop):
                last = i + k - 1 - (i - first) % k if k else None
                if i == last:
                    continue
                (gradient,) = torch.autograd.grad(predicted[:, i].sum(), u, retain_graph=True)
                gradient = gradient.flatten(1)
                trace = trace + factor[:, i] * (gradient[:, i] if last is None else gradient[:, i] - gradient[:, last])
        return trace

    def _random_traces(self, prediction: Tensor, u: Tensor, signs: Tensor, factor: Tensor, cs: Tensor) -> Tensor:
        """Return e . F J e for each probe e of random signs, (batch, probes): its mean is the trace (Hutchinson).

        For classes the diagonal blocks of the Jacobian J are known well: s (diag p - p p^T), if the model were exact.
        The error of their own estimate, s (|p|^2 - (p . e)^2), is subtracted. It is 0 on average, and a large part of
        the noise of the estimate.
        """
        traces = []
        p = prediction.detach().flatten(1)
        for sign in signs:
            (gradient,) = torch.autograd.grad(prediction, u, (sign * factor).to(u).view_as(u), retain_graph=True)
            trace = (gradient.flatten(1) * sign).sum(1).double()
            for part in self.classes:
                own, drawn = part.state_of(p), part.state_of(sign)
                missed = flat(own.square().sum(-1) - (own * drawn).sum(-1).square()).sum(1)
                s = cs[:, part.index].sinh() / part.flow.unit_std
                trace = trace - s * factor[:, part.state.start] * missed
            traces.append(trace)
        return torch.stack(traces, 1)


def _c(flow: PartFlow, t: Tensor) -> Tensor:
    """Return asinh(s d)."""
    return (flow.schedule.s(t) * flow.unit_std).asinh()


def _pace(flow: PartFlow, t: Tensor) -> Tensor:
    """Return dc/dt = d / cosh(c) beta' / (2 s). It is 0/0 at t = 0, and taken a little later instead."""
    t = t.clamp(min=1e-14)
    return flow.unit_std / _c(flow, t).cosh() * flow.schedule.slope(t) / (2 * flow.schedule.s(t))


def _average(weights: Tensor, is_random: bool) -> tuple[Tensor, Tensor]:
    """Return the log of the mean weight over the draws, (batch,), and its standard error.

    log mean_k w_k is the largest value of sum_k pi_k log w_k + H(pi) - log K over distributions pi, reached at pi = w.
    The log-weights of random probes are unbiased but noisy, and the logarithm of their mean would be too large. So each
    probe is averaged with the pi of the other probes, which are independent of its noise, and the result is a bound.

    Args:
        weights: log-weights, (batch, draws, probes).
        is_random: whether anything was drawn; if not, the error is 0, and NaN if one draw cannot tell.
    """
    draws, probes = weights.shape[1:]
    others = weights if probes == 1 else (weights.sum(2, keepdim=True) - weights) / (probes - 1)
    log_pi = torch.log_softmax(others, 1)
    pi = log_pi.exp()
    each = (pi * (weights - log_pi)).sum(1) - math.log(draws)
    errors = []
    if draws > 1:
        errors.append((pi.mean(2) * draws).std(1) / math.sqrt(draws))
    if probes > 1:
        errors.append(each.std(1) / math.sqrt(probes))
    if not errors:
        errors.append(each.new_full((len(each),), float("nan") if is_random else 0.0))
    return each.mean(1), torch.stack(errors).square().sum(0).sqrt()
