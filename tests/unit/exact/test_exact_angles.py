"""The exact model of angles: posterior and densities by sums over the circle, a bound without a gap, samples."""

import math

import pytest
import torch
from torch import Tensor

from bfn.exact.numbers import VonMisesMixture
from bfn.kinds.angles import angles_of, pairs_of

CIRCLE = torch.linspace(-math.pi, math.pi, 301, dtype=torch.float64)[:-1]
AREA = (2 * math.pi / len(CIRCLE)) ** 2


def two_angles() -> VonMisesMixture:
    return VonMisesMixture(
        [[2.9, 0.3], [-0.5, -1.2], [1.0, 2.0]], [[12.0, 4.0], [6.0, 0.0], [3.0, 20.0]], weights=[0.5, 0.2, 0.3]
    )


def torus() -> Tensor:
    """All pairs of angles, as data."""
    return pairs_of(torch.cartesian_prod(CIRCLE, CIRCLE))


@pytest.mark.parametrize("own_levels", [False, True])
def test_the_posterior_is_bayes_rule(own_levels: bool) -> None:
    model, x = two_angles(), torus()
    u = torch.tensor([[[0.7, -0.9], [1.4, 0.2]]], dtype=torch.float64)
    level = model.flow.noise_level(0.15, 1, 2, u)
    if own_levels:
        level = type(level)(level.t, torch.tensor([[[2.0], [0.5]]], dtype=torch.float64))
    log_joint = model.log_prob(x) - (u - level.s * x).square().sum((1, 2)) / 2
    assert float(model.log_prob(x).exp().sum() * AREA) == pytest.approx(1, abs=1e-9)
    posterior = torch.softmax(log_joint, 0)
    expected = (posterior[:, None, None] * x).sum(0)
    torch.testing.assert_close(model.output(u, level).mean[0], expected, atol=1e-9, rtol=0)
    evidence = torch.logsumexp(log_joint, 0) + math.log(AREA) - 2 * math.log(2 * math.pi)
    assert float(model.log_evidence(u, level)) == pytest.approx(float(evidence), abs=1e-9)


@pytest.mark.parametrize("n_steps", [None, 3])
def test_the_bound_has_no_gap(n_steps: int | None) -> None:
    """Messages and reconstruction of one angle cost its entropy, whatever the steps: five standard errors."""
    model = VonMisesMixture([[2.9], [0.3]], [[12.0], [2.0]], weights=[0.3, 0.7])
    generator = torch.Generator().manual_seed(0)
    x = model.sample_data(20_000, generator)
    cost = 2 * (model.loss(x, n_steps=n_steps, generator=generator) + model.reconstruction_loss(x, generator=generator))
    gap = cost + model.log_prob(x)
    assert abs(float(gap.mean())) < 5 * float(gap.std()) / math.sqrt(len(x))


@pytest.mark.parametrize(("solver", "nfe"), [("fast-ode", 40), ("fast-sde", 80), ("bfn", 8)])
def test_samples_have_the_distribution_of_the_data(solver: str, nfe: int) -> None:
    """First three Fourier coefficients of each angle, their sum and difference: five standard errors.

    The original sampler sends draws of the exact output distribution; an angle alone is then right at any step.
    """
    model = two_angles() if solver != "bfn" else VonMisesMixture([[2.9], [0.3]], [[12.0], [2.0]])
    n = 8000
    settings = {"g": 1.0, "grid": "log1p"} if solver == "fast-sde" else {}
    ours = model.sample(n, solver, nfe, seed=1, **settings).x
    if solver == "bfn":  # its last call gives the likeliest angle, and sigma_1 is what is left unknown
        assert float((ours.norm(dim=-1) - 1).abs().max()) < 1e-9
    theirs = model.sample_data(n, torch.Generator().manual_seed(2))

    def statistics(x: Tensor) -> Tensor:
        theta = angles_of(x)
        combined = torch.cat([theta, theta.sum(1, keepdim=True), theta[:, :1] - theta[:, -1:]], 1)
        return torch.cat([f(k * combined) for k in (1, 2, 3) for f in (torch.cos, torch.sin)], 1)

    a, b = statistics(ours), statistics(theirs)
    error = ((a.var(0) + b.var(0)) / n).sqrt()
    assert bool(((a.mean(0) - b.mean(0)).abs() < 5 * error + 0.005).all())


def test_known_angles_are_conditioned_on() -> None:
    model, n = two_angles(), 8000
    known = pairs_of(torch.tensor([2.9, 0.0], dtype=torch.float64))
    mask = torch.tensor([[True, True], [False, False]])
    out = model.sample(n, "fast-ode", 40, seed=0, known=known, known_mask=mask).x
    assert torch.equal(out[:, 0], known[0].expand(n, 2))
    weights = model.log_prob(torch.stack([known[0].expand(300, 2), pairs_of(CIRCLE)], 1)).softmax(0)
    expected = weights @ pairs_of(CIRCLE)
    assert bool(((out[:, 1].mean(0) - expected).abs() < 5 * out[:, 1].std(0) / math.sqrt(n) + 0.005).all())
