"""Discrete exact models against enumeration of all strings."""

from itertools import product

import pytest
import torch

from bfn.exact.strings import MarkovChain, MixtureOfProducts, NGram, ProductOfCategoricals, StringSet

K, LENGTH = 3, 4
ALL = torch.tensor(list(product(range(K), repeat=LENGTH)))


def probabilities(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(1.5 * torch.randn(*shape, generator=generator, dtype=torch.float64), -1)


def string_set(**settings) -> StringSet:
    strings = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 1], [2, 2, 2, 2], [1, 0, 2, 0], [2, 2, 2, 2]])
    return StringSet(strings, probabilities(5), n_classes=K, beta_1=2.0, **settings)


def chain(**settings) -> MarkovChain:
    transition = probabilities(K, K, seed=1)
    return MarkovChain(probabilities(K), transition, LENGTH, beta_1=2.0, **settings)


def chain_with_zeros(**settings) -> MarkovChain:
    transition = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    return MarkovChain(torch.tensor([0.3, 0.7, 0.0]), transition, LENGTH, beta_1=2.0, **settings)


def n_gram(**settings) -> NGram:
    text = torch.randint(K, (40,), generator=torch.Generator().manual_seed(4))
    return NGram.from_text(text, 2, LENGTH, n_classes=K, beta_1=2.0, **settings)


MODELS = {
    "strings": string_set,
    "product": lambda **s: ProductOfCategoricals(probabilities(LENGTH, K), beta_1=2.0, **s),
    "mixture": lambda **s: MixtureOfProducts(probabilities(3), probabilities(3, LENGTH, K, seed=2), beta_1=2.0, **s),
    "chain": chain,
    "chain with zeros": chain_with_zeros,
    "n-gram": n_gram,
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())


def state_at(model, t, batch=6, scale=1.0):
    generator = torch.Generator().manual_seed(5)
    x = model.sample_data(batch, generator)
    shape = (batch, *model.flow.state_shape(model.data_shape))
    eps = torch.randn(shape, generator=generator, dtype=model.dtype)
    level = model.flow.noise_level(t, batch, 2, like=eps)
    return model.flow.noised(x, level.s, scale * eps), level


def log_posterior(model, u, level):
    """log p(x, u) of all strings, (batch, K^L), from the definitions alone."""
    likelihoods = [model.log_sender(u, x.expand(len(u), -1), level) for x in ALL]
    return model.log_prob(ALL) + torch.stack(likelihoods, 1)


@every_model
def test_probabilities_sum_to_one(make):
    assert float(make().log_prob(ALL).exp().sum()) == pytest.approx(1.0, abs=1e-12)


@every_model
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_posterior_and_evidence_agree_with_enumeration(make, t):
    model = make()
    u, level = state_at(model, t)
    joint = log_posterior(model, u, level)
    torch.testing.assert_close(model.log_evidence(u, level), torch.logsumexp(joint, 1), atol=1e-10, rtol=1e-10)
    weights = torch.softmax(joint, 1)
    marginals = torch.einsum("bn,ndk->bdk", weights, torch.nn.functional.one_hot(ALL, K).double())
    torch.testing.assert_close(model.output(u, level).mean, marginals, atol=1e-11, rtol=1e-9)


def test_log_prob_of_strings_by_hand():
    model, weights = string_set(), probabilities(5)
    x = torch.tensor([[0, 1, 1, 1], [2, 2, 2, 2], [0, 0, 0, 0]])
    expected = torch.stack([weights[1], weights[2] + weights[4], torch.tensor(0.0)]).log()
    torch.testing.assert_close(model.log_prob(x), expected)


def test_log_prob_of_chains_and_mixtures_by_hand():
    initial, transition = probabilities(K), probabilities(K, K, seed=1)
    expected = [initial[a] * transition[a, b] * transition[b, c] * transition[c, d] for a, b, c, d in ALL]
    torch.testing.assert_close(chain().log_prob(ALL).exp(), torch.stack(expected))
    assert float(chain_with_zeros().log_prob(torch.tensor([[0, 0, 1, 2]]))) == float("-inf")
    weights, probs = probabilities(3), probabilities(3, LENGTH, K, seed=2)
    by_hand = [sum(weights[m] * probs[m, range(LENGTH), x].prod() for m in range(3)) for x in ALL]
    torch.testing.assert_close(MODELS["mixture"]().log_prob(ALL).exp(), torch.stack(by_hand))


