"""Beyond the paper: few-step solvers, and the default. Each is a list of presets that one can print.

``fast-ode`` and ``fast-sde`` pick a multistep solver by the kind of data and the number of calls; ``auto`` is
``fast-sde``, but for the numbers of calls that a model has a tuned table for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from bfn.errors import UserError
from bfn.flows import Flow
from bfn.grids import Log1p, Log1pEarly, Power, Uniform
from bfn.solvers.base import Solver
from bfn.solvers.multistep import Multistep
from bfn.solvers.table import Table

__all__ = ["FAST_ODE", "FAST_SDE", "SOLVERS", "Preset", "Presets", "multistep_by_name"]

BOTH = ("continuous", "discrete")
FEW = 7
"""Up to so many calls ask for other grids."""
QUIET = 2
"""First steps without noise on continuous data: they say too little about the data to draw the state afresh from."""


@dataclass(frozen=True)
class Preset:
    """A solver for a kind of data, up to a number of calls. n_classes: for so many classes only."""

    kind: str
    solver: Multistep
    most_calls: float = inf
    n_classes: int | None = None

    def fits(self, flow: Flow, nfe: int) -> bool:
        """Whether it is meant for this flow at that many calls."""
        fits = self.kind == flow.kind and nfe <= self.most_calls
        return fits and (self.n_classes is None or self.n_classes == flow.n_values)


@dataclass(frozen=True, kw_only=True)
class Presets(Solver):
    """A name for the first preset that fits the data and the number of calls."""

    presets: tuple[Preset, ...]

    def resolve(self, flow: Flow, nfe: int) -> Solver:
        solver = next((preset.solver for preset in self.presets if preset.fits(flow, nfe)), None)
        if solver is None:
            raise UserError(f"solver={self.name!r}: it has no preset for {flow.kind} data at {nfe} calls")
        return solver

    def table(self, flow: Flow, nodes: Sequence[float]) -> Table:
        return self.resolve(flow, len(nodes)).table(flow, nodes)


def _ode(kind: str, **settings: Any) -> Multistep:
    return Multistep("fast-ode", "high order with a free corrector, ODE", (kind,), t_start=0.0, corrector=True,
                     **settings)  # fmt: skip


def _sde(kind: str, **settings: Any) -> Multistep:
    return Multistep("fast-sde", "order 2 with the stochasticity dial, SDE", (kind,), order=2, t_start=0.0,
                     has_dial=True, **settings)  # fmt: skip


# d = 1/10 instead of the data's standard deviation, 1/2: of images the large directions are resolved much earlier.
_IMAGES: dict[str, Any] = {"order": 3, "grid": Log1p(scale=0.1), "coordinate": "asinh 10s"}

FAST_ODE = (
    Preset("continuous", _ode("continuous", **_IMAGES), most_calls=FEW),
    Preset("continuous", _ode("continuous", extrapolates_end=True, **_IMAGES)),
    Preset("discrete", _ode("discrete", order=4, grid=Power(1.25))),
)
"""Order 3 (classes: 4) with the free corrector; continuous data in asinh(10s), the flow's end extrapolated."""

_EARLY: dict[str, Any] = {"grid": Log1pEarly(), "coordinate": "asinh", "quiet": QUIET}

FAST_SDE = (
    Preset("continuous", _sde("continuous", g=0.0, **_EARLY), most_calls=QUIET + 1),  # all its steps are quiet
    Preset("continuous", _sde("continuous", g=4.0, **_EARLY), most_calls=FEW),
    Preset("continuous", _sde("continuous", g=2.0, **_EARLY)),
    Preset("discrete", _sde("discrete", g=3.0, grid=Power(1.5, 0.65), coordinate="s"), FEW, n_classes=2),
    Preset("discrete", _sde("discrete", g=3.0, grid=Power(1.5, 0.8), coordinate="s"), n_classes=2),
    # Among many classes the probability of the right one rises late and steeply, the more so the longer the step.
    Preset("discrete", _sde("discrete", g=10.0, grid=Power(1.0, 0.75), coordinate="s^3"), FEW),
    Preset("discrete", _sde("discrete", g=10.0, grid=Uniform(), coordinate="beta")),
)
"""Order 2 with the dial beyond 1: fresh noise lets later calls mend what earlier ones got wrong.

An exact model has nothing to mend; the dial, grids and coordinates are for trained networks, set by measurements on
the bundled ones (docs/results/dial.md). With few calls all of them want an early end: what is left to resolve there is
less than the network's own error.
"""


def multistep_by_name(name: str) -> Solver:
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
    presets = (Preset("continuous", replace(base, grid=Log1p())), Preset("discrete", replace(base, grid=Power())))
    return Presets(name, base.summary, BOTH, order=order, has_dial=True, presets=presets)


_DIAL: dict[str, Any] = {"order": 2, "g": 2.0, "has_dial": True, "presets": FAST_SDE}

SOLVERS: tuple[Solver, ...] = (
    Presets("fast-ode", "our best deterministic few-step solver", BOTH, order=3, presets=FAST_ODE),
    Presets("fast-sde", "our best with the stochasticity dial", BOTH, **_DIAL),
    Presets("auto", "the default: fast-sde, or the model's tuned table", BOTH, prefers_tuned=True, **_DIAL),
)
