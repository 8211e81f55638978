"""Whole strings drawn from a chain's posterior, instead of one symbol at a time from their marginals.

Backwards through the places go the values of all contexts, forwards one string: at each place it says a symbol, from
its context or after falling to a shorter one, by their shares times the evidence times the value of what they lead to.
"""

from itertools import pairwise
from math import ceil, sqrt

import torch
from torch import Tensor

from bfn.ngrams.backoff import find
from bfn.ngrams.falling import FallingAutomaton
from bfn.ngrams.posterior import scaled, unit

__all__ = ["draw_strings"]


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
