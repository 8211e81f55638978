"""Exact models of strings: sets, mixtures of independent variables, Markov chains and n-gram models."""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any, Unpack

import torch
from torch import Tensor

from bfn.core.errors import UserError
from bfn.core.flows import DiscreteFlow, NoiseLevel
from bfn.data.tokenizers import TEXT8
from bfn.exact.base import DiscreteExactModel, DiscreteSettings, draw_classes, log_probs_of, restore_log_zero, safe_log
from bfn.networks.ngram_counts import BackoffTables, count_backoff
from bfn.networks.ngram_posterior import SparseAutomaton, posterior_logits, scaled


class StringSet(DiscreteExactModel):
    """A finite set of strings.

    Args:
        strings: classes, (N, L).
        weights: (N,), equal if None.
        n_classes: number of classes.
        settings: see ``bfn.exact.base.DiscreteExactModel``.
    """

    strings: Tensor

    def __init__(
        self, strings: Tensor, weights: Tensor | None = None, *, n_classes: int, **settings: Unpack[DiscreteSettings]
    ) -> None:
        strings = torch.as_tensor(strings)
        if strings.ndim != 2 or strings.numel() == 0:
            raise UserError(f"strings of shape {tuple(strings.shape)}: expected (n_strings, length)")
        super().__init__(n_classes, strings.shape[1], **settings)
        self.flow.check(strings, self.data_shape)
        self.register_buffer("strings", strings.long())
        self._register_weights(weights, strings)

    def posterior(self, u: Tensor, level: NoiseLevel) -> Tensor:
        """Return the probability of each string given the state, (batch, N)."""
        return torch.softmax(self._log_joint(u * level.s), 1)

    def marginals(self, log_likelihood: Tensor) -> Tensor:
        weights = torch.softmax(self._log_joint(log_likelihood), 1)
        probs = torch.zeros_like(log_likelihood)
        for d, column in enumerate(self.strings.T):
            probs[:, d].index_add_(1, column, weights)
        return safe_log(probs)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        return torch.logsumexp(self._log_joint(log_likelihood), 1)

    def log_prob(self, x: Tensor) -> Tensor:
        self.flow.check(x, self.data_shape)
        weights = self.log_weights.exp()
        return torch.stack([weights[(self.strings == row).all(1)].sum() for row in x]).log()

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self.strings[self._draw_components(n, generator)]

    def _log_joint(self, log_likelihood: Tensor) -> Tensor:
        """Return log p(string) plus its log-likelihood, (batch, N)."""
        # One position at a time, so that memory is (batch, N).
        joint = self.log_weights.expand(len(log_likelihood), -1)
        for d, column in enumerate(self.strings.T):
            joint = joint + log_likelihood[:, d, column]
        return joint


class MixtureOfProducts(DiscreteExactModel):
    """Mixture of M products of categorical distributions.

    Args:
        weights: (M,), equal if None.
        probs: class probabilities, (M, L, K).
        settings: see ``bfn.exact.base.DiscreteExactModel``.
    """

    log_probs: Tensor

    def __init__(self, weights: Tensor | None, probs: Tensor, **settings: Unpack[DiscreteSettings]) -> None:
        probs = torch.as_tensor(probs)
        if probs.ndim != 3 or probs.numel() == 0:
            raise UserError(f"probs of shape {tuple(probs.shape)}: expected (components, length, classes)")
        super().__init__(probs.shape[2], probs.shape[1], **settings)
        self._register_weights(weights, probs)
        self._register_log_probs("log_probs", probs, "probs")

    def marginals(self, log_likelihood: Tensor) -> Tensor:
        joint = self.log_probs + log_likelihood.unsqueeze(1)
        totals = torch.logsumexp(joint, -1, keepdim=True)
        component = torch.log_softmax(self.log_weights + totals.flatten(2).sum(2), 1)
        return torch.logsumexp(component[..., None, None] + joint - totals, 1)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        totals = torch.logsumexp(self.log_probs + log_likelihood.unsqueeze(1), -1)
        return torch.logsumexp(self.log_weights + totals.sum(2), 1)

    def log_prob(self, x: Tensor) -> Tensor:
        self.flow.check(x, self.data_shape)
        return restore_log_zero(torch.logsumexp(self.log_weights + log_probs_of(self.log_probs, x), 1))

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        probs = self.log_probs[self._draw_components(n, generator)].exp()
        return draw_classes(probs.flatten(0, 1), generator).reshape(n, -1)


class ProductOfCategoricals(MixtureOfProducts):
    """Independent variables, the only data for which the original sampler draws exact samples.

    Args:
        probs: class probabilities, (L, K).
        settings: see ``bfn.exact.base.DiscreteExactModel``.
    """

    def __init__(self, probs: Tensor, **settings: Unpack[DiscreteSettings]) -> None:
        probs = torch.as_tensor(probs)
        if probs.ndim != 2:
            raise UserError(f"probs of shape {tuple(probs.shape)}: expected (length, classes)")
        super().__init__(None, probs.unsqueeze(0), **settings)


