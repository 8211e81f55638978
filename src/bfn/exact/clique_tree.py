"""Sums over all values of many discrete variables, by a tree of cliques: what makes exact posteriors possible.

A product of factors, each of a few variables, is summed by eliminating one variable after the other. The clique of a
variable holds it and the neighbours that are left when it goes; towards the last ones messages are sent, and back
(Lauritzen and Spiegelhalter, 1988). All in logarithms, for a batch of evidence at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["CliqueTree"]


@dataclass(frozen=True, eq=False)
class _Clique:
    """of: the variable that it eliminates. scope: its variables, increasing. parent: the clique that it tells."""

    of: int
    scope: tuple[int, ...]
    parent: int | None
    log_factor: Tensor


class CliqueTree:
    """sizes: levels of each variable. scopes: the variables of each factor, increasing."""

    def __init__(self, sizes: Sequence[int], scopes: Sequence[tuple[int, ...]]) -> None:
        self.sizes = tuple(sizes)
        self.order, self.scopes = _eliminated(self.sizes, scopes)
        self.factor_scopes = tuple(scopes)
        self.n_numbers = sum(math.prod(self.sizes[v] for v in self.scopes[of]) for of in self.order)
        """Numbers in all cliques together: what a sum costs, for each piece of evidence."""
        self._cliques: list[_Clique] = []

    def set_factors(self, log_factors: Sequence[Tensor]) -> None:
        """The factors' logarithms, each with an axis a variable of its scope."""
        place = {v: i for i, v in enumerate(self.order)}
        own: dict[int, Tensor] = {
            of: torch.zeros([self.sizes[v] for v in self.scopes[of]], dtype=log_factors[0].dtype) for of in self.order
        }
        for scope, log_factor in zip(self.factor_scopes, log_factors, strict=True):
            first = min(scope, key=place.__getitem__)
            own[first] = own[first] + _spread(log_factor, scope, self.scopes[first], batch=False)
        self._cliques = []
        for of in self.order:
            rest = [v for v in self.scopes[of] if v != of]
            parent = min(rest, key=place.__getitem__) if rest else None
            self._cliques.append(_Clique(of, self.scopes[of], parent, own[of]))

    def log_sum(self, evidence: Mapping[int, Tensor]) -> Tensor:
        """log of the sum over all values of the factors times the evidence, (batch,).

        evidence: of each variable the log-weights of its levels, (batch, levels).
        """
        return self._collected(evidence)[1]

    def log_marginals(self, evidence: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The same sum with one variable held, for each variable and level: (batch, levels), unnormalised."""
        tables, _, messages = self._collected(evidence)
        found: dict[int, Tensor] = {}
        for clique in reversed(self._cliques):
            table = tables[clique.of]
            if clique.parent is not None:
                # What the parent knows by all others: its own sum, without what this clique has told it.
                rest = tuple(v for v in clique.scope if v != clique.of)
                parent = self.scopes[clique.parent]
                known = _summed(tables[clique.parent], parent, rest) - messages[clique.of]
                table = tables[clique.of] = table + _spread(known, rest, clique.scope)
            found[clique.of] = _summed(table, clique.scope, (clique.of,))
        return found

    def _collected(self, evidence: Mapping[int, Tensor]) -> tuple[dict[int, Tensor], Tensor, dict[int, Tensor]]:
        """Cliques with all that they are told by those before them, the whole sum, and the messages."""
        n = len(next(iter(evidence.values())))
        tables = {
            clique.of: clique.log_factor.unsqueeze(0) + _spread(evidence[clique.of], (clique.of,), clique.scope)
            for clique in self._cliques
        }
        messages: dict[int, Tensor] = {}
        total = next(iter(evidence.values())).new_zeros(n)
        for clique in self._cliques:
            rest = tuple(v for v in clique.scope if v != clique.of)
            message = _summed(tables[clique.of], clique.scope, rest)
            messages[clique.of] = message
            if clique.parent is None:
                total = total + message
            else:
                parent = clique.parent
                tables[parent] = tables[parent] + _spread(message, rest, self.scopes[parent])
        return tables, total, messages


def _eliminated(
    sizes: Sequence[int], scopes: Sequence[tuple[int, ...]]
) -> tuple[list[int], dict[int, tuple[int, ...]]]:
    """An order in which variables go, always the one whose clique is smallest, and the clique of each."""
    neighbours: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
    for scope in scopes:
        for v in scope:
            neighbours[v] |= set(scope) - {v}
    weight = {v: sum(math.log(sizes[w]) for w in (v, *around)) for v, around in neighbours.items()}
    order, cliques = [], {}
    while neighbours:
        v = min(neighbours, key=lambda one: (weight[one], one))
        around = neighbours.pop(v)
        order.append(v)
        cliques[v] = tuple(sorted({v, *around}))
        for w in around:
            neighbours[w] = (neighbours[w] | around) - {v, w}
            weight[w] = sum(math.log(sizes[x]) for x in (w, *neighbours[w]))
    return order, cliques


def _spread(table: Tensor, scope: tuple[int, ...], over: tuple[int, ...], batch: bool = True) -> Tensor:
    """A view with an axis for each variable of a larger scope; both increase."""
    sizes = iter(table.shape[1:] if batch else table.shape)
    shape = [next(sizes) if v in scope else 1 for v in over]
    return table.reshape(len(table), *shape) if batch else table.reshape(shape)


def _summed(table: Tensor, scope: tuple[int, ...], onto: tuple[int, ...]) -> Tensor:
    """Summed over all variables but some."""
    away = [1 + i for i, v in enumerate(scope) if v not in onto]
    return torch.logsumexp(table, away) if away else table
