"""What a chain of symbols makes of noisy evidence: forward-backward, the same for all automata."""

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Automaton", "posterior_logits", "scaled", "unit"]

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
