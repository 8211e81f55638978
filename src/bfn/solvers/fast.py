"""Beyond the paper: few-step solvers with their own grids, and the rule that picks one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bfn.flows import Flow
from bfn.solvers.multistep import Multistep
from bfn.solvers.table import Solver, Table

BOTH = ("continuous", "discrete")


@dataclass(frozen=True)
class Choice(Solver):
    """A name for a rule (kind of data, calls) -> solver."""

    rule: Callable[[str, int], Multistep] = field(kw_only=True)

    def resolve(self, flow: Flow, nfe: int) -> Solver:
        return self.rule(flow.kind, nfe)

    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
        return self.resolve(flow, len(nodes)).table(flow, nodes)


def fast_ode(kind: str, nfe: int) -> Multistep:
    """Order 3 with the free corrector; continuous data in asinh(2s) with the flow's end extrapolated."""
    summary = "order 3 with a free corrector, ODE"
    if kind == "continuous":
        return Multistep(
            "fast-ode", summary, ("continuous",), order=3, grid="log1p", t_start=0.0,
            coordinate="asinh", corrector=True, extrapolates_end=nfe >= 8,
        )  # fmt: skip
    return Multistep("fast-ode", summary, ("discrete",), order=3, grid="power", t_start=0.0, corrector=True)


def fast_sde(kind: str, nfe: int) -> Multistep:
    """Order 2 with the dial beyond 1: fresh noise lets later calls mend what earlier ones got wrong.

    An exact model has nothing to mend; the dial is for trained networks, and set by measurements on the bundled ones
    (docs/results).
    """
    summary = "order 2 with the stochasticity dial, SDE"
    if kind == "continuous":
        return Multistep(
            "fast-sde", summary, ("continuous",), order=2, grid="log1p-early", t_start=0.0,
            coordinate="asinh", g=2.0, has_dial=True,
        )  # fmt: skip
    return Multistep("fast-sde", summary, ("discrete",), order=2, grid="uniform", t_start=0.0, g=10.0, has_dial=True)


def auto(kind: str, nfe: int) -> Multistep:
    """``fast-sde``; on continuous data with fewer than 8 calls its ODE, as there is no call left to mend anything."""
    chosen = fast_sde(kind, nfe)
    return replace(chosen, g=0.0) if kind == "continuous" and nfe < 8 else chosen


SOLVERS: tuple[Solver, ...] = (
    Choice("fast-ode", "our best deterministic few-step solver", BOTH, order=3, rule=fast_ode),
    Choice("fast-sde", "our best with the stochasticity dial", BOTH, order=2, g=2.0, has_dial=True, rule=fast_sde),
    Choice("auto", "the default, by kind of data and calls", BOTH, order=2, g=2.0, has_dial=True, rule=auto),
    Choice("untuned", "auto without the model's tuned tables", BOTH, order=2, g=2.0, has_dial=True, rule=auto),
)