class MarkovChain(DiscreteExactModel):
    """Markov chain x_1 ~ initial, x_(d+1) ~ transition[x_d].

    Probabilities may be 0: the forward-backward algorithm works with logarithms, so even strong evidence never leads to
    0 / 0.

    Args:
        initial: (K,).
        transition: (K, K), each row a distribution.
        length: number of variables.
        settings: see ``bfn.exact.base.DiscreteExactModel``.
    """

    log_initial: Tensor
    log_transition: Tensor

    def __init__(self, initial: Tensor, transition: Tensor, length: int, **settings: Unpack[DiscreteSettings]) -> None:
        initial, transition = torch.as_tensor(initial), torch.as_tensor(transition)
        if initial.ndim != 1:
            raise UserError(
                f"initial of shape {tuple(initial.shape)}: expected one probability for each class, (n_classes,)"
            )
        n_classes = len(initial)
        if tuple(transition.shape) != (n_classes, n_classes):
            raise UserError(f"transition of shape {tuple(transition.shape)}: expected ({n_classes}, {n_classes})")
        super().__init__(n_classes, length, **settings)
        self._register_log_probs("log_initial", initial, "initial")
        self._register_log_probs("log_transition", transition, "rows of transition")

    def marginals(self, log_likelihood: Tensor) -> Tensor:
        before, _ = self._forward(log_likelihood)
        after = log_likelihood.new_zeros(len(log_likelihood), self.flow.n_classes)
        logits = [before[-1] + log_likelihood[:, -1]]
        for d in range(len(before) - 2, -1, -1):
            here = torch.log_softmax(log_likelihood[:, d + 1] + after, 1).unsqueeze(1)
            after = torch.logsumexp(self.log_transition + here, 2)
            logits.append(before[d] + log_likelihood[:, d] + after)
        return torch.stack(logits[::-1], 1)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        return self._forward(log_likelihood)[1]

    def log_prob(self, x: Tensor) -> Tensor:
        self.flow.check(x, self.data_shape)
        return restore_log_zero(self.log_initial[x[:, 0]] + self.log_transition[x[:, :-1], x[:, 1:]].sum(1))

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        x = [draw_classes(self.log_initial.exp().expand(n, -1), generator)]
        for _ in range(1, self.data_shape[0]):
            x.append(draw_classes(self.log_transition[x[-1]].exp(), generator))
        return torch.stack(x, 1)

    def _forward(self, log_likelihood: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return log p(x_d = k | evidence before d), (batch, K) for each d, and the log normaliser, (batch,)."""
        before = [self.log_initial.expand(len(log_likelihood), -1)]
        total = log_likelihood.new_zeros(len(log_likelihood))
        for d in range(log_likelihood.shape[1]):
            joint = before[-1] + log_likelihood[:, d]
            # Normalised at each step, since sums that grow along the string would lose digits.
            norm = torch.logsumexp(joint, 1, keepdim=True)
            total = total + norm.squeeze(1)
            if d + 1 < log_likelihood.shape[1]:
                before.append(torch.logsumexp((joint - norm).unsqueeze(2) + self.log_transition, 1))
        return before, total


class NGram(DiscreteExactModel):
    """An n-gram model, see ``bfn.networks.ngram_counts``. ``from_text`` estimates one from a text.

    Args:
        tables: parameters of the model.
        length: number of variables.
        memory: bytes that a posterior may use in addition to the model. Batches are divided into parts that fit.
        settings: see ``bfn.exact.base.DiscreteExactModel``.
    """

    def __init__(
        self, tables: BackoffTables, length: int, *, memory: int = 1 << 30, **settings: Unpack[DiscreteSettings]
    ) -> None:
        super().__init__(tables.n_classes, length, **settings)
        self.backoff = tables
        self.automaton = SparseAutomaton(tables, self._dtype)
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
    ) -> NGram:
        """Estimate a model from a text.

        Args:
            text: integer classes, (n,), or a string of spaces and letters a-z.
            context: maximum number of symbols that the next one depends on.
            length: number of variables of a sample.
            n_classes: number of classes.
            smoothing: larger values give shorter contexts more weight; 1 is the rule of Witten and Bell.
            min_count: n-grams that occur fewer times are left out, which saves much memory for long contexts.
            settings: ``memory`` and the settings of the class.
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
        """Maximum number of symbols that the next one depends on."""
        return self.backoff.context

    def next_probs(self, history: Tensor) -> Tensor:
        """Return the probabilities of the symbol after each history (batch, n), float64, (batch, K)."""
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
            # All vectors of the forward pass are kept if memory allows, else every sqrt(length)-th.
            stride = None if len(part) <= self._fitting(length) else ceil(sqrt(length))
            parts.append(posterior_logits(self.automaton, part.to(self.dtype), stride))
        return torch.cat(parts).to(log_likelihood.dtype)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        totals = []
        for part in self._parts(log_likelihood):
            evidence, peaks = scaled(part.permute(1, 2, 0).to(self.dtype))
            alpha, total = self.automaton.start(len(part)), peaks.sum(0)
            for own in evidence:
                alpha = self.automaton.emit(self.automaton.advance(alpha), own)
                norm = alpha.sum(0)
                alpha, total = alpha / norm, total + norm.log()
            totals.append(total)
        return torch.cat(totals)

    def _parts(self, log_likelihood: Tensor) -> tuple[Tensor, ...]:
        """Divide a batch into parts to work on at a time."""
        batch, length = len(log_likelihood), self.data_shape[0]
        most = min(batch, self.automaton.batch)
        # Parts of half the size take less time than a second forward pass.
        whole = self._fitting(length)
        size = min(most, whole if 2 * whole >= most else self._fitting(2 * ceil(sqrt(length))))
        return log_likelihood.tensor_split(ceil(batch / max(1, size)))

    def _fitting(self, n_vectors: int) -> int:
        """Return the number of samples for which so many vectors, and the few that are always needed, fit in memory."""
        return self.memory // ((n_vectors + 6) * self.automaton.n_states * self.dtype.itemsize)

    def _codes(self, history: Tensor) -> tuple[Tensor, int]:
        """Return the codes of the last symbols of each history, and their number of symbols."""
        length = min(history.shape[1], self.context)
        codes = torch.zeros(len(history), dtype=torch.int64)
        for column in history[:, history.shape[1] - length :].T:
            codes = codes * self.flow.n_classes + column
        return codes, length
