"""For distilled models, which predict where a state's path ends: one call at the start, further ones refine.

    u_next = s w_hat + sqrt(kappa) xi

The end is noised again to a later time, and predicted again: the stochasticity dial at infinity, with order 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, sqrt
from typing import TYPE_CHECKING

import torch

from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.grids import Log1pEarly, Power, Uniform
from bfn.core.info import ErrorCurve
from bfn.core.solver import Solver
from bfn.core.table import Table
from bfn.solvers.few_step import Fixed
from bfn.solvers.multistep import Multistep

if TYPE_CHECKING:
    from bfn.core.info import ModelInfo


_RULE = Multistep("renoising", "noised again after each call", ("continuous", "discrete"), order=1, g=inf, t_start=0.0)

RENOISING = Fixed(
    _RULE.name, _RULE.summary, _RULE.kinds, order=1, g=inf,
    numbers=replace(_RULE, grid=Log1pEarly()), classes=replace(_RULE, grid=Power(1.0, 0.8)),
)  # fmt: skip
"""What "auto" is for a distilled model, where it has no table for the number of calls."""


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


BOTH = ("continuous", "discrete")

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
