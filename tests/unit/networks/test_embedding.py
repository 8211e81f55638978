"""Rotary positions and the ways of class probabilities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bfn.networks.conditioning import centre, combine
from bfn.networks.transformer import Rotary


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 23))
def test_rotary_products_depend_on_the_distance_alone(i: int, j: int, shift: int) -> None:
    rotary = Rotary(8, max_length=64)
    query, key = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(0))
    queries, keys = rotary(query.expand(64, 8)), rotary(key.expand(64, 8))
    product, shifted = queries[i] @ keys[j], queries[i + shift] @ keys[j + shift]
    assert math.isclose(product, shifted, abs_tol=1e-4)


@pytest.mark.parametrize("n_classes", [2, 5, 27])
def test_centre_is_zero_in_ignorance_and_of_unit_size_in_certainty(n_classes: int) -> None:
    assert centre(torch.full((3, n_classes), 1 / n_classes)).abs().max() < 1e-6
    certain = centre(torch.eye(n_classes))
    torch.testing.assert_close(certain.mean(-1), torch.zeros(n_classes), atol=1e-6, rtol=0)
    torch.testing.assert_close(certain.square().mean(-1), torch.ones(n_classes))


def test_combine_is_bayes_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    theta, prior = torch.rand(2, 6, 4, generator=generator).softmax(-1)
    posterior = theta * prior / (theta * prior).sum(-1, keepdim=True)
    torch.testing.assert_close(combine(theta, prior.log()).softmax(-1), posterior)


def test_combine_is_finite_with_and_without_gradient_at_certainty() -> None:
    logits = torch.zeros(3, 3, requires_grad=True)
    output = combine(torch.eye(3), logits)
    assert output.isfinite().all()
    output.softmax(-1).square().sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
