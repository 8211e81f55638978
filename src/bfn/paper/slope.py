"""The power by which one quantity goes with another."""

import math
from collections.abc import Sequence

import torch

__all__ = ["log_log_slope"]


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of log y against log x, by least squares; NaN for a single point, or a y that is not above 0.

    >>> round(log_log_slope([1, 2, 4], [3, 12, 48]), 9)
    2.0
    """
    if len(x) < 2 or min(y) <= 0:
        return math.nan
    logs = torch.tensor([x, y], dtype=torch.float64).log()
    centred = logs[0] - logs[0].mean()
    return float((centred * logs[1]).sum() / centred.square().sum())
