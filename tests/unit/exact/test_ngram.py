"""n-gram models: counts, smoothing, and posteriors by the forward-backward algorithm."""

from itertools import product

import pytest
import torch

from bfn.exact.strings import MarkovChain, NGram
from bfn.networks.ngram_counts import BACKOFF_MIN, count_backoff

TEXT = "the cat sat on the mat and the rat sat on the cat that ate the hat " * 3


def random_text(n: int, n_classes: int, seed: int = 0) -> torch.Tensor:
    """Classes with structure: each a noisy function of the two before it."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(n_classes, (n,), generator=generator)
    for i in torch.nonzero(torch.rand(n - 2, generator=generator) < 0.8).flatten().tolist():
        text[i + 2] = (2 * text[i + 1] + text[i]) % n_classes
    return text


def test_smoothing_by_hand():
    """abab a: after a always b (2 of 2), after b always a (2 of 2); one symbol follows each, so backoff = r/(2 + r)."""
    text, r = torch.tensor([0, 1, 0, 1, 0]), 0.5
    model = NGram.from_text(text, 1, 3, n_classes=3, smoothing=r)
    b0 = 2 * r / (5 + 2 * r)
    unigram = (1 - b0) * torch.tensor([3 / 5, 2 / 5, 0.0], dtype=torch.float64) + b0 / 3
    empty = torch.zeros(1, 0, dtype=torch.int64)
    torch.testing.assert_close(model.next_probs(empty)[0], unigram)
    b1 = r / (2 + r)
    after_a = (1 - b1) * torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64) + b1 * unigram
    torch.testing.assert_close(model.next_probs(torch.tensor([[2, 2, 0]]))[0], after_a)
    # A context that was never seen says no more than the shorter one.
    torch.testing.assert_close(model.next_probs(torch.tensor([[2]]))[0], unigram)


def test_counts_are_those_of_the_text():
    text = random_text(500, 4)
    tables = count_backoff(text, 2, 4, smoothing=1.0, min_count=1)
    grams = {}
    for i in range(len(text) - 2):
        code = int(text[i]) * 16 + int(text[i + 1]) * 4 + int(text[i + 2])
        grams[code] = grams.get(code, 0) + 1
    assert tables.codes[3].tolist() == sorted(grams)
    prefix = {}
    for code, count in grams.items():
        prefix.setdefault(code // 4, []).append(count)
    expected = [grams[code] / (sum(prefix[code // 4]) + len(prefix[code // 4])) for code in sorted(grams)]
    torch.testing.assert_close(tables.share[3], torch.tensor(expected, dtype=torch.float64))


def test_n_grams_are_kept_from_min_count_on():
    text = random_text(3000, 5)
    full = count_backoff(text, 3, 5, smoothing=1.0, min_count=1)
    kept = count_backoff(text, 3, 5, smoothing=1.0, min_count=4)
    assert 0 < len(kept.codes[4]) < len(full.codes[4])
    codes = (text.unfold(0, 4, 1) * 5 ** torch.arange(3, -1, -1)).sum(1)
    found, counts = codes.unique(return_counts=True)
    assert torch.equal(kept.codes[4], found[counts >= 4])
    # 5 symbols of 40 classes no longer fit in a table of counts: sorted instead.
    text = random_text(2000, 40)
    codes = (text.unfold(0, 5, 1) * 40 ** torch.arange(4, -1, -1)).sum(1)
    assert torch.equal(count_backoff(text, 4, 40, smoothing=1.0, min_count=1).codes[5], codes.unique())


def test_context_one_is_a_markov_chain(generator):
    model = NGram.from_text(random_text(300, 5), 1, 9, n_classes=5)
    initial = model.next_probs(torch.zeros(1, 0, dtype=torch.int64))[0]
    transition = model.next_probs(torch.arange(5).unsqueeze(1))
    chain = MarkovChain(initial, transition, 9, flow=model.flow)
    x = model.sample_data(6, generator)
    torch.testing.assert_close(model.log_prob(x), chain.log_prob(x))
    level = model.flow.noise_level(0.6, 6, 2, like=torch.zeros((), dtype=torch.float64))
    u = model.flow.noised(x, level.s, torch.randn(6, 9, 5, generator=generator, dtype=torch.float64))
    torch.testing.assert_close(model.output(u, level).mean, chain.output(u, level).mean, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(model.log_evidence(u, level), chain.log_evidence(u, level))


@pytest.mark.parametrize("context", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("min_count", [1, 2])
@pytest.mark.parametrize("length", [1, 3, 6])
def test_posterior_agrees_with_enumeration(context, min_count, length, generator):
    model = NGram.from_text(random_text(60, 3), context, length, n_classes=3, min_count=min_count, smoothing=0.7)
    compare_with_enumeration(model, 2 * torch.randn(4, length, 3, generator=generator, dtype=torch.float64))


def compare_with_enumeration(model: NGram, log_likelihood: torch.Tensor) -> None:
    n_classes, length = model.flow.n_classes, log_likelihood.shape[1]
    strings = torch.tensor(list(product(range(n_classes), repeat=length)))
    log_probs = model.log_prob(strings)
    assert float(log_probs.exp().sum()) == pytest.approx(1, abs=1e-12)
    joint = log_probs + sum(log_likelihood[:, d, strings[:, d]] for d in range(length))
    torch.testing.assert_close(model.log_normaliser(log_likelihood), joint.logsumexp(1))
    one_hot = torch.nn.functional.one_hot(strings, n_classes).double()
    expected = torch.einsum("bn,ndk->bdk", joint.softmax(1), one_hot)
    torch.testing.assert_close(model.marginals(log_likelihood).softmax(-1), expected, atol=1e-12, rtol=1e-9)


def test_symbols_that_the_text_lacks_are_contexts_too(generator):
    model = NGram.from_text(torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1]), 3, 5, n_classes=4)
    log_likelihood = 5 * torch.randn(8, 5, 4, generator=generator, dtype=torch.float64)
    compare_with_enumeration(model, log_likelihood)
    assert float(model.marginals(log_likelihood).softmax(-1)[..., 2:].sum()) > 1  # the evidence calls for them
    short = NGram.from_text(torch.tensor([0, 1]), 4, 5, n_classes=2)  # a text shorter than the context
    compare_with_enumeration(short, torch.randn(3, 5, 2, generator=generator, dtype=torch.float64))


def test_parts_of_a_batch_do_not_matter(generator):
    text = random_text(200, 4)
    whole = NGram.from_text(text, 2, 10, n_classes=4)
    parts = NGram.from_text(text, 2, 10, n_classes=4, memory=1)
    log_likelihood = torch.randn(37, 10, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(parts.marginals(log_likelihood), whole.marginals(log_likelihood))
    torch.testing.assert_close(parts.log_normaliser(log_likelihood), whole.log_normaliser(log_likelihood))


@pytest.mark.parametrize("context", [2, 4])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e6])
def test_no_evidence_is_too_strong_in_float32(context, scale, generator):
    """Strings that the text never has, insisted on by the evidence: finite, and strong evidence wins."""
    model = NGram.from_text(TEXT, context, 40, smoothing=1e-3, dtype=torch.float32)
    log_likelihood = scale * torch.randn(20, 40, 27, generator=generator)
    logits = model.marginals(log_likelihood)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(model.log_normaliser(log_likelihood)).all()
    if scale == 1e6:
        two = log_likelihood.topk(2).values
        clear = two[..., 0] - two[..., 1] > 1000
        assert torch.equal(logits.argmax(-1)[clear], log_likelihood.argmax(-1)[clear])


def test_every_symbol_stays_possible():
    model = NGram.from_text(TEXT, 4, 8, smoothing=1e-9)
    probs = model.next_probs(torch.tensor([[20, 8, 5, 0], [25, 25, 25, 25]]))
    torch.testing.assert_close(probs.sum(1), torch.ones(2, dtype=torch.float64))
    assert float(probs.min()) >= BACKOFF_MIN**5 / 27 * (1 - 1e-9)
