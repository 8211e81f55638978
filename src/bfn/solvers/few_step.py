"""Few-step solvers beyond the paper, as rules over the number of network calls, and the default "auto".

A rule is a list of anchors, the settings for some numbers of calls. Between them settings are interpolated in
log(calls). ``fast-ode`` and ``fast-sde`` have anchors for each kind of data. ``auto`` uses the anchors that were
calibrated to the model (``bfn.tuning.calibrate``), those of ``fast-ode`` for exact models, and else those of
``fast-sde``. For distilled models it noises the prediction again after each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, expm1, inf, log, log1p
from typing import Any

from bfn.core.errors import UserError
from bfn.core.flows import PartFlow
from bfn.core.grids import Grid, Log1p, Log1pEarly, Power, Uniform
from bfn.core.info import ERROR_CURVE, EXACT, SPREADS, VALUE_RANGE, Fact, ModelInfo, Spread
from bfn.core.solver import Planned, Sharing, Solver, SolverOptions
from bfn.core.table import MAPS_TO_END, TABLES, Table
from bfn.solvers.multistep import BOTH, Multistep

DEFAULT_SPREAD, IMAGE_SPREAD = Spread(0.5, 1.0), Spread(0.5, 4.0)
"""Spreads of data if the model has none; data with a range of values are mostly images."""

EXTRAPOLATED_ABOVE = 7
"""With more calls the end of the ODE on numbers is extrapolated."""

MOST_WHOLE = 4
"""Maximum number of calls for which "auto" draws whole strings. With more calls, steps along the marginals are better:
their predictions are those of the network, which whole strings use only as evidence for the chain
(docs/results/few-step.md)."""


@dataclass(frozen=True)
class Anchor:
    """Settings of the few-step rule for one number of calls.

    Attributes:
        calls: number of network calls.
        g: stochasticity.
        order: number of predictions that a step uses.
        end: where the last call is made: s for numbers, t for classes.
        exponent: the i-th of n steps ends at (i/n)^exponent of the way, in log(1 + s/d) for numbers, in s for classes.
        scale: d, relative to the largest standard deviation of the data.
        power: predictions of classes are extrapolated in s^power, those of numbers in asinh(s/d).
        quiet: number of first steps without noise.
        corrector: see ``Multistep``.
        in_t: whether the steps are equal in t instead; the end is then a time.
        unseen: share of the model's error at t = 0 that is left at the first call, which then sees plain noise as if it
            were a state there; 1 for a first call at t = 0.
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
        """Return the solver with these settings for a model with these facts."""
        curve = None if info is None else info[ERROR_CURVE]
        first = 0.0 if curve is None or self.unseen >= 1 else curve.time_of_share(self.unseen)
        base = Multistep(
            name, f"order {self.order}, {'ODE' if self.g == 0 else 'SDE with the dial'}", (flow.kind,), self.order,
            t_start=first, g=self.g, has_dial=True, quiet=self.quiet, corrector=self.corrector,
        )  # fmt: skip
        if not flow.has_range:
            power = Power(self.exponent, min(1.0, self.end))
            return replace(base, grid=Uniform(self.end) if self.in_t else power, coordinate=f"s^{self.power:g}")
        scale = self.scale / spread_of(flow, info).widest
        grid: Grid = Uniform(self.end) if self.in_t else Log1p(self.end, scale, self.exponent)
        extrapolates = self.g == 0 and self.corrector and self.calls > EXTRAPOLATED_ABOVE
        return replace(base, grid=grid, coordinate="asinh", scale=scale, extrapolates_end=extrapolates)


def interpolated(anchors: Sequence[Anchor], calls: int) -> Anchor:
    """Return the settings for any number of calls.

    Numbers are interpolated in log(calls). Integers and booleans are those of the nearer anchor. Outside of the anchors
    the settings are constant.
    """
    low = max((anchor for anchor in anchors if anchor.calls <= calls), key=_calls, default=anchors[0])
    high = min((anchor for anchor in anchors if anchor.calls >= calls), key=_calls, default=anchors[-1])
    share = 0.0 if low is high else log(calls / low.calls) / log(high.calls / low.calls)
    near = low if share < 0.5 else high
    quiet = min(near.quiet, max(0, calls - 2))
    if low is high:
        return replace(low, calls=calls, quiet=quiet)

    def between(a: float, b: float) -> float:
        return a + share * (b - a)

    numbers: dict[str, Any] = {name: between(getattr(low, name), getattr(high, name)) for name in INTERPOLATED}
    g, end = expm1(between(log1p(low.g), log1p(high.g))), exp(between(log(low.end), log(high.end)))
    return replace(near, calls=calls, g=g, end=end, quiet=quiet, **numbers)


