"""Backoff n-gram models: counts of n-grams in texts, and the probability of the next symbol after a context.

The probability of the symbol x after the context h, a string of up to ``context`` symbols, is

    p(x | h) = share(h x) + backoff(h) p(x | h without its oldest symbol),
    p(x | empty context) = share(x) + backoff(empty context) / K,

where K is the number of classes and share is 0 for n-grams that the model does not keep. Shares and backoff of a
context add up to 1. Two functions estimate them from a text:

    count_backoff  keeps all n-grams that occur often enough, with the smoothing of Witten and Bell (1991)
    count_pruned   keeps a given number of n-grams, those that improve the likelihood of the text most, with the
                   absolute discounting of Kneser and Ney (1995)

An n-gram is represented by its code, one integer: its symbols are the digits in base K, the oldest one first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bfn.core.errors import UserError

BACKOFF_MIN = 1e-4
"""Lower bound of backoff: every string keeps a probability that float32 can represent relative to the others."""
MOST_BINS = 1 << 25
"""Maximum number of codes that are counted in an array with an entry for every code."""
DISCOUNT = 0.75
"""Number that is subtracted from every count (Kneser and Ney, 1995): what occurred once often did so by chance."""
LEAST_GAIN = 4.0
"""Log-likelihood in nats that an n-gram must add to that of the text to be kept: about the limit of chance."""
BISECTIONS = 24
"""Steps of the search for the gain above which the allowed number of n-grams is kept."""
DISCOUNT_ROUNDS = 8
"""Rounds of the iteration that sets negative shares to 0 and adjusts backoff."""


def find(keys: Tensor, wanted: Tensor) -> Tensor:
    """Return the index of each wanted key among sorted keys, -1 for keys that are missing."""
    if not len(keys):
        return torch.full_like(wanted, -1)
    index = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[index] == wanted, index, -1)


def sums(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Return for each index below ``size`` the sum of its values."""
    return values.new_zeros(size).index_add_(0, index, values)


def _look_up(keys: Tensor, values: Tensor, wanted: Tensor, default: float) -> Tensor:
    """Return the values of the wanted keys among sorted keys, the default for keys that are missing."""
    if not len(keys):
        return torch.full_like(wanted, default, dtype=values.dtype)
    found = find(keys, wanted)
    return torch.where(found >= 0, values[found], default)


