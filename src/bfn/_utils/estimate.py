"""A figure with its 95 % interval, and the ways to get one: means, shares, and anything else by the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.core.errors import UserError

LEVEL = 0.95
"""Confidence of every interval in this library."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval, NaN where there is none.

    >>> print(Estimate(2.0, 1.5, 2.75))
    2.0000 [1.5000, 2.7500]
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    def overlaps(self, other: Estimate) -> bool:
        """Whether the intervals share a point; a figure without an interval is its own."""
        first, second = ((e.value, e.value) if math.isnan(e.low) else (e.low, e.high) for e in (self, other))
        return first[0] <= second[1] and second[0] <= first[1]

    def scaled(self, factor: float) -> Estimate:
        """The figure and its interval in another unit; factor above 0."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def within(self, lowest: float = -math.inf, highest: float = math.inf) -> Estimate:
        """The same with an interval that goes no further than the measure can."""
        return Estimate(self.value, max(lowest, self.low), min(highest, self.high))

    def asdict(self) -> dict[str, float | None]:
        """For JSON, which knows no NaN."""
        figures = {"value": self.value, "low": self.low, "high": self.high}
        return {name: None if math.isnan(figure) else figure for name, figure in figures.items()}

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:.4f}, {self.high:.4f}]"
        return f"{self.value:.4f}{interval}"


def mean_estimate(values: Sequence[float] | Tensor) -> Estimate:
    """The mean of independent values, with Student's interval; one value alone has none."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

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
    """A share of independent trials, with Wilson's interval (1927): right for few trials, and for none or all."""
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    if not 0 <= n_successes <= n_trials or n_trials == 0:
        raise UserError(f"{n_successes} successes of {n_trials} trials: expected 0 <= successes <= trials, trials > 0")
    interval = binomtest(n_successes, n_trials).proportion_ci(LEVEL, method="wilson")
    return Estimate(n_successes / n_trials, float(interval.low), float(interval.high))


def bootstrap_estimates(
    statistics: Callable[[Tensor], Tensor], n_samples: int, *, generator: torch.Generator, n_resamples: int = 200
) -> list[Estimate]:
    """Several statistics, (k,), as a function of the indices (n_samples,) of the samples to use.

    The resampled values are shifted so that their mean is the value on all samples. Statistics such as the Frechet
    distance are biased upwards by a finite sample, and resampling adds that bias once more; the shift takes the
    addition away, so the interval is that of the statistic *at this number of samples*. Values at the same number of
    samples can be compared by their intervals.
    """
    if n_samples < 2 or n_resamples < 2:
        raise UserError(f"n_samples={n_samples}, n_resamples={n_resamples}: a bootstrap needs at least 2 of each")
    values = statistics(torch.arange(n_samples)).double()
    draws = (torch.randint(n_samples, (n_samples,), generator=generator) for _ in range(n_resamples))
    resampled = torch.stack([statistics(index).double() for index in draws])
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = (resampled - resampled.mean(0) + values).quantile(tails, dim=0)
    return [Estimate(*figures) for figures in zip(values.tolist(), low.tolist(), high.tolist(), strict=True)]
