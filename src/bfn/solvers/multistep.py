"""Multistep solvers, a family that has most of the known ones as members.

With the stochasticity dial g (0 the probability-flow ODE, 1 the reverse SDE, infinity full re-noising) generation is

    du = [-g^2 u/s + (1 + g^2) w_hat] ds + g sqrt(2 kappa / s) dB

and from s_0 to s_1, with r = s_0 / s_1, exactly

    u_1 = r^(g^2) u_0 + s_1 int_{r^k}^1 w_hat(s_1 v^(1/k)) dv + sqrt(kappa (1 - r^(2 g^2))) xi,     k = 1 + g^2

A multistep method replaces w_hat along the path by a polynomial through its last values, in some coordinate c(s), and
integrates that. The methods differ in g, in the number of values (their order), in c, and in the integral: it is exact,
or, for two values, the shortcut of DPM-Solver++ and UniPC, which takes the value of the interpolant half a step ahead.

DEIS and similar methods put the polynomial through eps_hat = u - s w_hat instead, on the ODE: u_1 = u_0/r + the same
integral of eps_hat with k = -1 and no factor. The past states in it follow from the rows that led from them, so this is
a table of weights of predictions as well.

A corrector costs no call: once w_hat at the new state is known, the step that led there is repeated with that value
among the nodes, and the next step starts from the corrected state. Both steps are linear, so they are one row.

At the end of this file stand members that were published for diffusion models, and the original sampler with the
optimal variance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from math import exp, expm1, hypot, inf, log, log1p, pi, sqrt

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import PartFlow
from bfn.core.grids import Uniform
from bfn.core.info import ERROR_CURVE, ErrorCurve, ModelInfo
from bfn.core.solver import Sharing, Solver
from bfn.core.table import Row, Table

BOTH = ("continuous", "discrete")

Weights = tuple[float, ...]
"""Weights of predictions, newest first."""

ORDERS = range(1, 5)
"""Orders of the solvers. With a fifth prediction, extrapolation amplifies errors more than it reduces them."""

LARGEST_SHARES = 1e3
"""Maximum sum of the absolute shares of a step. Two old nodes close together before a long step give more, which would
multiply rounding and the network's errors; such a step leaves out the oldest node."""

COORDINATES: dict[str, Callable[..., Tensor]] = {
    "s": lambda schedule, s, scale=0.5: s,
    "log s": lambda schedule, s, scale=0.5: s.log(),
    "asinh": lambda schedule, s, scale=0.5: (s / scale).asinh(),
    "t": lambda schedule, s, scale=0.5: schedule.time_of_s(s),
    "beta": lambda schedule, s, scale=0.5: s.square(),
}
"""Coordinates in which predictions are interpolated, functions of (schedule, s, scale); any power is one too, "s^3".

asinh(s / scale) is like s below the scale and like log s above it."""


