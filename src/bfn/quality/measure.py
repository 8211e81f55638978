"""A figure with its interval, and what it means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Measured:
    """A figure and its 95 % interval (NaN where there is none)."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def overlaps(self, other: Measured) -> bool:
        """Whether the intervals share a point; a figure without an interval is its own."""
        bounds = [(m.value, m.value) if math.isnan(m.low) else (m.low, m.high) for m in (self, other)]
        return bounds[0][0] <= bounds[1][1] and bounds[1][0] <= bounds[0][1]


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

    def show(self, measured: Measured) -> str:
        """The figure with its interval and unit."""
        interval = "" if math.isnan(measured.low) else f" [{self.number(measured.low)}, {self.number(measured.high)}]"
        return f"{self.number(measured.value)}{interval}{self.unit and ' ' + self.unit}"

    def loss(self, value: float, real: float = math.nan) -> float:
        """The figure so that lower is better."""
        return {"low": value, "high": -value, "real": abs(value - real)}[self.better]
