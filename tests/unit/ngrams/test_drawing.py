"""Strings drawn from a chain's posterior: the shares of all strings, by a chi-square test."""

import itertools

import torch
from scipy.stats import chisquare
from torch import Tensor

from bfn.networks.ngram_counts import FallingAutomaton
from bfn.networks.ngram_posterior import count_telling, draw_strings


def chain_of(text: Tensor, context: int, n_classes: int) -> FallingAutomaton:
    return FallingAutomaton(count_telling(text, context, n_classes, 60), torch.float64)


def shares(chain: FallingAutomaton, log_likelihood: Tensor, strings: Tensor) -> Tensor:
    """Of each string, by the forward pass over it alone: prior times likelihood, with sum 1."""
    alpha, weight = chain.start(len(strings)), torch.ones(len(strings), dtype=torch.float64)
    for d, symbols in enumerate(strings.T):
        seen = torch.nn.functional.one_hot(symbols, chain.base).double().T.contiguous()
        alpha = chain.emit(chain.advance(alpha, d), seen)
        weight = weight * log_likelihood[d].exp()[symbols]
    weight = weight * alpha.sum(0)
    return weight / weight.sum()


def test_strings_come_as_often_as_they_should() -> None:
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(3, (400,), generator=generator).cumsum(0) % 3
    text = torch.where(torch.rand(400, generator=generator) < 0.6, torch.arange(400) % 3, text)
    chain = chain_of(text, 3, 3)
    log_likelihood = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    strings = torch.tensor(list(itertools.product(range(3), repeat=5)))
    expected = shares(chain, log_likelihood, strings)
    n = 20_000
    drawn = draw_strings(chain, log_likelihood.expand(n, 5, 3), generator)
    found = torch.bincount((drawn * 3 ** torch.arange(4, -1, -1)).sum(1), minlength=len(strings)).double()
    common = expected * n >= 5
    observed = [*found[common].tolist(), float(found[~common].sum())]
    wanted = [*(n * expected[common]).tolist(), float(n * expected[~common].sum())]
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_strong_evidence_is_followed() -> None:
    generator = torch.Generator().manual_seed(1)
    chain = chain_of(torch.randint(4, (300,), generator=generator), 2, 4)
    x = torch.randint(4, (20, 17), generator=generator)
    evidence = 60 * torch.nn.functional.one_hot(x, 4).double()
    assert torch.equal(draw_strings(chain, evidence, generator), x)
