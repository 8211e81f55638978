"""Samplers against exact probabilities, by total variation with stated false-alarm rates.

For n draws over k outcomes the expected total variation is at most sqrt(k/n)/2, and by McDiarmid's inequality it passes
that by eps with probability at most exp(-2 n eps^2).
"""

from math import log, sqrt

import pytest
import torch

from bfn.exact.strings import ProductOfCategoricals, StringSet

FALSE_ALARM = 1e-4


def total_variation(samples: torch.Tensor, strings: torch.Tensor, probs: torch.Tensor) -> float:
    """Distance between the frequencies of the strings (and of anything else) and their probabilities."""
    counts = (samples[:, None] == strings[None]).all(-1).double().mean(0)
    return float((counts - probs).abs().sum() + (1 - counts.sum())) / 2


def allowance(n: int, k: int) -> float:
    return sqrt(k / n) / 2 + sqrt(log(1 / FALSE_ALARM) / (2 * n))


def dependent(beta_1: float = 12.0) -> tuple[StringSet, torch.Tensor]:
    strings = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2], [2, 1, 0]])
    probs = torch.tensor([0.35, 0.25, 0.2, 0.15, 0.05], dtype=torch.float64)
    return StringSet(strings, probs, n_classes=3, beta_1=beta_1), probs


def independent() -> tuple[ProductOfCategoricals, torch.Tensor, torch.Tensor]:
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]], dtype=torch.float64)
    strings = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    return ProductOfCategoricals(p, beta_1=12.0), strings, (p[0][:, None] * p[1]).flatten()


SDE, ODE = ("bfn", "sde-bfn-solver1", "sde-bfn-solver2", "fast-sde"), ("bfn-solver1", "bfn-solver2", "fast-ode")


@pytest.mark.parametrize("name", [*SDE, *ODE])
def test_many_steps_reproduce_the_exact_distribution(name: str) -> None:
    """The reverse SDE, with ("bfn") and without drawing classes, and the ODE."""
    (model, probs), n = dependent(), 2000
    settings = {"nfe": 200 if name in ("bfn-solver2", "fast-ode") else 2000, "t_start": 1e-4 if name in ODE else None}
    out = model.sample(n, name, grid="uniform", generator=torch.Generator().manual_seed(1), **settings)
    assert total_variation(out.x, model.strings, probs) < allowance(n, len(probs) + 1)


def test_what_drawing_classes_does() -> None:
    """For independent positions it is the exact transition kernel at any number of calls; for dependent ones it is not.

    Which of the two does better on dependent positions depends on the problem.
    """
    n, calls = 20_000, 4
    product, strings, product_probs = independent()
    chain, chain_probs = dependent()
    tv = {}
    for name in ("bfn", "sde-bfn-solver1"):
        settings = {"grid": "uniform", "t_start": 0.0, "generator": torch.Generator().manual_seed(2)}
        tv[name, "independent"] = total_variation(product.sample(n, name, calls, **settings).x, strings, product_probs)
        tv[name, "dependent"] = total_variation(chain.sample(n, name, calls, **settings).x, chain.strings, chain_probs)
    assert tv["bfn", "independent"] < allowance(n, len(strings))
    assert tv["sde-bfn-solver1", "independent"] > 2 * allowance(n, len(strings))
    assert tv["bfn", "dependent"] > 2 * allowance(n, len(chain_probs) + 1)


def test_the_posterior_depends_on_softmax_alone(generator: torch.Generator) -> None:
    """Adding a constant to all classes of a position changes z, not softmax(z), and not E[onehot(x) | z]."""
    model, _ = dependent()
    u = torch.randn(10, 3, 3, generator=generator, dtype=torch.float64)
    shifted = u + torch.randn(10, 3, 1, generator=generator, dtype=torch.float64) * 5
    level = model.flow.noise_level(0.4, 10, 2, u)
    torch.testing.assert_close(model.output(u, level).mean, model.output(shifted, level).mean)
    torch.testing.assert_close(model.posterior(u, level), model.posterior(shifted, level))


def variation_with_a_known_part(n: int, name: str, calls: int, **settings: object) -> float:
    """Return the distance between samples with x_1 = 1 known and p(x | x_1 = 1), of an exact model."""
    model, probs = dependent()
    conditional = probs * (model.strings[:, 1] == 1)
    known, mask = torch.ones(3, dtype=torch.int64), torch.tensor([False, True, False])
    out = model.sample(
        n, name, calls, known=known, known_mask=mask, generator=torch.Generator().manual_seed(3), **settings
    )
    return total_variation(out.x, model.strings, conditional / conditional.sum())


@pytest.mark.parametrize(
    ("name", "calls"),
    [("fast-ode", 60), ("fast-sde", 400), ("bfn", 300), ("bfn-solver2", 200), ("sde-bfn-solver2", 200)],
)
def test_filling_in_reproduces_the_exact_conditional_distribution(name: str, calls: int) -> None:
    t_start = 1e-4 if name == "bfn-solver2" else 0.0
    assert variation_with_a_known_part(4000, name, calls, grid="uniform", t_start=t_start) < allowance(4000, 4)


def test_the_known_part_on_its_path_biases_the_rest() -> None:
    """Replacement is no conditioning: even without solver error it is far from the exact conditional distribution."""
    assert variation_with_a_known_part(4000, "fast-ode", 60, known_at="path") > 0.15
