"""Figures with 95 % intervals: means, shares, and other statistics by the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.core.errors import UserError

LEVEL = 0.95
"""Confidence level of every interval in this library."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; the ends are NaN if there is none.

    >>> print(Estimate(2.0, 1.5, 2.75))
    2.0000 [1.5000, 2.7500]
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def overlaps(self, other: Estimate) -> bool:
        """Return True if the intervals share a point. A figure without one counts as a point."""
        first, second = ((e.value, e.value) if math.isnan(e.low) else (e.low, e.high) for e in (self, other))
        return first[0] <= second[1] and second[0] <= first[1]

    def scaled(self, factor: float) -> Estimate:
        """Return the figure and its interval times a factor above 0."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def within(self, lowest: float = -math.inf, highest: float = math.inf) -> Estimate:
        """Return the estimate with value and interval clipped to the range of the measure."""
        low, high = min(max(lowest, self.low), highest), max(min(highest, self.high), lowest)
        return Estimate(min(max(self.value, lowest), highest), low, high)

    def asdict(self) -> dict[str, float | None]:
        """Return value, low and high for JSON; None instead of NaN."""
        figures = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if math.isnan(figure) else figure for name, figure in figures.items()}

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:.4f}, {self.high:.4f}]"
        return f"{self.value:.4f}{interval}"


def mean_estimate(values: Sequence[float] | Tensor) -> Estimate:
    """Return the mean of independent values with Student's interval; a single value has no interval."""
    from scipy.special import stdtrit

    x = torch.as_tensor(values).detach().double().cpu()
    if x.ndim != 1 or len(x) == 0:
        raise UserError(f"values of shape {tuple(x.shape)}: expected at least 1 value, in one dimension")
    wrong = int((~torch.isfinite(x)).sum())
    if wrong:
        raise UserError(f"{wrong} of {len(x)} values are NaN or infinite: expected finite numbers")
    mean = x.mean().item()
    if len(x) == 1:
        return Estimate(mean)
    half = float(stdtrit(len(x) - 1, 0.5 + LEVEL / 2)) * x.std().item() / math.sqrt(len(x))
    return Estimate(mean, mean - half, mean + half)


def share_estimate(n_successes: int, n_trials: int) -> Estimate:
    """Return the share of successful trials with Wilson's interval (1927), which suits few trials too."""
    from scipy.stats import binomtest

    if not 0 <= n_successes <= n_trials or n_trials == 0:
        raise UserError(f"{n_successes} successes of {n_trials} trials: expected 0 <= successes <= trials, trials > 0")
    interval = binomtest(n_successes, n_trials).proportion_ci(LEVEL, method="wilson")
    return Estimate(n_successes / n_trials, float(interval.low), float(interval.high))


def bootstrap_estimates(
    statistics: Callable[[Tensor], Tensor], n_samples: int, *, generator: torch.Generator, n_resamples: int = 200
) -> list[Estimate]:
    """Return statistics with bootstrap intervals.

    The resampled values are shifted so that their mean is the value on all samples. Statistics such as the Frechet
    distance are biased upwards by a finite sample, and resampling adds that bias once more. The shift removes the
    second bias, so intervals are comparable between values at the same number of samples.

    Args:
        statistics: function of the indices of the samples to use, (n_samples,), that returns the statistics, (k,).
        n_samples: number of samples.
        generator: source of the random numbers.
        n_resamples: number of bootstrap resamples.
    """
    if n_samples < 2 or n_resamples < 2:
        raise UserError(f"n_samples={n_samples}, n_resamples={n_resamples}: a bootstrap needs at least 2 of each")
    values = statistics(torch.arange(n_samples)).double()
    draws = (torch.randint(n_samples, (n_samples,), generator=generator) for _ in range(n_resamples))
    resampled = torch.stack([statistics(index).double() for index in draws])
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = (resampled - resampled.mean(0) + values).quantile(tails, dim=0)
    return [Estimate(*figures) for figures in zip(values.tolist(), low.tolist(), high.tolist(), strict=True)]
