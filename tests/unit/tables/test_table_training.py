"""The weights that the training of a table keeps, and when it ends."""

import pytest
import torch

from bfn.tables.training import TOLERANCE
from bfn.training.trainer import HeldOutLoss


class Weights(torch.nn.Module):
    """Weights that count the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.Parameter(torch.zeros(()))


def kept_steps(losses: list[float]) -> tuple[HeldOutLoss, list[int]]:
    """The steps whose weights are kept, one look each step, for these held-out losses."""
    weights, kept = Weights(), []
    rule = HeldOutLoss(weights, lambda averaged: losses[int(averaged.steps) - 1], len(losses), looks=len(losses))
    for step in range(1, len(losses) + 1):
        torch.nn.init.constant_(weights.steps, step)
        rule.after_step(step, weights)
        kept.append(rule.kept_step)
        assert int(rule.result(weights).steps) == rule.kept_step
        if rule.is_done(step):
            break
    return rule, kept


def test_the_newest_weights_near_the_lowest_loss_are_kept() -> None:
    rule, kept = kept_steps([2.0, 1.0, 1.0 + 0.9 * (TOLERANCE - 1), 1.0 + 2 * (TOLERANCE - 1)])
    assert kept == [1, 2, 3, 3]
    assert rule.kept_loss == pytest.approx(1.0 + 0.9 * (TOLERANCE - 1))


def test_it_ends_if_no_weights_were_kept_for_long() -> None:
    rule, kept = kept_steps([1.0] + 100 * [1.5])
    assert (len(kept), rule.kept_step) == (1 + rule.patience, 1)
