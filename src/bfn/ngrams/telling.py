"""The n-grams of a text that tell most, as many as one can afford: contexts are long where that helps.

An n-gram h x tells what h adds to the shorter context h' = h without its oldest symbol: seen c times, it shortens a
code of the text by about c log p(x | h) / p(x | h'). Those that gain most are kept (the pruning of Stolcke, 1998, with
gains of the text itself), with all their parts. Of each context the symbols kept get their own probability,

    p(x | h) = (c(h x) - 3/4) / c(h) = share(h x) + backoff(h) p(x | h'),

and the others what is left, shared as h' does it, which settles backoff(h). Where a share would be below 0 it is 0.
"""

import torch
from torch import Tensor

from bfn.ngrams.backoff import BACKOFF_MIN, BackoffTables, count_ngrams, find, sums

__all__ = ["count_telling"]

DISCOUNT = 0.75
"""Taken off every count, as usual since Kneser and Ney (1995): what was seen once was often met by chance."""
LEAST_GAIN = 4.0
"""Nats that an n-gram must gain; about what it takes to be no accident."""
ROUNDS = 24
"""Of looking for the gain at which as many are kept as may be."""
SETTLING = 8
"""Rounds in which shares that would be below 0 become 0 and the others follow."""


def count_telling(text: Tensor, context: int, n_classes: int, most: int) -> BackoffTables:
    """Tables of a text, (n,) classes, or texts, (n, length), -1 where one has ended; of ``most`` n-grams at most."""
    counted = list(count_ngrams(text, context, n_classes))
    gains = [_gains(counted, n, n_classes) for n in range(2, context + 2)]
    low, high = LEAST_GAIN, max([LEAST_GAIN, *(float(gain.max()) for gain in gains if len(gain))]) + 1
    kept = _kept(counted, gains, low, n_classes)
    if sum(map(len, kept)) > most:
        for _ in range(ROUNDS):
            middle = (low * high) ** 0.5
            found = _kept(counted, gains, middle, n_classes)
            fits = sum(map(len, found)) <= most
            low, high = (low, middle) if fits else (middle, high)
            kept = found if fits else kept
        kept = _kept(counted, gains, high, n_classes)
    return _tables(counted, kept, n_classes, context)


def _gains(counted: list[tuple[Tensor, Tensor]], n: int, base: int) -> Tensor:
    """Of each n-gram, the nats that it saves in the text; n >= 2."""
    (shorter, fewer), (codes, counts) = counted[n - 2], counted[n - 1]
    own = find(shorter, codes // base)
    told = (counts - DISCOUNT) / sums(own, counts, len(shorter))[own]
    # The shorter context's own total, over the symbols seen after it.
    before = shorter // base
    known = torch.unique_consecutive(before, return_inverse=True)[1]
    without = (fewer / sums(known, fewer, int(known[-1]) + 1)[known])[find(shorter, codes % base ** (n - 1))]
    return counts * (told / without).log()


def _kept(counted: list[tuple[Tensor, Tensor]], gains: list[Tensor], least: float, base: int) -> list[Tensor]:
    """Codes of the n-grams that gain at least so much, and of all their parts, for n = 1, 2, ..."""
    kept, parts = [], torch.zeros(0, dtype=torch.int64)
    for n in range(len(counted), 1, -1):
        codes = counted[n - 1][0]
        chosen = gains[n - 2] >= least
        chosen[find(codes, parts)] = True
        kept.append(codes[chosen])
        parts = torch.cat((kept[-1] // base, kept[-1] % base ** (n - 1)))
    return [counted[0][0], *kept[::-1]]


def _tables(counted: list[tuple[Tensor, Tensor]], kept: list[Tensor], base: int, context: int) -> BackoffTables:
    codes, share, backoff = [torch.zeros(1, dtype=torch.int64)], [torch.ones(1, dtype=torch.float64)], []
    shorter = torch.full((1,), 1 / base, dtype=torch.float64)  # p of the n-grams kept before
    for n, own in enumerate(kept, 1):
        all_codes, counts = counted[n - 1]
        prefix, suffix = find(codes[-1], own // base), find(codes[-1], own % base ** (n - 1))
        among = find(codes[-1], all_codes // base)
        totals = sums(among[among >= 0], counts[among >= 0], len(codes[-1]))
        told = (counts[find(all_codes, own)] - DISCOUNT).clamp(min=0) / totals.clamp(min=1)[prefix]
        otherwise = shorter[suffix]
        weight = torch.ones(len(codes[-1]), dtype=torch.float64)
        for _ in range(SETTLING):
            positive = told > weight[prefix] * otherwise
            left = 1 - sums(prefix, told * positive, len(weight))
            weight = left / (1 - sums(prefix, otherwise * positive, len(weight))).clamp(min=BACKOFF_MIN)
            weight = weight.clamp(BACKOFF_MIN, 1.0)
        parts = (told - weight[prefix] * otherwise).clamp(min=0)
        given = sums(prefix, parts, len(weight))
        weight = torch.where(given > 0, weight, 1.0)
        parts = parts * ((1 - weight) / torch.where(given > 0, given, 1.0))[prefix]
        codes.append(own)
        share.append(parts)
        backoff.append(weight)
        shorter = parts + weight[prefix] * otherwise
    return BackoffTables(base, context, tuple(codes), tuple(share), tuple(backoff))
