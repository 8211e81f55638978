"""Error messages of likelihoods: one line each."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import bfn
from bfn.core.errors import UserError
from bfn.exact.numbers import GaussianMixture
from bfn.likelihood.bits import bits_estimate
from bfn.likelihood.bounds import receiver_variance

NUMBERS = bfn.BFN(lambda mu, t: mu, bfn.ContinuousFlow(), "data", (3,))
CLASSES = bfn.BFN(lambda theta, t: theta, bfn.DiscreteFlow(27), "logits", (64,))
BROKEN = bfn.BFN(lambda mu, t: mu * math.nan, bfn.ContinuousFlow(), "data", (3,))
MIXTURE = GaussianMixture(torch.tensor([[-0.5], [0.5]]), stds=torch.tensor([0.1, 0.2]))
X, LETTERS = torch.zeros(2, 3), torch.zeros(2, 64, dtype=torch.int64)


def numbers(**settings: Any) -> Callable[[], object]:
    return partial(NUMBERS.log_likelihood, X, **settings)


def classes(**settings: Any) -> Callable[[], object]:
    return partial(CLASSES.log_likelihood, LETTERS, **settings)


MESSAGES: list[tuple[Callable[[], object], str]] = [
    # data
    (partial(NUMBERS.log_likelihood, torch.zeros(2, 4)), "data of shape (2, 4): expected"),
    (partial(NUMBERS.log_likelihood, X.long()), "data of type torch.int64: continuous data are floats"),
    (partial(CLASSES.log_likelihood, LETTERS.float()), "data of type torch.float32: discrete data are integer classes"),
    (numbers(label=torch.zeros(3)), "tensor of shape (3,)"),
    # settings
    (numbers(method="exact"), "method='exact': expected one of ode, bound, n-step"),
    (numbers(divergence="hutch"), "divergence='hutch': expected one of exact, hutchinson"),
    (numbers(nfe=4), "nfe=4: expected a whole number from 5"),
    (numbers(probes=0), "probes=0: expected a whole number from 1"),
    (numbers(seed=0, generator=torch.Generator()), "generator beside seed, processes or keep"),
    # settings of another method or kind of data
    (numbers(method="bound", tolerance=0.1), "tolerance with method='bound': it is an option of method='ode'"),
    (numbers(variance=torch.zeros(9)), "variance with method='ode': it is for method='n-step' and continuous data"),
    (numbers(method="n-step", nfe=6, variance=torch.zeros(4)), "variance of shape (4,): expected one for each step"),
    (numbers(method="n-step", nfe=5, variance=torch.tensor([0.1, -1.0, 0, 0])), "variance with minimum -1: expected"),
    (numbers(levels=256), "levels=256: the data contain 0, which is not one of that many values"),
    (classes(levels=256), "levels=256: it is for continuous data"),
    (numbers(dequantise="noise"), "dequantise='noise' without levels"),
    (numbers(importance=4), "importance=4: a density needs no draws; give levels"),
    (numbers(probes=2), "probes=2 with an exact divergence, which needs none"),
    (classes(importance=4), "importance=4 with divergence='hutchinson' and probes=1: give at least probes=2"),
    (classes(divergence="exact"), "divergence='exact' in 1728 dimensions: expected at most 1024; give 'hutchinson'"),
    # runs that fail
    (partial(MIXTURE.log_likelihood, torch.zeros(2, 1), nfe=40, tolerance=1e-9), "not reached within 40 calls"),
    (partial(BROKEN.log_likelihood, X), "prediction at t=1 has NaN or infinite values"),
    # other functions
    (partial(receiver_variance, CLASSES, LETTERS, 10), "receiver_variance: it is for continuous data"),
    (partial(bits_estimate, torch.ones(2), 0), "n_dims=0: expected the number of dimensions"),
    *[(partial(bits_estimate, x), "values") for x in (torch.ones(2, 2), torch.tensor([1, math.nan]), torch.ones(0))],
]


@pytest.mark.parametrize(("call", "fragment"), MESSAGES, ids=[fragment for _, fragment in MESSAGES])
def test_wrong_input_gives_one_line(call: Callable[[], object], fragment: str) -> None:
    with pytest.raises((UserError, bfn.NetworkError)) as error:
        call()
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)