INTERPOLATED = ("exponent", "scale", "power", "unseen")
"""Settings that are interpolated linearly in log(calls)."""


def _calls(anchor: Anchor) -> int:
    return anchor.calls


@dataclass(frozen=True)
class Calibration:
    """Anchors that were found for one model by ``bfn.tuning.calibrate``.

    Attributes:
        anchors: settings, by increasing numbers of calls.
        losses: value of the objective at each anchor.
        objective: name of the objective.
    """

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


Anchors = tuple[Anchor, ...]


@dataclass(frozen=True, kw_only=True)
class ByKind(Solver):
    """Base class of solvers that stand for another one, which depends on the kind of data."""

    def table(self, flow: PartFlow, nodes: Sequence[float]) -> Table:
        return self.resolve(flow, len(nodes)).table(flow, nodes)


@dataclass(frozen=True, kw_only=True)
class Rule(ByKind):
    """Settings over the number of calls, for each kind of data.

    Attributes:
        numbers, two_classes, classes: anchors for real numbers, for two classes and for more classes.
        shared: anchors for numbers and for classes if parts of joint data share their times; None for the same ones.
        tables: the same for rows of tables.
        adapts: whether the model's own anchors are used if it has some, and those of the ODE if it is exact.
    """

    numbers: Anchors
    two_classes: Anchors
    classes: Anchors
    shared: tuple[Anchors, Anchors] | None = None
    tables: tuple[Anchors, Anchors] | None = None
    adapts: bool = False

    def anchors(self, flow: PartFlow, info: ModelInfo | None = None, sharing: Sharing = "alone") -> Anchors:
        """Return the anchors for a kind of data, or the model's own."""
        kind = 0 if flow.has_range else 1
        if self.adapts and info is not None:
            if (calibration := info[CALIBRATION]) is not None:
                return calibration.anchors
            if info[EXACT]:
                return (ODE_NUMBERS, ODE_CLASSES)[kind]
        shared = {"alone": None, "parts": self.shared, "rows": self.tables}[sharing]
        if shared is not None:
            return shared[kind]
        return (self.numbers, self.two_classes if flow.n_values == 2 else self.classes)[kind]

    def resolve(self, flow: PartFlow, nfe: int, info: ModelInfo | None = None, sharing: Sharing = "alone") -> Solver:
        anchor = interpolated(self.anchors(flow, info, sharing), nfe)
        name = "fast-ode" if anchor.g == 0 and anchor.corrector else "fast-sde"
        return replace(anchor.solver(flow, info, name), has_dial=self.has_dial)


def spread_of(flow: PartFlow, info: ModelInfo | None) -> Spread:
    """Return the spread of the model's data: the stored one, or one from its error curve, or a default."""
    if info is None:
        return DEFAULT_SPREAD
    spread, curve = info[SPREADS].get(""), info[ERROR_CURVE]
    if spread is None and curve is not None and flow.has_range:
        spread = Spread.from_curve(curve, flow)
    return spread or (DEFAULT_SPREAD if info[VALUE_RANGE] is None else IMAGE_SPREAD)


# Numbers end at s = calls^2 / 5, where the last prediction of an exact model is as good as the steps before it. With
# few calls, an end at s(1) would spend them on details below a thousandth of the scale of the data.
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
"""Anchors for trained networks, measured on the bundled models (docs/results/few-step.md).

They have order 2 and g above 1: with new noise, later calls correct the errors of earlier ones. With more calls less of
it is best. With few calls an early end is best: the details that are left there are smaller than the error of the
network. Among many classes the probability of the right one rises late and steeply, hence the power of s. At t = 0 a
network predicts the same for all samples, so a single call is made later.
"""

_EARLY = ((1, 1.0, 0.4), (3, 1.0, 0.57), (5, 1.0, 0.75), (10, 2.0, 0.9), (20, 1.5, 1.0), (50, 1.0, 1.0))
SHARED_NUMBERS = tuple(Anchor(calls, g, 2, end, in_t=True) for calls, g, end in _EARLY)
SHARED_CLASSES = tuple(Anchor(calls, g, 3, end, in_t=True) for calls, g, end in _EARLY)
"""Anchors for parts that share their times, such as molecules as points (docs/results/few-step.md). An early end
matters most with few calls, as for data of one kind."""

