"""For distilled models, which predict where a state's path ends: one call at the start, further ones refine.

    u_next = s w_hat + sqrt(kappa) xi

The end is noised again to a later time, and predicted again: the stochasticity dial at infinity, with order 1.
"""

from dataclasses import replace
from math import inf

from bfn.grids import Log1pEarly, Power
from bfn.solvers.few_step import Fixed
from bfn.solvers.multistep import Multistep

__all__ = ["RENOISING"]

_RULE = Multistep("renoising", "noised again after each call", ("continuous", "discrete"), order=1, g=inf, t_start=0.0)

RENOISING = Fixed(
    _RULE.name, _RULE.summary, _RULE.kinds, order=1, g=inf,
    numbers=replace(_RULE, grid=Log1pEarly()), classes=replace(_RULE, grid=Power(1.0, 0.8)),
)  # fmt: skip
"""What "auto" is for a distilled model, where it has no table for the number of calls."""
