"""Whole strings with few calls: exact if the posterior is exact, and not used if predictions are changed."""

import itertools

import pytest
import torch
from scipy.stats import chisquare

import bfn
from bfn.core.solver import plan
from bfn.networks.transformer import Transformer


def chain_model() -> bfn.BFN:
    """Make an untrained network, which gives the posterior of the chain: three symbols, strings of four."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(3, (100, 20), generator=generator)
    text = torch.where(torch.rand(100, 20, generator=generator) < 0.6, torch.arange(20) % 3, text)
    network = Transformer(n_classes=3, width=16, n_blocks=1, n_heads=2, ngram=2)
    assert network.chain is not None
    network.chain.count(text)
    return bfn.BFN(network, bfn.DiscreteFlow(3, beta_1=12.0), "logits", (4,))


def shares(model: bfn.BFN, strings: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of all strings, by the forward pass of the chain over each."""
    chain = model.network.chain._automaton(torch.zeros((), dtype=torch.float64))  # type: ignore[attr-defined]
    alpha = chain.start(len(strings))
    for symbols in strings.T:
        alpha = chain.emit(chain.advance(alpha), torch.nn.functional.one_hot(symbols, 3).double().T.contiguous())
    return alpha.sum(0)


@pytest.mark.parametrize("nfe", [1, 2, 3, 4])
def test_steps_of_any_length_are_exact(nfe: int) -> None:
    model = chain_model()
    strings = torch.tensor(list(itertools.product(range(3), repeat=4)))
    expected = shares(model, strings)
    assert float(expected.sum()) == pytest.approx(1, abs=1e-6)
    n = 4000
    x = model.sample(n, nfe=nfe, seed=nfe).x
    found = torch.bincount((x * 3 ** torch.arange(3, -1, -1)).sum(1), minlength=len(strings)).double()
    common = expected * n >= 5
    observed = [*found[common].tolist(), *([float(found[~common].sum())] if (~common).any() else [])]
    wanted = [*(n * expected[common]).tolist(), *([float(n * expected[~common].sum())] if (~common).any() else [])]
    assert chisquare(observed, torch.tensor(wanted).mul(sum(observed) / sum(wanted)).tolist()).pvalue > 1e-3


def test_auto_draws_whole_strings_for_few_calls_without_controls() -> None:
    model = chain_model()
    assert [plan(model, "auto", nfe).table.whole for nfe in (1, 4, 5)] == [True, True, False]
    assert not plan(model, "auto", 2, g=1.0).table.whole
    assert not plan(model, "bfn", 2).table.whole
    plain = bfn.BFN(Transformer(n_classes=3, width=16, n_blocks=1, n_heads=2), model.flow, "logits", (4,))
    assert not plan(plain, "auto", 2).table.whole
    known = torch.tensor([0, 1, 2, 0])
    mask = torch.tensor([True, True, False, False])
    out = model.sample(8, nfe=2, known=known, known_mask=mask, seed=0)
    assert out.times == plan(model, "auto", 2, plain=False).table.times
    assert torch.equal(out.x[:, :2], known[:2].expand(8, 2))


def test_padding_is_ignored() -> None:
    model = chain_model()
    present = torch.arange(4) < torch.tensor([[2], [4]])
    out = model.sample(2, nfe=1, present=present, seed=0)
    assert torch.equal(out.x[0, 2:], torch.zeros(2, dtype=out.x.dtype))
