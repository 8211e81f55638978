"""Discrete exact models against enumeration of all strings."""

from itertools import product

import pytest
import torch

from exact_models import CLASSES, LENGTH, K, chain, chain_with_zeros, probabilities, state_at, string_set

ALL = torch.tensor(list(product(range(K), repeat=LENGTH)))


every_model = pytest.mark.parametrize("make", CLASSES.values(), ids=CLASSES.keys())


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
    torch.testing.assert_close(CLASSES["products"]().log_prob(ALL).exp(), torch.stack(by_hand))


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
