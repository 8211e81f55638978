"""Character chains whose next symbol depends on the last few: real text with no model error at all.

On text8 samples of 256 symbols spell 38, 58, 75, 84 % of their words for contexts of 2, 3, 4, 5 symbols, cut words at
the two ends counted, where the text itself has 90 % (``bfn.metrics.spelling_accuracy``).
"""

from math import ceil, sqrt
from typing import Any

import torch
from torch import Tensor

from bfn.data.tokenizers import TEXT8
from bfn.errors import UserError
from bfn.exact.base import DiscreteExactModel, draw_classes
from bfn.flows import DiscreteFlow
from bfn.ngrams import (
    Automaton,
    BackoffTables,
    DenseAutomaton,
    SparseAutomaton,
    count_backoff,
    posterior_logits,
    scaled,
)

__all__ = ["NGram"]

_DENSE_STATES = 20_000
"""Up to so many contexts all are kept: matrix products over all are faster than sparse ones over those seen."""


class NGram(DiscreteExactModel):
    """A chain of memory ``context``, made by :meth:`from_text`.

    dense: keep all contexts (True), only seen ones (False), or whichever is faster (None): the same model either way.
    memory: bytes that a posterior may use beyond the model; batches are worked on in parts that fit.
    """

    automaton: Automaton

    def __init__(
        self,
        tables: BackoffTables,
        length: int,
        *,
        beta_1: float = 0.75**2,
        flow: DiscreteFlow | None = None,
        dense: bool | None = None,
        dtype: torch.dtype = torch.float64,
        memory: int = 1 << 30,
    ) -> None:
        super().__init__(tables.n_classes, length, beta_1, flow)
        self.backoff = tables
        if dense is None:
            dense = tables.n_classes**tables.context <= _DENSE_STATES
        self.automaton = DenseAutomaton.of(tables, dtype) if dense else SparseAutomaton(tables, dtype)
        self.memory = memory

    @classmethod
    def from_text(
        cls,
        text: Tensor | str,
        context: int,
        length: int,
        *,
        n_classes: int = 27,
        smoothing: float = 0.1,
        min_count: int = 1,
        **settings: Any,
    ) -> "NGram":
        """The chain that a text's n-grams make.

        text: (n,) integer classes, or a string of spaces and letters a-z. length: variables of a sample.
        smoothing: how readily a context gives way to a shorter one; 1 is the rule of Witten and Bell.
        min_count: n-grams seen fewer times count as not seen, which saves much of the memory of long contexts.
        settings: those of the class, such as ``flow``, ``dense`` and ``dtype``.
        """
        alphabet = None
        if isinstance(text, str):
            alphabet, text = TEXT8.symbols, TEXT8.encode(text)
        if text.ndim != 1 or len(text) < 2:
            raise UserError(f"text of shape {tuple(text.shape)}: expected at least 2 classes in a row, (n,)")
        DiscreteFlow(n_classes).check(text.unsqueeze(0), tuple(text.shape))
        if context < 1 or n_classes ** (context + 1) >= 2**63:
            raise UserError(f"context={context}: expected at least 1, and n_classes^(context + 1) below 2^63")
        if not 0 < smoothing < float("inf"):
            raise UserError(f"smoothing={smoothing}: expected a positive number, such as 0.1")
        if min_count < 1:
            raise UserError(f"min_count={min_count}: expected at least 1")
        tables = count_backoff(text.cpu(), context, n_classes, smoothing, min_count)
        model = cls(tables, length, **settings)
        model.info.alphabet = alphabet
        return model

    @property
    def context(self) -> int:
        """How many symbols the next one depends on."""
        return self.backoff.context

    def next_probs(self, history: Tensor) -> Tensor:
        """Probabilities of the symbol after each history, (batch, any number of classes): (batch, K), float64."""
        codes, length = self._codes(history.cpu())
        return self.backoff.probability(codes.unsqueeze(1), length, torch.arange(self.flow.n_classes))

    def log_prob(self, x: Tensor) -> Tensor:
        self.flow.check(x, self.data_shape)
        x = x.long().cpu()
        total = torch.zeros(len(x), dtype=torch.float64)
        for d in range(x.shape[1]):
            codes, length = self._codes(x[:, :d])
            total += self.backoff.probability(codes, length, x[:, d]).log()
        return total.to(self.device, self.dtype)

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        x = torch.empty((n, self.data_shape[0]), dtype=torch.int64)
        for d in range(x.shape[1]):
            x[:, d] = draw_classes(self.next_probs(x[:, :d]), generator)
        return x.to(self.device)

    def marginals(self, log_likelihood: Tensor) -> Tensor:
        length, parts = log_likelihood.shape[1], []
        for part in self._parts(log_likelihood):
            # Of the forward pass every vector is kept if memory allows, else every sqrt(length)-th.
            stride = None if len(part) <= self._fitting(length) else ceil(sqrt(length))
            parts.append(posterior_logits(self.automaton, part.to(self.dtype), stride))
        return torch.cat(parts).to(log_likelihood.dtype)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        totals = []
        for part in self._parts(log_likelihood):
            evidence, peaks = scaled(part.permute(1, 2, 0).to(self.dtype))
            alpha, total = self.automaton.start(len(part)), peaks.sum(0)
            for d, e in enumerate(evidence):
                alpha = self.automaton.emit(self.automaton.advance(alpha, d), e)
                norm = alpha.sum(0)
                alpha, total = alpha / norm, total + norm.log()
            totals.append(total)
        return torch.cat(totals)

    def _parts(self, log_likelihood: Tensor) -> tuple[Tensor, ...]:
        """The batch in parts to work on at a time."""
        batch, length = len(log_likelihood), self.data_shape[0]
        most = min(batch, self.automaton.batch)
        # Half the width costs less than a second forward pass.
        whole = self._fitting(length)
        size = min(most, whole if 2 * whole >= most else self._fitting(2 * ceil(sqrt(length))))
        return log_likelihood.tensor_split(ceil(batch / max(1, size)))

    def _fitting(self, n_vectors: int) -> int:
        """Samples of which so many vectors, and the few at work, fit in memory."""
        return self.memory // ((n_vectors + 6) * self.automaton.n_states * self.dtype.itemsize)

    def _codes(self, history: Tensor) -> tuple[Tensor, int]:
        """The last symbols of each history as one number, and how many they are."""
        length = min(history.shape[1], self.context)
        codes = torch.zeros(len(history), dtype=torch.int64)
        for column in history[:, history.shape[1] - length :].T:
            codes = codes * self.flow.n_classes + column
        return codes, length
