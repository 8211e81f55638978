"""Gaussian messages: the prediction is linear in the state, and every solver's answer is known in closed form.

If w ~ N(0, v I) then u = s w + sqrt(kappa) eps ~ N(0, (kappa + s^2 v) I) and w_hat = s v u / (kappa + s^2 v). The
probability-flow ODE scales u with its standard deviation; SDE solvers map Gaussians to Gaussians, so that their weak
error is the error of a variance, propagated without Monte Carlo.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch

from bfn.core.flows import Flow, NoiseLevel
from bfn.core.heads import Output, Point
from bfn.core.model import Model
from bfn.core.table import Table
from bfn.solvers.sde import data_from_message


@dataclass
class LinearModel(Model):
    """Exact model of Gaussian messages on any flow, also on one whose messages are never Gaussian."""

    flow: Flow
    variance: float = 1.0
    data_shape: tuple[int, ...] = (3,)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64

    def output(self, u: torch.Tensor, level: NoiseLevel, **conditions: torch.Tensor) -> Output:
        w_hat = level.s * self.variance / (self.flow.kappa + level.s**2 * self.variance) * u
        return Point(data_from_message(w_hat, self.flow), 1.0)

    def std(self, t: float) -> float:
        """Exact standard deviation of an entry of u."""
        return sqrt(self.flow.kappa + float(self.flow.schedule.beta(t)) * self.variance)


def final_variance(table: Table, model: LinearModel) -> float:
    """Variance of u at the table's last node, started from the exact distribution at its first: no Monte Carlo.

    u and each prediction are kept as coefficients on the independent sources (u_0, xi_1, xi_2, ...).
    """
    flow = model.flow
    s = flow.schedule.s_of(table.times)
    base = np.zeros(len(table.rows) + 1)
    base[0] = model.std(table.times[0])
    u, messages = base, []
    for i, row in enumerate(table.rows[:-1]):
        messages.insert(0, s[i] * model.variance / (flow.kappa + s[i] ** 2 * model.variance) * u)
        u = row.a * base + sum(b * w for b, w in zip(row.b, messages, strict=False))
        u[i + 1] += row.c
        if row.commit:
            base = u
    return float(np.square(u).sum())


def slope(errors: list[float], steps: list[int]) -> float:
    """Order of convergence: minus the slope of log error against log steps, by least squares."""
    return -float(np.polyfit(np.log(steps), np.log(np.abs(errors)), 1)[0])
