"""How the character n-grams and the words of samples are distributed, against real text.

Spelling accuracy alone rewards a model that says few words. Beside it stand the Jensen-Shannon divergence (base 2, so
0 for equal distributions and 1 for disjoint ones) of n-grams and of words from real text, and their entropies (bits).
All are plug-in estimates, which depend on the size of the sample: a finite sample of real text has a divergence above
0 too. So each is reported beside the value that a real sample with the same number and lengths of texts gets.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bfn.arguments import as_tensor, check_whole
from bfn.errors import UserError
from bfn.quality.spelling import as_texts

__all__ = [
    "TextItems",
    "character_ngrams",
    "class_ngram_counts",
    "divergence",
    "entropy",
    "jensen_shannon",
    "ngram_counts",
    "word_counts",
]


MOST_CHARACTERS = 1000
"""Of an n-gram."""


def entropy(counts: Tensor) -> Tensor:
    """Plug-in entropy -sum p log2 p in bits of counts, or of weights of any sum; 0 where nothing was counted."""
    nats: Tensor = torch.special.entr(_normalised(counts)).sum()
    return nats / math.log(2)


def divergence(a: Tensor, b: Tensor) -> Tensor:
    """Jensen-Shannon divergence in bits of counts (k,) of the same items: H((p + q) / 2) - (H(p) + H(q)) / 2.

    Between 0 (equal) and 1 (disjoint), and 1 where one side is empty. Gradients pass where no count is 0.
    """
    if not a.sum() or not b.sum():
        return a.new_ones(())
    p, q = _normalised(a), _normalised(b)
    return torch.sub(entropy((p + q) / 2), (entropy(p) + entropy(q)) / 2).clamp(min=0)


def class_ngram_counts(x: Tensor, n: int, n_classes: int) -> Tensor:
    """Counts (n_classes^n,) in float64 of the n-grams within sequences of classes x, (batch, length).

    A class of -1 stands for no symbol, as after the end of a shorter sequence: n-grams with one are not counted.
    """
    if x.ndim != 2 or not 1 <= n <= x.shape[1]:
        raise UserError(f"classes of shape {tuple(x.shape)}: expected (batch, length) with a length of at least n={n}")
    powers = n_classes ** torch.arange(n - 1, -1, -1, device=x.device)
    found = x.unfold(1, n, 1)
    return torch.bincount((found * powers).sum(-1)[(found >= 0).all(-1)], minlength=n_classes**n).double()


def ngram_counts(texts: str | Iterable[str], n: int = 4) -> Counter[str]:
    """Counts of the character n-grams within each text (none reaches from one text into the next)."""
    check_whole("n", n, 1, MOST_CHARACTERS)
    return Counter(gram for text in as_texts(texts) for gram in character_ngrams(text, n))


def word_counts(texts: str | Iterable[str]) -> Counter[str]:
    """Counts of the words between spaces."""
    return Counter(word for text in as_texts(texts) for word in text.split())


@dataclass(frozen=True)
class TextItems:
    """The items (n-grams or words) of each text, numbered: statistics of any choice of the texts in one pass.

    ids: number of each item, all texts one after the other. texts: which text it is in. real: how often the item with
    that number comes up in real text; the last number stands for all items that only real text has.
    """

    ids: Tensor
    texts: Tensor
    real: Tensor
    n_texts: int

    @classmethod
    def of(cls, items: Sequence[Sequence[str]], real: Counter[str]) -> Self:
        """The items of each text against the counts of real text."""
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(item, len(numbers)) for some in items for item in some]
        lengths = torch.tensor([len(some) for some in items])
        shared = [real[item] for item in numbers]
        counts = torch.tensor([*shared, real.total() - sum(shared)], dtype=torch.float64)
        texts = torch.repeat_interleave(torch.arange(len(items)), lengths)
        return cls(torch.tensor(ids, dtype=torch.int64), texts, counts, len(items))

    def statistics(self, index: Tensor) -> Tensor:
        """(Jensen-Shannon divergence, entropy) in bits of the texts at ``index``, which may come several times."""
        often = torch.bincount(index, minlength=self.n_texts).double()
        counts = torch.bincount(self.ids, weights=often[self.texts], minlength=len(self.real))
        return torch.stack([divergence(counts, self.real), entropy(counts)])


def character_ngrams(text: str, n: int = 4) -> list[str]:
    """The character n-grams of one text, in order."""
    return ["".join(some) for some in zip(*(text[offset:] for offset in range(n)), strict=False)]


def jensen_shannon(a: Counter[str], b: Counter[str]) -> float:
    """Jensen-Shannon divergence in bits of two counts, between 0 (equal) and 1 (disjoint).

    1 where one side is empty: samples without a single word share none with real text.
    """
    for own in (a, b):
        if not isinstance(own, Mapping):
            raise TypeError(f"counts of type {type(own).__name__}: expected a Counter, as ngram_counts gives it")
    keys = a.keys() | b.keys()
    counts = (as_tensor("counts", [own.get(key, 0) for key in keys], dtype=torch.float64) for own in (a, b))
    return divergence(*counts).item()


def _normalised(counts: Tensor) -> Tensor:
    weights = counts.double()
    return weights / weights.sum().clamp(min=1e-300)
