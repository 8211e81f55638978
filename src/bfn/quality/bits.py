"""Nats to bits per dimension (or per character), with standard errors; bound and reconstruction apart and in sum.

The figures of the BFN paper are sums of the two in nats a dimension, divided by ln 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import UserError


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` samples and its standard error."""

    mean: float
    standard_error: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} +- {self.standard_error:.4f}"


@dataclass(frozen=True)
class BitsReport:
    """Bits a dimension: the bound, the reconstruction, and their sum (both None where no reconstruction was given)."""

    bound: Estimate
    reconstruction: Estimate | None = None
    total: Estimate | None = None


def nats_to_bits(nats: float) -> float:
    """Nats / ln 2."""
    return nats / math.log(2)


def mean_and_error(values: Tensor) -> Estimate:
    """Mean of (n,) independent values and its standard error, std / sqrt(n), in float64."""
    if values.ndim != 1 or len(values) < 2:
        raise UserError(
            f"values of shape {tuple(values.shape)}: a standard error needs at least 2 values in one dimension"
        )
    x = values.detach().double()
    if not torch.isfinite(x).all():
        raise UserError(
            f"{int((~torch.isfinite(x)).sum())} of {len(x)} values are NaN or infinite: expected finite numbers"
        )
    return Estimate(x.mean().item(), x.std().item() / math.sqrt(len(x)), len(x))


def bits_report(bound: Tensor, reconstruction: Tensor | None = None, *, n_dims: int = 1) -> BitsReport:
    """Report of per-sample nats (n,): a dimension (`n_dims` = 1, as `model.loss` gives them), or sums over `n_dims`.

    The two of equal length are taken to be of the same samples, so the error of the sum is that of the summed
    samples; else they are taken to be independent.
    """
    if n_dims < 1:
        raise UserError(f"n_dims={n_dims}: expected the number of dimensions of a sample, at least 1")
    scale = nats_to_bits(1.0) / n_dims
    bound_bits = mean_and_error(bound.double() * scale)
    if reconstruction is None:
        return BitsReport(bound_bits)
    reconstruction_bits = mean_and_error(reconstruction.double() * scale)
    if bound.shape == reconstruction.shape:
        total = mean_and_error((bound.double() + reconstruction.double()) * scale)
    else:
        total = Estimate(
            bound_bits.mean + reconstruction_bits.mean,
            math.hypot(bound_bits.standard_error, reconstruction_bits.standard_error),
            min(bound_bits.n, reconstruction_bits.n),
        )
    return BitsReport(bound_bits, reconstruction_bits, total)
