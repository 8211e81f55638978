"""How the character n-grams and the words of samples are distributed, against real text.

Spelling accuracy alone rewards a model that says few words. Beside it stand the Jensen-Shannon divergence (base 2, so
0 for equal distributions and 1 for disjoint ones) of n-grams and of words from real text, and their entropies (bits).
All are plug-in estimates, which depend on the size of the sample: a finite sample of real text has a divergence above
0 too. So each is reported beside the value that a real sample with the same number and lengths of texts gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.likelihood import nats_to_bits
from bfn.quality.spelling import SpellingResult, as_texts, spelling_result


@dataclass(frozen=True)
class TextStatistics:
    """Statistics of one set of texts against real text."""

    n_texts: int
    n_characters: int
    spelling: SpellingResult
    ngram_divergence: float
    word_divergence: float
    ngram_entropy: float
    word_entropy: float


@dataclass(frozen=True)
class TextReport:
    """Samples, and real text of the same size, judged alike."""

    samples: TextStatistics
    real: TextStatistics
    n: int

    def markdown(self) -> str:
        """A table with one row for the samples and one for real text."""
        rows = [
            f"| | spelling accuracy | {self.n}-gram divergence | word divergence "
            f"| {self.n}-gram entropy | word entropy |",
            "|---|---|---|---|---|---|",
        ]
        for name, s in (("samples", self.samples), ("real text, same size", self.real)):
            accuracy = f"{100 * s.spelling.accuracy:.2f} +- {100 * s.spelling.standard_error:.2f} %"
            values = (s.ngram_divergence, s.word_divergence, s.ngram_entropy, s.word_entropy)
            rows.append(" | ".join([f"| {name}", accuracy, *(f"{value:.3f}" for value in values)]) + " |")
        return "\n".join(rows)


@dataclass(frozen=True)
class TextReference:
    """Counts of real text, taken once and compared with many samples; `real` are texts not among the counted ones."""

    n: int
    ngrams: Counter[str]
    words: Counter[str]
    real: tuple[str, ...]

    @classmethod
    def split(cls, reference: str | Iterable[str], *, n_texts: int, length: int, n: int = 4) -> TextReference:
        """Cut `n_texts` evenly spaced pieces of `length` characters out as the real sample, and count the rest."""
        text = " ".join(as_texts(reference))
        stride = len(text) // n_texts
        if stride < 2 * length:
            raise UserError(
                f"a reference of {len(text)} characters: {n_texts} samples of {length} characters need at least "
                f"{2 * n_texts * length}, so that a real sample of that size can be set aside; give more real text "
                "or fewer samples"
            )
        starts = range(0, stride * n_texts, stride)
        rest = [text[start + length : start + stride] for start in starts]
        real = tuple(text[start : start + length] for start in starts)
        return cls(n, ngram_counts(rest, n), word_counts(rest), real)

    def statistics(self, texts: str | Iterable[str]) -> TextStatistics:
        """Statistics of `texts` against the counted reference."""
        listed = as_texts(texts)
        ngrams, words = ngram_counts(listed, self.n), word_counts(listed)
        return TextStatistics(
            n_texts=len(listed),
            n_characters=sum(map(len, listed)),
            spelling=spelling_result(listed),
            ngram_divergence=jensen_shannon(ngrams, self.ngrams),
            word_divergence=jensen_shannon(words, self.words),
            ngram_entropy=entropy(ngrams),
            word_entropy=entropy(words),
        )

    def report(self, samples: str | Iterable[str]) -> TextReport:
        """The samples beside the real sample that was set aside."""
        return TextReport(self.statistics(samples), self.statistics(self.real), self.n)


def text_report(samples: str | Sequence[str], reference: str | Iterable[str], *, n: int = 4) -> TextReport:
    """Judge `samples`, and a real sample of the same size out of `reference`, held-out text: spelling and n-grams."""
    listed = as_texts(samples)
    length = max(map(len, listed))
    return TextReference.split(reference, n_texts=len(listed), length=length, n=n).report(listed)


def ngram_counts(texts: str | Iterable[str], n: int = 4) -> Counter[str]:
    """Counts of the character n-grams within each text (none reaches from one text into the next)."""
    if n < 1:
        raise UserError(f"n={n}: an n-gram needs at least 1 character")
    counts: Counter[str] = Counter()
    for text in as_texts(texts):
        counts.update(character_ngrams(text, n))
    return counts


def word_counts(texts: str | Iterable[str]) -> Counter[str]:
    """Counts of the words between spaces."""
    counts: Counter[str] = Counter()
    for text in as_texts(texts):
        counts.update(text.split())
    return counts


@dataclass(frozen=True)
class Bag:
    """The items (n-grams or words) of each text, numbered: statistics of any choice of the texts in one pass.

    ids: number of each item, all texts one after the other. texts: which text it is in. q: how often the item with
    that number comes up in real text.
    """

    ids: Tensor
    texts: Tensor
    q: Tensor
    n_texts: int

    @classmethod
    def of(cls, items: Sequence[Sequence[str]], reference: Counter[str]) -> Bag:
        """The items of each text against the counts of real text."""
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(item, len(numbers)) for some in items for item in some]
        lengths = torch.tensor([len(some) for some in items])
        total = max(1, reference.total())
        q = torch.tensor([reference[item] / total for item in numbers], dtype=torch.float64)
        texts = torch.repeat_interleave(torch.arange(len(items)), lengths)
        return cls(torch.tensor(ids, dtype=torch.int64), texts, q, len(items))

    def statistics(self, index: Tensor) -> Tensor:
        """(Jensen-Shannon divergence, entropy) in bits of the texts at ``index``, which may come several times.

        With m = (p + q) / 2 an item that the texts lack adds q / 2 bits to the divergence, so only theirs are summed.
        """
        often = torch.bincount(index, minlength=self.n_texts).double()
        counts = torch.bincount(self.ids, weights=often[self.texts], minlength=len(self.q))
        if not counts.sum():
            return torch.tensor([1.0, 0.0], dtype=torch.float64)
        p, q = _normalised(counts), torch.where(counts > 0, self.q, 0)
        m = (p + q) / 2
        inside = torch.special.xlogy(p, p) + torch.special.xlogy(q, q) - 2 * torch.special.xlogy(m, m)
        divergence = nats_to_bits(inside.sum().item()) / 2 + (1 - q.sum().item()) / 2
        return torch.tensor([max(0.0, divergence), _entropy(p)], dtype=torch.float64)


def character_ngrams(text: str, n: int = 4) -> list[str]:
    """The character n-grams of one text, in order."""
    return ["".join(some) for some in zip(*(text[offset:] for offset in range(n)), strict=False)]


def entropy(counts: Counter[str]) -> float:
    """Plug-in entropy -sum p log2 p in bits; 0 where nothing was counted."""
    return _entropy(_normalised(torch.tensor(list(counts.values()), dtype=torch.float64)))


def jensen_shannon(a: Counter[str], b: Counter[str]) -> float:
    """Jensen-Shannon divergence in bits, H((p + q) / 2) - (H(p) + H(q)) / 2, between 0 (equal) and 1 (disjoint).

    1 where one side is empty: samples without a single word share none with real text.
    """
    if not a or not b:
        return 1.0
    keys = a.keys() | b.keys()
    p, q = (_normalised(torch.tensor([c[key] for key in keys], dtype=torch.float64)) for c in (a, b))
    return max(0.0, _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2)


def _normalised(counts: Tensor) -> Tensor:
    return counts / counts.sum()


def _entropy(p: Tensor) -> float:
    return -nats_to_bits(torch.special.xlogy(p, p).sum().item())
