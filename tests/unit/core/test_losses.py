"""Weights, bounds and draws of the losses. That exact models' losses are KL divergences: tests/unit/exact."""

import math

import pytest
import torch

import bfn
from bfn.core.heads import Categorical
from bfn.core.losses import squared_error
from bfn.core.model import Model
from bfn.core.schedules import stratified_times
from linear import LinearModel

CONTINUOUS, DISCRETE = bfn.ContinuousFlow(sigma_1=0.1), bfn.DiscreteFlow(n_classes=4, beta_1=2.0)


def test_strata_are_uniform_and_spread(generator: torch.Generator) -> None:
    times = torch.stack([stratified_times(16, generator) for _ in range(4000)])
    assert bool(((times >= 0) & (times < 1)).all())
    assert torch.equal((times * 16).floor().sort(1).values, torch.arange(16.0, dtype=torch.float64).expand(4000, 16))
    # Each entry by itself is uniform: mean 1/2, to 5 standard errors.
    assert float((times.mean(0) - 0.5).abs().max()) < 5 * (1 / 12 / 4000) ** 0.5


def test_the_weight_on_the_noise_error(generator: torch.Generator) -> None:
    """beta'/2 |x - x_hat|^2 = -ln(sigma_1)/gamma |eps - eps_hat|^2; the paper prints another weight (errata)."""
    n = 64
    x, t = torch.randn(n, 3, generator=generator), torch.rand(n, generator=generator) * 0.9 + 0.05
    seed = torch.Generator().manual_seed(9)
    model = bfn.BFN(lambda mu, t: torch.sin(3 * mu), CONTINUOUS, "noise", (3,))
    loss = model.loss(x, t=t, generator=torch.Generator().manual_seed(9))
    eps = torch.randn(n, 3, generator=seed)
    s = CONTINUOUS.schedule.s(t).float()[:, None]
    mu = CONTINUOUS.network_input(s * x + eps, s)
    gamma = 1 - 0.1 ** (2 * t)
    expected = -math.log(0.1) / gamma * (eps - torch.sin(3 * mu)).square().mean(1)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)


class Posterior(Model):
    """One variable with known class probabilities: the exact posterior is softmax(log p + y)."""

    data_shape = (1,)
    dtype = torch.float64

    def __init__(self, flow: bfn.DiscreteFlow, p: torch.Tensor) -> None:
        self.flow, self.log_p = flow, p.log()

    def output(self, u, level, **conditions):  # type: ignore[no-untyped-def]
        return Categorical(self.log_p + level.s * u)


def test_loss_and_reconstruction_add_up_to_the_entropy() -> None:
    """-E log p(x) = KL(q(z|x) || p(z)) + E[-log p(x|z)]: to 0.02 nats, four standard errors of the estimate.

    The printed weight, K beta_1 t_paper, gives no bound: it is large where the noise is, with t_paper = 1 - t.
    """
    p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    model, n = Posterior(bfn.DiscreteFlow(4, beta_1=4.0), p), 40_000
    entropy = float(-(p * p.log()).sum())
    generator = torch.Generator().manual_seed(0)
    x = torch.multinomial(p, n, replacement=True, generator=generator)[:, None]
    reconstruction = model.reconstruction_loss(x, generator).mean()
    assert float(model.loss(x, generator=generator).mean() + reconstruction) == pytest.approx(entropy, abs=0.02)
    t = stratified_times(n, generator)
    printed = (squared_error(model, x, t, generator) * 4.0 * (1 - t)).mean()
    assert abs(float(printed + reconstruction) - entropy) > 0.3


def test_the_n_step_loss_falls_to_the_continuous_one(generator: torch.Generator) -> None:
    """On Gaussian data the n-step loss has a closed form, and so has its limit: (1/2) log(1 + beta v)."""
    v = 0.25  # of variance 1 every step costs the same, and one would not see which was taken
    model = LinearModel(bfn.ContinuousFlow(sigma_1=0.1), variance=v)
    n = 20_000
    x = v**0.5 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    schedule = model.flow.schedule
    limit = 0.5 * math.log1p(v * float(schedule.beta(1.0)))
    assert float(model.loss(x, generator=generator).mean()) == pytest.approx(limit, rel=0.03)
    previous = math.inf
    for steps in (1, 5, 25, 100):
        beta = schedule.beta(torch.arange(steps + 1, dtype=torch.float64) / steps)
        exact = float((v * beta.diff() / (2 * (1 + v * beta[:-1]))).sum())
        assert float(model.loss(x, n_steps=steps, generator=generator).mean()) == pytest.approx(exact, rel=0.05)
        assert previous > exact > limit
        previous = exact


def test_the_n_step_loss_is_that_of_the_step_that_holds_t() -> None:
    model = LinearModel(bfn.ContinuousFlow(sigma_1=0.1), variance=0.25)
    x = torch.ones(1, 3, dtype=torch.float64)

    def loss(t: float) -> float:
        return float(model.loss(x, n_steps=4, t=torch.tensor([t]), generator=torch.Generator().manual_seed(0)))

    assert loss(0.25) == loss(0.3) == loss(0.49) != loss(0.5)
    assert loss(0.0) == loss(0.24) != loss(0.25)
    assert loss(0.75) == loss(1.0)


def test_reconstruction_of_classes_is_finite_where_probabilities_underflow() -> None:
    model = bfn.BFN(lambda theta, t: theta * -300.0, DISCRETE, "logits", (2,))
    loss = model.reconstruction_loss(torch.tensor([[0, 1], [2, 3]]))
    assert torch.isfinite(loss).all()