@dataclass(frozen=True)
class Multistep(Solver):
    """Multistep solver of any order, stochasticity and coordinate.

    Args:
        coordinate: a name from COORDINATES, or a power such as "s^3".
        integral: "exact", or "shortcut", which takes two values at the middle in log s, and more of them exactly.
        interpolates: "data", or "noise" (g = 0 only).
        corrector: whether each step is corrected with the prediction made after it.
        quiet: number of first steps without noise, at g = 0.
        extrapolates_end: whether the sample is the flow's end at s = infinity, by a last second-order step without a
            call (g = 0).
        draws: whether predictions are replaced by draws from the output distribution.
        whole: whether these draws are of all variables of a sample together.
        scale: of the coordinate asinh(s / scale).
    """

    coordinate: str = "s"
    integral: str = "exact"
    interpolates: str = "data"
    corrector: bool = False
    quiet: int = 0
    extrapolates_end: bool = False
    draws: bool = False
    whole: bool = False
    scale: float = 0.5

    def __post_init__(self) -> None:
        coordinates = (*COORDINATES, *([self.coordinate] if power_of(self.coordinate) else []))
        for name, value, known in (
            ("order", self.order, ORDERS),
            ("coordinate", self.coordinate, coordinates),
            ("integral", self.integral, ("exact", "shortcut")),
            ("interpolates", self.interpolates, ("data", "noise")),
        ):
            if value not in known:
                raise UserError(f"{name}={value!r}: expected one of {', '.join(map(str, known))}")
        if not self.g >= 0 or self.quiet < 0:
            raise UserError(f"g={self.g}, quiet={self.quiet}: expected numbers from 0 up")
        if self.interpolates == "noise" or self.extrapolates_end:
            self._check_rule_for_ode()

    def _check_rule_for_ode(self) -> None:
        """Raise a UserError for rules that contradict each other."""
        noise = self.interpolates == "noise"
        if self.g:
            what = "interpolates='noise'" if noise else "extrapolates_end=True"
            raise UserError(f"g={self.g:g} with {what}: that is a rule for the ODE, g = 0")
        if self.corrector and noise:
            raise UserError("corrector=True with interpolates='noise': only steps in the data are corrected")

    def with_dial(self, g: float) -> Solver:
        """Return the solver with another stochasticity in all steps, without the rules for the ODE."""
        plain = replace(self, quiet=0, extrapolates_end=self.extrapolates_end and g == 0)
        return super(Multistep, plain).with_dial(g)

    def table(self, flow: PartFlow, nodes: Sequence[float]) -> Table:
        s = flow.schedule.s_of(nodes)
        if s[0] == 0 and len(s) > 1 and (self.interpolates == "noise" or self.coordinate == "log s"):
            self._check_start(len(s))
        make = self._noise_rows if self.interpolates == "noise" else self._data_rows
        rows = [Row(t, *row) for t, row in zip(nodes, make(flow, s), strict=False)]
        final = end_weights(s[-2], s[-1], rows[-1].b) if self.extrapolates_end and rows else (1.0,)
        return Table((*rows, Row(nodes[-1])), final, self.draws, whole=self.whole)

    def _check_start(self, calls: int) -> None:
        """Raise a UserError if a solver in the noise or in log s cannot start at t = 0."""
        two_nodes = calls > 2 and (self.order > 1 or self.corrector)
        if self.interpolates == "noise" or two_nodes:
            where = "the noise" if self.interpolates == "noise" else "in log s"
            raise UserError(f"a grid that starts at t = 0: {self.name!r} extrapolates {where}; start at t_start=1e-3")

    def _data_rows(self, flow: PartFlow, s: Sequence[float]) -> list[tuple[float, Weights, float]]:
        """Return (a, b, c) of each step."""
        rows = []
        for i in range(len(s) - 1):
            decay, _, noise = step_moments(s[i], s[i + 1], self._dial(i))
            b = self._weights(flow, s, i, i)
            if self.corrector and i > 0:
                # (corrected - predicted) step to s_i, carried on to s_{i+1}.
                corrected, taken = self._weights(flow, s, i - 1, i), (0.0, *self._weights(flow, s, i - 1, i - 1))
                b = add(b, scaled(decay, add(corrected, scaled(-1, taken))))
            rows.append((decay, b, noise * sqrt(flow.kappa)))
        return rows

    def _weights(self, flow: PartFlow, s: Sequence[float], i: int, newest: int) -> Weights:
        """Return the weights of the predictions at s_newest, s_{newest-1}, ... in the step from s_i to s_{i+1}."""
        history = s[max(0, i + 1 - self.order) : newest + 1][::-1]
        mass = step_moments(s[i], s[i + 1], self._dial(i))[1]
        while len(history) > 1:
            if self.integral == "shortcut" and len(history) == 2:
                half_way = torch.tensor([sqrt(s[i] * s[i + 1])], dtype=torch.float64)
                shares = basis_at(history, half_way, torch.ones_like(half_way), self._coordinate(flow))
            else:
                shares = basis_over(history, s[i], s[i + 1], 1 + self._dial(i) * self._dial(i), self._coordinate(flow))
            if sum(map(abs, shares)) <= LARGEST_SHARES:
                return scaled(mass, shares)
            history = history[:-1]
        return (mass,)

    def _noise_rows(self, flow: PartFlow, s: Sequence[float]) -> list[tuple[float, Weights, float]]:
        """Return the same for a polynomial through eps_hat_j = u_j - s_j w_hat_j, the old states u_j written in u_i."""
        rows = []
        past: list[tuple[float, Weights]] = [(1.0, ())]
        for i in range(len(s) - 1):
            history = s[max(0, i + 1 - self.order) : i + 1][::-1]
            mass = 1 - s[i + 1] / s[i]
            shares = basis_over(history, s[i], s[i + 1], -1.0, self._coordinate(flow))
            # a = s_{i+1} / s_i + mass sum_j share_j of_u_j. The shares sum to 1; this form does not cancel if the first
            # time is close to 0.
            a = 1.0
            b: Weights = ()
            for j, (share, (of_u, of_w)) in enumerate(zip(shares, past, strict=False)):
                a += mass * share * (of_u - 1)
                b = add(b, scaled(mass * share, add(of_w, (*(0.0,) * j, -history[j]))))
            rows.append((a, b, 0.0))
            # u_i = (u_{i+1} - sum_m b_m w_{i-m}) / a, and with it all states before it.
            past = [(of_u / a, (0.0, *add(of_w, scaled(-of_u / a, b)))) for of_u, of_w in past[: self.order - 1]]
            past.insert(0, (1.0, ()))
        return rows

    def _dial(self, i: int) -> float:
        return self.g if i >= self.quiet else 0.0

    def _coordinate(self, flow: PartFlow) -> Callable[[Tensor], Tensor]:
        power = power_of(self.coordinate)
        return lambda s: s**power if power else COORDINATES[self.coordinate](flow.schedule, s, self.scale)


