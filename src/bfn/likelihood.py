"""Likelihoods: how probable a model holds data to be, by the probability-flow ODE and by bounds.

**The ODE.** du/ds = w_hat carries the exact prior N(0, kappa I) at s = 0 to the data end, so that a state there has the
density

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

**Bounds.** ``bound`` is the continuous-time loss with the reconstruction; ``n-step`` sends the data in n messages. For
continuous data the receiver of a message of accuracy alpha may be N(x_hat, (1/alpha + r) I) with any r >= 0 that does
not depend on x:

    KL = 1/2 sum_d [ log(1 + alpha r) + (1 + alpha (x_d - x_hat_d)^2) / (1 + alpha r) - 1 ]

r = 0 is the usual loss, alpha/2 ||x - x_hat||^2. The best r is the mean squared error a dimension, which makes it
D/2 log(1 + alpha r) on average; :func:`receiver_variance` takes it from other data, so that the bound stays one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn.flows import Level
from bfn.heads import Output
from bfn.losses import noised_output, squared_error
from bfn.metrics.bits import Estimate, mean_and_error, nats_to_bits
from bfn.sampling import NOISE_T_START, NetworkError, Predictor

Method = Literal["ode", "bound", "n-step"]
Divergence = Literal["exact", "hutchinson"]
Dequantise = Literal["uniform", "noise"]

NFE = 100
"""Network calls a sample where neither their number nor a tolerance is given."""

EXACT_DEFAULT, EXACT_LIMIT = 100, 1024
"""Up to so many dimensions the divergence is exact if nothing is said, and at most if it is asked for."""

BATCH_NUMBERS = 1 << 16
"""Numbers in the states of a batch where its size is not given."""

MAX_NFE = 10_000
"""Calls after which adaptive steps give up: the tolerance is then finer than the network's rounding."""

UNIT_STD = {"continuous": 0.5, "discrete": 1.0}
"""d: about the standard deviation of w(x) / sqrt(kappa). It decides where steps are small, and nothing else."""


@dataclass(frozen=True)
class Likelihood:
    """What is known of each sample's log-likelihood, in nats.

    log_prob: (n,). A lower bound, in expectation, where ``is_bound``.
    error: (n,), its standard error from what was drawn for the sample; 0 where nothing was, NaN where only one draw was
        made.
    nfe: (n,), network calls made.
    n_dims: dimensions of a sample. is_density: of a density, rather than of a probability.
    reconstruction: (n,), the part -log p_O(x) of -log_prob, where a bound has it.
    """

    log_prob: Tensor
    error: Tensor
    nfe: Tensor
    n_dims: int
    is_bound: bool
    is_density: bool
    reconstruction: Tensor | None = None

    @property
    def nats(self) -> Estimate:
        """Mean of -log p a sample, with its standard error over the samples."""
        return _estimate(-self.log_prob)

    @property
    def bits(self) -> Estimate:
        """Mean of -log2 p a dimension (a character, for text), with its standard error over the samples."""
        return _estimate(-self.log_prob * (nats_to_bits(1.0) / self.n_dims))

    @property
    def parts(self) -> dict[str, Estimate]:
        """Bits a dimension: "total", and of a bound "transmission" and "reconstruction" as well."""
        parts = {"total": self.bits}
        if self.reconstruction is not None:
            scale = nats_to_bits(1.0) / self.n_dims
            parts["transmission"] = _estimate((-self.log_prob - self.reconstruction) * scale)
            parts["reconstruction"] = _estimate(self.reconstruction * scale)
        return parts


