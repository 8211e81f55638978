"""For networks that can draw all variables together, and few calls: the original sampler, with whole strings.

    u_next = u + (w(x) d beta) + sqrt(kappa d beta) xi,        x drawn from the posterior of whole strings

With an exact posterior every step is exact, however long: one call draws from the model's own prior. Marginals, which
all other rules follow, need many calls until neighbours agree.
"""

from bfn.grids import Uniform
from bfn.solvers.multistep import Multistep

__all__ = ["MOST_WHOLE", "WHOLE"]

MOST_WHOLE = 4
"""Calls up to which "auto" draws whole strings. With more, steps along the marginals are better: their predictions are
the network's, which whole strings only take as evidence for the chain (docs/results/dial.md)."""

WHOLE = Multistep(
    "whole", "whole strings drawn at every call", ("discrete",), order=1, g=1.0, draws=True, whole=True, grid=Uniform(),
    t_start=0.0, from_prior=True,
)  # fmt: skip
