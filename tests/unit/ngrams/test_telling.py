"""The n-grams that tell most: whole, no more than asked, and better the more there are."""

import math

import pytest
import torch
from torch import Tensor

from bfn.networks.ngram_counts import BackoffTables
from bfn.networks.ngram_posterior import count_telling


def text(n: int, seed: int = 0) -> Tensor:
    """Five symbols: after 0 1 2 always 3, else a symbol that depends on the last one."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(n, generator=generator).tolist()
    x = [0, 1]
    for u in draws:
        x.append(3 if x[-3:] == [0, 1, 2] else (x[-1] + 1) % 5 if u < 0.5 else int(10 * (u - 0.5)))
    return torch.tensor(x)


def bits(tables: BackoffTables, x: Tensor) -> float:
    rows = x.unfold(0, tables.context + 1, 1)
    powers = 5 ** torch.arange(tables.context - 1, -1, -1)
    probs = tables.probability((rows[:, :-1] * powers).sum(1), tables.context, rows[:, -1])
    return -float(probs.log2().mean())


@pytest.mark.parametrize("most", [5, 12, 40, 200])
def test_no_more_than_asked_and_all_of_their_parts(most: int) -> None:
    tables = count_telling(text(5000), 4, 5, most).require_whole()
    assert sum(map(len, tables.codes[1:])) <= most
    for n, backoff in enumerate(tables.backoff):
        total = backoff.clone().index_add_(
            0, torch.searchsorted(tables.codes[n], tables.codes[n + 1] // 5), tables.share[n + 1]
        )
        torch.testing.assert_close(total, torch.ones_like(total))


def test_more_of_them_tell_more() -> None:
    x, held_out = text(20_000), text(20_000, seed=1)
    found = [bits(count_telling(x, 4, 5, most), held_out) for most in (5, 12, 40, 200)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] + 0.3


def test_with_enough_of_them_the_text_is_known_as_well_as_it_can_be() -> None:
    """The rule says all: its entropy is that of the draws."""
    held_out = text(50_000, seed=1)
    ideal, last = 0.0, held_out.tolist()
    for before, symbol in zip(zip(last, last[1:], last[2:], strict=False), last[3:], strict=False):
        if before != (0, 1, 2):
            ideal -= math.log2(0.6 if symbol == (before[-1] + 1) % 5 else 0.1)
    assert bits(count_telling(text(50_000), 3, 5, 200), held_out) == pytest.approx(ideal / len(last), abs=0.02)


def test_what_was_met_by_chance_is_left_out() -> None:
    """Of symbols drawn each for itself nothing but their frequencies is kept, where rare pairs were seen too."""
    x = torch.randint(50, (2000,), generator=torch.Generator().manual_seed(3))
    tables = count_telling(x, 3, 50, 10_000)
    assert sum(map(len, tables.codes[2:])) < 60  # of 1,400 pairs and 2,000 threes and fours that were seen
