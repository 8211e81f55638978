"""The settings of a likelihood, and what does not fit together among them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from torch import Tensor

from bfn.arguments import MOST_COUNT, check_real, check_whole
from bfn.errors import UserError

if TYPE_CHECKING:
    from bfn.flows import Flow
    from bfn.model import Model

__all__ = ["NFE", "Dequantise", "Divergence", "Method", "Settings"]

Method = Literal["ode", "bound", "n-step"]
"""How a likelihood is had: the probability-flow ODE, the continuous-time bound, or the bound of n steps."""
Divergence = Literal["exact", "hutchinson"]
"""How the divergence of the ODE is had: term by term, or by random probes."""
Dequantise = Literal["uniform", "noise"]
"""What is added to data of whole levels to give them a density."""

NFE = 100
"""Network calls a sample where neither their number nor a tolerance is given."""

MOST_NFE = 10_000
"""Calls after which adaptive steps give up: the tolerance is then finer than the network's rounding."""

EXACT_DEFAULT, EXACT_LIMIT = 100, 1024
"""Up to so many dimensions the divergence is exact if nothing is said, and at most if it is asked for."""


@dataclass(frozen=True)
class Settings:
    """The settings of :func:`bfn.likelihood.log_likelihood`, which says what each means."""

    method: Method
    nfe: int | None
    tolerance: float | None
    divergence: Divergence | None
    probes: int
    importance: int
    levels: int | None
    dequantise: Dequantise
    variance: Tensor | None

    @property
    def calls(self) -> int:
        """Network calls a sample; with a tolerance, at most."""
        return self.nfe or (NFE if self.tolerance is None else MOST_NFE)

    def is_exact(self, n_states: int) -> bool:
        """Whether the divergence in so many dimensions is exact."""
        return n_states <= EXACT_DEFAULT if self.divergence is None else self.divergence == "exact"

    def check(self, model: Model, x: Tensor) -> None:
        """Refuse what does not fit together, in one line each."""
        for problem in self._problems(model.flow, math.prod(model.flow.state_shape(model.data_shape)), x):
            raise UserError(problem)

    def _problems(self, flow: Flow, n_states: int, x: Tensor) -> Iterator[str]:
        names = {"method": Method, "divergence": Divergence, "dequantise": Dequantise}
        for name, allowed in ((name, get_args(kind)) for name, kind in names.items()):
            if (value := getattr(self, name)) not in allowed and (name, value) != ("divergence", None):
                yield f"{name}={value!r}: expected one of {', '.join(allowed)}"
        if isinstance(self.nfe, int) and self.nfe < 5:
            yield f"nfe={self.nfe}: expected at least 5 network calls a sample"
        for name in ("nfe", "probes", "importance"):
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, 1, 10**6)
        if self.probes > 1 and self.method == "ode" and self.is_exact(n_states):
            yield f"probes={self.probes} with an exact divergence, which needs none: take divergence='hutchinson'"
        check_real("tolerance", self.tolerance)
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            yield f"tolerance={self.tolerance:g}: expected a positive error, such as 1e-4"
        if self.tolerance is not None and self.tolerance < sys.float_info.epsilon:
            yield f"tolerance={self.tolerance:g}: finer than any number is rounded; expected an error such as 1e-4"
        usual = {"tolerance": None, "divergence": None, "levels": None, "importance": 1, "probes": 1}
        for name in (name for name, value in usual.items() if getattr(self, name) != value and self.method != "ode"):
            yield f"{name} with method={self.method!r}: it belongs to method='ode'"
        if self.variance is not None:
            yield from self._variance_problems(flow, self.variance)
        if self.levels is not None:
            yield from self._level_problems(flow, self.levels, x)
        elif self.dequantise != "uniform":
            yield f"dequantise={self.dequantise!r} without levels: say how many values there are, such as levels=256"
        elif flow.has_range and self.importance > 1:
            yield f"importance={self.importance}: a density needs no draws; give levels to bound a probability"
        if self.importance > 1 and self.probes == 1 and not self.is_exact(n_states):
            yield (
                f"importance={self.importance} with divergence='hutchinson' and probes=1: weights as noisy as that of "
                "one probe give no bound; take probes=2 or more"
            )
        if self.divergence == "exact" and n_states > EXACT_LIMIT:
            yield (
                f"divergence='exact' in {n_states} dimensions: it takes a backward pass for each at every call (at "
                f"most {EXACT_LIMIT}); take 'hutchinson'"
            )

    def _variance_problems(self, flow: Flow, variance: Tensor) -> Iterator[str]:
        if self.method != "n-step" or not flow.has_range:
            yield f"variance with method={self.method!r} on {flow.kind} data: it is for 'n-step' on continuous data"
        if tuple(variance.shape) != (self.calls - 1,):
            yield f"variance of shape {tuple(variance.shape)}: expected one a step, nfe - 1 = {self.calls - 1} of them"
        if not bool(((variance >= 0) & variance.isfinite()).all()):
            yield f"variance from {float(variance.min()):g} on: expected finite numbers from 0 up"

    def _level_problems(self, flow: Flow, levels: int, x: Tensor) -> Iterator[str]:
        if not flow.has_range or not isinstance(levels, int) or levels < 2:
            yield (
                f"levels={levels} on {flow.kind} data: expected a whole number of values on [-1, 1] of "
                "continuous data, at least 2"
            )
        check_whole("levels", levels, 2, MOST_COUNT)
        # The values are 2 k / (levels - 1) - 1, to a hundredth of what lies between them.
        steps = (x.double() + 1) * (levels - 1) / 2
        off = ~((steps - steps.round().clamp(0, levels - 1)).abs() <= 0.01)
        if bool(off.any()):
            yield (
                f"levels={levels}: the data hold {float(x[off][0]):g}, which is none of so many values on [-1, 1]; "
                "say how many values the data take"
            )
