"""The original sampler with the optimal variance: what is still unknown of the data goes into the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt
from typing import TYPE_CHECKING

import torch

from bfn.core.solver import Solver
from bfn.core.table import Table
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.grids import Uniform
from bfn.solvers.multistep import Multistep

if TYPE_CHECKING:
    from bfn.info import ModelInfo

__all__ = ["OPTIMAL_VARIANCE", "OptimalVariance"]


@dataclass(frozen=True)
class OptimalVariance(Multistep):
    """A rule whose noise also carries the error of the prediction that it steps with.

    A message of accuracy alpha about data known up to the mean squared error e has the variance 1/alpha + e, not
    1/alpha: with the weight B of a row's predictions, c^2 becomes c^2 + B^2 e(t). Exact where what is unknown is
    Gaussian, whatever the step; with small steps it adds nothing.
    """

    curve: ErrorCurve | None = None

    def resolve(self, flow: Flow, nfe: int, info: ModelInfo | None = None, sharing: str = "alone") -> Solver:
        return self if info is None or info.error_curve is None else replace(self, curve=info.error_curve)

    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
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
        ("continuous", "discrete"), order=1, g=1.0, grid=Uniform(), t_start=0.0, from_prior=True,
    ),
)  # fmt: skip
