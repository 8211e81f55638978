"""The settings of a likelihood, and what does not fit together among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from torch import Tensor

from bfn.errors import UserError

if TYPE_CHECKING:
    from bfn.model import Model

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
        for name, value, allowed in (
            ("method", self.method, get_args(Method)),
            ("divergence", "exact" if self.divergence is None else self.divergence, get_args(Divergence)),
            ("dequantise", self.dequantise, get_args(Dequantise)),
        ):
            if value not in allowed:
                raise UserError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
        if self.nfe is not None and self.nfe < 5:
            raise UserError(f"nfe={self.nfe}: expected at least 5 network calls a sample")
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise UserError(f"tolerance={self.tolerance:g}: expected a positive error, such as 1e-4")
        if self.method != "ode":
            self._check_bound()
        self._check_variance(model)
        self._check_levels(model, x)
        self._check_divergence(math.prod(model.flow.state_shape(model.data_shape)))

    def _check_bound(self) -> None:
        given = {"tolerance": self.tolerance, "divergence": self.divergence, "levels": self.levels}
        wrong = [name for name, value in given.items() if value is not None]
        wrong += [name for name, count in (("importance", self.importance), ("probes", self.probes)) if count > 1]
        if wrong:
            raise UserError(f"{wrong[0]} with method={self.method!r}: it belongs to method='ode'")

    def _check_variance(self, model: Model) -> None:
        if self.variance is None:
            return
        if self.method != "n-step" or not model.flow.has_range:
            raise UserError(
                f"variance with method={self.method!r} on {model.flow.kind} data: it is for 'n-step' on continuous data"
            )
        n_steps = self.calls - 1
        if tuple(self.variance.shape) != (n_steps,):
            raise UserError(
                f"variance of shape {tuple(self.variance.shape)}: expected one a step, nfe - 1 = {n_steps} of them"
            )
        if not bool(((self.variance >= 0) & self.variance.isfinite()).all()):
            raise UserError(f"variance from {float(self.variance.min()):g} on: expected finite numbers from 0 up")

    def _check_levels(self, model: Model, x: Tensor) -> None:
        levels, has_density = self.levels, model.flow.has_range
        if levels is None and self.dequantise != "uniform":
            raise UserError(
                f"dequantise={self.dequantise!r} without levels: say how many values there are, such as levels=256"
            )
        if levels is None and has_density and self.importance > 1:
            raise UserError(
                f"importance={self.importance}: a density needs no draws; give levels to bound a probability"
            )
        if levels is None:
            return
        if not has_density or not isinstance(levels, int) or levels < 2:
            raise UserError(
                f"levels={levels} on {model.flow.kind} data: expected a whole number of values on [-1, 1] of "
                "continuous data, at least 2"
            )
        # The values are 2 k / (levels - 1) - 1, to a hundredth of what lies between them.
        steps = (x.double() + 1) * (levels - 1) / 2
        off = ~((steps - steps.round().clamp(0, levels - 1)).abs() <= 0.01)
        if bool(off.any()):
            raise UserError(
                f"levels={levels}: the data hold {float(x[off][0]):g}, which is none of so many values on [-1, 1]; "
                "say how many values the data take"
            )

    def _check_divergence(self, n_states: int) -> None:
        if self.importance > 1 and self.probes == 1 and not self.is_exact(n_states):
            raise UserError(
                f"importance={self.importance} with divergence='hutchinson' and probes=1: weights as noisy as that of "
                "one probe give no bound; take probes=2 or more"
            )
        if self.divergence == "exact" and n_states > EXACT_LIMIT:
            raise UserError(
                f"divergence='exact' in {n_states} dimensions: it takes a backward pass for each at every call (at "
                f"most {EXACT_LIMIT}); take 'hutchinson'"
            )
