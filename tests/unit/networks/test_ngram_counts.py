"""Estimates of backoff n-gram models: pruned models keep no more n-grams than allowed, and the best ones."""

import math

import pytest
import torch
from torch import Tensor

from bfn.networks.ngram_counts import BackoffTables, count_pruned


def text(n: int, seed: int = 0) -> Tensor:
    """Return symbols 0 to 4: after 0 1 2 always 3, else a symbol that depends on the last one."""
    x = [0, 1]
    for u in torch.rand(n, generator=torch.Generator().manual_seed(seed)).tolist():
        x.append(3 if x[-3:] == [0, 1, 2] else (x[-1] + 1) % 5 if u < 0.5 else int(10 * (u - 0.5)))
    return torch.tensor(x)


def bits(tables: BackoffTables, x: Tensor) -> float:
    """Return the cross entropy of a text in bits per symbol."""
    rows = x.unfold(0, tables.context + 1, 1)
    powers = 5 ** torch.arange(tables.context - 1, -1, -1)
    probs = tables.probability((rows[:, :-1] * powers).sum(1), tables.context, rows[:, -1])
    return -float(probs.log2().mean())


@pytest.mark.parametrize("most", [5, 12, 40, 200])
def test_pruned_models_keep_at_most_the_allowed_n_grams_with_all_their_parts(most: int) -> None:
    tables = count_pruned(text(5000), 4, 5, most)
    tables.check()
    assert sum(map(len, tables.codes[1:])) <= most
    for n, backoff in enumerate(tables.backoff):
        prefix, _ = tables.parents(n + 1)
        total = backoff.clone().index_add_(0, prefix, tables.share[n + 1])
        torch.testing.assert_close(total, torch.ones_like(total))


def test_held_out_bits_reach_the_entropy_of_the_source() -> None:
    held_out = text(50_000, seed=1)
    ideal, last = 0.0, held_out.tolist()
    for before, symbol in zip(zip(last, last[1:], last[2:], strict=False), last[3:], strict=False):
        if before != (0, 1, 2):
            ideal -= math.log2(0.6 if symbol == (before[-1] + 1) % 5 else 0.1)
    assert bits(count_pruned(text(50_000), 3, 5, 200), held_out) == pytest.approx(ideal / len(last), abs=0.02)
