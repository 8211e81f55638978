"""Small exact models, and states of their data."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bfn.core.flows import NoiseLevel
from bfn.exact.numbers import GaussianMixture, Points
from bfn.exact.strings import MarkovChain, MixtureOfProducts, NGram, ProductOfCategoricals, StringSet

K, LENGTH = 3, 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def state_at(model, t: float | Tensor, batch: int = 7, scale: float = 1.0) -> tuple[Tensor, NoiseLevel]:
    """Return states of samples at time t, whose noise is ``scale`` times the usual one, and their level."""
    x = model.sample_data(batch, seeded(3))
    eps = torch.randn(batch, *model.flow.state_shape(model.data_shape), generator=seeded(4), dtype=model.dtype)
    level = model.flow.noise_level(t, batch, eps.ndim - 1, like=eps)
    return model.flow.noised(x, level.s, scale * eps), level


def random_mixture(**settings) -> GaussianMixture:
    roots = torch.randn(3, 4, 4, generator=seeded(1), dtype=torch.float64) / 3
    means = torch.randn(3, 4, generator=seeded(2), dtype=torch.float64)
    return GaussianMixture(means, roots @ roots.mT, weights=torch.tensor([0.5, 0.2, 0.3]), sigma_1=0.02, **settings)


def random_points(bandwidth: float = 0.1, **settings) -> Points:
    points = torch.randn(37, 2, 3, generator=seeded(2), dtype=torch.float64)
    return Points(points, bandwidth, weights=probabilities(37), sigma_1=0.02, **settings)


def probabilities(*shape: int, seed: int = 0) -> Tensor:
    return torch.softmax(1.5 * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64), -1)


def string_set(**settings) -> StringSet:
    strings = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 1], [2, 2, 2, 2], [1, 0, 2, 0], [2, 2, 2, 2]])
    return StringSet(strings, probabilities(5), n_classes=K, beta_1=2.0, **settings)


def chain(**settings) -> MarkovChain:
    return MarkovChain(probabilities(K), probabilities(K, K, seed=1), LENGTH, beta_1=2.0, **settings)


def chain_with_zeros(**settings) -> MarkovChain:
    transition = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    return MarkovChain(torch.tensor([0.3, 0.7, 0.0]), transition, LENGTH, beta_1=2.0, **settings)


def n_gram(**settings) -> NGram:
    return NGram.from_text(torch.randint(K, (40,), generator=seeded(4)), 2, LENGTH, n_classes=K, beta_1=2.0, **settings)


NUMBERS: Mapping[str, Callable] = {"mixture": random_mixture, "points": random_points}
CLASSES: Mapping[str, Callable] = {
    "strings": string_set,
    "product": lambda **s: ProductOfCategoricals(probabilities(LENGTH, K), beta_1=2.0, **s),
    "products": lambda **s: MixtureOfProducts(probabilities(3), probabilities(3, LENGTH, K, seed=2), beta_1=2.0, **s),
    "chain": chain,
    "chain with zeros": chain_with_zeros,
    "n-gram": n_gram,
}
