"""Beyond the paper: few-step solvers with their own grids, and the rule that picks one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bfn.errors import UserError
from bfn.flows import Flow
from bfn.solvers.multistep import Multistep
from bfn.solvers.table import Solver, Table

BOTH = ("continuous", "discrete")
FEW = 8
"""Fewer calls than these ask for other grids."""
QUIET = 2
"""First steps without noise on continuous data."""


@dataclass(frozen=True)
class Choice(Solver):
    """A name for a rule (flow, calls) -> solver."""

    rule: Callable[[Flow, int], Multistep] = field(kw_only=True)

    def resolve(self, flow: Flow, nfe: int) -> Solver:
        return self.rule(flow, nfe)

    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
        return self.resolve(flow, len(nodes)).table(flow, nodes)


def fast_ode(flow: Flow, nfe: int) -> Multistep:
    """Order 3 (classes: 4) with the free corrector; continuous data in asinh(10s), the flow's end extrapolated.

    d = 1/10 instead of the data's standard deviation, 1/2: of images the large directions are resolved much earlier.
    """
    summary = "high order with a free corrector, ODE"
    if flow.kind == "continuous":
        return Multistep(
            "fast-ode", summary, ("continuous",), order=3, grid=f"log1p:{max(2.0, nfe * nfe / 4):g}:0.1", t_start=0.0,
            coordinate="asinh 10s", corrector=True, extrapolates_end=nfe >= 8,
        )  # fmt: skip
    return Multistep("fast-ode", summary, ("discrete",), order=4, grid="power:1.25", t_start=0.0, corrector=True)


def fast_sde(flow: Flow, nfe: int) -> Multistep:
    """Order 2 with the dial beyond 1: fresh noise lets later calls mend what earlier ones got wrong.

    An exact model has nothing to mend; the dial, grids and coordinates are for trained networks, set by measurements on
    the bundled ones (docs/results/dial.md). With few calls all of them want an early end: what is left to resolve
    there is less than the network's own error.
    """
    few = nfe < FEW
    if flow.kind == "continuous":
        # The first steps say too little about the data to draw the state afresh from them: they are quiet, and with
        # three calls there are no others.
        g = 0.0 if nfe <= QUIET + 1 else 4.0 if few else 2.0
        settings: dict[str, Any] = {"grid": "log1p-early", "coordinate": "asinh", "g": g, "quiet": QUIET}
    elif flow.kappa == 2:
        settings = {"grid": "power:1.5:0.65" if few else "power:1.5:0.8", "coordinate": "s", "g": 3.0}
    else:
        # Among many classes the probability of the right one rises late and steeply, the more so the longer the step.
        settings = {"grid": "power:1:0.75", "coordinate": "s^3"} if few else {"grid": "uniform", "coordinate": "beta"}
        settings["g"] = 10.0
    summary = "order 2 with the stochasticity dial, SDE"
    return Multistep("fast-sde", summary, (flow.kind,), order=2, t_start=0.0, has_dial=True, **settings)


def family(name: str) -> Solver:
    """Any multistep solver by name, "multistep:ORDER:COORDINATE" or "multistep:ORDER:COORDINATE:corrector".

    From t = 0 (in log s from 1e-3) on a grid for the kind of data, with the dial, which stands at 0.
    """
    _, *given = name.split(":")
    if given[2:] not in ([], ["corrector"]) or len(given) < 2 or not given[0].isdecimal():
        raise UserError(
            f"solver={name!r}: expected multistep:ORDER:COORDINATE, as multistep:3:asinh, or with :corrector"
        )
    order, coordinate, corrector = int(given[0]), given[1], len(given) > 2
    base = Multistep(
        name, "of the multistep family", BOTH, order=order, coordinate=coordinate, corrector=corrector, has_dial=True,
        t_start=1e-3 if coordinate == "log s" else 0.0,
    )  # fmt: skip

    def rule(flow: Flow, nfe: int) -> Multistep:
        return replace(base, grid="log1p" if flow.kind == "continuous" else "power")

    return Choice(name, base.summary, BOTH, order=order, has_dial=True, rule=rule)


SOLVERS: tuple[Solver, ...] = (
    Choice("fast-ode", "our best deterministic few-step solver", BOTH, order=3, rule=fast_ode),
    Choice("fast-sde", "our best with the stochasticity dial", BOTH, order=2, g=2.0, has_dial=True, rule=fast_sde),
    Choice(
        "auto", "the default: fast-sde, or the model's tuned table", BOTH, order=2, g=2.0, has_dial=True, rule=fast_sde
    ),
    Choice("untuned", "auto without the model's tuned tables", BOTH, order=2, g=2.0, has_dial=True, rule=fast_sde),
)
