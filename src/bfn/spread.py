"""How far apart data of numbers lie: what sets the scale on which their flow is resolved."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.core.info import NOTHING, Fact
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError
from bfn.flows import Flow

__all__ = ["Spread"]

MOST = 2000
"""Samples that a spread is measured on, at most."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of data: of one number on average, and along the widest direction.

    A direction of variance v is resolved where s^2 v = 1, so the widest one is the first to be.
    """

    std: float
    widest: float

    def __post_init__(self) -> None:
        if not 0 < self.std <= self.widest * (1 + 1e-6) < float("inf"):
            raise UserError(f"spread {self.std}, {self.widest}: expected 0 < std <= widest")

    @classmethod
    def of(cls, x: Tensor, label: Tensor | None = None) -> "Spread | None":
        """Of data, (n, ...), about their mean, or about the mean of their class; None for fewer than 2 or constant."""
        rows = torch.arange(min(MOST, len(x))) * len(x) // max(1, min(MOST, len(x)))
        flat = x[rows].reshape(len(rows), -1).double()
        groups = torch.zeros(len(flat), dtype=torch.int64) if label is None else label[rows].cpu().long() + 1
        for group in set(groups.tolist()):
            flat[groups == group] -= flat[groups == group].mean(0)
        if len(flat) < 2 or not float(flat.square().mean()) > 0:
            return None
        widest = float(torch.linalg.matrix_norm(flat, 2)) / len(flat) ** 0.5
        return cls(float(flat.square().mean().sqrt()), widest)

    @classmethod
    def from_curve(cls, curve: ErrorCurve, flow: Flow) -> "Spread | None":
        """By where a model's error has fallen by a tenth: the widest direction is resolved there, s^2 v = 1.

        A guess: of many directions the widest carries about a fifth of the variance.
        """
        first = curve.squared_error[0]
        fallen = next((t for t, error in zip(curve.t, curve.squared_error, strict=True) if error < 0.9 * first), None)
        if not first > 0 or fallen is None or not fallen > 0:
            return None
        std = first**0.5
        return cls(std, max(std, 1 / float(flow.schedule.s(fallen))))


SPREADS: Fact[Mapping[str, Spread]] = Fact("spreads", Mapping[str, Spread], NOTHING, "parts")
"""Scale of the data, by part; only for numbers."""
