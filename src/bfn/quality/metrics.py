"""Metrics of samples as plain functions: spelling, n-grams and words of text, and the Frechet distance of features.

Spelling accuracy alone rewards a model that uses few words. The other metrics of text are the Jensen-Shannon divergence
of n-grams and of words from real text (base 2: 0 for equal distributions, 1 for disjoint ones) and their entropies in
bits. All of these are plug-in estimates, which depend on the size of the sample: real text has a divergence above 0
too. Compare them with the value of a real sample that has the same number of texts of the same length.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from bfn._utils.arguments import as_tensor, check_whole, require
from bfn._utils.estimate import Estimate, mean_estimate, share_estimate
from bfn._utils.files import atomic_write, home
from bfn._utils.pieces import digest
from bfn.core.errors import UserError
from bfn.quality.frechet import frechet_distance

__all__ = ["frechet_distance", "jensen_shannon", "ngram_counts", "spelling_accuracy"]

MOST_CHARACTERS = 1000
"""Maximum length of an n-gram."""


# --- n-grams and words ------------------------------------------------------------------------------------------------


def entropy(counts: Tensor) -> Tensor:
    """Return the plug-in entropy -sum p log2 p, in bits, of counts or weights; 0 if they are all 0."""
    nats: Tensor = torch.special.entr(_normalised(counts)).sum()
    return nats / math.log(2)


def divergence(a: Tensor, b: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence H((p + q) / 2) - (H(p) + H(q)) / 2, in bits, of counts of the same items.

    It is between 0 (equal) and 1 (disjoint), and 1 if one side is empty. It is differentiable where no count is 0.

    Args:
        a, b: counts or weights, (k,).
    """
    if not a.sum() or not b.sum():
        return a.new_ones(())
    p, q = _normalised(a), _normalised(b)
    return torch.sub(entropy((p + q) / 2), (entropy(p) + entropy(q)) / 2).clamp(min=0)


def class_ngram_counts(x: Tensor, n: int, n_classes: int) -> Tensor:
    """Count the n-grams within sequences of classes.

    Args:
        x: classes, (batch, length); -1 stands for padding, and n-grams with padding are not counted.
        n: length of the n-grams.
        n_classes: number of classes.

    Returns:
        Counts, (n_classes^n,), float64.
    """
    if x.ndim != 2 or not 1 <= n <= x.shape[1]:
        raise UserError(f"classes of shape {tuple(x.shape)}: expected (batch, length) with a length of at least n={n}")
    powers = n_classes ** torch.arange(n - 1, -1, -1, device=x.device)
    found = x.unfold(1, n, 1)
    return torch.bincount((found * powers).sum(-1)[(found >= 0).all(-1)], minlength=n_classes**n).double()


def ngram_counts(texts: str | Iterable[str], n: int = 4) -> Counter[str]:
    """Count the character n-grams within each text; none reaches from one text into the next."""
    check_whole("n", n, 1, MOST_CHARACTERS)
    return Counter(gram for text in as_texts(texts) for gram in character_ngrams(text, n))


def word_counts(texts: str | Iterable[str]) -> Counter[str]:
    """Count the words, which are separated by white space."""
    return Counter(word for text in as_texts(texts) for word in text.split())


@dataclass(frozen=True)
class TextItems:
    """Items (n-grams or words) of texts by number, for fast statistics of any choice of the texts.

    Attributes:
        ids: number of each item, all texts one after the other.
        texts: number of the text that each item is in.
        real: count of each item in real text; the last entry stands for all items that only real text has.
        n_texts: number of texts.
    """

    ids: Tensor
    texts: Tensor
    real: Tensor
    n_texts: int

    @classmethod
    def of(cls, items: Sequence[Sequence[str]], real: Counter[str]) -> Self:
        """Number the items of each text."""
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(item, len(numbers)) for some in items for item in some]
        lengths = torch.tensor([len(some) for some in items])
        shared = [real[item] for item in numbers]
        counts = torch.tensor([*shared, real.total() - sum(shared)], dtype=torch.float64)
        texts = torch.repeat_interleave(torch.arange(len(items)), lengths)
        return cls(torch.tensor(ids, dtype=torch.int64), texts, counts, len(items))

    def statistics(self, index: Tensor) -> Tensor:
        """Return the divergence from real text and the entropy, (2,), in bits.

        Args:
            index: numbers of the texts to count, which may be repeated.
        """
        often = torch.bincount(index, minlength=self.n_texts).double()
        counts = torch.bincount(self.ids, weights=often[self.texts], minlength=len(self.real))
        return torch.stack([divergence(counts, self.real), entropy(counts)])


def character_ngrams(text: str, n: int = 4) -> list[str]:
    """Return the character n-grams of one text, in order."""
    return ["".join(some) for some in zip(*(text[offset:] for offset in range(n)), strict=False)]


