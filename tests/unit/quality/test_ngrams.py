from collections import Counter

import pytest
import torch

from bfn.quality.metrics import (
    TextItems,
    class_ngram_counts,
    divergence,
    entropy,
    jensen_shannon,
    ngram_counts,
    word_counts,
)


def bits(counts: Counter[str]) -> float:
    return entropy(torch.tensor(list(counts.values()), dtype=torch.float64)).item()


def test_counts_by_hand() -> None:
    assert ngram_counts(["abab", "ab"], 2) == Counter({"ab": 3, "ba": 1})
    assert ngram_counts("abc") == Counter()
    assert word_counts([" a b  a", "a"]) == Counter({"a": 3, "b": 1})


def test_entropy_in_bits() -> None:
    assert bits(Counter("abcd")) == 2
    assert bits(Counter("aab")) == pytest.approx(0.9182958340544896)
    assert bits(Counter()) == 0


def test_divergence_is_0_for_equal_1_for_disjoint_and_symmetric() -> None:
    a, b = Counter("aabc"), Counter("abdd")
    assert jensen_shannon(a, Counter("aabc" * 3)) == 0
    assert jensen_shannon(Counter("ab"), Counter("cd")) == 1
    assert jensen_shannon(a, Counter()) == 1
    assert jensen_shannon({"a": 1}, {"b": 1}) == 1
    assert jensen_shannon(a, b) == pytest.approx(jensen_shannon(b, a), abs=1e-15)
    # p = (1/2, 1/4, 1/4, 0), q = (1/4, 1/4, 0, 1/2): H(m) - (H(p) + H(q)) / 2 with m = (3/8, 1/4, 1/8, 1/4)
    assert jensen_shannon(a, b) == pytest.approx(1.9056390622295665 - 1.5)


def test_n_grams_of_classes_are_those_of_their_text() -> None:
    x = torch.randint(3, (5, 12), generator=torch.Generator().manual_seed(0))
    counts = ngram_counts(["".join(map(str, row)) for row in x.tolist()], 3)
    found = class_ngram_counts(x, 3, 3)
    assert found.sum() == 50
    assert {f"{i // 9}{i // 3 % 3}{i % 3}": n for i, n in enumerate(found.int().tolist()) if n} == counts


def test_the_divergence_has_a_gradient() -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: divergence(x, b), a.requires_grad_())


def test_items_give_the_statistics_of_any_choice_of_texts() -> None:
    texts = ["the cat sat", "on the mat", "a dog", ""]
    reference = word_counts("the dog sat on the cat and the dog ran")
    items = TextItems.of([text.split() for text in texts], reference)
    for index in ([0, 1, 2, 3], [1, 1, 2, 0], [2, 2, 2, 2]):
        chosen = word_counts([texts[i] for i in index])
        divergence, information = items.statistics(torch.tensor(index)).tolist()
        assert divergence == pytest.approx(jensen_shannon(chosen, reference), abs=1e-12)
        assert information == pytest.approx(bits(chosen), abs=1e-12)
    assert items.statistics(torch.tensor([3, 3, 3, 3])).tolist() == [1.0, 0.0]


def test_ngrams_do_not_reach_beyond_the_end_of_a_shorter_text():
    x = torch.tensor([[0, 1, 1, -1, -1], [1, 0, -1, -1, -1], [1, -1, -1, -1, -1]])
    assert class_ngram_counts(x, 2, 2).tolist() == [0, 1, 1, 1]  # 01, 10, 11
    assert class_ngram_counts(x, 1, 2).tolist() == [2, 4]
