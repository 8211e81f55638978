import pytest
import torch

import bfn
from bfn.core.flows import NoiseLevel
from bfn.core.heads import Categorical, PreconditionedHead

FLOW = bfn.ContinuousFlow(sigma_1=0.01)


def at(t: float, batch: int = 4) -> NoiseLevel:
    return NoiseLevel(torch.full((batch,), t, dtype=torch.float64), float(FLOW.schedule.s(t)))


@pytest.mark.parametrize("predicts", ["noise", "data"])
@pytest.mark.parametrize("t", [1e-4, 0.3, 1.0])
def test_a_perfect_network_gives_the_data(predicts: str, t: float, generator: torch.Generator) -> None:
    x, eps = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    level = at(t)
    perfect = {"noise": eps, "data": x}[predicts]
    model = bfn.BFN(lambda inputs, t: perfect, FLOW, predicts, (3,))
    torch.testing.assert_close(model.output(FLOW.noised(x, level.s, eps), level).mean, x, atol=1e-9, rtol=0)


def test_a_noise_prediction_says_nothing_at_the_start(generator: torch.Generator) -> None:
    """x_hat = 0 below t = 1e-6, for one level and for a batch of levels alike."""
    model = bfn.BFN(lambda inputs, t: inputs + 1, FLOW, "noise", (3,))
    u = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    times = torch.tensor([0.0, 0.5], dtype=torch.float64)
    batch = model.output(u, FLOW.noise_level(times, 2, 1, u)).mean
    single = [model.output(u[i : i + 1], FLOW.noise_level(float(times[i]), 1, 1, u)).mean for i in range(2)]
    torch.testing.assert_close(batch, torch.cat(single))
    assert bool((batch[0] == 0).all())
    assert bool((batch[1] != 0).all())


@pytest.mark.parametrize("t", [0.0, 0.1, 0.5, 1.0])
def test_preconditioning_keeps_unit_variance(t: float, generator: torch.Generator) -> None:
    """For Gaussian data of standard deviation d, input and target of the network have unit variance at every level."""
    d, n = 0.3, 200_000
    head, level = PreconditionedHead(d), at(t, n)
    x = d * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    u = FLOW.noised(x, level.s, torch.randn(n, 1, generator=generator, dtype=torch.float64))
    skip = head.output(FLOW, torch.zeros_like(u), u, level).mean
    scale = head.output(FLOW, torch.ones_like(u), u, level).mean - skip
    target = (x - skip) / scale
    assert float(head.inputs(FLOW, u, level).var()) == pytest.approx(1, abs=0.02)
    assert float(target.var()) == pytest.approx(1, abs=0.02)
    # The network has to predict only what its input does not tell.
    assert abs(float((target * u).mean() / u.std())) < 0.01


def test_categorical_draws_have_its_probabilities(generator: torch.Generator) -> None:
    """Chi-squared with 3 degrees of freedom: 21.1 is passed by chance once in 10,000 runs."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    n = 20_000
    draws = Categorical(p.log().expand(n, 4)).draw(generator)
    assert torch.equal(draws.sum(-1), torch.ones(n))
    counts = draws.sum(0)
    assert float(((counts - n * p) ** 2 / (n * p)).sum()) < 21.1


def test_message_kl_of_classes_matches_the_mixture(generator: torch.Generator) -> None:
    """y_x - logsumexp(log p + y) is the log-ratio of the sender's density to the receiver mixture's."""
    k, alpha, x = 3, 0.37, 1
    log_p = torch.log_softmax(torch.randn(k, generator=generator, dtype=torch.float64), -1)
    eps = torch.randn(1, k, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    w = k * torch.eye(k, dtype=torch.float64) - 1
    message = alpha * w[x] + (k * alpha) ** 0.5 * eps[0]
    log_density = -((message - alpha * w) ** 2).sum(-1) / (2 * k * alpha)
    expected = log_density[x] - torch.logsumexp(log_p + log_density, -1)
    got = Categorical(log_p[None]).message_kl(
        torch.tensor([x]), torch.tensor([alpha], dtype=torch.float64), torch.Generator().manual_seed(5)
    )
    torch.testing.assert_close(got[0], expected)
