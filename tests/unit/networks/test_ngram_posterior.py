"""The posterior of a chain of symbols inside a network: exact, differentiable, and counted where training begins."""

import math

import pytest
import torch
from torch import Tensor

import bfn
from bfn.exact import NGram
from bfn.networks import Transformer
from bfn.networks.ngram_posterior import SMOOTHING, NGramPosterior


def words(n: int, length: int, seed: int = 0) -> Tensor:
    """Sequences of four symbols, each a noisy function of the two before it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(4, (n, length), generator=generator)
    keep = torch.rand(n, length, generator=generator) < 0.85
    for i in range(2, length):
        x[:, i] = torch.where(keep[:, i], (2 * x[:, i - 1] + x[:, i - 2]) % 4, x[:, i])
    return x


def counted(context: int = 2, length: int = 400) -> tuple[NGramPosterior, NGram]:
    """The layer, and the exact model of the same text."""
    text = words(1, length)
    layer = NGramPosterior(4, context).double()
    layer.count(text)
    return layer, NGram.from_text(text[0], context, 9, n_classes=4, smoothing=SMOOTHING)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_it_is_the_exact_models_posterior(context: int) -> None:
    layer, exact = counted(context)
    theta = torch.randn(40, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)
    torch.testing.assert_close(layer(theta).softmax(-1), exact.marginals(theta.log()).softmax(-1), atol=1e-6, rtol=1e-6)


def test_gradients_are_those_of_differences() -> None:
    """In-place work is for where no gradient is asked for; likelihoods and steering ask for one."""
    layer, _ = counted()
    theta = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).softmax(-1)
    assert torch.autograd.gradcheck(lambda x: layer(x.softmax(-1)), theta.log().requires_grad_())


def test_what_is_absent_says_nothing() -> None:
    layer, _ = counted()
    theta = torch.randn(3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).softmax(-1)
    present = torch.arange(9).expand(3, 9) < 6
    torch.testing.assert_close(layer(theta, present)[:, :6].softmax(-1), layer(theta[:, :6]).softmax(-1))


def test_counts_of_sequences_do_not_reach_over_their_ends() -> None:
    """After 0 always 1 and then the end; where rows were one text, 0 would follow 1."""
    x = torch.tensor([[0, 1, -1]]).expand(50, 3)
    layer = NGramPosterior(2, 1)
    layer.count(x)
    table = layer.get_buffer("log_table_1").exp()
    assert table[0, 1] > 0.99
    torch.testing.assert_close(table[1], layer.get_buffer("log_table_0").exp()[0])  # nothing was seen after 1


def test_an_untrained_network_is_the_chain_and_has_its_likelihood() -> None:
    """The bound of an exact posterior is the log-likelihood: what the network starts from."""
    text = words(400, 12)
    network = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2, ngram=2)
    network.chain.count(text)  # type: ignore[union-attr]
    model = bfn.BFN(network, bfn.DiscreteFlow(4, beta_1=8.0), "logits", (12,))
    held_out = words(512, 12, seed=5)
    log_prob = 0.0
    for n in range(12):
        context = min(n, 2)
        table = network.chain.get_buffer(f"log_table_{context}")  # type: ignore[union-attr]
        code = sum((held_out[:, n - context + i] * 4 ** (context - 1 - i) for i in range(context)), torch.tensor(0))
        log_prob = log_prob + table[code.expand(512), held_out[:, n]]
    expected = -float(torch.as_tensor(log_prob).mean()) / 12
    with torch.no_grad():
        losses = torch.cat([model.loss(held_out, generator=torch.Generator().manual_seed(i)) for i in range(40)])
    # Of the 40 x 512 stratified draws the mean is within 4 standard errors; what is left at t = 1 is below 1e-3.
    assert abs(float(losses.mean()) - expected) < 4 * float(losses.std()) / math.sqrt(len(losses)) + 1e-3


def test_training_counts_the_data_once() -> None:
    network = Transformer(n_classes=4, width=16, n_blocks=1, n_heads=2, ngram=1)
    model = bfn.BFN(network, bfn.DiscreteFlow(4), "logits", (12,))
    chain = network.chain
    assert chain is not None
    assert not chain.counted
    bfn.fit(model, words(200, 12), 2, progress=False)
    assert chain.counted
    before = chain.get_buffer("log_table_1").clone()
    bfn.fit(model, 3 - words(200, 12), 2, progress=False)
    torch.testing.assert_close(chain.get_buffer("log_table_1"), before)


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


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(bfn.UserError, match=r"ngram=7: with 27 classes expected contexts of at most 3 symbols"):
        Transformer(n_classes=27, ngram=7)
    with pytest.raises(bfn.UserError, match=r"ngram=2: a chain of symbols is for discrete sequences"):
        Transformer(3, ngram=2)
    with pytest.raises(bfn.UserError, match=r"data of shape \(3, 2\): a chain is counted in classes"):
        NGramPosterior(4, 1).count(torch.randn(3, 2))
