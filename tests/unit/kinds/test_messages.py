"""Error messages of the kinds of data: one line each."""

from collections.abc import Callable

import pytest
import torch

import bfn
from bfn.core.errors import UserError
from bfn.kinds import AngleHead, DiscretisedHead, LogitHead


def identity(mu: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return mu


MESSAGES: list[tuple[Callable[[], object], str]] = [
    (lambda: bfn.BFN(identity, bfn.ContinuousFlow(), AngleHead(), (3,)).sample(1), "angles are pairs (cos, sin)"),
    (lambda: AngleHead().raw_shape(()), "data_shape=(): angles are pairs (cos, sin)"),
    (lambda: DiscretisedHead(1), "n_bins=1: expected a whole number from 2"),
    (lambda: DiscretisedHead(256.0), "n_bins=256.0: expected a whole number from 2"),  # type: ignore[arg-type]
    (lambda: DiscretisedHead(16, 0), "n_components=0: expected a whole number from 1"),
    (lambda: LogitHead().raw_shape((4, 3)), "n_classes=3: the head is for 2 classes; use predicts='logits'"),
]


@pytest.mark.parametrize(("call", "fragment"), MESSAGES, ids=[fragment for _, fragment in MESSAGES])
def test_wrong_input_gives_one_line(call: Callable[[], object], fragment: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)
