"""Solvers of the paper, and its Euler and Euler-Maruyama baselines for mu or z in t."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import PartFlow
from bfn.core.grids import Grid, Uniform
from bfn.core.solver import Solver
from bfn.core.table import Row, Table
from bfn.solvers.multistep import BOTH, Multistep
from bfn.solvers.sde import LinearSDE


@dataclass(frozen=True)
class Euler(Solver):
    """Explicit Euler steps of dv = [-F v + (1+g^2)/2 G^2 score] dt + g G dB with the coefficients at their start."""

    def table(self, flow: PartFlow, nodes: Sequence[float]) -> Table:
        if nodes[0] == 0 and len(nodes) > 1:
            raise UserError(f"a grid that starts at t = 0: the drift of {self.name!r} is infinite there; start at 1e-3")
        sde = LinearSDE(flow)
        rows = []
        for t, t_end in pairwise(nodes):
            dt = t_end - t
            sigma, sigma_end = float(sde.sigma(t)), float(sde.sigma(t_end))
            pull = (1 + self.g**2) / 2 * float(sde.diffusion(t)) ** 2 / (flow.kappa * sigma**2)
            a = sigma / sigma_end * (1 - dt * (float(sde.drift(t)) + pull))
            b = dt * pull * float(sde.alpha(t)) / sigma_end
            rows.append(Row(t, a, (b,), self.g * float(sde.diffusion(t)) * sqrt(dt) / sigma_end))
        return Table((*rows, Row(nodes[-1])))


@dataclass(frozen=True)
class Midpoint(Solver):
    """Explicit midpoint steps of du/ds = w_hat, with the stage half way in t; the last prediction is the sample."""

    def nodes(self, flow: PartFlow, grid: Grid, nfe: int, t_start: float) -> Tensor:
        if nfe % 2:
            raise UserError(f"nfe={nfe}: this solver makes 2 calls a step; give a multiple, such as {nfe - 1 or 2}")
        return grid(flow, nfe // 2, t_start)

    def table(self, flow: PartFlow, nodes: Sequence[float]) -> Table:
        if len(nodes) < 2:
            raise UserError(f"a grid of {len(nodes)} time: expected at least 2 times for {self.name!r}")
        rows: list[Row] = []
        for t_start, t_end in pairwise(nodes):
            t_mid = (t_start + t_end) / 2
            s_start, s_mid, s_end = flow.schedule.s_of([t_start, t_mid, t_end])
            rows.append(Row(t_start, b=(s_mid - s_start,), commit=False))
            # w_hat linear in s through both stages: (s_end - s_start) [w + (s_end - s_start)/2 * slope].
            step = s_end - s_start
            lean = step * step / (2 * (s_mid - s_start))
            rows.append(Row(t_mid, b=(lean, step - lean)))
        return Table(tuple(rows))


CONTINUOUS, DISCRETE = ("continuous",), ("discrete",)

PAPER: tuple[Solver, ...] = (
    Multistep(
        "bfn", "the original sampler: Bayesian updates from the exact prior, classes drawn",
        BOTH, order=1, g=1.0, draws=True, grid=Uniform(), t_start=0.0, from_prior=True,
    ),
    Euler("euler-ode", "Euler on the probability-flow ODE of mu or z", BOTH, order=1),
    Euler("euler-sde", "Euler-Maruyama on the reverse SDE of mu or z", BOTH, order=1, g=1.0),
    Multistep("bfn-solver1", "BFN-Solver1: first-order, ODE", BOTH, order=1),
    Multistep("bfn-solver2", "BFN-Solver2 as released: second-order multistep, ODE, linear in t", DISCRETE, order=2),
    Midpoint("bfn-solver2-singlestep", "BFN-Solver2 as printed: midpoint, ODE, 2 calls a step", DISCRETE, order=2),
    Multistep("sde-bfn-solver1", "SDE-BFN-Solver1: the original without drawing classes", DISCRETE, order=1, g=1.0),
    Multistep("sde-bfn-solver2", "SDE-BFN-Solver2: second-order multistep, SDE, linear in t", DISCRETE, order=2, g=1.0),
    Multistep("bfn-solver++1", "BFN-Solver++1: first-order, ODE, data prediction", CONTINUOUS, order=1),
    Multistep(
        "bfn-solver++2", "BFN-Solver++2: second-order multistep, ODE, in log s",
        CONTINUOUS, order=2, coordinate="log s", integral="shortcut",
    ),
    Multistep(
        "sde-bfn-solver++2", "SDE-BFN-Solver++2: second-order multistep, SDE, in log s",
        CONTINUOUS, order=2, g=1.0, coordinate="log s", integral="shortcut",
    ),
)  # fmt: skip
