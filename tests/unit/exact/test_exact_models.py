"""Properties of all exact models: the score, a noise level for each sample, and finite results in float32."""

from collections.abc import Callable

import pytest
import torch

from exact_models import CLASSES, NUMBERS, random_points, state_at

MODELS = {**NUMBERS, "points alone": lambda **settings: random_points(0.0, **settings), **CLASSES}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


@every_model
@pytest.mark.parametrize("t", [0.1, 0.5, 1.0])
def test_the_score_is_the_gradient_of_the_evidence(make: Callable, t: float) -> None:
    """Tweedie: grad log p(u) = (s w_hat - u) / kappa."""
    model = make()
    u, level = state_at(model, t)
    u.requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_evidence(u, level).sum(), u)
    scale, shift = model.flow.message_map
    w_hat = scale * model.output(u.detach(), level).mean + shift
    torch.testing.assert_close(gradient, (level.s * w_hat - u.detach()) / model.flow.kappa, atol=1e-8, rtol=1e-8)


@every_model
def test_each_sample_may_have_its_own_level(make: Callable) -> None:
    model = make()
    u, together = state_at(model, torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64), batch=3)
    mean, evidence = model.output(u, together).mean, model.log_evidence(u, together)
    for i, t in enumerate((0.0, 0.3, 1.0)):
        alone = model.flow.noise_level(t, 1, u.ndim - 1, like=u)
        torch.testing.assert_close(mean[i : i + 1], model.output(u[i : i + 1], alone).mean)
        torch.testing.assert_close(evidence[i : i + 1], model.log_evidence(u[i : i + 1], alone))


@every_model
@pytest.mark.parametrize("t", [0.0, 1e-12, 1e-3, 0.3, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_results_are_finite_in_float32(make: Callable, t: float, scale: float) -> None:
    model = make(dtype=torch.float32)
    u, level = state_at(model, t, scale=scale)
    mean = model.output(u, level).mean
    assert mean.dtype is torch.float32
    assert torch.isfinite(mean).all()
    assert torch.isfinite(model.log_evidence(u, level)).all()
