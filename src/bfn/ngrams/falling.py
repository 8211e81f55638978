"""A chain over contexts of any length that falls: the cheapest that knows long contexts, and exact as what it is.

In context h it says x with share(h x) and goes on in h x, or, with backoff(h), forgets the oldest symbol of h and does
the same from there. Its arcs are as many as there are n-grams, four to five times fewer than those of a chain that
remembers all it said (:class:`~bfn.ngrams.automata.SparseAutomaton`): one that fell before it said x goes on in the
shorter context, even where h x is known. On text8 that costs 0.03 bits a character.
"""

import torch
from torch import Tensor

from bfn.ngrams.automata import sparse
from bfn.ngrams.backoff import BackoffTables, find

__all__ = ["FallingAutomaton"]


class FallingAutomaton:
    """The chain of some n-grams, with the methods of the automata in :mod:`bfn.ngrams.automata`."""

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
