"""What a chain of symbols makes of noisy evidence, as a layer: what short contexts tell need not be learned.

A chain whose next symbol depends on the last few is counted in seconds, and its posterior under any evidence is exact
(forward-backward). It knows most of what stands between neighbours; a network that is shown it, and whose output
corrects it, has the rest to learn: words, and what goes with what. On text8 the chain alone, with contexts of three
symbols, has a bound of 2.31 bits a character, where the recipe's transformer without it has 2.62 after 4,400 steps.
"""

import math

import torch
from torch import Tensor, nn

from bfn.errors import UserError
from bfn.ngrams import DenseAutomaton, count_backoff, posterior_logits

__all__ = ["NGramPosterior"]

MOST_ENTRIES = 2**22
"""Of the table of all contexts and the symbols after them."""
SMOOTHING = 0.1
"""How readily a context gives way to a shorter one."""
STRIDE = 16
"""Places of the forward pass that are remembered at a time."""


class NGramPosterior(nn.Module):
    """theta (batch, length, K) -> logits of each place's posterior given the evidence of all places, the same shape.

    context: symbols that the next one depends on. Until :meth:`count` was called all symbols are as likely, and the
    posterior is theta. Tables are kept as logarithms, which half precision can hold.
    """

    def __init__(self, n_classes: int, context: int) -> None:
        super().__init__()
        if context < 1 or n_classes ** (context + 1) > MOST_ENTRIES:
            most = int(math.log(MOST_ENTRIES) / math.log(n_classes)) - 1
            raise UserError(
                f"ngram={context}: with {n_classes} classes expected contexts of at most {most} symbols; "
                f"give {most}, or 0 for none"
            )
        self.n_classes, self.context = n_classes, context
        for n in range(context + 1):
            self.register_buffer(f"log_table_{n}", torch.full((n_classes**n, n_classes), -math.log(n_classes)))

    @property
    def counted(self) -> bool:
        """Whether the chain was counted in data: some symbol is then likelier than another."""
        first = self.get_buffer("log_table_0")
        return bool((first != first[0, 0]).any())

    def count(self, sequences: Tensor) -> None:
        """Count the chain in data: (n, length) classes, -1 where a sequence has ended."""
        if sequences.ndim != 2 or sequences.is_floating_point():
            raise UserError(f"data of shape {tuple(sequences.shape)}: a chain is counted in classes, (n, length)")
        tables = count_backoff(sequences.cpu(), self.context, self.n_classes, SMOOTHING)
        for n, table in enumerate(tables.dense()):
            self.get_buffer(f"log_table_{n}").copy_(table.log())

    def forward(self, theta: Tensor, present: Tensor | None = None) -> Tensor:
        """present: bool (batch, length); what is absent is evidence of nothing."""
        evidence = theta.clamp(min=torch.finfo(theta.dtype).tiny).log()
        if present is not None:
            evidence = evidence.masked_fill(~present[..., None], 0.0)
        tables = [self.get_buffer(f"log_table_{n}").to(theta.dtype).exp() for n in range(self.context + 1)]
        chain = DenseAutomaton([table / table.sum(1, keepdim=True) for table in tables])
        return torch.cat([posterior_logits(chain, part, STRIDE) for part in torch.split(evidence, chain.batch)])