_TABLE_ENDS = ((1, 0.0, 2.0), (3, 0.0, 6.0), (5, 0.0, 9.0), (10, 0.0, 18.0), (20, 0.5, 30.0), (50, 0.5, 50.0))
TABLE_NUMBERS = tuple(Anchor(calls, g, 3, end, scale=0.35, corrector=True) for calls, g, end in _TABLE_ENDS)
TABLE_CLASSES = SHARED_CLASSES
"""Anchors for rows of tables: the ODE for numbers, noise for classes (docs/results/few-step.md). All columns share the
mean of the times that each of them would have."""


@dataclass(frozen=True, kw_only=True)
class Fixed(ByKind):
    """One solver for numbers and one for classes, for any number of calls."""

    numbers: Multistep
    classes: Multistep

    def resolve(self, flow: PartFlow, nfe: int, info: ModelInfo | None = None, sharing: Sharing = "alone") -> Solver:
        return self.numbers if flow.has_range else self.classes


def multistep_by_name(name: str) -> Solver:
    """Return the multistep solver "multistep:ORDER:COORDINATE" or "multistep:ORDER:COORDINATE:corrector".

    It starts at t = 0 (in log s at 1e-3), on a grid for the kind of data, with g = 0 unless it is set.
    """
    _, *words = name.split(":")
    if words[2:] not in ([], ["corrector"]) or len(words) < 2 or not words[0].isdecimal():
        raise UserError(
            f"solver={name!r}: expected multistep:ORDER:COORDINATE, such as multistep:3:asinh, or with :corrector"
        )
    order, coordinate, corrector = int(words[0]), words[1], len(words) > 2
    base = Multistep(
        name, "of the multistep family", BOTH, order=order, coordinate=coordinate, corrector=corrector, has_dial=True,
        t_start=1e-3 if coordinate == "log s" else 0.0,
    )  # fmt: skip
    numbers, classes = replace(base, grid=Log1p()), replace(base, grid=Power())
    return Fixed(name, base.summary, BOTH, order=order, has_dial=True, numbers=numbers, classes=classes)


_RENOISING = Multistep("renoising", "noised again after each call", BOTH, order=1, g=inf, t_start=0.0)

RENOISING = Fixed(
    _RENOISING.name, _RENOISING.summary, BOTH, order=1, g=inf,
    numbers=replace(_RENOISING, grid=Log1pEarly()), classes=replace(_RENOISING, grid=Power(1.0, 0.8)),
)  # fmt: skip
"""Solver of distilled models, which predict the end of the path of a state: u_next = s w_hat + sqrt(kappa) noise."""

WHOLE = Multistep(
    "whole", "whole strings drawn at every call", ("discrete",), order=1, g=1.0, draws=True, whole=True, grid=Uniform(),
    t_start=0.0, from_prior=True,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Auto(Rule):
    """Choose a solver for a model. In this order:

    1. the table that was tuned to the model for this number of calls, if no other option is given
    2. for a distilled model, noise the prediction again after each call
    3. for few calls, draw whole strings, if the network can do that and nothing changes its predictions
    4. the few-step rule of the model's calibration or kind of data
    """

    def prepare(self, model: Planned, options: SolverOptions) -> Solver | Table:
        """Return the solver for a model, or a tuned table."""
        no_options = all(value is None for value in (options.grid, options.t_start, options.g, options.path))
        if no_options and options.calls in model.info[TABLES]:
            return model.info[TABLES][options.calls]
        if model.info[MAPS_TO_END]:
            return RENOISING
        may_draw_whole = no_options and options.plain and options.calls <= MOST_WHOLE
        if may_draw_whole and getattr(model, "draws_whole", False):
            return WHOLE
        return self


NOISY: dict[str, Any] = {
    "numbers": NUMBERS, "two_classes": TWO_CLASSES, "classes": CLASSES, "shared": (SHARED_NUMBERS, SHARED_CLASSES),
    "tables": (TABLE_NUMBERS, TABLE_CLASSES), "order": 2, "g": 2.0, "has_dial": True,
}  # fmt: skip

FEW_STEP: tuple[Solver, ...] = (
    Rule("fast-ode", "our best deterministic few-step solver", BOTH, order=3, numbers=ODE_NUMBERS,
         two_classes=ODE_CLASSES, classes=ODE_CLASSES),
    Rule("fast-sde", "our best with the stochasticity dial", BOTH, **NOISY),
    Auto("auto", "the default: calibrated to the model, or fast-ode on exact models, or fast-sde", BOTH, adapts=True,
         **NOISY),
)  # fmt: skip

CALIBRATION: Fact[Calibration | None] = Fact("calibration", Calibration | None, None)
"""Settings of the solver "auto" that were found for the model."""
