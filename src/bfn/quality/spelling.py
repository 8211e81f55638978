"""Spelling accuracy: the share of correctly spelled words, as the paper's released code counts it.

- Words are what stands between spaces; the cut words at the two ends of a sample count like all others.
- A word is correct if hunspell's en_US dictionary, as spylls 0.1.7 ships it, accepts it.
- Case: words are looked up as they are written, nothing is folded. A capital at the start of a sentence is accepted
  ("The"), a name in lower case is not ("paris"). So text8, which is all lower case, does not reach 1: always read a
  result beside that of real text (`bfn.quality.judge_for` gives both).

spylls analyses each word anew. Here all surface forms of the dictionary are written out once (about 120,000, kept in
a file under `BFN_HOME`) and a word costs one look into a set. Words that a set cannot decide (digits, hyphens,
capitals inside) go to spylls' own analysis, so that the answers are the same for every string.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bfn.errors import UserError
from bfn.estimate import Estimate, mean_estimate, share_estimate
from bfn.files import atomic_write, home

__all__ = ["as_texts", "is_word", "spelling_accuracy", "spelling_estimate", "word_verdicts"]

_LOWER_CASE = re.compile(r"[a-z']+")
_LOWER_CASE_TEXT = re.compile(r"[a-z'\s]*")
_CAPITALISED = re.compile(r"[A-Z]'*[a-z][a-z']*")
_NUMBER = re.compile(r"\d+(\.\d+)?")
# spylls gives up on words broken at more hyphens than this.
_MAX_BREAKS = 10


def spelling_accuracy(texts: str | Iterable[str]) -> float:
    """Share of the words in `texts` that hunspell's en_US accepts, in [0, 1]; 0 where there are no words.

    >>> spelling_accuracy(["the cat sat", "on teh mat"])
    0.8333333333333334
    """
    n_correct, n_words = (sum(column) for column in zip(*word_verdicts(texts), strict=True))
    return n_correct / n_words if n_words else 0.0


def spelling_estimate(texts: str | Iterable[str]) -> Estimate:
    """Spelling accuracy with an interval that treats texts, not words, as independent.

    Words of one text err together. The accuracy is a ratio of sums over texts, a = sum c_i / sum n_i, and to first
    order the mean of a + (c_i - a n_i) / n, with n the mean of n_i. Where these do not differ, since all words are
    right or all are wrong, and of a single text, the interval is Wilson's of the words; without words it is [0, 1].
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
    """Correct words and all words of each text."""
    listed = as_texts(texts)
    # Lower-case words are decided by the set alone; one regular expression over the text finds out that there is
    # nothing else.
    lookup = _surface_forms().__contains__ if all(map(_LOWER_CASE_TEXT.fullmatch, listed)) else cache(is_word)
    return [(sum(map(lookup, words)), len(words)) for words in map(str.split, listed)]


def is_word(word: str) -> bool:
    """Whether hunspell's en_US accepts `word`: the answer of spylls' `Dictionary.lookup`."""
    forms = _surface_forms()
    if word in forms:
        return True
    if _LOWER_CASE.fullmatch(word):
        return False
    if _CAPITALISED.fullmatch(word):
        return word.lower() in forms
    return _analyse(word)


def as_texts(texts: str | Iterable[str]) -> list[str]:
    """A list of texts from one text or several; an error where there are none."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not listed:
        raise UserError("no texts: expected at least 1")
    for wrong in (text for text in listed if not isinstance(text, str)):
        raise TypeError(f"a text of type {type(wrong).__name__}: expected str; decode classes to characters first")
    return listed


@cache
def _dictionary() -> Any:
    from spylls.hunspell import Dictionary  # type: ignore[import-untyped]

    return Dictionary.from_files(str(_dictionary_path().with_suffix("")))


def _dictionary_path() -> Path:
    spec = find_spec("spylls")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("spelling accuracy needs the dictionary of spylls: pip install spylls==0.1.7")
    return Path(spec.submodule_search_locations[0]) / "hunspell" / "data" / "en" / "en_US.dic"


@cache
def _surface_forms() -> frozenset[str]:
    """All words that the dictionary accepts without compounding, from the cache file or expanded anew."""
    path = _dictionary_path()
    key = hashlib.sha256(path.read_bytes() + path.with_suffix(".aff").read_bytes()).hexdigest()
    cached = home() / "spelling" / f"en_US-{key[:16]}.txt"
    if cached.is_file():
        digest, _, body = cached.read_text(encoding="utf-8").partition("\n")
        if digest == _digest(body):
            return frozenset(body.split("\n"))
    forms = frozenset(_expand(_dictionary()))
    body = "\n".join(sorted(forms))
    atomic_write(cached, f"{_digest(body)}\n{body}")
    return forms


def _expand(dictionary: Any) -> Iterator[str]:
    """Every stem with its suffixes, prefixes, and both at once where the two allow it (en_US has one level of each)."""
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
    """spylls' lookup, with its search over hyphens memoised: as written there it takes exponential time on "-----"."""
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


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
