"""The posterior of a chain of symbols inside a network: exact, differentiable, and counted where training begins."""

import copy
import functools
import itertools
import math

import pytest
import torch
from torch import Tensor

import bfn
from bfn.networks.ngram_posterior import NGramPosterior
from bfn.networks.transformer import Transformer


def words(n: int, length: int, seed: int = 0) -> Tensor:
    """Sequences of four symbols, each a noisy function of the two before it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(4, (n, length), generator=generator)
    keep = torch.rand(n, length, generator=generator) < 0.85
    for i in range(2, length):
        x[:, i] = torch.where(keep[:, i], (2 * x[:, i - 1] + x[:, i - 2]) % 4, x[:, i])
    return x


def counted(context: int = 2, length: int = 400) -> NGramPosterior:
    """The layer, with a chain of its own."""
    layer = NGramPosterior(4, context).double()
    layer.count(words(1, length))
    return layer


def said(layer: NGramPosterior, strings: Tensor) -> Tensor:
    """Probabilities of strings, by walking the tables: from each context say the symbol, or fall and try again."""
    tables = layer._tables(*(layer.get_buffer(name) for name in ("sizes", "codes", "log_share", "log_backoff")))
    base = layer.n_classes
    known = [{int(code): i for i, code in enumerate(codes)} for codes in tables.codes]

    @functools.cache
    def after(context: tuple[int, ...], string: tuple[int, ...]) -> float:
        if not string:
            return 1.0
        n, code = len(context), sum(symbol * base**i for i, symbol in enumerate(reversed(context)))
        fall = float(tables.backoff[n][known[n][code]])
        own = known[n + 1].get(code * base + string[0])
        says = 0.0 if own is None else float(tables.share[n + 1][own])
        falls = fall * (after(context[1:], string) if n else after((string[0],), string[1:]) / base)
        return falls + (says and says * after(ending((*context, string[0])), string[1:]))

    def ending(context: tuple[int, ...]) -> tuple[int, ...]:
        return context[len(context) - layer.context :] if len(context) > layer.context else context

    return torch.tensor([after((), tuple(map(int, string))) for string in strings], dtype=torch.float64)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_posterior_is_that_of_all_strings(context: int) -> None:
    layer = counted(context)
    strings = torch.tensor(list(itertools.product(range(4), repeat=5)))
    prior = said(layer, strings)
    assert float(prior.sum()) == pytest.approx(1, abs=1e-12)
    theta = torch.randn(6, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    joint = prior * theta.gather(2, strings.T.expand(6, 5, -1)).prod(1)  # (6, strings)
    one_hot = torch.nn.functional.one_hot(strings, 4).double()
    marginals = torch.einsum("bs,slk->blk", joint / joint.sum(1, keepdim=True), one_hot)
    torch.testing.assert_close(layer(theta).softmax(-1), marginals, atol=1e-12, rtol=1e-9)
    with torch.enable_grad():  # not in place
        torch.testing.assert_close(layer(theta.requires_grad_()).softmax(-1), marginals, atol=1e-12, rtol=1e-9)


def test_gradients_are_those_of_differences() -> None:
    """In-place work is for where no gradient is asked for; likelihoods and steering ask for one."""
    layer = counted()
    theta = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).softmax(-1)
    assert torch.autograd.gradcheck(lambda x: layer(x.softmax(-1)), theta.log().requires_grad_())


def test_what_is_absent_says_nothing() -> None:
    layer = counted()
    theta = torch.randn(3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).softmax(-1)
    present = torch.arange(9).expand(3, 9) < 6
    torch.testing.assert_close(layer(theta, present)[:, :6].softmax(-1), layer(theta[:, :6]).softmax(-1))


def test_counts_of_sequences_do_not_reach_over_their_ends() -> None:
    """After 0 always 1 and then the end; where rows were one text, 0 would follow 1."""
    x = torch.tensor([[0, 1, -1]]).expand(50, 3)
    layer = NGramPosterior(2, 1)
    layer.count(x)
    zero_zero, zero_one, one_zero, one_one = said(layer, torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])).tolist()
    assert zero_one / (zero_zero + zero_one) > 0.98
    assert one_one / (one_zero + one_one) == pytest.approx(0.5, abs=0.02)  # nothing was seen after 1


def test_an_untrained_network_is_the_chain_and_has_its_likelihood() -> None:
    """The bound of an exact posterior is the log-likelihood: what the network starts from."""
    text = words(400, 12)
    network = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2, ngram=2)
    network.chain.count(text)  # type: ignore[union-attr]
    model = bfn.BFN(network, bfn.DiscreteFlow(4, beta_1=8.0), "logits", (12,))
    held_out = words(128, 12, seed=5)
    expected = -float(said(network.chain, held_out).log().mean()) / 12  # type: ignore[arg-type]
    with torch.no_grad():
        losses = torch.cat([model.loss(held_out, generator=torch.Generator().manual_seed(i)) for i in range(160)])
    # Of the 160 x 128 stratified draws the mean is within 4 standard errors; what is left at t = 1 is below 1e-3.
    assert abs(float(losses.mean()) - expected) < 4 * float(losses.std()) / math.sqrt(len(losses)) + 1e-3


def test_training_counts_the_data_once() -> None:
    network = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2, ngram=1)
    model = bfn.BFN(network, bfn.DiscreteFlow(4), "logits", (12,))
    chain = network.chain
    assert chain is not None
    assert not chain.counted
    bfn.fit(model, words(200, 12), 2, progress=False)
    assert chain.counted
    before = chain.get_buffer("log_share").clone()
    bfn.fit(model, 3 - words(200, 12), 2, progress=False)
    torch.testing.assert_close(chain.get_buffer("log_share"), before)


def test_a_plain_network_grows_into_one_with_a_chain(tmp_path) -> None:
    """The weights go on from the plain ones; the output starts as the chain's posterior."""
    plain = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    grown = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2, ngram=2)
    grown.chain.count(words(100, 12))  # type: ignore[union-attr]
    grown.load_state_dict(grown.grown(plain.state_dict()))
    theta = torch.randn(3, 9, 4).softmax(-1)
    torch.testing.assert_close(grown(theta, torch.rand(3)).softmax(-1), grown.chain(theta).softmax(-1))  # type: ignore[misc]
    torch.testing.assert_close(grown.blocks.state_dict(), plain.blocks.state_dict())


