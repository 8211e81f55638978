"""Error messages of pictures and plots."""

import pytest
import torch

import bfn
from bfn import viz
from bfn.core.solver import plan

PLANE = bfn.exact.GaussianMixture(torch.zeros(1, 2), stds=torch.tensor([0.1]))
STRINGS = bfn.exact.StringSet(torch.tensor([[0, 1], [1, 2], [2, 2]]), n_classes=3, beta_1=4.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: viz.sheet(torch.zeros(2, 5)), r"\(2, 5\)"),
        (lambda: viz.write_animation("a.mp4", [viz.sheet(torch.zeros(1, 1, 8, 8))]), r"\.gif or a \.png"),
        (lambda: viz.plane(viz.record(STRINGS, 2, solver="bfn", nfe=3)), "continuous data"),
        (lambda: viz.simplex(viz.record(PLANE, 2, solver="bfn", nfe=3)), "three classes"),
        (lambda: viz.simplex(viz.record(STRINGS, 2, solver="bfn", nfe=3), variable=2), "from 0 to 1"),
        (lambda: viz.table(plan(PLANE, "bfn", 1).table), "at least 2"),
        (lambda: viz.loss_by_t({}), "at least one"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(bfn.UserError, match=message):
        call()
