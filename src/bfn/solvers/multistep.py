r"""Multistep solvers: one rule for nearly all of the zoo.

With the stochasticity dial g (0 the probability-flow ODE, 1 the reverse SDE, infinity full re-noising) generation is

    du = [-g^2 u/s + (1 + g^2) w_hat] ds + g sqrt(2 kappa / s) dB

and from s_0 to s_1, with r = s_0 / s_1, exactly

    u_1 = r^(g^2) u_0 + s_1 int_{r^(1+g^2)}^1 w_hat(s_1 v^(1/(1+g^2))) dv + sqrt(kappa (1 - r^(2 g^2))) xi

A multistep method replaces w_hat along the path by a polynomial through its last values, in some coordinate c(s), and
integrates that. The methods differ in g, in the number of values (their order), in c, and in how the integral is taken:
exactly, or by the shortcut of DPM-Solver++ that multiplies the first-order weight by the interpolant half a step ahead.

A corrector costs no call: once w_hat at the new state is known, the step that led there is taken again with that value
among the nodes, and the next step starts from the mended state. Both steps are linear, so this too is one row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from math import asinh, exp, expm1, inf, log, log1p, sinh, sqrt, tanh

from bfn.flows import Flow
from bfn.solvers.table import Row, Solver, Table

COORDINATES: dict[str, Callable[[float], float]] = {
    "s": lambda s: s,
    "log s": lambda s: log(s) if s > 0 else -inf,
    "asinh": lambda s: asinh(2 * s),
}
"""Where the predictions are interpolated; asinh(s / d) with d = 1/2 joins s (below d) and log s (above)."""


@dataclass(frozen=True)
class Multistep(Solver):
    """Multistep solver of any order, dial and coordinate.

    integral: "exact", or "shortcut" (order 2 only).
    corrector: mend each step with the prediction made after it.
    extrapolates_end: the sample is the flow's end at s = infinity, by a last second-order step without a call (g = 0).
    draws: predictions are replaced by draws from the output distribution.
    """

    coordinate: str = "s"
    integral: str = "exact"
    corrector: bool = False
    extrapolates_end: bool = False
    draws: bool = False

    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
        s = flow.schedule.s_of(nodes)
        if self.coordinate == "log s" and self.order > 1 and s[0] == 0 and len(s) > 2:
            raise ValueError(f"a grid that starts at t = 0: {self.name!r} extrapolates in log s; start at t_start=1e-3")
        rows = [self._row(flow, s, i, nodes[i]) for i in range(len(nodes) - 1)]
        final = end_weights(s[-2], s[-1], rows[-1].b) if self.extrapolates_end and rows else (1.0,)
        return Table((*rows, Row(nodes[-1])), final, self.draws)

    def _row(self, flow: Flow, s: Sequence[float], i: int, t: float) -> Row:
        decay, _, noise = step_moments(s[i], s[i + 1], self.g)
        b = self._weights(s, i, i)
        if self.corrector and i > 0:
            # (corrected - predicted) step to s_i, carried on to s_{i+1}.
            mended, taken = self._weights(s, i - 1, i), (0.0, *self._weights(s, i - 1, i - 1))
            b = add(b, tuple(decay * x for x in add(mended, tuple(-x for x in taken))))
        return Row(t, decay, b, noise * sqrt(flow.kappa))

    def _weights(self, s: Sequence[float], i: int, newest: int) -> tuple[float, ...]:
        """Weights of the predictions at s_newest, s_{newest-1}, ... in the step from s_i to s_{i+1}."""
        history = s[max(0, i + 1 - self.order) : newest + 1][::-1]
        if self.integral == "shortcut":
            return shortcut_weights(history, s[i + 1], step_moments(s[i], s[i + 1], self.g)[1])
        return exact_weights(history, s[i], s[i + 1], self.g, COORDINATES[self.coordinate])


def step_moments(s_start: float, s_end: float, g: float) -> tuple[float, float, float]:
    """(decay of u, total weight of a constant w_hat, standard deviation of the noise / sqrt(kappa)) of one step."""
    log_ratio = log1p((s_start - s_end) / s_end) if s_start > 0 else -inf
    g2 = g * g
    decay = exp(g2 * log_ratio) if g2 else 1.0
    mass = -s_end * expm1((1 + g2) * log_ratio) if g2 else s_end - s_start
    return decay, mass, sqrt(-expm1(2 * g2 * log_ratio)) if g2 else 0.0


def add(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    """Sum of two rows of weights, the shorter one filled up with zeros."""
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0.0))


def end_weights(s_before: float, s_last: float, b: tuple[float, ...]) -> tuple[float, ...]:
    """Weights, newest first, of the predictions in the end of the ODE at s = infinity.

    x = u/s - int_0^(1/s) eps_hat d(1/s) with eps_hat = u - s w_hat linear in 1/s through the last two nodes. The
    states cancel: u_last - u_before is the last step, sum_j b_j w_j.
    """
    if s_before == 0:
        return (1.0,)
    lean = 1 / (2 * s_last * (s_last / s_before - 1))
    return add((1 + lean * s_last,), (0.0, *(-lean * x for x in add((s_before,), b))))


def lagrange(nodes: Sequence[float], at: float) -> list[float]:
    """Values at one point of the Lagrange basis polynomials of these nodes."""
    values = []
    for j, node in enumerate(nodes):
        value = 1.0
        for k, other in enumerate(nodes):
            if k != j:
                value *= (at - other) / (node - other)
        values.append(value)
    return values


@cache
def tanh_sinh(n: int = 40, width: float = 3.2) -> tuple[tuple[float, float], ...]:
    """Double-exponential quadrature on (0, 1): (point, weight), weights summing to 1; ends may be singular."""
    h = width / n
    points = [(k * h, tanh(1.5707963267948966 * sinh(k * h))) for k in range(-n, n + 1)]
    weights = [(1 - x * x) * (exp(z) + exp(-z)) for z, x in points]
    total = sum(weights)
    return tuple(((1 + x) / 2, w / total) for (_, x), w in zip(points, weights, strict=True))


def exact_weights(
    history: Sequence[float], s_start: float, s_end: float, g: float, coordinate: Callable[[float], float]
) -> tuple[float, ...]:
    """Weight of each past prediction, newest first: the integral of its Lagrange polynomial over the step."""
    mass = step_moments(s_start, s_end, g)[1]
    if len(history) == 1:
        return (mass,)
    nodes = [coordinate(s) for s in history]
    power = 1 / (1 + g * g)
    span = mass / s_end
    b = [0.0] * len(nodes)
    for point, weight in tanh_sinh():
        s = max(s_start, s_end * (1 - span * (1 - point)) ** power)
        for j, value in enumerate(lagrange(nodes, coordinate(s))):
            b[j] += mass * weight * value
    return tuple(b)


def shortcut_weights(history: Sequence[float], s_end: float, mass: float) -> tuple[float, ...]:
    """DPM-Solver++'s rule: mass * [w_0 + h / (2 h_prev) (w_0 - w_prev)], h = log(s_end / s_0)."""
    if len(history) == 1:
        return (mass,)
    newest, before = history
    slope = log(s_end / newest) / (2 * log(newest / before))
    return mass * (1 + slope), -mass * slope
