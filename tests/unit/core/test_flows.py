import math

import pytest
import torch

import bfn

DISCRETE, CONTINUOUS = bfn.DiscreteFlow(n_classes=4, beta_1=2.0), bfn.ContinuousFlow(sigma_1=0.1)


@pytest.mark.parametrize("flow", [CONTINUOUS, DISCRETE], ids=lambda flow: flow.kind)
def test_marginals(flow: bfn.Flow, generator: torch.Generator) -> None:
    """u given x has mean s w(x) and variance kappa: 5 standard errors in 40,000 draws, false alarms below 1e-5."""
    n, s = 40_000, 1.3
    x = torch.tensor([[0.3, -0.8]]) if flow.kind == "continuous" else torch.tensor([[0, 3]])
    x = x.expand(n, 2)
    eps = torch.randn(n, *flow.state_shape((2,)), generator=generator, dtype=torch.float64)
    u = flow.noised(x, s, eps)
    w = flow.message(x[:1], torch.float64)[0]
    error = (flow.kappa / n) ** 0.5
    torch.testing.assert_close(u.mean(0), s * w, atol=5 * error, rtol=0)
    torch.testing.assert_close(u.var(0), torch.full_like(w, flow.kappa), atol=5 * flow.kappa * (2 / n) ** 0.5, rtol=0)


def test_squared_error_is_the_messages_distance(generator: torch.Generator) -> None:
    x = torch.randint(4, (5, 3), generator=generator)
    p = torch.softmax(torch.randn(5, 3, 4, generator=generator, dtype=torch.float64), -1)
    w, w_hat = DISCRETE.message(x, torch.float64), 4 * p - 1
    expected = (w - w_hat).square().sum(-1).mean(-1) / 4
    torch.testing.assert_close(DISCRETE.squared_error(x, p), expected)


def test_the_network_is_shown_the_bayesian_posterior(generator: torch.Generator) -> None:
    """Probabilities of classes under a flat prior; the mean y / (1 + beta) of numbers under a standard normal one."""
    u = torch.randn(6, 2, 4, generator=generator, dtype=torch.float64) * 2
    s = 0.7
    means = s * DISCRETE.message(torch.arange(4), torch.float64)
    log_likelihood = -(u.unsqueeze(-2) - means).square().sum(-1) / (2 * 4)
    torch.testing.assert_close(DISCRETE.network_input(u, s), torch.softmax(log_likelihood, -1))
    torch.testing.assert_close(CONTINUOUS.network_input(u, s), s * u / (1 + s * s))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("t", [0.0, 1e-12, 1e-6, 1e-3, 0.5, 1.0])
@pytest.mark.parametrize(
    "flow",
    [bfn.DiscreteFlow(k, beta_1) for k in (2, 27, 50_000) for beta_1 in (0.5625, 1e8)]
    + [bfn.ContinuousFlow(sigma_1) for sigma_1 in (0.9, 1e-1, 1e-4)],
    ids=str,
)
def test_finite_everywhere(flow: bfn.Flow, t: float, dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(2, 3, generator=generator) if flow.kind == "continuous" else torch.randint(2, (2, 3))
    head = "noise" if flow.kind == "continuous" else "logits"

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(0.5, dtype=dtype))

        def forward(self, inputs: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            assert torch.isfinite(inputs).all()
            return inputs * self.weight

    model = bfn.BFN(Network(), flow, head, (3,))
    times = torch.full((2,), t, dtype=torch.float64)
    for loss in (model.loss(x, t=times), model.loss(x, t=times, n_steps=10), model.reconstruction_loss(x)):
        assert torch.isfinite(loss).all()
    if t < 1:
        grid = torch.tensor([t, (1 + t) / 2, 1], dtype=torch.float64)
        out = model.sample(2, "bfn" if t == 0 else "bfn-solver1", grid=grid)
        assert torch.isfinite(out.u).all()


@pytest.mark.parametrize("n_classes", [2, 100])
def test_at_the_end_two_classes_are_confused_equally_often(n_classes: int, generator: torch.Generator) -> None:
    """u_x - u_j ~ N(s_1 K, 2 K): wrong class j is the likelier with probability Phi(-s_1 sqrt(K/2)) = Phi(-c)."""
    n, c = 20_000, 1.5
    flow = bfn.DiscreteFlow.with_separation(n_classes, c)
    s_1 = float(flow.schedule.s(1.0))
    assert s_1 * (n_classes / 2) ** 0.5 == pytest.approx(c, rel=1e-12)
    u = flow.noised(torch.zeros(n, 1, dtype=torch.long), s_1, torch.randn(n, 1, n_classes, generator=generator))
    theta = flow.network_input(u, s_1)[:, 0]
    expected = 0.5 * math.erfc(c / 2**0.5)
    confused = float((theta[:, 1] > theta[:, 0]).double().mean())
    # Five standard deviations: a false alarm once in two million.
    assert abs(confused - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


def test_classes_as_values_are_evenly_spread_from_end_to_end():
    flow = bfn.DiscreteFlow(5)
    x = torch.arange(5)
    assert flow.values(x).tolist() == [-1, -0.5, 0, 0.5, 1]
    torch.testing.assert_close(flow.expected_values(torch.eye(5)), flow.values(x))


def test_the_flow_for_data_has_one_percent_of_their_scale_at_the_end():
    x = torch.randn(200, generator=torch.Generator().manual_seed(0))
    near = x / x.std(correction=0) + 9
    assert bfn.ContinuousFlow.for_data(near).schedule.sigma_1 == pytest.approx(0.01)
