"""Likelihoods of joint data, numbers and classes together, against the exact model."""

import math

import pytest
import torch

from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.exact.joint import JointMixture
from exact_models import seeded

FLOWS = {
    "x": ContinuousFlow(0.02),
    "kind": DiscreteFlow(4, 4.5),
    "y": ContinuousFlow(0.05),
    "few": DiscreteFlow(2, 6.0),
}


def mixture(names: tuple[str, ...] = tuple(FLOWS), at_end: bool = False) -> JointMixture:
    """Make a mixture of three components; at_end adds the noise that numbers have at t = 1."""
    generator = seeded(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    numbers = {"x": (normal(3, 2), 0.1 + 0.2 * normal(3, 2).abs()), "y": (normal(3), 0.3 + 0.1 * normal(3).abs())}
    classes = {"kind": torch.softmax(2 * normal(3, 3, 4), -1), "few": torch.softmax(normal(3, 2), -1)}
    if at_end:
        left = {name: 1 / FLOWS[name].schedule.beta(1.0) for name in numbers}
        numbers = {name: (mean, (std.square() + left[name]).sqrt()) for name, (mean, std) in numbers.items()}
    return JointMixture(
        {name: numbers[name] for name in numbers if name in names},
        {name: classes[name] for name in classes if name in names},
        weights=torch.softmax(normal(3), 0), flows={name: FLOWS[name] for name in names},
    )  # fmt: skip


@pytest.mark.parametrize("names", [tuple(FLOWS), ("x", "y"), ("kind", "few"), ("y", "kind")])
@pytest.mark.parametrize("settings", [{"nfe": 100}, {"tolerance": 1e-4}], ids=["steps", "tolerance"])
def test_the_ode_gives_the_exact_likelihood(names: tuple[str, ...], settings: dict) -> None:
    """For an exact model p(u) P(classes | u) / q(u | classes) is the same for every draw."""
    model = mixture(names)
    data = model.sample_data(4, seeded())
    found = model.log_likelihood(data, generator=seeded(2), **settings)
    torch.testing.assert_close(found.log_prob, mixture(names, at_end=True).log_prob(data), rtol=0, atol=1e-3)
    assert found.is_bound == (set(names) > {"x", "y"} or "kind" in names)
    assert found.is_density == ("y" in names)


def test_random_probes_are_unbiased() -> None:
    """Within five standard errors: a false alarm has probability 1e-5 for each sample."""
    model = mixture()
    data = model.sample_data(3, seeded())
    settings = {"divergence": "hutchinson", "probes": 60, "nfe": 40}
    found = model.log_likelihood(data, generator=seeded(2), **settings)
    exact = mixture(at_end=True).log_prob(data)
    assert bool(((found.log_prob - exact).abs() < 5 * found.error + 5e-3).all())
    assert float(found.error.max()) < 1


@pytest.mark.parametrize("method", ["bound", "n-step"])
def test_the_bounds_are_close_to_the_exact_likelihood(method: str) -> None:
    """For an exact model the continuous-time bound is tight on average, up to the reconstruction."""
    model = mixture()
    n = 4000
    data = model.sample_data(n, seeded())
    found = model.log_likelihood(data, method, 12, generator=seeded(2))
    excess = model.log_prob(data) - found.log_prob
    error = 5 * float(excess.std()) / math.sqrt(n)
    mean = float(excess.mean())
    assert (found.is_bound, found.is_density) == (True, True)
    assert mean > -error
    if method == "bound":
        assert mean < error + 0.05