def power_of(coordinate: str) -> float | None:
    """Return the exponent of a power of s, 3 for "s^3"; None for other coordinates."""
    found = re.fullmatch(r"s\^(\d+(?:\.\d+)?)", coordinate)
    return float(found[1]) or None if found else None


def log_of_ratio(s_start: float, s_end: float) -> float:
    """Return log(s_start / s_end), precise for steps of any size."""
    if s_start > 1e-9 * s_end:
        return log1p((s_start - s_end) / s_end)
    return log(s_start) - log(s_end) if s_start > 0 else -inf  # the difference would lose s_start


def step_moments(s_start: float, s_end: float, g: float) -> tuple[float, float, float]:
    """Return the decay of u, the weight of a constant w_hat, and the noise / sqrt(kappa) of a step."""
    log_ratio = log_of_ratio(s_start, s_end)
    g2 = g * g
    decay = exp(g2 * log_ratio) if g2 else 1.0
    mass = -s_end * expm1((1 + g2) * log_ratio) if g2 else s_end - s_start
    return decay, mass, sqrt(-expm1(2 * g2 * log_ratio)) if g2 else 0.0


def add(a: Weights, b: Weights) -> Weights:
    """Return the sum of two rows of weights; the shorter one is padded with zeros."""
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0.0))


def scaled(factor: float, weights: Weights) -> Weights:
    """Return a row of weights times a number."""
    return tuple(factor * x for x in weights)


def end_weights(s_before: float, s_last: float, b: Weights) -> Weights:
    """Return the weights, newest first, of the predictions in the end of the ODE at s = infinity.

    x = u/s - int_0^(1/s) eps_hat d(1/s) with eps_hat = u - s w_hat linear in 1/s through the last two nodes. The
    states cancel: u_last - u_before is the last step, sum_j b_j w_j.
    """
    if s_before == 0:
        return (1.0,)
    lean = 1 / (2 * s_last * (s_last / s_before - 1))
    return add((1 + lean * s_last,), (0.0, *(-lean * x for x in add((s_before,), b))))


def lagrange(nodes: Tensor, at: Tensor) -> Tensor:
    """Return the values of the Lagrange basis polynomials of these nodes, (nodes, points)."""
    own = torch.eye(len(nodes), dtype=torch.bool)
    apart = (nodes.unsqueeze(1) - nodes).masked_fill(own, 1.0)
    factors = (at - nodes.unsqueeze(1)).expand(len(nodes), -1, -1) / apart.unsqueeze(2)
    return factors.masked_fill(own.unsqueeze(2), 1.0).prod(1)


