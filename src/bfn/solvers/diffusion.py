"""Published solvers for diffusion models, as settings of the one multistep rule: UniPC, DEIS, SA-Solver."""

from bfn.core.solver import Solver
from bfn.solvers.multistep import Multistep

__all__ = ["DIFFUSION"]

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
