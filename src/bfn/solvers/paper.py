"""The paper's samplers: the original one, Euler baselines, and the seven BFN-Solvers, as settings of three rules."""

from bfn.core.solver import Solver
from bfn.grids import Uniform
from bfn.solvers.euler import Euler
from bfn.solvers.midpoint import Midpoint
from bfn.solvers.multistep import Multistep

__all__ = ["PAPER"]

CONTINUOUS, DISCRETE, BOTH = ("continuous",), ("discrete",), ("continuous", "discrete")

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
