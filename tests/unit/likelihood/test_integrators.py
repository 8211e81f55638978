"""Integrators of the ODE of likelihoods: their coefficients and their order."""

import math
from fractions import Fraction

import pytest
import torch

from bfn.likelihood import ode as integrators
from bfn.likelihood.ode import ADAMS_BASHFORTH, ADAMS_MOULTON, ERROR, NODES, STAGES, adams, dormand_prince


def exact(weights):
    return [Fraction(w).limit_denominator(400_000) for w in weights]


@pytest.mark.parametrize(("rules", "first"), [(ADAMS_BASHFORTH, 0), (ADAMS_MOULTON, 1)])
def test_adams_rules_integrate_polynomials_of_their_degree(rules, first):
    """Through slopes at the times first, first - 1, ...: the integral from 0 to 1 of t^d is 1 / (d + 1)."""
    for weights in rules:
        for degree in range(len(weights)):
            total = sum(w * Fraction(first - i) ** degree for i, w in enumerate(exact(weights)))
            assert total == Fraction(1, degree + 1)


def test_dormand_prince_fulfils_the_order_conditions():
    nodes = [Fraction(0), *exact(NODES)]
    stages = [[], *map(exact, STAGES)]
    for node, stage in zip(nodes[1:], stages[1:], strict=True):
        assert sum(stage) == node
    weights = [*stages[-1], Fraction(0)]  # the last stage is the solution
    other = [w - e for w, e in zip(weights, exact(ERROR), strict=True)]
    for solution, order in ((weights, 5), (other, 4)):
        for degree in range(order):
            assert sum(w * c**degree for w, c in zip(solution, nodes, strict=True)) == Fraction(1, degree + 1)
        # b A c = 1/6 and b A c^2 = 1/12.
        for degree in (1, 2):
            inner = [sum(a * c**degree for a, c in zip(stage, nodes, strict=False)) for stage in stages]
            total = sum(w * i for w, i in zip(solution, inner, strict=True))
            assert total == Fraction(1, (degree + 1) * (degree + 2))


def decay(rows, c, y):
    """dy/dc = -y cos(c): y = exp(-sin(c))."""
    return -y * c.cos().unsqueeze(1)


def test_adams_has_order_3_from_a_first_step_of_order_2():
    errors = []
    for nfe in (41, 81):
        y = torch.ones(1, 1, dtype=torch.float64)
        end = adams(decay, y, decay(None, torch.zeros(1), y), 0.0, 2.0, nfe)
        errors.append(abs(float(end) - math.exp(-math.sin(2.0))))
    assert math.log2(errors[0] / errors[1]) > 2.8  # one first step of order 2 has an error of h^3


def test_adaptive_steps_keep_the_tolerance():
    y, errors, calls = torch.ones(1, 1, dtype=torch.float64), [], []
    for tolerance in (1e-3, 1e-6, 1e-9):
        # From the data end down, like a likelihood.
        start = torch.full((1,), 2.0, dtype=torch.float64)
        end, taken = dormand_prince(decay, y, decay(None, start, y), 2.0, 0.0, tolerance, 10_000)
        errors.append(abs(float(end) - math.exp(math.sin(2.0))))
        calls.append(int(taken))
        assert errors[-1] < tolerance
        assert (calls[-1] - 1) % len(integrators.NODES) == 0
    assert calls[0] < calls[1] < calls[2] < 400