def jensen_shannon(a: Counter[str], b: Counter[str]) -> float:
    """Return the Jensen-Shannon divergence of two counts in bits, between 0 (equal) and 1 (disjoint, or one is empty).

    Args:
        a, b: counts, as ``ngram_counts`` returns them.
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


# --- spelling ---------------------------------------------------------------------------------------------------------

_LOWER_CASE = re.compile(r"[a-z']+")
_LOWER_CASE_TEXT = re.compile(r"[a-z'\s]*")
_CAPITALISED = re.compile(r"[A-Z]'*[a-z][a-z']*")
_NUMBER = re.compile(r"\d+(\.\d+)?")
PURPOSE = "to check spelling"
# spylls does not analyse words with more hyphens than this.
_MAX_BREAKS = 10


def spelling_accuracy(texts: str | Iterable[str]) -> float:
    """Return the share of the words that hunspell's en_US accepts, in [0, 1]; 0 if there are no words.

    >>> spelling_accuracy(["the cat sat", "on teh mat"])
    0.8333333333333334
    """
    return spelling_estimate(texts).value


def spelling_estimate(texts: str | Iterable[str]) -> Estimate:
    """Return the spelling accuracy with an interval that treats texts, not words, as independent.

    Errors within one text are correlated. The accuracy is a ratio of sums over texts, a = sum c_i / sum n_i, which to
    first order is the mean of a + (c_i - a n_i) / n, with n the mean of n_i. If these do not differ (all words are
    right, all are wrong, or there is a single text), the interval is Wilson's interval of the words. Without words it
    is [0, 1].
    """
    counts = word_verdicts(texts)
    n_correct, n_words = (sum(column) for column in zip(*counts, strict=True))
    if n_words == 0:
        return Estimate(0.0, 0.0, 1.0)
    accuracy = n_correct / n_words
    ratios = [accuracy + (c - accuracy * n) * len(counts) / n_words for c, n in counts]
    if max(ratios) - min(ratios) < 1e-12:
        return share_estimate(n_correct, n_words)
    found = mean_estimate(ratios).within(0, 1)
    return Estimate(accuracy, found.low, found.high)


def word_verdicts(texts: str | Iterable[str]) -> list[tuple[int, int]]:
    """Return the number of correct words and the number of words of each text."""
    listed = as_texts(texts)
    # Lower-case words are decided by a set alone, and one regular expression finds texts that have nothing else.
    lookup = _surface_forms().__contains__ if all(map(_LOWER_CASE_TEXT.fullmatch, listed)) else cache(is_word)
    return [(sum(map(lookup, words)), len(words)) for words in map(str.split, listed)]


def is_word(word: str) -> bool:
    """Return True if hunspell's en_US accepts the word, as ``Dictionary.lookup`` of spylls decides it."""
    forms = _surface_forms()
    if word in forms or _LOWER_CASE.fullmatch(word):
        return word in forms
    if _CAPITALISED.fullmatch(word):
        return word.lower() in forms
    return _analyse(word)


def as_texts(texts: str | Iterable[str]) -> list[str]:
    """Return a list of texts from one text or several. Raises UserError if there are none."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not listed:
        raise UserError("no texts: expected at least 1")
    for wrong in (text for text in listed if not isinstance(text, str)):
        raise TypeError(f"a text of type {type(wrong).__name__}: expected str; decode classes to characters first")
    return listed


@cache
def _dictionary() -> Any:
    return require("spylls.hunspell", PURPOSE).Dictionary.from_files(str(_dictionary_path().with_suffix("")))


def _dictionary_path() -> Path:
    return Path(*require("spylls", PURPOSE).__path__, "hunspell", "data", "en", "en_US.dic")


@cache
def _surface_forms() -> frozenset[str]:
    """Return all words that the dictionary accepts without compounding; they are kept in the cache directory."""
    path = _dictionary_path()
    key = digest(*(file.read_text(encoding="utf-8") for file in (path, path.with_suffix(".aff"))))
    cached = home() / "spelling" / f"en_US-{key}.txt"
    if cached.is_file():
        stored, _, body = cached.read_text(encoding="utf-8").partition("\n")
        if stored == digest(body):
            return frozenset(body.split("\n"))
    forms = frozenset(_expand(_dictionary()))
    body = "\n".join(sorted(forms))
    atomic_write(cached, f"{digest(body)}\n{body}")
    return forms


def _expand(dictionary: Any) -> Iterator[str]:
    """Yield every stem with its suffixes, prefixes, and both where they allow it. en_US has one level of each."""
    aff = dictionary.aff
    for word in dictionary.dic.words:
        if aff.ONLYINCOMPOUND in word.flags:
            continue
        prefixes = [prefix for flag in word.flags for prefix in aff.PFX.get(flag, ())]
        suffixed = [(word.stem, True)]
        for suffix in (suffix for flag in word.flags for suffix in aff.SFX.get(flag, ())):
            if suffix.cond_regexp.search(word.stem):
                suffixed.append((word.stem.removesuffix(suffix.strip) + suffix.add, suffix.crossproduct))
        for form, takes_prefix in suffixed:
            yield form
            if takes_prefix:
                yield from (prefix.add + form for prefix in prefixes)


def _analyse(word: str) -> bool:
    """Look a word up as spylls does, with a memoised search over hyphens.

    The search of spylls takes exponential time on words such as "-----".
    """
    dictionary = _dictionary()
    word = dictionary.aff.ICONV(word)
    if _NUMBER.fullmatch(word):
        return True

    @cache
    def is_correct(part: str) -> bool:
        return not part or any(dictionary.lookuper.good_forms(part))

    @cache
    def breaks(rest: str, depth: int) -> bool:
        if depth > _MAX_BREAKS:
            return False
        if is_correct(rest):
            return True
        hyphens = (match.span(1) for pattern in dictionary.aff.BREAK for match in pattern.regexp.finditer(rest))
        return any(is_correct(rest[:start]) and breaks(rest[end:], depth + 1) for start, end in hyphens)

    return breaks(word, 0)
