"""Error messages of the exact models."""

import pytest
import torch

from bfn.core.flows import DiscreteFlow, NoiseLevel
from bfn.exact import (
    GaussianMixture,
    MarkovChain,
    MixtureOfProducts,
    NGram,
    Points,
    ProductOfCategoricals,
    StringSet,
    VonMisesMixture,
)  # fmt: skip
from messages import refused

EYE, HALF, TEXT = torch.eye(2), torch.full((2,), 0.5), "the cat sat on the mat and the rat sat on the cat"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianMixture(torch.zeros(3), stds=EYE[0]), "means of shape"),
        (lambda: GaussianMixture(EYE), "give exactly one"),
        (lambda: GaussianMixture(EYE, stds=torch.tensor([1.0, -1.0])), "smallest value -1"),
        (lambda: GaussianMixture(EYE, torch.tensor([[[1.0, 1], [0, 1]]] * 2)), "not symmetric"),
        (lambda: GaussianMixture(EYE, torch.stack([EYE, -EYE])), "eigenvalue -1"),
        (lambda: GaussianMixture(EYE, stds=torch.ones(2), weights=torch.tensor([0.5, 0.6])), "weights sum to 1.1"),
        (lambda: GaussianMixture(EYE * float("nan"), stds=torch.ones(2)), "means with NaN"),
        (lambda: GaussianMixture(EYE, stds=torch.zeros(2)).log_prob(EYE), "no density"),
        (lambda: Points(torch.zeros(0, 3)), "points of shape"),
        (lambda: Points(EYE).log_prob(EYE), "bandwidth=0"),
        (lambda: Points(EYE).output(torch.zeros(1, 3), NoiseLevel(torch.zeros(1), 0.0)), "state of shape"),
        (lambda: Points(EYE).output(EYE, NoiseLevel(torch.zeros(2), 0.0), label=torch.zeros(2)), "label given"),
        (lambda: StringSet(torch.tensor([0, 1]), n_classes=2), "strings of shape"),
        (lambda: StringSet(torch.tensor([[0, 2]]), n_classes=2), r"expected 0\.\.1"),
        (lambda: StringSet(torch.tensor([[0]]), n_classes=2, flow=DiscreteFlow(3)), "flow with n_classes=3"),
        (lambda: ProductOfCategoricals(torch.ones(3, 2)), "probs sum to 2"),
        (lambda: MixtureOfProducts(HALF, HALF.expand(3, 4, 2)), "weights of shape"),
        (lambda: MarkovChain(HALF, torch.ones(2, 2), 3), "rows of transition sum to 2"),
        (lambda: MarkovChain(HALF, HALF.expand(2, 2), 3).log_prob(torch.tensor([[0, 1, 2]])), "classes from 0 to 2"),
        (lambda: NGram.from_text("Hello", 1, 4), "'H' at position 0 is not among"),
        (lambda: NGram.from_text(torch.zeros(2, 2, dtype=torch.int64), 1, 4), "text of shape"),
        (lambda: NGram.from_text(TEXT, 20, 4), "context=20"),
        (lambda: NGram.from_text(TEXT, 2, 12).sample(2, nfe=2, label=0), "an exact model has nothing to condition on"),
        (lambda: VonMisesMixture([0.0, 1.0], [1.0, 1.0]), r"expected \(components, angles\)"),
        (lambda: VonMisesMixture([[0.0]], [[-1.0]]), "concentrations from 0 up"),
    ],
)
def test_wrong_input_is_one_line(make, message):
    refused(message, make)
