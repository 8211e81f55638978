"""Euler and Euler-Maruyama baselines on the paper's own equations: mu or z, in t."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from bfn.core.solver import Solver
from bfn.core.table import Row, Table
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.sde import LinearSDE

__all__ = ["Euler"]


@dataclass(frozen=True)
class Euler(Solver):
    """One explicit step of dv = [-F v + (1+g^2)/2 G^2 score] dt + g G dB, coefficients taken at its start."""

    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
        if nodes[0] == 0 and len(nodes) > 1:
            raise UserError(f"a grid that starts at t = 0: the drift of {self.name!r} is infinite there; try 1e-3")
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