@dataclass(frozen=True, eq=False)
class BackoffTables:
    """Parameters of a backoff n-gram model.

    With an n-gram the model keeps all n-grams that are part of it, and it keeps every single symbol.

    Attributes:
        n_classes: number of different symbols.
        context: maximum number of symbols that the next one depends on.
        codes: for n = 0 to context + 1, the sorted codes of the n-grams.
        share: for n = 0 to context + 1, the share of each n-gram; that of the empty one is not used.
        backoff: for n = 0 to context, the backoff of each n-gram as a context.
    """

    n_classes: int
    context: int
    codes: tuple[Tensor, ...]
    share: tuple[Tensor, ...]
    backoff: tuple[Tensor, ...]

    def probability(self, codes: Tensor, length: int, symbols: Tensor) -> Tensor:
        """Return p(symbol | context), float64.

        Args:
            codes: codes of the contexts.
            length: number of symbols in each of them.
            symbols: next symbols, broadcast against the codes.
        """
        base = self.n_classes
        probs = torch.full((), 1 / base, dtype=torch.float64)
        for n in range(min(length, self.context) + 1):
            suffix = codes % base**n
            share = _look_up(self.codes[n + 1], self.share[n + 1], suffix * base + symbols, 0.0)
            probs = share + _look_up(self.codes[n], self.backoff[n], suffix, 1.0) * probs
        return probs

    def parents(self, n: int) -> tuple[Tensor, Tensor]:
        """Return for each n-gram the indices of its first and of its last n - 1 symbols; -1 if they are missing."""
        codes, shorter = self.codes[n], self.codes[n - 1]
        return find(shorter, codes // self.n_classes), find(shorter, codes % self.n_classes ** (n - 1))

    def check(self) -> None:
        """Raise a UserError unless codes are sorted and with each n-gram its parts are kept, as in undamaged files."""
        for n in range(1, self.context + 2):
            if (self.codes[n].diff() <= 0).any() or any((own < 0).any() for own in self.parents(n)):
                raise UserError(f"an n-gram model with n-grams of {n} symbols without their parts: the file is damaged")

    def normalised(self) -> BackoffTables:
        """Return tables in which shares and backoff of each context add up to 1, which rounding has changed."""
        share, backoff = [self.share[0]], []
        for n, weight in enumerate(self.backoff):
            prefix, _ = self.parents(n + 1)
            totals = weight + sums(prefix, self.share[n + 1], len(weight))
            share.append(self.share[n + 1] / totals[prefix])
            backoff.append(weight / totals)
        return replace(self, share=tuple(share), backoff=tuple(backoff))


def count_ngrams(text: Tensor, context: int, n_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the sorted codes of the n-grams of a text and the number of times that each occurs, n = 1 to context + 1.

    All single symbols are among them, also those that do not occur.

    Args:
        text: classes, (n,), or of several texts, (n, length), -1 after the end of a shorter one.
        context: see ``BackoffTables``.
        n_classes: number of different symbols.
    """
    text = text if text.ndim > 1 else text.unsqueeze(0)
    has_ends = bool((text < 0).any())
    packed = torch.zeros_like(text, dtype=torch.int32)
    for n in range(1, context + 2):
        if n_classes**n >= 2**31:
            packed = packed.long()
        length = max(0, text.shape[1] - n + 1)
        last = text[:, n - 1 :].to(packed.dtype)
        packed = packed[:, :length] * n_classes + last
        if has_ends:
            packed = torch.where((packed < 0) | (last < 0), -1, packed)
        codes, counts = _count(packed[packed >= 0] if has_ends else packed.flatten(), n_classes**n)
        if n == 1:
            counts = torch.zeros(n_classes, dtype=torch.float64).index_add_(0, codes, counts.double())
            codes = torch.arange(n_classes)
        yield codes, counts.double()


def _count(packed: Tensor, n_codes: int) -> tuple[Tensor, Tensor]:
    """Return the different codes, all below ``n_codes``, sorted, and the number of times that each occurs."""
    if n_codes <= MOST_BINS:
        counts = torch.bincount(packed, minlength=n_codes)
        codes = counts.nonzero().squeeze(1)
        return codes, counts[codes]
    found, counted = np.unique(packed.numpy(), return_counts=True)
    return torch.from_numpy(found).long(), torch.from_numpy(counted)


def count_backoff(text: Tensor, context: int, n_classes: int, smoothing: float, min_count: int = 1) -> BackoffTables:
    """Estimate a model with all n-grams that occur often enough.

    Args:
        text, context, n_classes: see ``count_ngrams``.
        smoothing: r. The backoff of a context is r d / (n + r d), if n symbols, d of them different, follow it in the
            text. 1 is the rule of Witten and Bell.
        min_count: n-grams that occur fewer times are not kept.
    """
    codes, share = [torch.zeros(1, dtype=torch.int64)], [torch.ones(1, dtype=torch.float64)]
    backoff: list[Tensor] = []
    for found, counts in count_ngrams(text, context, n_classes):
        before = find(codes[-1], found // n_classes)
        known = before >= 0
        totals = sums(before[known], (counts + smoothing * counts.sign())[known], len(codes[-1]))
        kept = known & ((counts >= min_count) | (len(codes) == 1))
        prefix = before[kept]
        own = counts[kept] / totals.clamp(min=1)[prefix]
        weight = (1 - sums(prefix, own, len(totals))).clamp(min=BACKOFF_MIN)
        codes.append(found[kept])
        share.append(_scaled(own, prefix, weight))
        backoff.append(weight)
    return BackoffTables(n_classes, context, tuple(codes), tuple(share), tuple(backoff))


def _scaled(share: Tensor, prefix: Tensor, backoff: Tensor) -> Tensor:
    """Return shares that add up to 1 - backoff for each context; ``prefix`` holds the context of each share."""
    totals = sums(prefix, share, len(backoff))
    return share * ((1 - backoff) / torch.where(totals > 0, totals, 1.0))[prefix]


def count_pruned(text: Tensor, context: int, n_classes: int, most: int) -> BackoffTables:
    """Estimate a model with at most ``most`` n-grams, those that improve the likelihood of the text most.

    Args:
        text, context, n_classes: see ``count_ngrams``.
        most: maximum number of n-grams.
    """
    counted = list(count_ngrams(text, context, n_classes))
    gains = [_gains(counted, n, n_classes) for n in range(2, context + 2)]
    low, high = LEAST_GAIN, max([LEAST_GAIN, *(float(gain.max()) for gain in gains if len(gain))]) + 1
    kept = _above(counted, gains, low, n_classes)
    if sum(map(len, kept)) > most:
        for _ in range(BISECTIONS):
            middle = (low * high) ** 0.5
            fits = sum(map(len, _above(counted, gains, middle, n_classes))) <= most
            low, high = (low, middle) if fits else (middle, high)
        kept = _above(counted, gains, high, n_classes)
    return _discounted(counted, kept, n_classes, context)


def _gains(counted: list[tuple[Tensor, Tensor]], n: int, base: int) -> Tensor:
    """Return the log-likelihood in nats that each n-gram adds to that of the text, for n >= 2."""
    (shorter, shorter_counts), (codes, counts) = counted[n - 2], counted[n - 1]
    prefix = find(shorter, codes // base)
    with_it = (counts - DISCOUNT) / sums(prefix, counts, len(shorter))[prefix]
    # Counts of the shorter context are summed over the symbols that follow it, so that its probabilities add up to 1.
    group = torch.unique_consecutive(shorter // base, return_inverse=True)[1]
    totals = sums(group, shorter_counts, int(group[-1]) + 1)[group]
    without = (shorter_counts / totals)[find(shorter, codes % base ** (n - 1))]
    return counts * (with_it / without).log()


def _above(counted: list[tuple[Tensor, Tensor]], gains: list[Tensor], least: float, base: int) -> list[Tensor]:
    """Return the codes of the n-grams with at least this gain and of all their parts, for n = 1, 2, ..."""
    kept, parts = [], torch.zeros(0, dtype=torch.int64)
    for n in range(len(counted), 1, -1):
        codes = counted[n - 1][0]
        chosen = gains[n - 2] >= least
        chosen[find(codes, parts)] = True
        kept.append(codes[chosen])
        parts = torch.cat((kept[-1] // base, kept[-1] % base ** (n - 1)))
    return [counted[0][0], *kept[::-1]]


def _discounted(counted: list[tuple[Tensor, Tensor]], kept: list[Tensor], base: int, context: int) -> BackoffTables:
    """Return the model of the kept n-grams, with probabilities of absolute discounting."""
    codes, share, backoff = [torch.zeros(1, dtype=torch.int64)], [torch.ones(1, dtype=torch.float64)], []
    shorter = torch.full((1,), 1 / base, dtype=torch.float64)  # probabilities of the (n - 1)-grams
    for n, own in enumerate(kept, 1):
        all_codes, counts = counted[n - 1]
        prefix, suffix = find(codes[-1], own // base), find(codes[-1], own % base ** (n - 1))
        context_of = find(codes[-1], all_codes // base)
        totals = sums(context_of[context_of >= 0], counts[context_of >= 0], len(codes[-1]))
        target = (counts[find(all_codes, own)] - DISCOUNT).clamp(min=0) / totals.clamp(min=1)[prefix]
        lower = shorter[suffix]
        weight = torch.ones(len(codes[-1]), dtype=torch.float64)
        for _ in range(DISCOUNT_ROUNDS):
            positive = target > weight[prefix] * lower
            left = 1 - sums(prefix, target * positive, len(weight))
            weight = left / (1 - sums(prefix, lower * positive, len(weight))).clamp(min=BACKOFF_MIN)
            weight = weight.clamp(BACKOFF_MIN, 1.0)
        parts = (target - weight[prefix] * lower).clamp(min=0)
        weight = torch.where(sums(prefix, parts, len(weight)) > 0, weight, 1.0)
        codes.append(own)
        share.append(_scaled(parts, prefix, weight))
        backoff.append(weight)
        shorter = share[-1] + weight[prefix] * lower
    return BackoffTables(base, context, tuple(codes), tuple(share), tuple(backoff))
