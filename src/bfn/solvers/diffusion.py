"""Solvers of diffusion models as published, and the original sampler with the optimal variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt

import torch

from bfn.core.errors import UserError
from bfn.core.flows import PartFlow
from bfn.core.grids import Uniform
from bfn.core.info import ERROR_CURVE, ErrorCurve, ModelInfo
from bfn.core.solver import Sharing, Solver
from bfn.core.table import Table
from bfn.solvers.few_step import BOTH
from bfn.solvers.multistep import Multistep


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
