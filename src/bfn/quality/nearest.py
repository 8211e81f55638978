"""The nearest of many points, some at a time."""

import torch
from torch import Tensor

__all__ = ["nearest"]


def nearest(x: Tensor, others: Tensor, k: int, at_a_time: int = 100) -> tuple[Tensor, Tensor]:
    """Distances (n, k) and indices (n, k) of the k nearest of others (m, d) to each of x (n, d)."""
    squares = others.square().sum(1)

    def of(part: Tensor) -> tuple[Tensor, Tensor]:
        distances = torch.addmm(squares, part, others.T, alpha=-2).add_(part.square().sum(1, keepdim=True))
        return distances.min(1, keepdim=True) if k == 1 else distances.topk(k, largest=False)

    pieces = [of(part) for part in torch.split(x, at_a_time)]
    values, indices = (torch.cat(column) for column in zip(*pieces, strict=True))
    return values.clamp(min=0).sqrt(), indices
