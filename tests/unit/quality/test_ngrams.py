import random
from collections import Counter

import pytest
import torch

from bfn.quality import (
    Bag,
    TextReference,
    character_ngrams,
    entropy,
    jensen_shannon,
    ngram_counts,
    text_report,
    word_counts,
)


def test_counts_by_hand() -> None:
    assert ngram_counts(["abab", "ab"], 2) == Counter({"ab": 3, "ba": 1})
    assert ngram_counts("abc") == Counter()
    assert word_counts([" a b  a", "a"]) == Counter({"a": 3, "b": 1})


def test_entropy_in_bits() -> None:
    assert entropy(Counter("abcd")) == 2
    assert entropy(Counter("aab")) == pytest.approx(0.9182958340544896)
    assert entropy(Counter()) == 0


def test_divergence_is_0_for_equal_1_for_disjoint_and_symmetric() -> None:
    a, b = Counter("aabc"), Counter("abdd")
    assert jensen_shannon(a, Counter("aabc" * 3)) == 0
    assert jensen_shannon(Counter("ab"), Counter("cd")) == 1
    assert jensen_shannon(a, Counter()) == 1
    assert jensen_shannon(a, b) == jensen_shannon(b, a)
    # p = (1/2, 1/4, 1/4, 0), q = (1/4, 1/4, 0, 1/2): H(m) - (H(p) + H(q)) / 2 with m = (3/8, 1/4, 1/8, 1/4)
    assert jensen_shannon(a, b) == pytest.approx(1.9056390622295665 - 1.5)


def words_text(n: int, seed: int, alphabet: str = "abcd") -> str:
    return "".join(random.Random(seed).choices(alphabet + " ", k=n))


def test_real_text_of_the_same_size_stands_beside_the_samples() -> None:
    reference = words_text(200_000, 0)
    samples = [words_text(100, seed) for seed in range(1, 201)]
    report = text_report(samples, reference)
    # Samples from the very distribution of the reference are as far from it as the real sample is, and not at 0.
    assert report.real.n_characters == report.samples.n_characters == 20_000
    assert report.real.ngram_divergence > 0.005
    assert report.samples.ngram_divergence == pytest.approx(report.real.ngram_divergence, rel=0.15)
    assert report.samples.ngram_entropy == pytest.approx(report.real.ngram_entropy, abs=0.05)
    other = text_report([words_text(100, seed, "abce") for seed in range(1, 201)], reference)
    assert other.samples.ngram_divergence > 3 * other.real.ngram_divergence


def test_few_words_raise_spelling_but_not_the_rest() -> None:
    reference = "the quick brown fox jumps over the lazy dog while anarchism originated elsewhere " * 200
    report = text_report(["the the the the the the the the"] * 10, reference)
    assert report.samples.spelling.accuracy == 1
    assert report.samples.word_entropy == 0
    assert report.samples.word_divergence > 0.5 > report.real.word_divergence


def test_the_real_sample_is_not_in_the_reference() -> None:
    reference = TextReference.split("aaaabbbb" * 3, n_texts=3, length=4, n=1)
    assert reference.real == ("aaaa", "aaaa", "aaaa")
    assert reference.ngrams == Counter({"b": 12})


def test_report_is_a_table_of_both() -> None:
    lines = text_report(["the cat sat on"] * 3, "the cat sat on the mat " * 50).markdown().splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| samples | 100.00 +- 0.00 % |")


def test_too_little_real_text() -> None:
    with pytest.raises(ValueError, match="need at least 400"):
        text_report(["a" * 100] * 2, "b" * 399)
    with pytest.raises(ValueError, match="n=0"):
        ngram_counts("abc", 0)


def test_a_bag_gives_the_statistics_of_any_choice_of_texts() -> None:
    texts = ["the cat sat", "on the mat", "a dog", ""]
    reference = word_counts("the dog sat on the cat and the dog ran")
    bag = Bag.of([text.split() for text in texts], reference)
    for index in ([0, 1, 2, 3], [1, 1, 2, 0], [2, 2, 2, 2]):
        chosen = word_counts([texts[i] for i in index])
        divergence, information = bag.statistics(torch.tensor(index)).tolist()
        assert divergence == pytest.approx(jensen_shannon(chosen, reference), abs=1e-12)
        assert information == pytest.approx(entropy(chosen), abs=1e-12)
    assert bag.statistics(torch.tensor([3, 3, 3, 3])).tolist() == [1.0, 0.0]


def test_character_ngrams_in_order() -> None:
    assert character_ngrams("abcde", 4) == ["abcd", "bcde"]
    assert character_ngrams("abc", 4) == []
