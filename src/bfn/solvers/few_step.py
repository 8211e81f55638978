"""Beyond the paper: few-step solvers, and the default, as rules over the number of calls.

A rule is a list of anchors, the settings at some numbers of calls; between them they are interpolated in log(calls).
``fast-ode`` and ``fast-sde`` have one for each kind of data; ``auto`` takes the anchors that were calibrated to the
model (``bfn.tuning.calibrate``), on an exact model those of ``fast-ode``, and on any other those of ``fast-sde``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, expm1, inf, log, log1p
from typing import TYPE_CHECKING, Any

from bfn.core.errors import UserError
from bfn.core.flows import PartFlow
from bfn.core.grids import Grid, Log1p, Power, Uniform
from bfn.core.info import ERROR_CURVE, EXACT, SPREADS, VALUE_RANGE, Fact, Spread
from bfn.core.solver import Sharing, Solver
from bfn.core.table import Table
from bfn.solvers.multistep import Multistep

if TYPE_CHECKING:
    from bfn.core.info import ModelInfo


BOTH = ("continuous", "discrete")
UNKNOWN, UNKNOWN_IMAGES = Spread(0.5, 1.0), Spread(0.5, 4.0)
"""Spreads that are taken where a model says nothing of its data; data with a range are mostly images."""
MENDED = 7
"""With more calls the end of the ODE on numbers is extrapolated."""


@dataclass(frozen=True)
class Anchor:
    """The few-step rule at a number of calls.

    g: the dial. order: predictions that a step is made from. end: where the last call is made, s for numbers and t for
    classes. exponent: the i-th of n steps is at (i/n)^exponent of the way, in log(1 + s/d) for numbers and in s for
    classes. scale: d, times the data's widest standard deviation. power: predictions of classes are extrapolated in
    s^power, those of numbers in asinh(s/d). quiet: first steps without noise. corrector: see :class:`Multistep`. in_t:
    steps are equal in t instead, and the end is a time. unseen: the first call is made where this share of the model's
    error at t = 0 is left, on plain noise as if it were a state there; 1 for t = 0.
    """

    calls: int
    g: float
    order: int
    end: float
    exponent: float = 1.0
    scale: float = 1.0
    power: float = 1.0
    quiet: int = 0
    corrector: bool = False
    in_t: bool = False
    unseen: float = 1.0

    def solver(self, flow: PartFlow, info: ModelInfo | None = None, name: str = "fast-sde") -> Multistep:
        """The solver that it stands for, for a model of which that is known."""
        curve, spread = None if info is None else info[ERROR_CURVE], spread_of(flow, info)
        first = 0.0 if curve is None or self.unseen >= 1 else curve.time_of_share(self.unseen)
        settings: dict[str, Any] = {"order": self.order, "g": self.g, "t_start": first, "has_dial": True,
                                    "quiet": self.quiet, "corrector": self.corrector}  # fmt: skip
        what = f"order {self.order}, {'ODE' if self.g == 0 else 'SDE with the dial'}"
        grid: Grid = Uniform(self.end)
        if not flow.has_range:
            grid = grid if self.in_t else Power(self.exponent, min(1.0, self.end))
            return Multistep(name, what, (flow.kind,), grid=grid, coordinate=f"s^{self.power:g}", **settings)
        scale = self.scale / spread.widest
        grid = grid if self.in_t else Log1p(self.end, scale, self.exponent)
        mended = self.g == 0 and self.corrector and self.calls > MENDED
        return Multistep(
            name, what, (flow.kind,), grid=grid, coordinate="asinh", scale=scale, extrapolates_end=mended, **settings
        )


def interpolated(anchors: Sequence[Anchor], calls: int) -> Anchor:
    """The rule at any number of calls: continuous in log(calls), what is whole or yes and no as the nearer anchor has
    it, constant outside.
    """
    below = [anchor for anchor in anchors if anchor.calls <= calls]
    above = [anchor for anchor in anchors if anchor.calls >= calls]
    low, high = (below or above)[-1 if below else 0], (above or below)[0 if above else -1]
    if low is high:
        return replace(low, calls=calls, quiet=min(low.quiet, max(0, calls - 2)))
    share = log(calls / low.calls) / log(high.calls / low.calls)
    near = low if share < 0.5 else high

    def between(a: float, b: float) -> float:
        return a + share * (b - a)

    return replace(
        near, calls=calls, g=expm1(between(log1p(low.g), log1p(high.g))), end=exp(between(log(low.end), log(high.end))),
        exponent=between(low.exponent, high.exponent), scale=between(low.scale, high.scale),
        power=between(low.power, high.power), unseen=between(low.unseen, high.unseen),
        quiet=min(near.quiet, max(0, calls - 2)),
    )  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """Anchors found for one model (``bfn.tuning.calibrate``), and the objective's value at each."""

    anchors: tuple[Anchor, ...]
    losses: tuple[float, ...] = ()
    objective: str = ""

    def __post_init__(self) -> None:
        if not self.anchors or any(b.calls <= a.calls for a, b in pairwise(self.anchors)):
            raise UserError("a calibration: expected at least one anchor, with increasing numbers of calls")
        for a in self.anchors:
            positive = all(value > 0 for value in (a.end, a.exponent, a.scale, a.unseen))
            if a.calls < 1 or not 0 <= a.g < inf or not positive:
                raise UserError(f"anchor at {a.calls} calls: expected calls of at least 1, g >= 0, the others > 0")


