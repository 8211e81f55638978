"""Confidence intervals: proportions (Wilson), repeats (Student's t), anything else (bootstrap)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from bfn.errors import UserError


@dataclass(frozen=True)
class Interval:
    """A confidence interval [low, high]."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high


def wilson_interval(n_successes: int, n_trials: int, *, level: float = 0.95) -> Interval:
    """Interval of a proportion after Wilson (1927): inside [0, 1], right for few trials and for 0 or all successes.

    The trials must be independent: words of one text are not (`SpellingResult.standard_error` allows for that).
    """
    if not 0 <= n_successes <= n_trials or n_trials == 0:
        raise UserError(f"{n_successes} successes of {n_trials} trials: expected 0 <= successes <= trials, trials > 0")
    z = normal_quantile(level)
    p, n = n_successes / n_trials, n_trials
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At 0 and n successes the bound is exactly 0 and 1; rounding must not say otherwise.
    return Interval(0.0 if n_successes == 0 else center - half, 1.0 if n_successes == n else center + half)


def normal_quantile(level: float = 0.95) -> float:
    """Standard errors on each side of a mean that hold this share of a normal distribution: 1.96 for 95 %."""
    return NormalDist().inv_cdf(0.5 + _checked(level) / 2)


def t_interval(values: Sequence[float] | Tensor, *, level: float = 0.95) -> Interval:
    """Interval of the mean of a few independent repeats (runs with different seeds), after Student (1908)."""
    x = torch.as_tensor(values, dtype=torch.float64)
    if x.ndim != 1 or len(x) < 2:
        raise UserError(
            f"values of shape {tuple(x.shape)}: an interval of a mean needs at least 2 repeats in one dimension"
        )
    half = t_quantile(0.5 + _checked(level) / 2, len(x) - 1) * x.std().item() / math.sqrt(len(x))
    return Interval(x.mean().item() - half, x.mean().item() + half)


def bootstrap_interval(
    statistic: Callable[[Tensor], float],
    n_samples: int,
    *,
    generator: torch.Generator,
    n_resamples: int = 200,
    level: float = 0.95,
) -> Interval:
    """Bootstrap interval of `statistic`, a function of the indices (n_samples,) of the samples to use.

    The resampled values are shifted so that their mean is the value on all samples. Statistics such as the Frechet
    distance are biased upwards by a finite sample, and resampling adds that bias once more; the shift takes the
    addition away, so the interval is that of the statistic *at this number of samples*. Values at the same number of
    samples can be compared by their intervals.
    """
    (interval,) = bootstrap_intervals(
        lambda index: torch.tensor([statistic(index)], dtype=torch.float64),
        n_samples, generator=generator, n_resamples=n_resamples, level=level,
    )  # fmt: skip
    return interval


def bootstrap_intervals(
    statistics: Callable[[Tensor], Tensor],
    n_samples: int,
    *,
    generator: torch.Generator,
    n_resamples: int = 200,
    level: float = 0.95,
) -> list[Interval]:
    """`bootstrap_interval` of each of several statistics, (k,), that are made from the same resamples."""
    if n_samples < 2 or n_resamples < 2:
        raise UserError(f"n_samples={n_samples}, n_resamples={n_resamples}: a bootstrap needs at least 2 of each")
    values = statistics(torch.arange(n_samples)).double()
    draws = (torch.randint(n_samples, (n_samples,), generator=generator) for _ in range(n_resamples))
    resampled = torch.stack([statistics(index).double() for index in draws])
    tail = (1 - _checked(level)) / 2
    centred = resampled - resampled.mean(0) + values
    low, high = centred.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0)
    return [Interval(*bounds) for bounds in zip(low.tolist(), high.tolist(), strict=True)]


def t_quantile(p: float, n_degrees: int) -> float:
    """Quantile of Student's t with a whole number of degrees of freedom.

    Bisection on theta = atan(t / sqrt(n)), in which the distribution function is a finite sum (Abramowitz and Stegun
    26.7.3-4).
    """
    if not 0 < p < 1 or n_degrees < 1:
        raise UserError(f"p={p}, n_degrees={n_degrees}: expected 0 < p < 1 and at least 1 degree of freedom")
    if p < 0.5:
        return -t_quantile(1 - p, n_degrees)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_central_mass(middle, n_degrees) < 2 * p - 1 else (low, middle)
    return math.sqrt(n_degrees) * math.tan((low + high) / 2)


def _t_central_mass(theta: float, n_degrees: int) -> float:
    """P(|T| < sqrt(n) tan theta)."""
    odd = n_degrees % 2
    term, total = (math.cos(theta) if odd else 1.0), 0.0
    for k in range(1 + odd, n_degrees, 2):
        total += term
        term *= k / (k + 1) * math.cos(theta) ** 2
    mass = math.sin(theta) * total
    return 2 / math.pi * (theta + mass) if odd else mass


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise UserError(f"level={level}: expected a confidence level between 0 and 1, such as 0.95")
    return level
