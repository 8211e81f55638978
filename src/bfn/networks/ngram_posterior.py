"""Posteriors of n-gram models given noisy evidence about every symbol, by the forward-backward algorithm.

An n-gram model is a Markov chain whose states are contexts, the last few symbols. Given the likelihood of each class at
each position, such as the input theta of a network,

    the forward pass   alpha(h) ~ p(context h, evidence before a position)
    the backward pass  beta(h)  ~ p(evidence after a position | context h)

give the exact posterior of each symbol, and strings are drawn from the joint posterior of all symbols. Two automata, or
chains, represent an n-gram model:

    SparseAutomaton   the model itself; exact models use it
    BackoffAutomaton  backoff is a transition of its own: cheaper, and a slightly different model; networks use it
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, log2, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.networks.ngram_counts import BackoffTables, count_pruned, find

LEAST = 1e-300
"""Lower bound of probabilities before a logarithm in float64; in float32 it is the smallest normal number."""
MOST_NGRAMS = 2**15
"""Maximum number of n-grams in the model of a network."""
STRIDE = 16
"""A network keeps every 16th vector of the forward pass and computes the others again."""
LEAST_SHARE = 1e-7
"""Lower bound of shares in the model of a network: half precision can hold the logarithm."""


class Automaton(nn.Module):
    """A Markov chain over the contexts that were seen, of all lengths 0 to c. Vectors over them are (states, batch).

    Args:
        tables: the n-gram model.
        dtype: type of the vectors.
    """

    batch = 16
    """Number of strings to work on at a time: the vectors of more do not fit into the cache."""
    last: Tensor
    symbols: Tensor
    step: Tensor
    step_back: Tensor

    def __init__(self, tables: BackoffTables, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = tables.n_classes
        self.sizes = [len(codes) for codes in tables.codes[:-1]]
        self.first = [0, *accumulate(self.sizes)]
        self.n_states = self.first[-1]
        # The empty context has no last symbol. It counts as 0, since no string ever returns to this context.
        last = torch.cat([codes % self.base for codes in tables.codes[:-1]])
        self.register_buffer("last", last)
        ones = torch.ones(self.n_states, dtype=dtype)
        self._register("symbols", last, torch.arange(self.n_states), ones, [self.base, self.n_states])
        for n in range(1, len(self.sizes)):
            shape, (_, suffix) = self.sizes[n - 1 : n + 1], tables.parents(n)
            self._register(f"backoff_{n}", suffix, torch.arange(shape[1]), tables.backoff[n].to(dtype), shape)

    def _register(self, name: str, rows: Tensor, columns: Tensor, values: Tensor, shape: list[int]) -> None:
        """Register a sparse matrix, and its transpose as "name_back"."""
        self.register_buffer(name, _sparse(rows, columns, values, shape))
        self.register_buffer(f"{name}_back", _sparse(columns, rows, values, shape[::-1]))

    def workspace(self, n: int, batch: int) -> Sequence[Tensor | None]:
        """Return n vectors to pass as ``out``; None if the automaton does not use them."""
        return [None] * n

    def start(self, batch: int) -> Tensor:
        """Return the vector of the empty context."""
        alpha = self.step.values().new_zeros(self.n_states, batch)
        alpha[0] = 1
        return alpha

    def advance(self, alpha: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the distribution over contexts after the next symbol.

        Args:
            alpha: the distribution before it. With ``out`` it may be overwritten.
            out: vector to write the result to; not given if gradients are needed.
        """
        raise NotImplementedError

    def _backed_off(self, alpha: Tensor, in_place: bool = False) -> list[Tensor]:
        """Add to each context, times their backoff, the longer contexts that end in it; one tensor for each length."""
        levels = list(alpha.split_with_sizes(self.sizes))
        for n in range(len(levels) - 1, 0, -1):
            out = levels[n - 1] if in_place else None
            levels[n - 1] = torch.addmm(levels[n - 1], self.get_buffer(f"backoff_{n}"), levels[n], out=out)
        return levels

    def retreat(self, beta: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the values of contexts before a symbol given those after it, the transpose of ``advance``."""
        raise NotImplementedError

    def emit(self, alpha: Tensor, evidence: Tensor, out: Tensor | None = None) -> Tensor:
        """Multiply the entry of each context by the evidence, (K, batch), of its last symbol."""
        weights = torch.index_select(evidence, 0, self.last, out=out)
        return alpha * weights if out is None else weights.mul_(alpha)

    def read_out(self, alpha: Tensor) -> Tensor:
        """Sum the entries of all contexts with the same last symbol, (K, batch)."""
        return self.symbols @ alpha


class SparseAutomaton(Automaton):
    """The n-gram model itself.

    The longest suffix of h that was seen determines p(x | h), and the longest suffix of h x that was seen determines
    the probabilities after it. Let A[h] be the sum of alpha[h] and, times their backoff, of all longer contexts that
    end in h. The next alpha of a context g = h x is a sum over the symbols y that may stand before it,

        g of c symbols:  p(x | h) A[h]  +  sum over y with y g seen of share(y g) alpha[y h]
        shorter g:       p(x | h) (alpha[h] + sum over y with y h seen, y g not seen, of backoff(y h) A[y h])

    Both are products with fixed sparse matrices. Their number of entries is at most that of the (c + 1)-grams that were
    seen and of the pairs (y h, h x) of shorter ones.
    """

    def __init__(self, tables: BackoffTables, dtype: torch.dtype) -> None:
        super().__init__(tables, dtype)
        context, base, codes, first = tables.context, tables.n_classes, tables.codes, self.first
        self.n_short = first[context]
        direct = torch.full((1,), 1 / base, dtype=torch.float64)  # p(last symbol | the others) of each n-gram
        entries = []
        for n in range(1, context + 1):
            prefix, suffix = tables.parents(n)
            direct = tables.share[n] + tables.backoff[n - 1][prefix] * direct[suffix]
            # The first n_short columns are A of the contexts shorter than c. Columns for all alpha follow.
            columns = prefix + first[n - 1] + (0 if n == context else self.n_short)
            entries.append((torch.arange(self.sizes[n]) + first[n], columns, direct))
            if n < context:
                longer, follower = _pairs(suffix, prefix, len(codes[n - 1]))
                unseen = find(codes[n + 1], codes[n][longer] * base + codes[n][follower] % base) < 0
                longer, follower = longer[unseen], follower[unseen]
                values = direct[follower] * tables.backoff[n][longer]
                entries.append((follower + first[n], longer + first[n], values))
        prefix, suffix = tables.parents(context + 1)
        entries.append((suffix + first[context], prefix + first[context] + self.n_short, tables.share[context + 1]))
        rows, columns, values = (torch.cat(parts) for parts in zip(*entries, strict=True))
        self._register("step", rows, columns, values.to(dtype), [self.n_states, self.n_short + self.n_states])

    def advance(self, alpha: Tensor, out: Tensor | None = None) -> Tensor:
        return self.step @ torch.cat([*self._backed_off(alpha)[:-1], alpha])

    def retreat(self, beta: Tensor, out: Tensor | None = None) -> Tensor:
        both = self.step_back @ beta
        levels = list(both[self.n_short :].split_with_sizes(self.sizes))
        short: list[Any] = [*both[: self.n_short].split_with_sizes(self.sizes[:-1]), 0.0]
        passed = short[0]
        levels[0] = levels[0] + passed
        for n in range(1, len(levels)):
            passed = self.get_buffer(f"backoff_{n}_back") @ passed + short[n]
            levels[n] = levels[n] + passed
        return torch.cat(levels)


class BackoffAutomaton(Automaton):
    """An n-gram model with backoff as a transition of its own.

    In context h the chain emits x with probability share(h x) and moves to the context h x, or, with probability
    backoff(h), drops the oldest symbol of h and tries again. It has one transition per n-gram, four to five times fewer
    than ``SparseAutomaton``. It is a different model: a chain that backed off before it emitted x moves to the
    shorter context, even if h x was seen. On text8 this costs 0.03 bits per character.
    """

    arc_keys: Tensor
    arc_ends: Tensor
    arc_shares: Tensor
    shorter: Tensor
    backoff: Tensor

    def __init__(self, tables: BackoffTables, dtype: torch.dtype) -> None:
        super().__init__(tables, dtype)
        base, context, codes, first = tables.n_classes, tables.context, tables.codes, self.first
        entries, shorter = [], [torch.zeros(1, dtype=torch.int64)]
        for n in range(1, context + 2):
            prefix, suffix = tables.parents(n)
            ends = torch.arange(len(codes[n])) + first[n] if n <= context else suffix + first[context]
            uniform = tables.backoff[0] / base if n == 1 else 0.0
            entries.append((ends, prefix + first[n - 1], tables.share[n] + uniform))
            if n <= context:
                shorter.append(suffix + first[n - 1])
        ends, starts, shares = (torch.cat(parts) for parts in zip(*entries, strict=True))
        self._register("step", ends, starts, shares.to(dtype), [self.n_states, self.n_states])
        # Transitions as lists, for drawing: of emissions by context and symbol, and of backoff by context.
        self.register_buffer("arc_keys", starts * base + torch.cat([own % base for own in codes[1:]]))
        self.register_buffer("arc_ends", ends)
        self.register_buffer("arc_shares", shares.to(dtype))
        self.register_buffer("shorter", torch.cat(shorter))
        self.register_buffer("backoff", torch.cat([0 * tables.backoff[0], *tables.backoff[1:]]).to(dtype))

    def workspace(self, n: int, batch: int) -> Sequence[Tensor | None]:
        # Zeros, because products add to what the memory holds; in one piece, which the system provides faster.
        return self.step.values().new_zeros(n, self.n_states, batch).unbind()

    def advance(self, alpha: Tensor, out: Tensor | None = None) -> Tensor:
        levels = self._backed_off(alpha, in_place=out is not None)
        return self.step @ torch.cat(levels) if out is None else out.addmm_(self.step, alpha, beta=0)

    def retreat(self, beta: Tensor, out: Tensor | None = None) -> Tensor:
        back = self.step_back @ beta if out is None else out.addmm_(self.step_back, beta, beta=0)
        levels = list(back.split_with_sizes(self.sizes))
        for n in range(1, len(levels)):
            longer = self.get_buffer(f"backoff_{n}_back")
            levels[n] = torch.addmm(levels[n], longer, levels[n - 1], out=None if out is None else levels[n])
        return torch.cat(levels) if out is None else out

    def choose(self, states: Tensor, evidence: Tensor, beta: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the next symbol of each string from its posterior, and return the new contexts and the symbols.

        Args:
            states: contexts, (batch,).
            evidence: of the next symbol, (K, batch).
            beta: values of the contexts after it.
            uniform: random numbers in [0, 1), (batch,).
        """
        symbols = torch.arange(self.base, device=states.device)
        members = torch.arange(len(states), device=states.device).unsqueeze(1)
        weights, ends = [], []
        reached = torch.ones_like(uniform, dtype=beta.dtype)
        for _ in self.sizes:  # each round backs off once
            arcs = find(self.arc_keys, states.unsqueeze(1) * self.base + symbols)
            share = torch.where(arcs >= 0, self.arc_shares[arcs], 0.0)
            ends.append(self.arc_ends[arcs])
            weights.append(reached.unsqueeze(1) * share * evidence.T * beta[ends[-1], members])
            reached, states = reached * self.backoff[states], self.shorter[states]
        total = torch.cat(weights, 1).double().cumsum(1)
        below = total < uniform.double().unsqueeze(1) * total[:, -1:]
        chosen = below.sum(1, keepdim=True).clamp_(max=total.shape[1] - 1)
        return torch.cat(ends, 1).gather(1, chosen).squeeze(1), chosen.squeeze(1) % self.base


def _pairs(suffix: Tensor, prefix: Tensor, n_parents: int) -> tuple[Tensor, Tensor]:
    """Return all pairs (i, j) with suffix[i] == prefix[j], where prefix is sorted."""
    counts = torch.bincount(prefix, minlength=n_parents)
    starts = counts.cumsum(0) - counts
    repeats = counts[suffix]
    left = torch.repeat_interleave(torch.arange(len(suffix)), repeats)
    within = torch.arange(len(left)) - (repeats.cumsum(0) - repeats)[left]
    return left, starts[suffix][left] + within


def _sparse(rows: Tensor, columns: Tensor, values: Tensor, shape: list[int]) -> Tensor:
    """Return a sparse matrix in the CSR layout."""
    order = torch.argsort(rows * shape[1] + columns)
    offsets = torch.zeros(shape[0] + 1, dtype=torch.int32)
    offsets[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    indices = columns[order].to(torch.int32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(offsets, indices, values[order], shape, check_invariants=True)


def posterior_logits(chain: Automaton, log_likelihood: Tensor, stride: int | None = None) -> Tensor:
    """Return the logits of each symbol's posterior, (batch, length, K), by the forward-backward algorithm.

    A symbol's posterior is its own evidence times a factor that depends on all others. The logits therefore keep the
    full range of the evidence.

    Args:
        chain: the n-gram model.
        log_likelihood: evidence, (batch, length, K).
        stride: every so many vectors of the forward pass are kept, and the others are computed again in blocks; all are
            kept if None. The second computation takes about as long as providing memory for the vectors.
    """
    batch, length, _ = log_likelihood.shape
    stride = stride or length
    by_place = log_likelihood.permute(1, 2, 0).contiguous()
    evidence, _ = scaled(by_place)
    in_place = not (torch.is_grad_enabled() and log_likelihood.requires_grad)
    n_slots = min(stride, length) + 3
    current, other, third, *rest = chain.workspace(n_slots, batch) if in_place else [None] * n_slots
    starts = range(0, length, stride)
    alpha, saved = chain.start(batch), []
    for d in range(starts[-1] + 1):
        if d in starts:
            saved.append(alpha.clone() if in_place else alpha)
        if d < starts[-1]:
            alpha = unit(chain.emit(chain.advance(alpha, other), evidence[d], current), in_place)
    least = max(LEAST, torch.finfo(by_place.dtype).tiny)
    factors: list[Tensor] = []
    beta: Tensor | None = None
    for start in reversed(starts):
        alpha, block, places = saved.pop(), [], range(start, min(start + stride, length))
        for d in places:
            block.append(chain.advance(alpha, rest[d - start]))
            alpha = unit(chain.emit(block[-1], evidence[d], current), in_place)
        for d in reversed(places):
            before = block.pop()
            beta = torch.ones_like(before) if beta is None else beta
            factors.append(chain.read_out(torch.mul(before, beta, out=other)).clamp(min=least).log())
            beta = unit(chain.retreat(chain.emit(beta, evidence[d], other), third), in_place)
    return (by_place + torch.stack(factors[::-1])).permute(2, 0, 1)


def scaled(log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp of (length, K, batch) divided by its maximum over the classes, and the log maxima, (length, batch)."""
    peaks = log_likelihood.amax(1)
    return (log_likelihood - peaks.unsqueeze(1)).exp(), peaks


def unit(alpha: Tensor, in_place: bool) -> Tensor:
    """Return vectors over states divided by their sums."""
    total = alpha.sum(0)
    return alpha.div_(total) if in_place else alpha / total


def draw_strings(chain: BackoffAutomaton, log_likelihood: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw strings, (batch, length), from the posterior given evidence (batch, length, K).

    One uniform number is drawn per symbol.
    """
    uniform = torch.rand(log_likelihood.shape[:2], generator=generator, device=log_likelihood.device)
    parts = zip(torch.split(log_likelihood, chain.batch), torch.split(uniform, chain.batch), strict=True)
    return torch.cat([_draw(chain, part, numbers) for part, numbers in parts])


def _draw(chain: BackoffAutomaton, log_likelihood: Tensor, uniform: Tensor) -> Tensor:
    """Draw strings by a backward pass and a draw at each position. Every sqrt(length)-th beta is kept."""
    batch, length, _ = log_likelihood.shape
    evidence, _ = scaled(log_likelihood.permute(1, 2, 0).contiguous())
    betas = {length: torch.ones_like(chain.start(batch))}  # after so many symbols

    def backward(first: int, last: int) -> dict[int, Tensor]:
        """Return beta after ``first`` to ``last`` symbols."""
        found = {last: betas[last]}
        for d in range(last - 1, first - 1, -1):
            found[d] = unit(chain.retreat(chain.emit(found[d + 1], evidence[d])), in_place=True)
        return found

    ends = [*range(0, length, ceil(sqrt(length))), length]
    for first, last in reversed([*pairwise(ends)]):
        betas[first] = backward(first, last)[first]
    states, drawn = torch.zeros(batch, dtype=torch.int64, device=uniform.device), []
    for first, last in pairwise(ends):
        block = backward(first + 1, last)
        for d in range(first, last):
            states, symbols = chain.choose(states, evidence[d], block[d + 1], uniform[:, d])
            drawn.append(symbols)
    return torch.stack(drawn, 1)


class NGramPosterior(nn.Module):
    """Posterior of an n-gram model given theta, (batch, length, K) -> logits of the same shape.

    Until ``count`` is called all symbols are equally likely, and the posterior is theta.

    Args:
        n_classes: number of different symbols.
        context: maximum number of symbols that the next one depends on.
    """

    def __init__(self, n_classes: int, context: int) -> None:
        super().__init__()
        if n_classes > MOST_NGRAMS:
            raise UserError(f"ngram={context}: an n-gram model has at most {MOST_NGRAMS} classes; give 0 for none")
        longest = ceil(63 / log2(n_classes)) - 2  # the code of an n-gram is an integer below 2^63
        if not 1 <= context <= longest:
            advice = f"with {n_classes} classes expected contexts of at most {longest} symbols"
            raise UserError(f"ngram={context}: {advice}; give {longest}, or 0 for none")
        self.n_classes, self.context = n_classes, context
        most = min(MOST_NGRAMS, sum(n_classes**n for n in range(1, context + 2)))
        self.register_buffer("sizes", torch.tensor([n_classes, *[0] * context]))
        self.register_buffer("codes", torch.tensor([*range(n_classes), *[-1] * (most - n_classes)]))
        self.register_buffer("log_share", torch.zeros(most))
        self.register_buffer("log_backoff", torch.zeros(1 + most))
        self._cached: tuple[Any, BackoffAutomaton] | None = None

    @property
    def counted(self) -> bool:
        """Return True once the model was counted in data."""
        return bool(self.get_buffer("log_share").any())

    def count(self, sequences: Tensor) -> None:
        """Count the model in data: classes, (n, length), -1 after the end of a shorter sequence."""
        if sequences.ndim != 2 or sequences.is_floating_point():
            raise UserError(f"data of shape {tuple(sequences.shape)}: n-grams are counted in classes, (n, length)")
        tables = count_pruned(sequences.cpu(), self.context, self.n_classes, len(self.get_buffer("codes")))
        shares, backoff = torch.cat(tables.share[1:]).clamp(min=LEAST_SHARE).log(), torch.cat(tables.backoff).log()
        sizes = torch.tensor([len(codes) for codes in tables.codes[1:]])
        values = {"sizes": sizes, "codes": torch.cat(tables.codes[1:]), "log_share": shares, "log_backoff": backoff}
        for name, own in values.items():
            buffer = self.get_buffer(name)
            buffer.zero_()[: len(own)] = own.to(buffer)

    def forward(self, theta: Tensor, present: Tensor | None = None) -> Tensor:
        """Return the logits of each symbol's posterior, computed in float32 or float64.

        Args:
            theta: class probabilities.
            present: bool, (batch, length), False for positions without evidence.
        """
        evidence, chain = self._evidence(theta, present), self._automaton(theta)
        with torch.autocast(theta.device.type, enabled=False):
            parts = [posterior_logits(chain, part, STRIDE) for part in torch.split(evidence, chain.batch)]
        return torch.cat(parts).to(theta.dtype)

    def draw(
        self, theta: Tensor, logits: Tensor, present: Tensor | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw strings, (batch, length), from the posterior as corrected by a network.

        The difference between the network's logits and those of the n-gram model is added to the evidence of theta.
        """
        correction = torch.log_softmax(logits.float(), -1) - torch.log_softmax(self(theta, present).float(), -1)
        evidence = self._evidence(theta, present)
        if present is not None:
            correction = correction.masked_fill(~present[..., None], 0.0)
        with torch.autocast(theta.device.type, enabled=False):
            return draw_strings(self._automaton(theta), evidence + correction.to(evidence.dtype), generator)

    def _evidence(self, theta: Tensor, present: Tensor | None) -> Tensor:
        """Return log-likelihoods, 0 for absent positions."""
        dtype = torch.promote_types(theta.dtype, torch.float32)
        evidence = theta.to(dtype).clamp(min=torch.finfo(dtype).tiny).log()
        return evidence if present is None else evidence.masked_fill(~present[..., None], 0.0)

    def _automaton(self, theta: Tensor) -> BackoffAutomaton:
        """Return the automaton for theta's type and device. It is made again after the buffers have changed."""
        dtype, device = torch.promote_types(theta.dtype, torch.float32), theta.device
        key = (dtype, device, *((buffer.data_ptr(), buffer._version) for buffer in self.buffers()))
        if self._cached is None or self._cached[0] != key:
            self._cached = key, BackoffAutomaton(self.tables(), dtype).to(device)
        return self._cached[1]

    def tables(self) -> BackoffTables:
        """Return the model that the buffers hold.

        Raises:
            UserError: the buffers hold no model, as in a damaged file.
        """
        sizes, codes, log_share, log_backoff = (buffer.cpu() for buffer in self.buffers())
        numbers = sizes.tolist()
        if min(numbers) < 0 or sum(numbers) > len(codes):
            raise UserError(f"an n-gram model with {numbers} n-grams of {len(codes)}: the file is damaged")
        share = log_share[: sum(numbers)].double().exp().split_with_sizes(numbers)
        backoff = log_backoff[: 1 + sum(numbers[:-1])].double().exp().split_with_sizes([1, *numbers[:-1]])
        empty = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
        grams = codes[: sum(numbers)].split_with_sizes(numbers)
        tables = BackoffTables(self.n_classes, self.context, (empty[0], *grams), (empty[1], *share), tuple(backoff))
        tables.check()
        return tables.normalised()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the automaton out of copies."""
        return {**self.__dict__, "_cached": None}
