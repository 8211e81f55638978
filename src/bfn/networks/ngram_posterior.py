"""What a chain of symbols makes of noisy evidence, as a layer: what goes before need not be learned by a network.

A chain whose next symbol depends on those before it is counted in a minute, and its posterior under any evidence is
exact (forward-backward). It knows letters and most short words; a network that is shown it, and whose output corrects
it, has the rest to learn: what goes with what. On text8 the chain alone has 2.14 bits a character, where the recipe's
transformer without it has a bound of 2.67 after 4,400 steps.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from bfn.errors import UserError
from bfn.ngrams import BackoffTables, FallingAutomaton, count_telling, draw_strings, posterior_logits

__all__ = ["NGramPosterior"]

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
