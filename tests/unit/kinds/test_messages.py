"""Error messages of the kinds of data: one line each."""

import re
from collections.abc import Callable

import pytest

import bfn
from bfn.kinds import AngleHead, DiscretisedHead, LogitHead
from messages import refused

MESSAGES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: bfn.BFN(lambda mu, t: mu, bfn.ContinuousFlow(), AngleHead(), (3,)).sample(1),
        "angles are pairs (cos, sin)",
    ),
    (lambda: AngleHead().raw_shape(()), "data_shape=(): angles are pairs (cos, sin)"),
    (lambda: DiscretisedHead(1), "n_bins=1: expected a whole number from 2"),
    (lambda: DiscretisedHead(16, 0), "n_components=0: expected a whole number from 1"),
    (lambda: LogitHead().raw_shape((4, 3)), "n_classes=3: the head is for 2 classes; use predicts='logits'"),
]


@pytest.mark.parametrize(("call", "fragment"), MESSAGES, ids=[fragment for _, fragment in MESSAGES])
def test_wrong_input_gives_one_line(call: Callable[[], object], fragment: str) -> None:
    refused(re.escape(fragment), call)
