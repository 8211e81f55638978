"""Judges of samples: parts that see the same samples, each with a few measures.

Real data go through the same code, so every figure can be read beside what a real sample of the same size gets.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.estimate import Estimate
from bfn.pieces import digest

__all__ = ["Judge", "JudgePart", "Measure"]


@dataclass(frozen=True)
class Measure:
    """What a figure means and how it is written.

    better: whether a "low" or a "high" figure is better, or one near that of "real" data.
    scale, unit, digits: 100, "%" and 1 write 0.5 as "50.0 %". headline: whether samplers can be ranked by it.
    highest: the largest value there is; the smallest is 0 for all measures.
    """

    key: str
    label: str
    better: Literal["low", "high", "real"]
    unit: str = ""
    scale: float = 1.0
    digits: int = 2
    headline: bool = True
    highest: float = math.inf

    def number(self, value: float) -> str:
        """The figure alone, without its unit; small ones with more digits, so that as many are left of them."""
        scaled = abs(self.scale * value)
        small = math.isfinite(scaled) and 0 < scaled < 10 ** (1 - self.digits)
        digits = self.digits - 1 - math.floor(math.log10(scaled)) if small else self.digits
        return f"{self.scale * value:.{min(digits, 6)}f}"

    def show(self, figure: Estimate) -> str:
        """The figure with its interval and unit."""
        interval = "" if math.isnan(figure.low) else f" [{self.number(figure.low)}, {self.number(figure.high)}]"
        return f"{self.number(figure.value)}{interval}{self.unit and ' ' + self.unit}"

    def loss(self, value: float, real: float = math.nan) -> float:
        """The figure so that lower is better."""
        return {"low": value, "high": -value, "real": abs(value - real)}[self.better]


class JudgePart(ABC):
    """Some measures that are taken together."""

    @property
    @abstractmethod
    def measures(self) -> tuple[Measure, ...]:
        """What it gives."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the part, its constants and its reference: equal keys give equal figures on equal samples."""

    @property
    def by_construction(self) -> Mapping[str, Estimate]:
        """Figures that real data have by the way the measure is made."""
        return {}

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]] | None:
        """The other end of the scales, where there is one worth to be named: what it is, and its figures."""
        return None

    def problem(self, n: int) -> str | None:
        """Why n samples cannot be judged, in one line."""
        return None

    def figures_of_real(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        """Figures of held-out real data."""
        return {**self(x, labels), **self.by_construction}

    @abstractmethod
    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        """Figures of samples, as ``Judge.prepare`` makes them; labels: classes that were asked for."""


@dataclass(frozen=True, eq=False)
class Judge:
    """Parts that see the same samples.

    held_out: real data that are in no reference, prepared; labels: their classes, where there are any.
    prepare: makes of samples, as a model gives them, what the parts take, and refuses what they cannot.
    """

    name: str
    parts: tuple[JudgePart, ...]
    held_out: Tensor
    labels: Tensor | None = None
    prepare: Callable[[Any], Tensor] = lambda x: x

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All measures, the main one first."""
        return tuple(measure for part in self.parts for measure in part.measures)

    @property
    def key(self) -> str:
        """Names the judge and its references."""
        return f"{self.name}-{digest(*(part.key for part in self.parts))}"

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]] | None:
        """The other end of the scales, of the first part that has one."""
        return next((part.baseline for part in self.parts if part.baseline is not None), None)

    def __call__(self, x: Any, labels: Tensor | None = None) -> dict[str, Estimate]:
        """Figures of samples x as a model gives them; labels: (n,), the classes that were asked for."""
        prepared = self.prepare(x).cpu()
        if len(prepared) == 0:
            raise UserError("no samples: expected at least 1")
        return self._judge(prepared, None if labels is None else labels.cpu())

    def real(self, n: int) -> dict[str, Estimate]:
        """Figures of n real samples, or of as many as are held out."""
        index = torch.arange(self.n_real(n)) * len(self.held_out) // self.n_real(n)
        x, labels = self.held_out[index], None if self.labels is None else self.labels[index]
        return {key: value for part in self.parts for key, value in part.figures_of_real(x, labels).items()}

    def n_real(self, n: int) -> int:
        """How many real samples ``real(n)`` judges."""
        return min(n, len(self.held_out))

    def check(self, n: int) -> None:
        """Refuse a number of samples that is too small for a part."""
        for problem in self._problems(n):
            raise UserError(problem)

    def suited(self, n: int) -> tuple[Self, list[str]]:
        """The judge without the parts that n samples are too few for, and why; an error if none ranks samplers."""
        problems = self._problems(n)
        kept = tuple(part for part in self.parts if part.problem(n) is None)
        if not any(measure.headline for part in kept for measure in part.measures):
            raise UserError(problems[0])
        return replace(self, parts=kept), problems

    def _problems(self, n: int) -> list[str]:
        return [problem for part in self.parts if (problem := part.problem(n))]

    def _judge(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        return {key: value for part in self.parts for key, value in part(x, labels).items()}