def test_a_stored_chain_is_read_back(tmp_path) -> None:
    """Half precision keeps it up to its rounding; copies have steps of their own."""
    network = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2, ngram=3)
    network.chain.count(words(50, 30))  # type: ignore[union-attr]
    model = bfn.BFN(network, bfn.DiscreteFlow(4), "logits", (12,))
    theta = torch.randn(3, 12, 4, generator=torch.Generator().manual_seed(4)).softmax(-1)
    before = network.chain(theta).softmax(-1)  # type: ignore[misc]
    torch.testing.assert_close(copy.deepcopy(network).chain(theta).softmax(-1), before)  # type: ignore[misc]
    read = bfn.load(model.save(tmp_path / "model", dtype="float16"))
    torch.testing.assert_close(read.network.chain(theta).softmax(-1), before, atol=5e-3, rtol=0.0)
    network.chain.get_buffer("sizes")[1] = 1  # type: ignore[union-attr]
    with pytest.raises(bfn.UserError, match="not one that was counted"):
        network(theta, torch.rand(3))


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(bfn.UserError, match=r"ngram=13: with 27 classes expected contexts of at most 12 symbols"):
        Transformer(n_classes=27, ngram=13)
    with pytest.raises(bfn.UserError, match=r"ngram=2: a chain of symbols is for discrete sequences"):
        Transformer(3, ngram=2)
    with pytest.raises(bfn.UserError, match=r"data of shape \(3, 2\): a chain is counted in classes"):
        NGramPosterior(4, 1).count(torch.randn(3, 2))