def test_posterior_of_strings():
    model = string_set()
    u, level = state_at(model, 0.4)
    weights = model.posterior(u, level)
    joint = [model.log_sender(u, x.expand(len(u), -1), level) for x in model.strings]
    expected = torch.softmax(model.log_weights + torch.stack(joint, 1), 1)
    torch.testing.assert_close(weights, expected, atol=1e-12, rtol=1e-10)


@every_model
def test_score_is_the_gradient_of_the_evidence(make):
    """Tweedie: grad log p(u) = (s w_hat - u) / K."""
    model = make()
    u, level = state_at(model, 0.5)
    u.requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_evidence(u, level).sum(), u)
    w_hat = K * model.output(u.detach(), level).mean - 1
    torch.testing.assert_close(gradient, (level.s * w_hat - u.detach()) / K, atol=1e-10, rtol=1e-9)


@every_model
def test_a_level_for_each_sample(make):
    model = make()
    t = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    u, _ = state_at(model, 0.5, batch=3)
    level = model.flow.noise_level(t, 3, 2, like=u)
    mean, evidence = model.output(u, level).mean, model.log_evidence(u, level)
    for i in range(3):
        alone = model.flow.noise_level(float(t[i]), 1, 2, like=u)
        torch.testing.assert_close(mean[i : i + 1], model.output(u[i : i + 1], alone).mean)
        torch.testing.assert_close(evidence[i : i + 1], model.log_evidence(u[i : i + 1], alone))


@every_model
@pytest.mark.parametrize("t", [0.0, 1e-12, 1e-3, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_finite_in_float32(make, t, scale):
    model = make(dtype=torch.float32)
    u, level = state_at(model, t, scale=scale)
    output = model.output(u, level)
    assert output.logits.dtype is torch.float32
    assert torch.isfinite(output.logits).all()
    assert torch.isfinite(model.log_evidence(u, level)).all()
    torch.testing.assert_close(output.mean.sum(-1), torch.ones(6, LENGTH))


@every_model
def test_extreme_evidence_gives_the_same_classes_in_float32(make):
    exact, single = make(), make(dtype=torch.float32)
    u, level = state_at(single, 1.0, batch=50, scale=30.0)
    expected = exact.output(u.double(), level).mean
    torch.testing.assert_close(single.output(u, level).mean.double(), expected, atol=2e-4, rtol=0)


@every_model
def test_samples_have_the_models_probabilities(make, generator):
    """Frequencies of 81 strings in 20,000 samples within 5 standard errors (+1 count): false alarm below 1e-4."""
    model, n = make(), 20_000
    x = model.sample_data(n, generator)
    assert x.dtype is torch.int64
    codes = (x * torch.tensor([K**3, K**2, K, 1])).sum(1)
    counts = torch.bincount(codes, minlength=K**LENGTH).double()
    probs = model.log_prob(ALL).exp()
    assert ((counts - n * probs).abs() <= 5 * (n * probs * (1 - probs)).sqrt() + (probs > 0)).all()


@every_model
def test_solvers_run(make, generator):
    model = make()
    for solver in ("bfn", "bfn-solver2", "sde-bfn-solver2"):
        out = model.sample(4, solver, nfe=6, generator=generator)
        assert out.x.shape == (4, LENGTH)
        assert out.nfe == 6


def test_real_size_chain(generator):
    """K = 27, length 64, in float32, against float64."""
    initial, transition = probabilities(27), probabilities(27, 27, seed=3)
    double = MarkovChain(initial, transition, 64)
    single = MarkovChain(initial, transition, 64, dtype=torch.float32)
    x = double.sample_data(8, generator)
    level = single.flow.noise_level(0.7, 8, 2, like=torch.zeros(()))
    u = single.flow.noised(x, level.s, torch.randn(8, 64, 27, generator=generator))
    expected = double.output(u.double(), level).mean
    torch.testing.assert_close(single.output(u, level).mean.double(), expected, atol=1e-5, rtol=0)
