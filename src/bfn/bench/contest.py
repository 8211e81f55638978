"""Ratios of times that were measured in turn within one run: machines are shared and noisy, ratios much less so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from time import process_time
from typing import Any, Literal

from scipy import stats  # type: ignore[import-untyped]

__all__ = ["Figure", "contest", "ratio_of"]


@dataclass(frozen=True)
class Figure:
    """A measured ratio: the median over rounds, with the 95 % interval of the median by order statistics.

    Of fewer than 6 rounds it is their whole range, which is less sure.

    part: of the bench. name: what is compared. unit: where it is not a ratio. goal: what it is to be at least or at
    most, None where it is only told. note: what a reader should know.
    """

    part: str
    name: str
    value: float
    low: float
    high: float
    rounds: int
    goal: float | None = None
    side: Literal["at most", "at least"] = "at most"
    unit: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it is what it is to be."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.side == "at most" else self.value >= self.goal

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "met": self.met}

    def line(self) -> str:
        """For people."""
        goal = "" if self.goal is None else f"{self.side} {self.goal:g}: {'met' if self.met else 'MISSED'}"
        interval = f"[{self.low:.3g}, {self.high:.3g}]" if self.rounds > 1 else ""
        note = f"  ({self.note})" if self.note else ""
        return f"  {self.name:58}{self.value:9.3f} {self.unit:4}{interval:17}{goal}{note}".rstrip()


def contest(
    contestants: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = process_time
) -> dict[str, list[float]]:
    """Seconds of each in each round, after one that does not count; every other round goes the other way round.

    The clock is that of the process's own work: what others on the machine do counts only by what they take of caches
    and memory.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(rounds + 1):
        names = [*contestants] if round_ % 2 else [*contestants][::-1]
        for name in names:
            start = clock()
            contestants[name]()
            seconds[name].append(clock() - start)
    return {name: taken[1:] for name, taken in seconds.items()}


def ratio_of(part: str, name: str, over: list[float], under: list[float], factor: float = 1.0, **about: Any) -> Figure:
    """The figure of the times ``over`` those ``under``, round by round, times a factor."""
    ratios = sorted(factor * a / b for a, b in zip(over, under, strict=True))
    n = len(ratios)
    k = int(stats.binom.ppf(0.025, n, 0.5))  # the interval is from the k-th to the k-th last
    return Figure(part, name, median(ratios), ratios[max(k - 1, 0)], ratios[min(n - k, n - 1)], n, **about)
