"""The posterior of an n-gram model inside a network: exact, differentiable, and counted when training begins."""

import copy
import functools
import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import bfn
from bfn.networks.ngram_posterior import NGramPosterior
from bfn.networks.transformer import Transformer


def words(n: int, length: int, seed: int = 0) -> Tensor:
    """Return sequences of four symbols, each a noisy function of the two before it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(4, (n, length), generator=generator)
    keep = torch.rand(n, length, generator=generator) < 0.85
    for i in range(2, length):
        x[:, i] = torch.where(keep[:, i], (2 * x[:, i - 1] + x[:, i - 2]) % 4, x[:, i])
    return x


def counted(context: int = 2) -> NGramPosterior:
    layer = NGramPosterior(4, context).double()
    layer.count(words(1, 400))
    return layer


def small_network(ngram: int) -> tuple[Transformer, NGramPosterior]:
    """Return a network of four classes and its n-gram model, which is not counted yet."""
    network = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2, ngram=ngram)
    assert network.chain is not None
    return network, network.chain


def probabilities(layer: NGramPosterior, strings: Tensor) -> Tensor:
    """Return the probabilities of strings, by recursion: in each context emit the symbol, or back off and try again."""
    tables, base = layer.tables(), layer.n_classes
    index = [{int(code): i for i, code in enumerate(codes)} for codes in tables.codes]

    @functools.cache
    def after(context: tuple[int, ...], string: tuple[int, ...]) -> float:
        if not string:
            return 1.0
        n, code = len(context), sum(symbol * base**i for i, symbol in enumerate(reversed(context)))
        backoff = float(tables.backoff[n][index[n][code]])
        own = index[n + 1].get(code * base + string[0])
        share = 0.0 if own is None else float(tables.share[n + 1][own])
        backed_off = backoff * (after(context[1:], string) if n else after((string[0],), string[1:]) / base)
        extended = (*context, string[0])[-layer.context :]
        return backed_off + (share and share * after(extended, string[1:]))

    return torch.tensor([after((), tuple(map(int, string))) for string in strings], dtype=torch.float64)


def random_theta(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(-1)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_posterior_agrees_with_a_sum_over_all_strings(context: int) -> None:
    layer, theta = counted(context), random_theta(6, 5, seed=1)
    strings = torch.tensor(list(itertools.product(range(4), repeat=5)))
    prior = probabilities(layer, strings)
    assert float(prior.sum()) == pytest.approx(1, abs=1e-12)
    joint = prior * theta.gather(2, strings.T.expand(6, 5, -1)).prod(1)  # (6, strings)
    marginals = torch.einsum("bs,slk->blk", joint / joint.sum(1, keepdim=True), one_hot(strings, 4).double())
    for evidence in (theta, theta.clone().requires_grad_()):  # in place, and not in place
        torch.testing.assert_close(layer(evidence).softmax(-1), marginals, atol=1e-12, rtol=1e-9)


def test_gradients_agree_with_finite_differences() -> None:
    layer = counted()
    assert torch.autograd.gradcheck(lambda x: layer(x.softmax(-1)), random_theta(2, 5, seed=2).log().requires_grad_())


def test_n_grams_do_not_cross_the_ends_of_sequences() -> None:
    """After 0 always 1 and then the end. If the rows were one text, 0 would follow 1."""
    layer = NGramPosterior(2, 1)
    layer.count(torch.tensor([[0, 1, -1]]).expand(50, 3))
    zero_zero, zero_one, one_zero, one_one = probabilities(
        layer, torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    ).tolist()
    assert zero_one / (zero_zero + zero_one) > 0.98
    assert one_one / (one_zero + one_one) == pytest.approx(0.5, abs=0.02)  # nothing follows 1


def test_an_untrained_network_has_the_likelihood_of_its_n_gram_model() -> None:
    """The bound of an exact posterior is the log-likelihood."""
    network, chain = small_network(2)
    chain.count(words(400, 12))
    model = bfn.BFN(network, bfn.DiscreteFlow(4, beta_1=8.0), "logits", (12,))
    held_out = words(128, 12, seed=5)
    expected = -float(probabilities(chain, held_out).log().mean()) / 12
    with torch.no_grad():
        losses = torch.cat([model.loss(held_out, generator=torch.Generator().manual_seed(i)) for i in range(160)])
    # Four standard errors of the mean; what is left at t = 1 is below 1e-3.
    assert abs(float(losses.mean()) - expected) < 4 * float(losses.std()) / math.sqrt(len(losses)) + 1e-3


def test_training_counts_the_data_once() -> None:
    network, chain = small_network(1)
    model = bfn.BFN(network, bfn.DiscreteFlow(4), "logits", (12,))
    assert not chain.counted
    bfn.fit(model, words(200, 12), 2, progress=False)
    assert chain.counted
    before = chain.get_buffer("log_share").clone()
    bfn.fit(model, 3 - words(200, 12), 2, progress=False)
    torch.testing.assert_close(chain.get_buffer("log_share"), before)


def test_a_network_without_n_grams_grows_into_one_with_them() -> None:
    """The blocks keep their weights, and the output starts as the posterior of the n-gram model."""
    plain = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    grown, chain = small_network(2)
    chain.count(words(100, 12))
    grown.load_state_dict(grown.grown(plain.state_dict()))
    theta = torch.randn(3, 9, 4).softmax(-1)
    torch.testing.assert_close(grown(theta, torch.rand(3)).softmax(-1), chain(theta).softmax(-1))
    torch.testing.assert_close(grown.blocks.state_dict(), plain.blocks.state_dict())


def test_n_gram_models_are_copied_and_stored(tmp_path) -> None:
    """Half precision keeps the model up to rounding."""
    network, chain = small_network(3)
    chain.count(words(50, 30))
    model = bfn.BFN(network, bfn.DiscreteFlow(4), "logits", (12,))
    theta = random_theta(3, 12, seed=4).float()
    before = chain(theta).softmax(-1)
    torch.testing.assert_close(copy.deepcopy(chain)(theta).softmax(-1), before)
    read = bfn.load(model.save(tmp_path / "model", dtype="float16"))
    torch.testing.assert_close(read.network.chain(theta).softmax(-1), before, atol=5e-3, rtol=0.0)
