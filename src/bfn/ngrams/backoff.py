"""Counts of n-grams of a text, and the interpolated probabilities that follow from them.

    p(x | h) = share(h x) + backoff(h) p(x | h without its oldest symbol),        p(x | nothing) backs off to 1/K
    share(h x) = c(h x) / (c(h) + r T(h)),        backoff(h) = 1 - the shares of the h x that are kept

c are counts, T(h) the number of different symbols seen after h, r the smoothing: the rule of Witten and Bell (1991) at
r = 1. Where h was never seen, share is 0 and backoff 1. Every symbol stays possible after every context.

An n-gram is stored as one integer, its symbols as digits in base K, the oldest first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bfn.errors import UserError

__all__ = ["BackoffTables", "count_backoff", "count_ngrams", "find", "look_up", "sums"]

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

    def require_whole(self) -> "BackoffTables":
        """Refuse n-grams without their parts, or in no order, as only a damaged file has them."""
        for n in range(1, self.context + 2):
            codes = self.codes[n]
            parts = torch.cat((codes // self.n_classes, codes % self.n_classes ** (n - 1)))
            if (codes.diff() <= 0).any() or (find(self.codes[n - 1], parts) < 0).any():
                raise UserError(f"a chain of symbols with n-grams of {n} without their parts: not one that was counted")
        return self

    def normalised(self) -> "BackoffTables":
        """With shares and backoff of each context that add up to 1, as they no longer do after rounding."""
        share, backoff = [self.share[0]], []
        for n, weight in enumerate(self.backoff):
            prefix = find(self.codes[n], self.codes[n + 1] // self.n_classes)
            totals = weight + sums(prefix, self.share[n + 1], len(weight))
            share.append(self.share[n + 1] / totals[prefix])
            backoff.append(weight / totals)
        return replace(self, share=tuple(share), backoff=tuple(backoff))

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

    n-grams seen fewer than ``min_count`` times are left to shorter contexts; smoothing: r above.
    """
    codes, share = [torch.zeros(1, dtype=torch.int64)], [torch.ones(1, dtype=torch.float64)]
    backoff: list[Tensor] = []
    for found, counts in count_ngrams(text, context, n_classes):
        before = find(codes[-1], found // n_classes)
        known = before >= 0
        totals = sums(before[known], (counts + smoothing * counts.sign())[known], len(codes[-1]))
        kept = known & ((counts >= min_count) | (len(codes) == 1))
        prefix = before[kept]
        # Where nothing was seen to follow, all of the mass backs off.
        own = counts[kept] / totals.clamp(min=1)[prefix]
        given = sums(prefix, own, len(totals))
        backoff.append((1 - given).clamp(min=BACKOFF_MIN))
        codes.append(found[kept])
        share.append(own * ((1 - backoff[-1]) / torch.where(given > 0, given, 1.0))[prefix])
    return BackoffTables(n_classes, context, tuple(codes), tuple(share), tuple(backoff))


def count_ngrams(text: Tensor, context: int, n_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sorted codes of the n-grams of a text, or of texts, and how often each occurs, for n = 1 to context + 1.

    All single symbols are among them, seen or not.
    """
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
        if n == 1:
            counts = torch.zeros(n_classes, dtype=torch.float64).index_add_(0, found, counts.double())
            found = torch.arange(n_classes)
        yield found, counts.double()


def sums(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Of each index below ``size``, the sum of its values."""
    return values.new_zeros(size).index_add_(0, index, values)


def _count(packed: Tensor, n_codes: int) -> tuple[Tensor, Tensor]:
    """The codes below ``n_codes`` that occur, sorted, and how often each does."""
    if n_codes <= _BINS:
        counts = torch.bincount(packed, minlength=n_codes)
        codes = counts.nonzero().squeeze(1)
        return codes, counts[codes]
    found, counted = np.unique(packed.numpy(), return_counts=True)
    return torch.from_numpy(found).long(), torch.from_numpy(counted)
