import math
import random
import string
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spylls.hunspell import Dictionary

from bfn._utils.estimate import share_estimate
from bfn.quality import metrics as module
from bfn.quality.metrics import is_word, spelling_accuracy, spelling_estimate, word_verdicts


@pytest.fixture(scope="module")
def dictionary() -> Dictionary:
    return Dictionary.from_files("en_US")


def near_words(dictionary: Dictionary, rng: random.Random, n: int) -> Iterator[str]:
    """Words, names in lower case, and words with affixes that they may or may not take."""
    affixes = ["", "s", "es", "ed", "d", "ing", "ly", "er", "est", "ness", "ment", "able", "ions", "ication", "'s"]
    for word in rng.sample(dictionary.dic.words, n):
        stem = word.stem.lower() if rng.random() < 0.8 else word.stem
        yield rng.choice(["", "", "re", "un", "dis", "pro"]) + stem.removesuffix(rng.choice("ey")) + rng.choice(affixes)
        yield stem


def random_strings(rng: random.Random, n: int, alphabet: list[str]) -> Iterator[str]:
    for _ in range(n):
        yield "".join(rng.choices(alphabet, k=rng.randint(1, 6)))


ODD = [*"abcABC'\u2019-12.\u00e9", "st", "th", "nd", "un", "s"]


def differing(words: list[str], dictionary: Dictionary) -> list[str]:
    return [word for word in words if is_word(word) != dictionary.lookup(word)]


def test_answers_are_spylls(dictionary: Dictionary) -> None:
    rng = random.Random(0)
    words = [*near_words(dictionary, rng, 5000), *random_strings(rng, 3000, list(string.ascii_lowercase))]
    words += random_strings(rng, 2000, ODD)
    words += [word.title() for word in words[:500]] + [word.upper() for word in words[:300]]
    assert len(set(words)) > 9000
    assert 0.2 < sum(map(is_word, words)) / len(words) < 0.8
    assert differing(words, dictionary) == []


@pytest.mark.long
def test_answers_are_spylls_on_every_stem_and_form(dictionary: Dictionary) -> None:
    rng = random.Random(1)
    words = {word.stem for word in dictionary.dic.words} | {word.stem.lower() for word in dictionary.dic.words}
    words |= set(near_words(dictionary, rng, 49_000)) | set(random_strings(rng, 50_000, list(string.ascii_lowercase)))
    words |= set(random_strings(rng, 20_000, ODD))
    assert differing(sorted(words), dictionary) == []


def test_counts_as_the_released_code_does(dictionary: Dictionary) -> None:
    texts = [" anarchism originated  as a tarm ", "paris is a city", "", "   "]
    words = [word for text in texts for word in text.split(" ") if word]
    n_correct, n_words = map(sum, zip(*word_verdicts(texts), strict=True))
    assert (n_correct, n_words) == (sum(map(dictionary.lookup, words)), len(words)) == (7, 9)
    assert spelling_accuracy(texts) == 7 / 9
    assert [spelling_accuracy(text) for text in ("Paris", "paris", "The", " ")] == [1, 0, 1, 0]


def test_the_interval_is_that_of_texts_and_not_of_words() -> None:
    # Ten copies of each word tell no more than one: the error of 40 texts, of which half are right and half wrong.
    estimate = spelling_estimate([*["the " * 10, "teh " * 10] * 20, "the", "teh"])
    error = math.sqrt(42 / 41 * (40 * 5**2 + 2 * 0.5**2)) / 402
    # t(0.975, 41) = 2.019541
    assert estimate.value == 0.5
    assert estimate.high == pytest.approx(0.5 + 2.019541 * error, abs=1e-6)
    assert estimate.low == pytest.approx(0.5 - 2.019541 * error, abs=1e-6)


def test_where_texts_agree_the_interval_is_that_of_words() -> None:
    assert spelling_estimate("the teh") == share_estimate(1, 2)
    assert spelling_estimate(["the cat", "the dog"]) == share_estimate(4, 4)
    assert (spelling_estimate([" "]).low, spelling_estimate([" "]).high) == (0, 1)


def test_many_hyphens_end_soon(dictionary: Dictionary) -> None:
    start = time.process_time()
    assert not is_word("-" * 80)
    assert not is_word("a-b-" * 30)
    assert time.process_time() - start < 1
    assert is_word("well-known-word") == dictionary.lookup("well-known-word") is True


def test_cache_is_rebuilt_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BFN_HOME", str(tmp_path))
    forms = module._surface_forms.__wrapped__()
    (cached,) = (tmp_path / "spelling").iterdir()
    whole = cached.read_bytes()
    assert module._surface_forms.__wrapped__() == forms
    cached.write_bytes(whole[: len(whole) // 2])
    assert module._surface_forms.__wrapped__() == forms
    assert cached.read_bytes() == whole
