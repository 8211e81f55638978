"""Counts of n-grams of a text, and the interpolated probabilities that follow from them.

    p(x | h) = share(h x) + backoff(h) p(x | h without its oldest symbol),        p(x | nothing) backs off to 1/K
    share(h x) = (1 - backoff(h)) c(h x) / c(h),        backoff(h) = r T(h) / (c(h) + r T(h))

c are counts, T(h) the number of different symbols seen after h, r the smoothing: the rule of Witten and Bell (1991) at
r = 1. Where h was never seen, share is 0 and backoff 1. Every symbol stays possible after every context.

An n-gram is stored as one integer, its symbols as digits in base K, the oldest first.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["BackoffTables", "count_backoff", "find", "look_up"]

BACKOFF_MIN = 1e-4
"""Backing off is never rarer: then no string is so unlikely that float32 cannot hold its share of a sum."""

_BINS = 1 << 25


@dataclass(frozen=True, eq=False)
class BackoffTables:
    """Probabilities of the next symbol after up to ``context`` symbols.

    codes[n]: sorted codes of the n-grams kept, n = 0..context + 1; with an n-gram all its parts are kept, and
        every single symbol is.
    share[n]: their own part of p(last | rest), n >= 1. backoff[n]: of the contexts of n symbols, n <= context.
    """

    n_classes: int
    context: int
    codes: tuple[Tensor, ...]
    share: tuple[Tensor, ...]
    backoff: tuple[Tensor, ...]

    def probability(self, codes: Tensor, length: int, symbols: Tensor) -> Tensor:
        """p(symbol | the context of that length with that code), float64; codes and symbols broadcast."""
        base = self.n_classes
        probs = torch.full((), 1 / base, dtype=torch.float64)
        for n in range(min(length, self.context) + 1):
            part = codes % base**n
            share = look_up(self.codes[n + 1], self.share[n + 1], part * base + symbols, 0.0)
            probs = share + look_up(self.codes[n], self.backoff[n], part, 1.0) * probs
        return probs

    def dense(self) -> list[Tensor]:
        """Probabilities of the next symbol after every context of n symbols, (K^n, K) for n = 0..context."""
        symbols = torch.arange(self.n_classes)
        orders = range(self.context + 1)
        return [self.probability(torch.arange(self.n_classes**n).unsqueeze(1), n, symbols) for n in orders]


def look_up(keys: Tensor, values: Tensor, wanted: Tensor, default: float) -> Tensor:
    """values[i] where keys[i] is the wanted key, else the default; keys sorted."""
    if not len(keys):
        return torch.full_like(wanted, default, dtype=values.dtype)
    found = find(keys, wanted)
    return torch.where(found >= 0, values[found], default)


def find(keys: Tensor, wanted: Tensor) -> Tensor:
    """Index of each wanted key among sorted keys, -1 where it is not."""
    if not len(keys):
        return torch.full_like(wanted, -1)
    index = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[index] == wanted, index, -1)


def count_backoff(text: Tensor, context: int, n_classes: int, smoothing: float, min_count: int = 1) -> BackoffTables:
    """Tables from a text, (n,) integer classes, or texts, (n, length), -1 where one has ended.

    n-grams seen fewer than ``min_count`` times count as not seen; smoothing: r above.
    """
    codes, share = [torch.zeros(1, dtype=torch.int64)], [torch.ones(1, dtype=torch.float64)]
    backoff: list[Tensor] = []
    text = text if text.ndim > 1 else text.unsqueeze(0)
    ended = bool((text < 0).any())
    packed = torch.zeros_like(text, dtype=torch.int32)
    for n in range(1, context + 2):
        if n_classes**n >= 2**31:
            packed = packed.long()
        length = max(0, text.shape[1] - n + 1)
        last = text[:, n - 1 :].to(packed.dtype)
        packed = packed[:, :length] * n_classes + last
        if ended:  # a code below 0 stays below 0
            packed = torch.where((packed < 0) | (last < 0), -1, packed)
        seen = packed[packed >= 0] if ended else packed.flatten()
        found, counts = _count(seen, n_classes**n)
        found, counts = found[counts >= min_count], counts[counts >= min_count].double()
        if n == 1:  # every symbol is a context, seen or not
            counts = counts.new_zeros(n_classes).index_add_(0, found, counts)
            found = torch.arange(n_classes)
        prefix = find(codes[-1], found // n_classes)
        totals = counts.new_zeros(len(codes[-1])).index_add_(0, prefix, counts)
        novelty = smoothing * counts.new_zeros(len(codes[-1])).index_add_(0, prefix, counts.sign())
        # 0/0 where nothing was seen to follow: then all of the mass backs off.
        weight = torch.where(totals > 0, novelty / (totals + novelty), 1.0).clamp(min=BACKOFF_MIN)
        backoff.append(weight)
        codes.append(found)
        share.append((1 - weight[prefix]) * counts / totals[prefix].clamp(min=1))
    return BackoffTables(n_classes, context, tuple(codes), tuple(share), tuple(backoff))


def _count(packed: Tensor, n_codes: int) -> tuple[Tensor, Tensor]:
    """The codes below ``n_codes`` that occur, sorted, and how often each does."""
    if n_codes <= _BINS:
        counts = torch.bincount(packed, minlength=n_codes)
        codes = counts.nonzero().squeeze(1)
        return codes, counts[codes]
    found, counted = np.unique(packed.numpy(), return_counts=True)
    return torch.from_numpy(found).long(), torch.from_numpy(counted)