@torch.no_grad()
def log_likelihood(
    model: Predictor,
    x: Tensor,
    method: Method = "ode",
    nfe: int | None = None,
    *,
    tolerance: float | None = None,
    divergence: Divergence | None = None,
    probes: int = 1,
    importance: int = 1,
    levels: int | None = None,
    dequantise: Dequantise = "uniform",
    variance: Tensor | None = None,
    label: Tensor | None = None,
    generator: torch.Generator | None = None,
    batch: int | None = None,
    progress: bool = False,
) -> Likelihood:
    """log p(x) of each sample, or a lower bound: (n,), nats.

    method: "ode"; "bound", the continuous-time loss; "n-step", with as many messages as there are calls but one.
    nfe: network calls a sample, 100 if None; with a tolerance, the most that a sample may take.
    tolerance: adaptive steps, each sample with its own, with about this error of log p in the end (nats).
    divergence: "exact" (a backward pass a dimension at every call) or "hutchinson" (one a probe; unbiased); None: exact
        up to 100 dimensions. probes: vectors of random signs, drawn once for a trajectory.
    importance: draws over which the bound is tightened by importance weighting; with "hutchinson" it takes at least 2
        probes, and helps only where their noise is below a nat or so.
    levels: the values a dimension takes on a grid over [-1, 1]: the probability of the bin instead of a density.
    dequantise: how draws fill the bin: "uniform"; or "noise", as the flow's own noise at the data end, cut to the bin,
        for models that have learnt the grid as needles. Both bound the same probability.
    variance: (n_steps,), what :func:`receiver_variance` found on other data, for "n-step" on continuous data.
    label: (n,) classes for a class-conditional network.
    batch: states that go through the network at a time; None: as many as make 2^16 numbers.
    """
    flow = model.flow
    flow.check(x, model.data_shape)
    _check_settings(model, x, method, nfe, tolerance, divergence, probes, importance, levels, dequantise, variance)
    if label is not None and tuple(label.shape) != (len(x),):
        raise ValueError(f"label of shape {tuple(label.shape)}: expected one class a sample, ({len(x)},)")
    states = math.prod(flow.state_shape(model.data_shape))
    exact = _is_exact(divergence, states)
    edge = None if levels is None else 1 / (levels - 1)
    parts: list[Part] = []
    bar = tqdm(total=len(x), desc="likelihood", unit="sample", disable=not progress)
    for some, its_label in _batches(x, label, (batch or BATCH_NUMBERS // states) // importance, model.device):
        if method == "ode":
            ode = _Ode(model, some, its_label, importance, None if exact else probes, edge, dequantise, generator)
            parts.append(ode.run(nfe, tolerance))
        elif method == "bound":
            parts.append(_bound(model, some, nfe or NFE, its_label, generator))
        else:
            parts.append(_n_step(model, some, nfe or NFE, variance, its_label, generator))
        bar.update(len(some))
    bar.close()
    log_prob, error, calls, reconstruction = (torch.cat(column) for column in zip(*parts, strict=True))
    _check_finite(log_prob)
    density = flow.kind == "continuous" and levels is None
    direct = method == "ode" and flow.kind == "continuous"
    return Likelihood(
        log_prob,
        error,
        calls,
        math.prod(model.data_shape),
        is_bound=not (direct and density),
        is_density=density,
        reconstruction=None if direct or importance > 1 else reconstruction,
    )


@torch.no_grad()
def receiver_variance(
    model: Predictor,
    x: Tensor,
    n_steps: int,
    label: Tensor | None = None,
    generator: torch.Generator | None = None,
    batch: int | None = None,
) -> Tensor:
    """Mean squared error a dimension at the start of each of n steps, (n_steps,) float64: the best receiver variance.

    x: data other than those whose bound is then computed; with the same data it would be no bound.
    """
    if model.flow.kind != "continuous":
        raise ValueError(f"{model.flow.kind} data: their receiver is the exact mixture over classes, with no variance")
    if n_steps < 1:
        raise ValueError(f"n_steps={n_steps}: expected at least 1 step")
    model.flow.check(x, model.data_shape)
    if len(x) == 0:
        raise ValueError("no data: expected at least 1 sample")
    totals = torch.zeros(n_steps, dtype=torch.float64, device=model.device)
    for some, its_label in _batches(x, label, batch or BATCH_NUMBERS // x[0].numel(), model.device):
        for i in range(n_steps):
            t = torch.full((len(some),), i / n_steps, dtype=torch.float64, device=model.device)
            totals[i] += squared_error(model, some, t, generator, its_label).double().sum()
    return totals / len(x)


Part = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of a batch: log_prob, its error, calls, reconstruction (NaN where there is none); each (batch,) float64."""


def _bound(model: Predictor, x: Tensor, nfe: int, label: Tensor | None, generator: torch.Generator | None) -> Part:
    """The continuous-time loss at nfe - 1 stratified times a sample, and the reconstruction."""
    times = nfe - 1
    shift = torch.rand(len(x), generator=generator, dtype=torch.float64, device=x.device)
    losses = []
    for i in range(times):
        t = (i + shift) / times
        error = squared_error(model, x, t, generator, label).double()
        losses.append(error * model.flow.schedule.slope(t) / 2 * x[0].numel())
    return _with_reconstruction(model, x, torch.stack(losses, 1), 1.0, label, generator)


def _n_step(
    model: Predictor,
    x: Tensor,
    nfe: int,
    variance: Tensor | None,
    label: Tensor | None,
    generator: torch.Generator | None,
) -> Part:
    """KL(sender || receiver) of each of nfe - 1 messages, and the reconstruction."""
    steps = nfe - 1
    terms = []
    for i in range(steps):
        t = torch.full((len(x),), i / steps, dtype=torch.float64, device=x.device)
        output, _ = noised_output(model, x, t, generator, label)
        alpha = model.flow.schedule.increment(t, t + 1 / steps).view(-1, *(1,) * (x.ndim - 1))
        if variance is None:
            kl = output.message_kl(x, alpha.to(output.mean.dtype), generator).double()
        else:
            wider = 1 + alpha * float(variance[i])
            square = (x - output.mean).double().square()
            kl = (wider.log() + (1 + alpha * square) / wider - 1) / 2
        terms.append(kl.flatten(1).sum(1))
    return _with_reconstruction(model, x, torch.stack(terms, 1), float(steps), label, generator)


def _with_reconstruction(
    model: Predictor, x: Tensor, terms: Tensor, scale: float, label: Tensor | None, generator: torch.Generator | None
) -> Part:
    """-(scale * mean of the terms (batch, calls) + reconstruction).

    The error is from differences of neighbours in time, whose means are nearly the same; it sees the terms' noise, and
    what little of the change with t lies between neighbours.
    """
    t = torch.ones(len(x), dtype=torch.float64, device=x.device)
    output, _ = noised_output(model, x, t, generator, label)
    reconstruction = -output.log_prob(x).double().flatten(1).sum(1)
    calls = torch.full((len(x),), terms.shape[1] + 1, device=x.device)
    error = scale * (terms.diff(dim=1).square().mean(1) / 2 / terms.shape[1]).sqrt()
    return -(scale * terms.mean(1) + reconstruction), error, calls, reconstruction


class _Ode:
    """One batch on its way from the data end to the prior, every sample with ``draws`` states."""

    def __init__(
        self,
        model: Predictor,
        x: Tensor,
        label: Tensor | None,
        draws: int,
        probes: int | None,
        edge: float | None,
        dequantise: Dequantise,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.flow, self.draws, self.probes = model, model.flow, draws, probes
        self.d = UNIT_STD[model.flow.kind]
        self.x = x.repeat_interleave(draws, 0)
        self.label = None if label is None else label.repeat_interleave(draws)
        self.random = draws > 1 or probes is not None or edge is not None or self.flow.kind == "discrete"
        first = 0.0 if model.starts_at_zero else NOISE_T_START
        s_end = float(self.flow.schedule.s(1.0))
        self.c_start = math.asinh(float(self.flow.schedule.s(first)) * self.d)
        self.c_end = math.asinh(s_end * self.d)
        self.state_shape = self.flow.state_shape(model.data_shape)
        n_classes = self.state_shape[-1] if self.flow.kind == "discrete" else None
        self.n_classes = n_classes
        self.free = math.prod(model.data_shape) * (1 if n_classes is None else n_classes - 1)
        u, self.log_volume = self._data_end(s_end, edge, dequantise, generator)
        self.v = u.double() / (math.sqrt(self.flow.kappa) * math.cosh(self.c_end))
        signs = torch.rand((probes or 0, *u.shape), generator=generator, device=u.device) < 0.5
        self.signs = signs.to(model.dtype) * 2 - 1

    def _data_end(
        self, s: float, edge: float | None, dequantise: Dequantise, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """States at the data end, and what turns the log-density of v there into the weight of the draw, (batch,)."""
        constant = torch.full((len(self.x),), -self.free * math.log(math.cosh(self.c_end)), dtype=torch.float64)
        constant = constant.to(self.x.device)
        if self.flow.kind == "discrete":
            shape = (len(self.x), *self.state_shape)
            eps = torch.randn(shape, generator=generator, dtype=torch.float64, device=self.x.device)
            eps = eps - eps.mean(-1, keepdim=True)
            # The normalising constants of p and q are the same.
            return self.flow.noised(self.x, s, eps), constant + eps.flatten(1).square().sum(1) / 2
        constant = constant + self.free * (math.log(s) - math.log(2 * math.pi) / 2)
        x = self.x.double()
        if edge is None:
            return s * x, constant
        uniform = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=x.device)
        if dequantise == "uniform":
            return s * (x + (2 * uniform - 1) * edge), constant + self.free * math.log(2 * edge)
        reach = torch.tensor(edge * s, dtype=torch.float64)
        inside = torch.special.ndtr(reach) - torch.special.ndtr(-reach)
        eps = torch.special.ndtri(torch.special.ndtr(-reach) + uniform * inside)
        log_q = -eps.square() / 2 - math.log(2 * math.pi) / 2 + math.log(s) - inside.log()
        return s * x + eps, constant - log_q.flatten(1).sum(1)

    def run(self, nfe: int | None, tolerance: float | None) -> Part:
        rows = torch.arange(len(self.v), device=self.v.device)
        columns = 1 if self.probes is None else self.probes
        y = torch.cat([self.v.flatten(1), self.v.new_zeros(len(rows), columns)], 1)
        output, slope = self._call(rows, torch.full((len(y),), self.c_end, dtype=y.dtype, device=y.device), y)
        reconstruction = y.new_full((len(y),), float("nan"))
        log_volume = self.log_volume
        if self.flow.kind == "discrete":
            reconstruction = -output.log_prob(self.x).double().flatten(1).sum(1)
            log_volume = log_volume - reconstruction
        if tolerance is None:
            y = _adams(self.slope, y, slope, self.c_end, self.c_start, nfe or NFE)
            calls = torch.full((len(y),), nfe or NFE, device=y.device)
        else:
            y, calls = _dormand_prince(self.slope, y, slope, self.c_end, self.c_start, tolerance, nfe or MAX_NFE)
        v, log_change = y[:, :-columns], y[:, -columns:]
        # One column a probe: their mean is the draw's weight.
        weights = (log_volume - v.square().sum(1) / 2).unsqueeze(1) + log_change
        weights = weights.view(-1, self.draws, columns)
        log_prob, error = _average(weights, self.probes is None, self.random)
        return log_prob, error, calls.view(-1, self.draws).sum(1), reconstruction.view(-1, self.draws)[:, 0]

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
        level = Level(t.to(u), s.to(u).view(-1, *(1,) * (u.ndim - 1)))
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


Slope = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows, c, y) -> dy/dc of those rows of the batch."""

ADAMS_BASHFORTH = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12))
ADAMS_MOULTON = ((1 / 2, 1 / 2), (5 / 12, 8 / 12, -1 / 12), (9 / 24, 19 / 24, -5 / 24, 1 / 24))


def _adams(f: Slope, y: Tensor, slope: Tensor, c: float, c_end: float, nfe: int) -> Tensor:
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


def _dormand_prince(
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
            raise ValueError(
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


def _batches(
    x: Tensor, label: Tensor | None, size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Data and labels, ``size`` samples at a time, at least 1."""
    for first in range(0, len(x), max(1, size)):
        rows = slice(first, first + max(1, size))
        yield x[rows].to(device), None if label is None else label[rows].to(device)


def _estimate(values: Tensor) -> Estimate:
    """Mean and standard error over the samples, which one sample alone does not have."""
    return mean_and_error(values) if len(values) > 1 else Estimate(float(values[0]), float("nan"), 1)


def _is_exact(divergence: Divergence | None, states: int) -> bool:
    return states <= EXACT_DEFAULT if divergence is None else divergence == "exact"


def _check_finite(log_prob: Tensor) -> None:
    bad = ~torch.isfinite(log_prob)
    if bool(bad.any()):
        raise NetworkError(f"log-likelihood of {int(bad.sum())} of {len(log_prob)} samples is NaN or infinite")


def _check_settings(
    model: Predictor,
    x: Tensor,
    method: Method,
    nfe: int | None,
    tolerance: float | None,
    divergence: Divergence | None,
    probes: int,
    importance: int,
    levels: int | None,
    dequantise: Dequantise,
    variance: Tensor | None,
) -> None:
    """What does not fit together, in one line each."""
    kind = model.flow.kind
    for name, value, allowed in (
        ("method", method, get_args(Method)),
        ("divergence", divergence or "exact", get_args(Divergence)),
        ("dequantise", dequantise, get_args(Dequantise)),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
    if len(x) == 0:
        raise ValueError("no data: expected at least 1 sample")
    for name, count in (("probes", probes), ("importance", importance)):
        if count < 1:
            raise ValueError(f"{name}={count}: expected at least 1")
    if nfe is not None and nfe < 5:
        raise ValueError(f"nfe={nfe}: expected at least 5 network calls a sample")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise ValueError(f"tolerance={tolerance:g}: expected a positive error, such as 1e-4")
    if method != "ode":
        given = {"tolerance": tolerance, "divergence": divergence, "levels": levels}
        wrong = [name for name, value in given.items() if value is not None]
        wrong += [name for name, count in (("importance", importance), ("probes", probes)) if count > 1]
        if wrong:
            raise ValueError(f"{wrong[0]} with method={method!r}: it belongs to method='ode'")
    if variance is not None:
        if method != "n-step" or kind != "continuous":
            raise ValueError(f"variance with method={method!r} on {kind} data: it is for 'n-step' on continuous data")
        if tuple(variance.shape) != ((nfe or NFE) - 1,):
            raise ValueError(
                f"variance of shape {tuple(variance.shape)}: expected one a step, nfe - 1 = {(nfe or NFE) - 1} of them"
            )
    if levels is None and dequantise != "uniform":
        raise ValueError(f"dequantise={dequantise!r} without levels: say how many values there are, such as levels=256")
    if levels is not None and (kind != "continuous" or levels < 2):
        raise ValueError(f"levels={levels} on {kind} data: expected at least 2 values on [-1, 1] of continuous data")
    if importance > 1 and kind == "continuous" and levels is None:
        raise ValueError(f"importance={importance}: a density needs no draws; give levels to bound a probability")
    states = math.prod(model.flow.state_shape(model.data_shape))
    if importance > 1 and probes == 1 and not _is_exact(divergence, states):
        raise ValueError(
            f"importance={importance} with divergence='hutchinson' and probes=1: weights as noisy as that of one probe "
            "give no bound; take probes=2 or more"
        )
    if divergence == "exact" and states > EXACT_LIMIT:
        raise ValueError(
            f"divergence='exact' in {states} dimensions: it takes a backward pass for each at every call (at most "
            f"{EXACT_LIMIT}); take 'hutchinson'"
        )
