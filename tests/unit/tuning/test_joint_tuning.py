"""Tables tuned to a model of joint data: kept with it, and nearer to where many steps end."""

import pytest
import torch

from bfn.core.errors import UserError
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.exact.joint import JointMixture
from bfn.training.tuning.objectives import EndPoint, SearchedGrid
from bfn.training.tuning.tables import tune


def mixture() -> JointMixture:
    return JointMixture(
        {"x": (torch.tensor([[-1.0, 0.5], [1.0, -0.5]]), torch.full((2, 2), 0.2))},
        {"kind": torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.2, 0.7]])},
        flows={"x": ContinuousFlow(0.02), "kind": DiscreteFlow(3, 6.0)},
    )


def test_a_searched_grid_brings_joint_samples_nearer_to_their_end() -> None:
    model = mixture()
    tuned = tune(model, 5, SearchedGrid(teacher_nfe=60), steps=4, batch=64, held_out=64)
    assert tuned.after < 0.9 * tuned.before
    assert set(tuned.table.parts) == {"x", "kind"}
    model.info.tables = {5: tuned.table}
    initial = torch.randn(64, 5, generator=torch.Generator().manual_seed(7), dtype=model.dtype)
    end = model.sample(64, "fast-ode", 60, initial=initial).final
    tuned_error, plain_error = (
        float((model.sample(64, name, 5, initial=initial).final - end).square().mean()) for name in ("auto", "fast-ode")
    )
    assert tuned_error < plain_error


def test_what_cannot_be_fitted_is_told_in_one_line() -> None:
    with pytest.raises(UserError, match="take the objective SearchedGrid"):
        tune(mixture(), 4, EndPoint(teacher_nfe=20), steps=1, batch=8, held_out=8)
