"""A chain over contexts of any length that falls: the cheapest that knows long contexts, and exact as what it is.

In context h it says x with share(h x) and goes on in h x, or, with backoff(h), forgets the oldest symbol of h and does
the same from there. Its arcs are as many as there are n-grams, four to five times fewer than those of a chain that
remembers all it said (:class:`~bfn.ngrams.automata.SparseAutomaton`): one that fell before it said x goes on in the
shorter context, even where h x is known. On text8 that costs 0.03 bits a character.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from bfn.core.errors import UserError


class FallingAutomaton:
    """The chain of some n-grams, with the methods of the automata in :mod:`bfn.networks.ngram_counts`."""

    batch = 16
    ramp = 0
    """Vectors are over all contexts from the first symbol on."""

    def __init__(self, tables: BackoffTables, dtype: torch.dtype, device: torch.device | None = None) -> None:
        base, context, codes = tables.n_classes, tables.context, tables.codes
        self.base = base
        self.sizes = [len(codes[n]) for n in range(context + 1)]
        first = torch.tensor([0, *self.sizes]).cumsum(0).tolist()
        self.n_states = first[-1]
        rows, columns, values, targets = [], [], [], []
        self.falls, self.rises = [], []
        for n in range(1, context + 2):
            prefix, suffix = find(codes[n - 1], codes[n] // base), find(codes[n - 1], codes[n] % base ** (n - 1))
            into = torch.arange(len(codes[n])) + first[n] if n <= context else suffix + first[context]
            rows.append(into)
            columns.append(prefix + first[n - 1])
            values.append(tables.share[n] + (tables.backoff[0] / base if n == 1 else 0.0))
            if n <= context:
                targets.append(suffix + first[n - 1])
                fall = (suffix, torch.arange(len(codes[n])), tables.backoff[n].to(dtype))
                self.falls.append(sparse(*fall, self.sizes[n - 1 : n + 1]).to(device))
                self.rises.append(sparse(fall[1], fall[0], fall[2], self.sizes[n - 1 : n + 1][::-1]).to(device))
        arcs = torch.cat(rows), torch.cat(columns), torch.cat(values).to(dtype)
        shape = [self.n_states, self.n_states]
        self.step = sparse(*arcs, shape).to(device)
        # The arcs one by one, by context and symbol, and where each context falls to: the empty one, out of the chain.
        last = torch.cat([codes[n] % base for n in range(1, context + 2)])
        self.arc_keys, self.arc_ends = (arcs[1] * base + last).to(device), arcs[0].to(device)
        self.arc_shares = arcs[2].to(device)
        self.falls_to = torch.cat([torch.zeros(1, dtype=torch.int64), *targets]).to(device)
        self.fall_shares = torch.cat([torch.zeros(1, dtype=torch.float64), *tables.backoff[1:]]).to(device, dtype)
        self.step_back = sparse(arcs[1], arcs[0], arcs[2], shape).to(device)
        last = torch.cat([codes[n] % base for n in range(context + 1)])
        every = torch.arange(self.n_states)
        self.symbols = sparse(last, every, torch.ones(self.n_states, dtype=dtype), [base, self.n_states]).to(device)
        self.last = last.to(device)

    def room(self, n: int, batch: int) -> Tensor | None:
        """Memory for n vectors over all contexts, of finite numbers: products write over them."""
        return self.step.values().new_zeros(n, self.n_states, batch)

    def start(self, batch: int) -> Tensor:
        """All mass on the empty context."""
        alpha = self.step.values().new_zeros(self.n_states, batch)
        alpha[0] = 1
        return alpha

    def advance(self, alpha: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        """Contexts after a symbol; with ``out``, alpha is changed."""
        levels = list(alpha.split_with_sizes(self.sizes))
        for n in range(len(self.falls) - 1, -1, -1):
            levels[n] = torch.addmm(levels[n], self.falls[n], levels[n + 1], out=None if out is None else levels[n])
        return self.step @ torch.cat(levels) if out is None else out.addmm_(self.step, alpha, beta=0)

    def retreat(self, value: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        """The transpose of advance."""
        back = self.step_back @ value if out is None else out.addmm_(self.step_back, value, beta=0)
        levels = list(back.split_with_sizes(self.sizes))
        for n, rise in enumerate(self.rises, 1):
            levels[n] = torch.addmm(levels[n], rise, levels[n - 1], out=None if out is None else levels[n])
        return torch.cat(levels) if out is None else out

    def emit(self, alpha: Tensor, evidence: Tensor, out: Tensor | None = None) -> Tensor:
        """Each context's entry times the evidence of its last symbol; the empty one is never come to."""
        said = torch.index_select(evidence, 0, self.last, out=out)
        return alpha * said if out is None else said.mul_(alpha)

    def read_out(self, alpha: Tensor) -> Tensor:
        """Sums of the contexts by last symbol."""
        return self.symbols @ alpha


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

    def require_whole(self) -> BackoffTables:
        """Refuse n-grams without their parts, or in no order, as only a damaged file has them."""
        for n in range(1, self.context + 2):
            codes = self.codes[n]
            parts = torch.cat((codes // self.n_classes, codes % self.n_classes ** (n - 1)))
            if (codes.diff() <= 0).any() or (find(self.codes[n - 1], parts) < 0).any():
                raise UserError(f"a chain of symbols with n-grams of {n} without their parts: not one that was counted")
        return self

    def normalised(self) -> BackoffTables:
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


class DenseAutomaton(nn.Module):
    """All K^c contexts; before symbol d < c, all K^d.

    tables: probabilities of the next symbol after each context of n symbols, (K^n, K) for n = 0..c.
    """

    batch = 32

    def __init__(self, tables: Sequence[Tensor]) -> None:
        super().__init__()
        self.base, self.context = tables[0].shape[1], len(tables) - 1
        self.ramp = self.context
        self.n_states = self.base**self.context
        for n, table in enumerate(tables):
            self.register_buffer(f"table_{n}", table)
        # p(x | y h') as (h', y, x): for each h' (the symbols kept) one matrix over y (forgotten) and x (new).
        by_kept = tables[-1].view(self.base, -1, self.base).transpose(0, 1) if self.context else tables[0][None]
        self.register_buffer("by_kept", by_kept.contiguous(), persistent=False)

    @classmethod
    def of(cls, tables: BackoffTables, dtype: torch.dtype) -> DenseAutomaton:
        """The chain of these counts."""
        return cls([table.to(dtype) for table in tables.dense()])

    def start(self, batch: int) -> Tensor:
        return self.get_buffer("table_0").new_ones(1, batch)

    def room(self, n: int, batch: int) -> Tensor | None:
        """Memory for n vectors over all contexts."""
        return self.get_buffer("by_kept").new_empty(n, self.n_states, batch)

    def advance(self, alpha: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        if d < self.context:
            return (self.get_buffer(f"table_{d}").unsqueeze(2) * alpha.unsqueeze(1)).flatten(0, 1)
        # y h' -> h' x
        kept, matrices = self._by_first(alpha), self.get_buffer("by_kept").transpose(1, 2)
        return torch.bmm(matrices, kept, out=None if out is None else self._by_last(out)).flatten(0, 1)

    def retreat(self, value: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        if d < self.context:
            return (self.get_buffer(f"table_{d}").unsqueeze(2) * self._by_last(value)).sum(1)
        back = torch.bmm(self.get_buffer("by_kept"), self._by_last(value)).transpose(0, 1)
        if out is None:
            return back.flatten(0, 1)
        out.view_as(back).copy_(back)
        return out

    def emit(self, alpha: Tensor, evidence: Tensor, out: Tensor | None = None) -> Tensor:
        rows = self._by_last(alpha)
        return torch.mul(rows, evidence, out=None if out is None else out.view_as(rows)).flatten(0, 1)

    def read_out(self, alpha: Tensor) -> Tensor:
        return self._by_last(alpha).sum(0)

    def _by_last(self, vector: Tensor) -> Tensor:
        """(states, batch) as (all but the last symbol, last symbol, batch)."""
        return vector.view(-1, self.base, vector.shape[1])

    def _by_first(self, vector: Tensor) -> Tensor:
        """(states, batch) as (all but the first symbol, first symbol, batch)."""
        return vector.view(self.base, -1, vector.shape[1]).transpose(0, 1)


class SparseAutomaton(nn.Module):
    """Only contexts that were seen, of all lengths 0..c: the same chain, since after h it is the longest seen end of h
    that tells the next symbol, and the longest seen end of h x that tells those after it.

    Let A[h] sum the mass of h and, times their backoffs, of all longer contexts that end in h. A context g = h x then
    gets, with y ranging over the symbols that may stand before it,

        |g| = c:    p(x | h) A[h]  +  sum over y with y g seen of share(y g) alpha[y h]
        |g| < c:    p(x | h) ( alpha[h] + sum over y with y h seen, y g not, of backoff(y h) A[y h] )

    Both are products with fixed sparse matrices without negative entries; none is larger than the number of seen
    (c+1)-grams and of seen pairs (y h, h x) of shorter ones.
    """

    batch = 16
    n_states: int

    def __init__(self, tables: BackoffTables, dtype: torch.dtype) -> None:
        super().__init__()
        context, base, codes = tables.context, tables.n_classes, tables.codes
        self.base, self.context, self.ramp = base, context, 0
        self.sizes = [len(codes[n]) for n in range(context + 1)]
        first = torch.tensor([0, *self.sizes]).cumsum(0).tolist()
        self.n_states, self.n_short = first[-1], first[context]

        direct = torch.full((1,), 1 / base, dtype=torch.float64)
        rows, columns, values = [], [], []
        for n in range(1, context + 1):
            prefix, suffix = find(codes[n - 1], codes[n] // base), find(codes[n - 1], codes[n] % base ** (n - 1))
            direct = tables.share[n] + tables.backoff[n - 1][prefix] * direct[suffix]
            states = torch.arange(self.sizes[n]) + first[n]
            rows.append(states)
            # Columns 0..n_short are A of the contexts shorter than c, then come all alpha.
            columns.append(prefix + first[n - 1] + (0 if n == context else self.n_short))
            values.append(direct)
            if n < context:
                longer, follower = _pairs(suffix, prefix, len(codes[n - 1]))
                unseen = find(codes[n + 1], codes[n][longer] * base + codes[n][follower] % base) < 0
                longer, follower = longer[unseen], follower[unseen]
                rows.append(follower + first[n])
                columns.append(longer + first[n])
                values.append(direct[follower] * tables.backoff[n][longer])
            members = torch.arange(self.sizes[n])
            self._add(f"gather_{n - 1}", suffix, members, tables.backoff[n], self.sizes[n - 1 : n + 1], dtype)
        top = codes[context + 1]
        rows.append(find(codes[context], top % base**context) + first[context])
        columns.append(find(codes[context], top // base) + first[context] + self.n_short)
        values.append(tables.share[context + 1])
        shape = [self.n_states, self.n_short + self.n_states]
        self._add("step", torch.cat(rows), torch.cat(columns), torch.cat(values), shape, dtype)
        last = torch.cat([codes[n] % base for n in range(context + 1)])
        ones = torch.ones(self.n_states, dtype=torch.float64)
        ones[0] = 0  # the empty context has no last symbol
        self._add("symbols", last, torch.arange(self.n_states), ones, [base, self.n_states], dtype)

    def _add(
        self, name: str, rows: Tensor, columns: Tensor, values: Tensor, shape: list[int], dtype: torch.dtype
    ) -> None:
        self.register_buffer(name, sparse(rows, columns, values.to(dtype), shape))
        self.register_buffer(f"{name}_back", sparse(columns, rows, values.to(dtype), shape[::-1]))

    def room(self, n: int, batch: int) -> Tensor | None:
        """Sparse products make their own memory."""
        return None

    def start(self, batch: int) -> Tensor:
        alpha = self.get_buffer("step").values().new_zeros(self.n_states, batch)
        alpha[0] = 1
        return alpha

    def advance(self, alpha: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        levels = list(alpha.split_with_sizes(self.sizes))
        for n in range(self.context - 1, -1, -1):
            levels[n] = levels[n] + self.get_buffer(f"gather_{n}") @ levels[n + 1]
        return self.get_buffer("step") @ torch.cat([*levels[:-1], alpha])

    def retreat(self, value: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        both = self.get_buffer("step_back") @ value
        short = both[: self.n_short].split_with_sizes(self.sizes[:-1])
        levels = list(both[self.n_short :].split_with_sizes(self.sizes))
        passed = short[0]
        levels[0] = levels[0] + passed
        for n in range(1, self.context + 1):
            passed = self.get_buffer(f"gather_{n - 1}_back") @ passed
            if n < self.context:
                passed = passed + short[n]
            levels[n] = levels[n] + passed
        return torch.cat(levels)

    def emit(self, alpha: Tensor, evidence: Tensor, out: Tensor | None = None) -> Tensor:
        return alpha * (self.get_buffer("symbols_back") @ evidence)

    def read_out(self, alpha: Tensor) -> Tensor:
        return self.get_buffer("symbols") @ alpha


def _pairs(suffix: Tensor, prefix: Tensor, n_parents: int) -> tuple[Tensor, Tensor]:
    """All pairs (i, j) with suffix[i] == prefix[j]; prefix sorted."""
    counts = torch.bincount(prefix, minlength=n_parents)
    starts = counts.cumsum(0) - counts
    repeats = counts[suffix]
    left = torch.repeat_interleave(torch.arange(len(suffix)), repeats)
    within = torch.arange(len(left)) - (repeats.cumsum(0) - repeats)[left]
    return left, starts[suffix][left] + within


def sparse(rows: Tensor, columns: Tensor, values: Tensor, shape: list[int]) -> Tensor:
    """A sparse matrix, in rows, of its entries."""
    order = torch.argsort(rows * shape[1] + columns)
    offsets = torch.zeros(shape[0] + 1, dtype=torch.int32)
    offsets[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            offsets, columns[order].to(torch.int32), values[order], shape, check_invariants=True
        )