@dataclass(frozen=True, kw_only=True)
class Rule(Solver):
    """Anchors for each kind of data: of numbers, of two classes, of more.

    shared: those of numbers and of classes where parts of joint data share their times, if these are to be others.
    tables: the same for rows of tables. adapts: takes a model's own anchors where it has some, and
    those of the ODE where it is exact.
    """

    numbers: tuple[Anchor, ...]
    two_classes: tuple[Anchor, ...]
    classes: tuple[Anchor, ...]
    shared: tuple[tuple[Anchor, ...], tuple[Anchor, ...]] | None = None
    tables: tuple[tuple[Anchor, ...], tuple[Anchor, ...]] | None = None
    adapts: bool = False

    def anchors(self, flow: PartFlow, info: ModelInfo | None = None, sharing: Sharing = "alone") -> tuple[Anchor, ...]:
        """Those for a kind of data, or a model's own."""
        calibration = None if info is None else info[CALIBRATION]
        if self.adapts and calibration is not None:
            return calibration.anchors
        if self.adapts and info is not None and info[EXACT]:
            return ODE_NUMBERS if flow.has_range else ODE_CLASSES
        if sharing != "alone":
            shared = self.shared if sharing == "parts" else self.tables
            if shared is not None:
                return shared[0 if flow.has_range else 1]
        if flow.has_range:
            return self.numbers
        return self.two_classes if flow.n_values == 2 else self.classes

    def resolve(self, flow: PartFlow, nfe: int, info: ModelInfo | None = None, sharing: Sharing = "alone") -> Solver:
        anchor = interpolated(self.anchors(flow, info, sharing), nfe)
        name = "fast-ode" if anchor.g == 0 and anchor.corrector else "fast-sde"
        return replace(anchor.solver(flow, info, name), has_dial=self.has_dial)

    def table(self, flow: PartFlow, nodes: Sequence[float]) -> Table:
        return self.resolve(flow, len(nodes)).table(flow, nodes)


def spread_of(flow: PartFlow, info: ModelInfo | None) -> Spread:
    """The spread of a model's data: as its info has it, or by its error curve, or a guess."""
    if info is None:
        return UNKNOWN
    spread, curve = info[SPREADS].get(""), info[ERROR_CURVE]
    if spread is not None:
        return spread
    found = Spread.from_curve(curve, flow) if curve is not None and flow.has_range else None
    return found or (UNKNOWN if info[VALUE_RANGE] is None else UNKNOWN_IMAGES)


# The end of numbers is calls^2 / 5, where an exact model's last prediction is as good as the steps before it: at few
# calls, going to s(1) would spend them on detail below a thousandth of the data's scale.
ODE_NUMBERS = tuple(Anchor(n, 0.0, 3, max(2.0, n * n / 5), scale=0.4, corrector=True) for n in (1, 3, 100))
"""Order 3 with the free corrector."""
ODE_CLASSES = (Anchor(1, 0.0, 4, 1.0, exponent=1.25, corrector=True),)

