"""UniPC, DEIS and SA-Solver as published, in their own coordinates, against our tables.

Their x = alpha x_0 + sigma eps is the paper's mu: alpha = gamma = s^2/(1+s^2), sigma = s/(1+s^2), log(alpha/sigma) =
log s. The model is any smooth nonlinear function of the state.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1, factorial, log, sqrt

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import bfn
from bfn import solvers
from bfn.core.flows import Flow, NoiseLevel
from bfn.core.heads import Output, Point
from bfn.core.model import Model

FLOW = bfn.ContinuousFlow(sigma_1=0.02)
TIMES = [0.02, 0.1, 0.15, 0.32, 0.5, 0.61, 0.8, 0.97]
S = FLOW.schedule.s_of(TIMES)
ALPHA = [s * s / (1 + s * s) for s in S]
SIGMA = [s / (1 + s * s) for s in S]
LAMBDA = [log(s) for s in S]


@dataclass
class Smooth(Model):
    """x_hat a nonlinear function of mu and s."""

    flow: Flow = FLOW
    data_shape: tuple[int, ...] = (3,)
    dtype = torch.float64

    def output(self, u: torch.Tensor, level: NoiseLevel, **conditions: torch.Tensor) -> Output:
        return Point(x_hat(u * (level.s / (1 + level.s**2)), level.s), 1.0)


def x_hat(mu: torch.Tensor, s: float) -> torch.Tensor:
    return torch.tanh(2 * mu + 0.3 * torch.sin(torch.tensor(log(s), dtype=torch.float64))) + 0.1 * mu


def ours(name: str, initial: torch.Tensor, **settings) -> torch.Tensor:
    times = torch.tensor(TIMES, dtype=torch.float64)
    out = Smooth().sample(len(initial), name, grid=times, initial=initial, **settings)
    return out.u * SIGMA[-1]


@pytest.fixture
def initial() -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def unipc(mu: torch.Tensor, order: int) -> torch.Tensor:
    """UniPC with data prediction (Zhao et al. 2023, alg. 1 and 2, app. on B(h)); the last predicted state."""
    model = [x_hat(mu, S[0])]
    for i in range(1, len(S)):
        p = min(i, order)
        h = LAMBDA[i] - LAMBDA[i - 1]
        big_b = expm1(-h)
        ratios = [(LAMBDA[i - 1 - k] - LAMBDA[i - 1]) / h for k in range(1, p)]
        slopes = [(model[i - 1 - k] - model[i - 1]) / r for k, r in zip(range(1, p), ratios, strict=True)]

        phi = [exp(-h), expm1(-h) / -h]
        for k in range(2, p + 3):
            phi.append((phi[-1] - 1 / factorial(k - 1)) / -h)

        def weights(nodes: list[float], phi=phi, h=h, big_b=big_b) -> np.ndarray:
            if len(nodes) == 1:
                return np.array([0.5])
            matrix = [[r ** (k - 1) for r in nodes] for k in range(1, len(nodes) + 1)]
            right = [factorial(k) * phi[k + 1] * -h / big_b for k in range(1, len(nodes) + 1)]
            return np.linalg.solve(matrix, right)

        first = SIGMA[i] / SIGMA[i - 1] * mu - ALPHA[i] * expm1(-h) * model[i - 1]
        rho = weights(ratios) if ratios else []
        predicted = first - ALPHA[i] * big_b * sum((a * d for a, d in zip(rho, slopes, strict=True)), torch.zeros(()))
        if i == len(S) - 1:
            return predicted
        model.append(x_hat(predicted, S[i]))
        rho = weights([*ratios, 1.0])
        slopes.append(model[i] - model[i - 1])
        mu = first - ALPHA[i] * big_b * sum((a * d for a, d in zip(rho, slopes, strict=True)), torch.zeros(()))
    raise AssertionError


@pytest.mark.parametrize("order", [2, 3])
def test_unipc_is_as_published(order: int, initial: torch.Tensor) -> None:
    torch.testing.assert_close(ours(f"unipc{order}", initial), unipc(initial * SIGMA[0], order), rtol=1e-9, atol=1e-12)


def lagrange(nodes: list[float], j: int, at: float) -> float:
    return float(np.prod([(at - other) / (nodes[j] - other) for k, other in enumerate(nodes) if k != j]))


def integrate(f, start: float, end: float) -> float:
    return quad(f, start, end, epsabs=1e-14, epsrel=1e-12)[0]


@pytest.mark.parametrize("order", [2, 3])
def test_deis_is_as_published(order: int, initial: torch.Tensor) -> None:
    """tAB-DEIS (Zhang and Chen 2023, eq. 14-15): mu_1 = Psi mu_0 + sum_j C_j eps_j, polynomials in t."""
    mu = initial * SIGMA[0]
    rate = -2 * log(0.02)

    def s_of(t: float) -> float:
        return sqrt(expm1(rate * t))

    eps: list[torch.Tensor] = []
    for i, (start, end) in enumerate(pairwise(TIMES)):
        eps.append((mu - ALPHA[i] * x_hat(mu, S[i])) / SIGMA[i])
        nodes = TIMES[max(0, i + 1 - order) : i + 1]

        def kernel(t: float, i=i) -> float:
            """-Psi(t_1, t) G^2/(2 sigma): the ODE d mu = (log alpha)' mu dt - (log s)' sigma eps dt."""
            s = s_of(t)
            slope = rate * exp(rate * t) / (2 * s)
            return -ALPHA[i + 1] / (s * s / (1 + s * s)) * slope / s * s / (1 + s * s)

        mu = ALPHA[i + 1] / ALPHA[i] * mu
        for j in range(len(nodes)):
            c = integrate(lambda t, j=j, n=nodes, kernel=kernel: kernel(t) * lagrange(n, j, t), start, end)
            mu = mu + c * eps[len(eps) - len(nodes) + j]
    torch.testing.assert_close(ours(f"deis{order}", initial), mu, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("tau", [0.0, 0.6, 1.0, 1.8])
def test_sa_solver_is_as_published(tau: float, initial: torch.Tensor) -> None:
    """Xue et al. 2023, eq. 14-19, data prediction, constant tau: predictor and corrector share their noise."""
    order = 3
    generator = torch.Generator().manual_seed(5)
    mu, model = initial * SIGMA[0], [x_hat(initial * SIGMA[0], S[0])]
    for i in range(len(S) - 1):
        start, end = LAMBDA[i], LAMBDA[i + 1]
        decay = exp(-(tau**2) * (end - start))
        std = SIGMA[i + 1] * sqrt(1 - decay**2)
        noise = torch.randn(initial.shape, generator=generator, dtype=torch.float64) if tau else torch.zeros(())

        def step(first: int, last: int, mu=mu, start=start, end=end, decay=decay, i=i) -> torch.Tensor:
            nodes = LAMBDA[first : last + 1]
            new = SIGMA[i + 1] / SIGMA[i] * decay * mu
            for j in range(len(nodes)):
                weight = integrate(
                    lambda x, j=j: exp(-(tau**2) * (end - x)) * (1 + tau**2) * exp(x) * lagrange(nodes, j, x),
                    start,
                    end,
                )
                new = new + SIGMA[i + 1] * weight * model[first + j]
            return new

        first = max(0, i + 1 - order)
        predicted = step(first, i) + std * noise
        model.append(x_hat(predicted, S[i + 1]))
        mu = step(first, i + 1) + std * noise
    got = ours("sa-solver", initial, g=tau, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(got, predicted, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("t_start", [1e-20, 1e-300])
def test_deis_from_a_time_next_to_zero_keeps_the_state_in_its_first_step(t_start: float) -> None:
    """With one prediction the step is DDIM's, u + (s_1 - s_0) w_hat, however small s_0 is beside s_1."""
    times = [t_start, *TIMES[1:]]
    first = solvers.get("deis2").table(FLOW, times).rows[0]
    assert first.a == 1
    assert first.b == pytest.approx((FLOW.schedule.s_of(times)[1],))
