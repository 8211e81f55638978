"""What the nearest rows tell: alpha-precision, beta-recall, nearness to training rows, copies.

Rows are vectors (:meth:`TableFeatures.vectors`): numbers over the real range, a place a level.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import ndtri  # type: ignore[import-untyped]
from torch import Tensor

from bfn.estimate import LEVEL, Estimate, bootstrap_estimates, share_estimate
from bfn.quality.nearest import nearest
from bfn.quality.table_features import Floats

__all__ = ["copies", "nearer_to_training", "precision_and_recall"]

MOST_ROWS = 10_000
"""Rows, of each kind, whose neighbours are looked for; of more, so many are chosen at random."""
N_RESAMPLES = 200
SHARES = torch.linspace(0, 1, 31, dtype=torch.float64)[1:]
"""alpha and beta."""
EQUAL = 1e-6
"""Distances that differ by less are the same: they are roots of differences of sums in double precision."""


def precision_and_recall(rows: Tensor, real: Tensor, generator: torch.Generator) -> dict[str, Estimate]:
    """alpha-precision and beta-recall, each as one figure over all alpha or beta (Alaa et al., 2022).

    alpha_precision: rows within the ball around the real centre that holds a share alpha of the real rows should be a
    share alpha of all; 1 - twice the mean gap. beta_recall: real rows that have a row nearer than the next real one,
    that row being within the share beta of such rows nearest to their centre; 1 - twice the mean gap. New real rows
    have alpha-precision 1, and a beta-recall near 1/2, since every other one is nearer than the next; as many are taken
    of both.
    """
    n = min(len(rows), len(real), MOST_ROWS)
    rows, real = chosen(rows, n, generator), chosen(real, n, generator)
    radii = _distances(real, real.mean(0)).quantile(SHARES)
    from_centre = _distances(rows, real.mean(0))

    def precision(index: Tensor) -> Tensor:
        within = torch.searchsorted(from_centre[index].sort().values, radii, right=True) / len(index)
        return (1 - 2 * (within - SHARES).abs().mean())[None]

    to_real = nearest(real, real, 2)[0][:, 1]
    to_rows, which = (found.squeeze(1) for found in nearest(real, rows, 1))
    covered = to_rows <= to_real + EQUAL
    typical = _distances(rows[which], rows.mean(0))
    bounds = typical.quantile(SHARES)

    def recall(index: Tensor) -> Tensor:
        inside = typical[index][covered[index]].sort().values
        within = torch.searchsorted(inside, bounds, right=True) / len(index)
        return (1 - 2 * (within - SHARES).abs().mean())[None]

    (alpha,) = bootstrap_estimates(precision, len(rows), generator=generator, n_resamples=N_RESAMPLES)
    (beta,) = bootstrap_estimates(recall, len(real), generator=generator, n_resamples=N_RESAMPLES)
    return {"alpha_precision": alpha.within(0, 1), "beta_recall": beta.within(0, 1)}


def nearer_to_training(rows: Tensor, train: Tensor, held_out: Tensor, generator: torch.Generator) -> Estimate:
    """The share of rows that are nearer to a training row than to any of as many held-out rows; ties count half.

    1/2 where nothing was learned by heart. Which of two real rows is a training row is a toss that all rows next to it
    share, so the interval counts rows by the real row that is nearest to them.
    """
    n = min(len(train), len(held_out), MOST_ROWS)
    rows, train, held_out = (
        chosen(rows, MOST_ROWS, generator),
        chosen(train, n, generator),
        chosen(held_out, n, generator),
    )
    (to_train, of_train), (to_held_out, of_held_out) = (nearest(rows, real, 1) for real in (train, held_out))
    gap = (to_held_out - to_train).squeeze(1)
    value = torch.where(gap.abs() <= EQUAL, 0.5, (gap > 0).double())
    share = float(value.mean())
    neighbour = torch.where(gap >= 0, of_train.squeeze(1), n + of_held_out.squeeze(1))
    together = torch.zeros(2 * n, dtype=torch.float64).index_add_(0, neighbour, value - share)
    reach = float(ndtri(0.5 + LEVEL / 2)) * math.sqrt(float(together.square().sum())) / len(rows)
    return Estimate(share, share - reach, share + reach).within(0, 1)


def copies(rows: Floats, train: Floats) -> Estimate:
    """The share of rows that are equal to a training row in every cell."""
    rows, train = (np.ascontiguousarray(matrix + 0.0) for matrix in (rows, train))  # -0.0 is 0.0
    known = {row.tobytes() for row in train}
    return share_estimate(sum(row.tobytes() in known for row in rows), len(rows))


def chosen(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """At most so many rows, at random."""
    return x if len(x) <= most else x[torch.randperm(len(x), generator=generator)[:most]]


def _distances(x: Tensor, centre: Tensor) -> Tensor:
    return (x - centre).square().sum(1).sqrt()
