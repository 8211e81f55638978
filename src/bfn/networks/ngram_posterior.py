"""What a chain of symbols makes of noisy evidence: forward-backward, the same for all automata."""

from __future__ import annotations

import itertools
from itertools import pairwise
from math import ceil, sqrt
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bfn.core.errors import UserError
from bfn.networks.ngram_counts import BACKOFF_MIN, BackoffTables, FallingAutomaton, count_ngrams, find, sums

LEAST = 1e-300
"""Stands for a probability of 0 where a logarithm is taken in float64; in float32 the least there is does."""


class Automaton(Protocol):
    """A chain's steps. A state is a context; vectors over states are (states, batch).

    ``out`` is a vector to write the result to: most of the time of small products would go into fresh memory. Where it
    is given, advance may change alpha; it is None where gradients are wanted. Symbols are counted by d from 0.
    """

    n_states: int
    batch: int
    """Rows to work on at a time: the vectors of more no longer fit in cache."""
    ramp: int
    """Symbols before which vectors are shorter than ``n_states``."""

    def room(self, n: int, batch: int) -> Tensor | None:
        """Memory for n vectors over all contexts; None where products make their own."""

    def start(self, batch: int) -> Tensor:
        """All mass on the empty context."""

    def advance(self, alpha: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        """Probabilities of the contexts after symbol d from those before it."""

    def retreat(self, value: Tensor, d: int, out: Tensor | None = None) -> Tensor:
        """Its transpose: expected value before symbol d of a value of the contexts after it."""

    def emit(self, alpha: Tensor, evidence: Tensor, out: Tensor | None = None) -> Tensor:
        """Each context's entry times the evidence, (K, batch), of its last symbol."""

    def read_out(self, alpha: Tensor) -> Tensor:
        """Sums of the contexts by last symbol, (K, batch)."""


def posterior_logits(chain: Automaton, log_likelihood: Tensor, stride: int | None = None) -> Tensor:
    """Logits of each symbol's posterior by forward-backward: (batch, length, K) -> the same shape.

    A symbol's posterior is its own evidence times what its past and its future say of it, so that the logits keep the
    evidence's whole range. stride: of the forward pass every so many vectors are kept and the rest made again; all are
    kept if None. A second forward pass costs about what fetching fresh memory does.
    """
    batch, length, _ = log_likelihood.shape
    stride = stride or length
    by_place = log_likelihood.permute(1, 2, 0).contiguous()
    evidence, _ = scaled(by_place)
    spare = not (torch.is_grad_enabled() and log_likelihood.requires_grad)
    room = chain.room(min(stride, length) + 3, batch) if spare else None  # in one piece: far fewer pages to fetch

    def place(number: int, d: int) -> Tensor | None:
        """One of the vectors of the room; none before symbols d whose vectors are shorter than the chain's."""
        return None if room is None or d < chain.ramp else room[number]

    alpha, saved = chain.start(batch), []
    for d in range(length):
        if d % stride == 0:
            saved.append(alpha.clone() if spare else alpha)
        if d < (length - 1) // stride * stride:
            alpha = unit(chain.emit(chain.advance(alpha, d, place(1, d)), evidence[d], place(0, d + 1)), spare)
    others: list[Tensor] = []
    after: Tensor | None = None
    least = max(LEAST, torch.finfo(by_place.dtype).tiny)
    while saved:
        alpha, start = saved.pop(), len(saved) * stride
        block = []
        for d in range(start, min(start + stride, length)):
            block.append(chain.advance(alpha, d, place(3 + d - start, d)))
            alpha = unit(chain.emit(block[-1], evidence[d], place(0, d + 1)), spare)
        for d in range(min(start + stride, length) - 1, start - 1, -1):
            before = block.pop()
            after = torch.ones_like(before) if after is None else after
            both = torch.mul(before, after, out=place(1, d + 1))
            others.append(chain.read_out(both).clamp(min=least).log())
            after = unit(chain.retreat(chain.emit(after, evidence[d], place(1, d + 1)), d, place(2, d)), spare)
    return (by_place + torch.stack(others[::-1])).permute(2, 0, 1)


def scaled(log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """exp of (length, K, batch) divided by its peak over the classes, and the peaks, (length, batch)."""
    peaks = log_likelihood.amax(1)
    return (log_likelihood - peaks.unsqueeze(1)).exp(), peaks


def unit(alpha: Tensor, in_place: bool) -> Tensor:
    """Vectors over states, (states, batch), with sum 1."""
    total = alpha.sum(0)
    return alpha.div_(total) if in_place else alpha / total


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


def draw_strings(chain: FallingAutomaton, log_likelihood: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Strings, (batch, length), from the posterior under evidence (batch, length, K); one uniform number a symbol."""
    uniform = torch.rand(log_likelihood.shape[:2], generator=generator, device=log_likelihood.device)
    parts = zip(torch.split(log_likelihood, chain.batch), torch.split(uniform, chain.batch), strict=True)
    return torch.cat([_draw(chain, part, numbers) for part, numbers in parts])


def _draw(chain: FallingAutomaton, log_likelihood: Tensor, uniform: Tensor) -> Tensor:
    batch, length, _ = log_likelihood.shape
    evidence, _ = scaled(log_likelihood.permute(1, 2, 0).contiguous())
    stride = ceil(sqrt(length))
    after = {length: torch.ones_like(chain.start(batch))}  # values of the contexts after so many symbols

    def back_to(first: int, last: int) -> dict[int, Tensor]:
        """Values after ``first`` to ``last`` symbols."""
        values = {last: after[last]}
        for d in range(last - 1, first - 1, -1):
            values[d] = unit(chain.retreat(chain.emit(values[d + 1], evidence[d]), d), in_place=True)
        return values

    ends = [*range(0, length, stride), length]
    for first, last in reversed([*pairwise(ends)]):
        after[first] = back_to(first, last)[first]
    states, said = torch.zeros(batch, dtype=torch.int64, device=uniform.device), []
    for first, last in pairwise(ends):
        values = back_to(first + 1, last)
        for d in range(first, last):
            states, symbols = _say(chain, states, evidence[d], values[d + 1], uniform[:, d])
            said.append(symbols)
    return torch.stack(said, 1)


def _say(
    chain: FallingAutomaton, states: Tensor, evidence: Tensor, value: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """The contexts after one more symbol, (batch,), and the symbols."""
    symbols = torch.arange(chain.base, device=states.device)
    members = torch.arange(len(states), device=states.device).unsqueeze(1)
    weights, into = [], []
    reached = torch.ones_like(uniform, dtype=value.dtype)
    for _ in chain.sizes:  # falls from here to the empty context
        arcs = find(chain.arc_keys, states.unsqueeze(1) * chain.base + symbols)
        share = torch.where(arcs >= 0, chain.arc_shares[arcs], 0.0)
        into.append(chain.arc_ends[arcs])
        weights.append(reached.unsqueeze(1) * share * evidence.T * value[into[-1], members])
        reached, states = reached * chain.fall_shares[states], chain.falls_to[states]
    total = torch.cat(weights, 1).double().cumsum(1)
    chosen = (total < uniform.double().unsqueeze(1) * total[:, -1:]).sum(1, keepdim=True).clamp_(max=total.shape[1] - 1)
    return torch.cat(into, 1).gather(1, chosen).squeeze(1), chosen.squeeze(1) % chain.base


MOST_NGRAMS = 2**15
"""n-grams that the chain is made of, at most: those that tell most."""
STRIDE = 16
"""Places of the forward pass that are remembered at a time."""
LEAST_SHARE = 1e-7
"""Of a symbol after its context, as it is kept: half precision holds its logarithm."""


class NGramPosterior(nn.Module):
    """theta (batch, length, K) -> logits of each place's posterior given the evidence of all places, the same shape.

    context: symbols that the next one depends on, at most: contexts are long where that tells something. Until
    :meth:`count` was called all symbols are as likely, and the posterior is theta.
    """

    def __init__(self, n_classes: int, context: int) -> None:
        super().__init__()
        if context < 1 or n_classes ** (context + 1) >= 2**63:
            most = next(c for c in range(63) if n_classes ** (c + 2) >= 2**63)
            raise UserError(
                f"ngram={context}: with {n_classes} classes expected contexts of at most {most} symbols; "
                f"give {most}, or 0 for none"
            )
        if n_classes > MOST_NGRAMS:
            raise UserError(
                f"ngram={context}: a chain of symbols is for at most {MOST_NGRAMS} classes; give 0 for none"
            )
        self.n_classes, self.context = n_classes, context
        most = min(MOST_NGRAMS, sum(n_classes**n for n in range(1, context + 2)))
        self.register_buffer("sizes", torch.tensor([n_classes, *[0] * context]))
        self.register_buffer("codes", torch.arange(most).where(torch.arange(most) < n_classes, -1))
        self.register_buffer("log_share", torch.zeros(most))
        self.register_buffer("log_backoff", torch.zeros(1 + most))
        self._made: tuple[Any, FallingAutomaton] | None = None

    @property
    def counted(self) -> bool:
        """Whether the chain was counted in data: some symbol is then likelier than another."""
        return bool(self.get_buffer("log_share").any())

    def count(self, sequences: Tensor) -> None:
        """Count the chain in data: (n, length) classes, -1 where a sequence has ended."""
        if sequences.ndim != 2 or sequences.is_floating_point():
            raise UserError(f"data of shape {tuple(sequences.shape)}: a chain is counted in classes, (n, length)")
        codes = self.get_buffer("codes")
        tables = count_telling(sequences.cpu(), self.context, self.n_classes, len(codes))
        self.get_buffer("sizes").copy_(torch.tensor([len(own) for own in tables.codes[1:]]))
        self._fill("codes", torch.cat(tables.codes[1:]))
        self._fill("log_share", torch.cat(tables.share[1:]).clamp(min=LEAST_SHARE).log())
        self._fill("log_backoff", torch.cat(tables.backoff).log())

    def _fill(self, name: str, values: Tensor) -> None:
        """Values, and zeros after them."""
        self.get_buffer(name).zero_()[: len(values)] = values.to(self.get_buffer(name))

    def forward(self, theta: Tensor, present: Tensor | None = None) -> Tensor:
        """present: bool (batch, length); what is absent is evidence of nothing. Sums have single precision at least."""
        evidence, chain = self._evidence(theta, present), self._automaton(theta)
        with torch.autocast(theta.device.type, enabled=False):
            parts = [posterior_logits(chain, part, STRIDE) for part in torch.split(evidence, chain.batch)]
        return torch.cat(parts).to(theta.dtype)

    def draw(
        self, theta: Tensor, logits: Tensor, present: Tensor | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Strings, (batch, length), from the posterior of the chain that these logits correct.

        What they say beyond the chain's own posterior is evidence like theta.
        """
        beyond = torch.log_softmax(logits.float(), -1) - torch.log_softmax(self(theta, present).float(), -1)
        evidence = self._evidence(theta, present)
        if present is not None:
            beyond = beyond.masked_fill(~present[..., None], 0.0)
        with torch.autocast(theta.device.type, enabled=False):
            return draw_strings(self._automaton(theta), evidence + beyond.to(evidence.dtype), generator)

    def _evidence(self, theta: Tensor, present: Tensor | None) -> Tensor:
        """Log-likelihoods; 0 where there is nothing."""
        dtype = torch.promote_types(theta.dtype, torch.float32)
        evidence = theta.to(dtype).clamp(min=torch.finfo(dtype).tiny).log()
        return evidence if present is None else evidence.masked_fill(~present[..., None], 0.0)

    def _automaton(self, theta: Tensor) -> FallingAutomaton:
        """The chain's steps, made again where its tables changed since."""
        dtype, device = torch.promote_types(theta.dtype, torch.float32), theta.device
        tables = [self.get_buffer(name) for name in ("sizes", "codes", "log_share", "log_backoff")]
        key = (dtype, device, *((table.data_ptr(), table._version) for table in tables))
        if self._made is None or self._made[0] != key:
            self._made = key, FallingAutomaton(self._tables(*(table.cpu() for table in tables)), dtype, device)
        return self._made[1]

    def _tables(self, sizes: Tensor, codes: Tensor, log_share: Tensor, log_backoff: Tensor) -> BackoffTables:
        numbers = sizes.tolist()
        if min(numbers) < 0 or sum(numbers) > len(codes):
            raise UserError(f"a chain of symbols with {numbers} n-grams of {len(codes)}: not one that was counted")
        ends = [0, *itertools.accumulate(numbers)]
        grams = [codes[start:end] for start, end in itertools.pairwise(ends)]
        share = [log_share[start:end].double().exp() for start, end in itertools.pairwise(ends)]
        backoff = [log_backoff[:1].double().exp()]
        backoff += [log_backoff[1 + start : 1 + end].double().exp() for start, end in itertools.pairwise(ends[:-1])]
        nothing = torch.zeros(1, dtype=torch.int64)
        share = [torch.ones(1, dtype=torch.float64), *share]
        tables = BackoffTables(self.n_classes, self.context, (nothing, *grams), tuple(share), tuple(backoff))
        return tables.require_whole().normalised()

    def __getstate__(self) -> dict[str, Any]:
        """Copies make their steps themselves."""
        return {**self.__dict__, "_made": None}