NUMBERS = (
    Anchor(1, 0.0, 2, 1.0, unseen=0.75), Anchor(2, 0.0, 2, 1.6), Anchor(3, 0.0, 2, 4.0, exponent=1.5, quiet=2),
    Anchor(5, 4.0, 2, 5.6, quiet=2), Anchor(10, 2.0, 2, 8.0, quiet=2), Anchor(20, 1.0, 2, 20.0),
    Anchor(50, 0.5, 2, 100.0), Anchor(100, 0.5, 2, 500.0),
)  # fmt: skip
TWO_CLASSES = (
    Anchor(1, 3.0, 2, 1.0, unseen=0.75), Anchor(2, 3.0, 2, 0.65, exponent=1.5, unseen=0.8),
    Anchor(3, 3.0, 2, 0.65, exponent=1.5), Anchor(5, 3.0, 2, 0.65, exponent=1.5),
    Anchor(10, 3.0, 2, 0.8, exponent=1.5), Anchor(50, 1.5, 2, 1.0, exponent=1.25), Anchor(100, 1.0, 2, 1.0),
)  # fmt: skip
CLASSES = (
    Anchor(1, 3.0, 2, 1.0, unseen=0.75), Anchor(2, 3.0, 2, 0.4, power=2.0), Anchor(3, 3.0, 2, 0.5, power=2.0),
    Anchor(5, 10.0, 2, 0.7, power=3.0), Anchor(10, 10.0, 2, 1.0, power=3.0), Anchor(50, 6.0, 2, 1.0, power=3.0),
    Anchor(100, 4.0, 2, 1.0, power=3.0),
)  # fmt: skip
"""Order 2 with the dial beyond 1: fresh noise lets later calls mend what earlier ones got wrong. More calls want less.

For trained networks, set by measurements on the bundled ones (docs/results/dial.md). With few calls all of them want an
early end: what is left to resolve there is less than the network's own error. Among many classes the probability of
the right one rises late and steeply: so the coordinate. At t = 0 a network sees nothing, and its answer is the same for
all samples: a single call is made later.
"""

_EARLY = ((1, 1.0, 0.4), (3, 1.0, 0.57), (5, 1.0, 0.75), (10, 2.0, 0.9), (20, 1.5, 1.0), (50, 1.0, 1.0))
SHARED_NUMBERS = tuple(Anchor(calls, g, 2, end, in_t=True) for calls, g, end in _EARLY)
SHARED_CLASSES = tuple(Anchor(calls, g, 3, end, in_t=True) for calls, g, end in _EARLY)
"""For parts that share their times, such as molecules as points (docs/results/dial.md). An end before the data end
matters most at few calls, as it does to data of one kind.
"""

_TABLE_ENDS = ((1, 0.0, 2.0), (3, 0.0, 6.0), (5, 0.0, 9.0), (10, 0.0, 18.0), (20, 0.5, 30.0), (50, 0.5, 50.0))
TABLE_NUMBERS = tuple(Anchor(calls, g, 3, end, scale=0.35, corrector=True) for calls, g, end in _TABLE_ENDS)
TABLE_CLASSES = SHARED_CLASSES
"""For rows of tables: numbers go as by the ODE, classes with the dial; where there are both, all columns take their
steps at the mean of the times that each would take them at (docs/results/dial.md).
"""


@dataclass(frozen=True, kw_only=True)
class Fixed(Solver):
    """A solver for each kind of data, whatever the number of calls."""

    numbers: Multistep
    classes: Multistep

    def resolve(self, flow: PartFlow, nfe: int, info: ModelInfo | None = None, sharing: Sharing = "alone") -> Solver:
        return self.numbers if flow.has_range else self.classes

    def table(self, flow: PartFlow, nodes: Sequence[float]) -> Table:
        return self.resolve(flow, len(nodes)).table(flow, nodes)


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
    numbers, classes = replace(base, grid=Log1p()), replace(base, grid=Power())
    return Fixed(name, base.summary, BOTH, order=order, has_dial=True, numbers=numbers, classes=classes)


DIAL: dict[str, Any] = {"numbers": NUMBERS, "two_classes": TWO_CLASSES, "classes": CLASSES,
                         "shared": (SHARED_NUMBERS, SHARED_CLASSES), "tables": (TABLE_NUMBERS, TABLE_CLASSES),
                         "order": 2, "g": 2.0, "has_dial": True}  # fmt: skip

FEW_STEP: tuple[Solver, ...] = (
    Rule("fast-ode", "our best deterministic few-step solver", BOTH, order=3, numbers=ODE_NUMBERS,
         two_classes=ODE_CLASSES, classes=ODE_CLASSES),
    Rule("fast-sde", "our best with the stochasticity dial", BOTH, **DIAL),
)  # fmt: skip


CALIBRATION: Fact[Calibration | None] = Fact("calibration", Calibration | None, None)
"""Settings of the solver "auto" that were found for the model."""