@cache
def tanh_sinh(n: int = 40, width: float = 3.2) -> tuple[Tensor, Tensor]:
    """Return points and weights of double-exponential quadrature on (0, 1), for integrands with singular ends."""
    z = torch.arange(-n, n + 1, dtype=torch.float64) * (width / n)
    x = torch.tanh(pi / 2 * torch.sinh(z))
    weights = (1 - x.square()) * torch.cosh(z)
    return (1 + x) / 2, weights / weights.sum()


def basis_at(history: Sequence[float], s: Tensor, weights: Tensor, coordinate: Callable[[Tensor], Tensor]) -> Weights:
    """Return the weighted mean over the points s of each Lagrange polynomial of the history; they sum to 1."""
    nodes = coordinate(torch.tensor(history, dtype=torch.float64))
    return tuple((lagrange(nodes, coordinate(s)) @ weights).tolist())


def basis_over(
    history: Sequence[float], s_start: float, s_end: float, k: float, coordinate: Callable[[Tensor], Tensor]
) -> Weights:
    """Return the mean over the step, in v = (s / s_end)^k, of each Lagrange polynomial of the history."""
    points, weights = tanh_sinh()
    log_ratio = log_of_ratio(s_start, s_end)
    s = s_end * (1 + expm1(k * log_ratio) * (1 - points)) ** (1 / k)
    return basis_at(history, s.clamp(min=s_start), weights, coordinate)


# --- published members ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptimalVariance(Multistep):
    """A multistep solver whose noise includes the error of the predictions.

    A message of accuracy alpha about data with the mean squared error e has the variance 1/alpha + e, not 1/alpha. If B
    is the weight of a row's predictions, c^2 becomes c^2 + B^2 e(t). This is exact for any step if the posterior of the
    data is Gaussian; with small steps it adds nothing.

    Attributes:
        curve: error curve of the model.
    """

    curve: ErrorCurve | None = None

    def resolve(self, flow: PartFlow, nfe: int, info: ModelInfo | None = None, sharing: Sharing = "alone") -> Solver:
        return self if info is None or info[ERROR_CURVE] is None else replace(self, curve=info[ERROR_CURVE])

    def table(self, flow: PartFlow, nodes: Sequence[float]) -> Table:
        if self.curve is None:
            raise UserError(
                f"solver={self.name!r}: the model has no error curve; training stores one, or set "
                "model.info.error_curve = bfn.losses.error_curve(model, x)"
            )
        plain = super().table(flow, nodes)
        errors = self.curve.at(torch.tensor(plain.times, dtype=torch.float64)).tolist()
        rows = [replace(row, c=hypot(row.c, sum(row.b) * sqrt(e))) for row, e in zip(plain.rows, errors, strict=True)]
        return replace(plain, rows=tuple(rows))


OPTIMAL_VARIANCE: tuple[Solver, ...] = (
    OptimalVariance(
        "bfn-optimal", "the original sampler with the optimal variance, from the model's error curve",
        BOTH, order=1, g=1.0, grid=Uniform(), t_start=0.0, from_prior=True,
    ),
)  # fmt: skip


DIFFUSION: tuple[Solver, ...] = (
    Multistep(
        "unipc2", "UniPC (bh2, data prediction) of order 2 with its corrector, ODE, in log s",
        BOTH, order=2, coordinate="log s", integral="shortcut", corrector=True,
    ),
    Multistep(
        "unipc3", "UniPC (bh2, data prediction) of order 3 with its corrector, ODE, in log s",
        BOTH, order=3, coordinate="log s", integral="shortcut", corrector=True,
    ),
    Multistep(
        "deis2", "DEIS (tAB) of order 2: the noise linear in t, ODE",
        BOTH, order=2, coordinate="t", interpolates="noise",
    ),
    Multistep(
        "deis3", "DEIS (tAB) of order 3: the noise quadratic in t, ODE",
        BOTH, order=3, coordinate="t", interpolates="noise",
    ),
    Multistep(
        "sa-solver", "SA-Solver: stochastic Adams of order 3 with its corrector, SDE with the dial, in log s",
        BOTH, order=3, coordinate="log s", corrector=True, g=1.0, has_dial=True,
    ),
)  # fmt: skip
