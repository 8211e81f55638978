"""A chain whose memory is exact: its steps over all contexts, or only over those seen."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bfn.ngrams.backoff import BackoffTables, find

__all__ = ["DenseAutomaton", "SparseAutomaton", "sparse"]


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
    def of(cls, tables: BackoffTables, dtype: torch.dtype) -> "DenseAutomaton":
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
