"""One step of a chain with memory, forward and backward: over all contexts, or only over those seen.

A state of the chain is a context; vectors over states are (states, batch). Both automata have

    start(batch)            all mass on the empty context
    advance(alpha, d)       probabilities of the contexts after symbol d from those before it
    retreat(value, d)       its transpose: expected value before symbol d of a value of the contexts after it
    emit(alpha, evidence)   each context's entry times the evidence, (K, batch), of its last symbol
    read_out(alpha)         sums of the contexts by last symbol, (K, batch)
"""

import warnings

import torch
from torch import Tensor, nn

from bfn.exact.backoff import BackoffTables, find

__all__ = ["DenseAutomaton", "SparseAutomaton"]


class DenseAutomaton(nn.Module):
    """All K^c contexts; before symbol d < c, all K^d."""

    def __init__(self, tables: BackoffTables, dtype: torch.dtype) -> None:
        super().__init__()
        self.base, self.context = tables.n_classes, tables.context
        self.n_states = self.base**self.context
        symbols = torch.arange(self.base)
        for n in range(self.context + 1):
            contexts = torch.arange(self.base**n).unsqueeze(1)
            self.register_buffer(f"table_{n}", tables.probability(contexts, n, symbols).to(dtype))

    def start(self, batch: int) -> Tensor:
        return self.get_buffer("table_0").new_ones(1, batch)

    def advance(self, alpha: Tensor, d: int) -> Tensor:
        if d < self.context:
            return (self.get_buffer(f"table_{d}").unsqueeze(2) * alpha.unsqueeze(1)).flatten(0, 1)
        # y h' -> h' x: for each h' (the symbols kept) one matrix over y (forgotten) and x (new).
        kept = alpha.view(self.base, -1, alpha.shape[1]).transpose(0, 1)
        return torch.bmm(self._by_kept().transpose(1, 2), kept).flatten(0, 1)

    def retreat(self, value: Tensor, d: int) -> Tensor:
        if d < self.context:
            rows = value.view(-1, self.base, value.shape[1])
            return (self.get_buffer(f"table_{d}").unsqueeze(2) * rows).sum(1)
        kept = value.view(-1, self.base, value.shape[1])
        return torch.bmm(self._by_kept(), kept).transpose(0, 1).flatten(0, 1)

    def emit(self, alpha: Tensor, evidence: Tensor) -> Tensor:
        return (alpha.view(-1, *evidence.shape) * evidence).flatten(0, 1)

    def read_out(self, alpha: Tensor) -> Tensor:
        return alpha.view(-1, self.base, alpha.shape[1]).sum(0)

    def _by_kept(self) -> Tensor:
        """p(x | y h') as (h', y, x)."""
        table = self.get_buffer(f"table_{self.context}")
        return table.view(self.base, -1, self.base).transpose(0, 1)


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

    n_states: int

    def __init__(self, tables: BackoffTables, dtype: torch.dtype) -> None:
        super().__init__()
        context, base, codes = tables.context, tables.n_classes, tables.codes
        self.base, self.context = base, context
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
        self.register_buffer(name, _csr(rows, columns, values.to(dtype), shape))
        self.register_buffer(f"{name}_back", _csr(columns, rows, values.to(dtype), shape[::-1]))

    def start(self, batch: int) -> Tensor:
        alpha = self.get_buffer("step").values().new_zeros(self.n_states, batch)
        alpha[0] = 1
        return alpha

    def advance(self, alpha: Tensor, d: int) -> Tensor:
        levels = list(alpha.split_with_sizes(self.sizes))
        for n in range(self.context - 1, -1, -1):
            levels[n] = levels[n] + self.get_buffer(f"gather_{n}") @ levels[n + 1]
        return self.get_buffer("step") @ torch.cat([*levels[:-1], alpha])

    def retreat(self, value: Tensor, d: int) -> Tensor:
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

    def emit(self, alpha: Tensor, evidence: Tensor) -> Tensor:
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


def _csr(rows: Tensor, columns: Tensor, values: Tensor, shape: list[int]) -> Tensor:
    order = torch.argsort(rows * shape[1] + columns)
    offsets = torch.zeros(shape[0] + 1, dtype=torch.int32)
    offsets[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            offsets, columns[order].to(torch.int32), values[order], shape, check_invariants=True
        )
