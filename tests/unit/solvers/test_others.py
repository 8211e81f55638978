"""Samplers of other projects, written from their formulas, against our tables.

Each loop here draws the same numbers as ours and asks the same network; what the network is shown at every call must
agree to rounding.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bfn
from bfn.core.solver import plan

N, LENGTH, K, STEPS, SEED = 3, 5, 7, 6, 11
EVERY_CALL = {"g": math.inf, "grid": "uniform", "t_start": 0.0}
"""The prediction is noised again after each call: g is infinite."""


class Recorder(nn.Module):
    """A function of all inputs and the time that records its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.shown = function, []
        self.anchor = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, inputs: Any, t: Tensor) -> Any:
        self.shown.append(inputs)
        return self.function(inputs, t)


def logits(theta: Tensor, t: Tensor) -> Tensor:
    """Make a network in which each variable depends on its neighbours, with unequal classes."""
    own = torch.linspace(-0.5, 0.5, K, dtype=theta.dtype)
    return 4 * theta.roll(1, -2) - 3 * theta.roll(2, -1) + own * t.view(-1, 1, 1).cos() + theta.cos() * 2


def positions(mu: Tensor, t: Tensor) -> Tensor:
    return torch.tanh(mu.roll(1, -2) - 0.4 * mu + 0.3 * t.view(-1, 1, 1)) + 0.2


def classes(schedule: bfn.Schedule) -> bfn.BFN:
    return bfn.BFN(Recorder(logits), bfn.DiscreteFlow(K, schedule=schedule), "logits", (LENGTH,))


def both(x: bfn.Flow, kind: bfn.Flow) -> bfn.BFN:
    flow = bfn.JointFlow(x=x, kind=kind)
    recorder = Recorder(lambda shown, t: {"x": positions(shown["x"], t), "kind": logits(shown["kind"], t)})
    return bfn.BFN(recorder, flow, {"x": "data", "kind": "logits"}, {"x": (LENGTH, 3), "kind": (LENGTH,)})


def ours(model: bfn.BFN, solver: Any = "multistep:1:s", **settings: Any) -> tuple[list[Any], bfn.Samples]:
    given = {"generator": generator(), "class_generator": generator(1), **settings}
    out = model.sample(N, solver, None if isinstance(solver, bfn.solvers.Table) else STEPS + 1, **given)
    return model.network.shown, out


def generator(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noises(*shape: int) -> list[Tensor]:
    """Draw the initial noise and then that of each step, in the order of ``bfn.sample``."""
    own = generator()
    return [torch.randn(N, *shape, generator=own, dtype=torch.float64) for _ in range(STEPS + 1)]


def time(i: int) -> Tensor:
    return torch.full((N,), i / STEPS, dtype=torch.float64)


def agree(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def chem_schedule() -> tuple[Callable[[float], float], bfn.Schedule]:
    """Return ChemBFN's beta and ours."""
    beta_1 = 20.4054 / K
    return (lambda t: -4 / K * math.log(1 - t + t * math.exp(-K * beta_1 / 4)), bfn.LogarithmicSchedule(beta_1, K / 4))


def test_chembfn_is_the_original_sampler_with_the_likeliest_class() -> None:
    beta, schedule = chem_schedule()
    model = classes(schedule)
    shown, out = ours(model, "bfn", temperature=1e-9)
    theta, expected, noise = torch.full((N, LENGTH, K), 1 / K, dtype=torch.float64), [], noises(LENGTH, K)
    for i in range(STEPS):
        expected.append(theta)
        best = nn.functional.one_hot(logits(theta, time(i)).argmax(-1), K).double()
        alpha = beta((i + 1) / STEPS) - beta(i / STEPS)
        theta = theta * torch.exp(alpha * (K * best - 1) + math.sqrt(alpha * K) * noise[i + 1])
        theta = theta / theta.sum(-1, keepdim=True)
    agree(shown, [*expected, theta])
    assert torch.equal(out.x, logits(theta, time(STEPS)).argmax(-1))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_chembfns_ode_sampler_is_renoising_with_less_noise(temperature: float) -> None:
    beta, schedule = chem_schedule()
    model = classes(schedule)
    table = plan(model, "multistep:1:s", STEPS + 1, **EVERY_CALL).table
    table = replace(table, rows=tuple(replace(row, c=row.c * math.sqrt(temperature)) for row in table.rows))
    shown, _ = ours(model, table)
    z, expected, noise = torch.zeros(N, LENGTH, K, dtype=torch.float64), [], noises(LENGTH, K)
    for i in range(STEPS + 1):
        expected.append(z.softmax(-1))
        if i < STEPS:
            p, b = logits(expected[-1], time(i)).softmax(-1), beta((i + 1) / STEPS)
            z = (K * p - 1) * b + math.sqrt(K * b * temperature) * noise[i + 1]
    agree(shown, expected)


def test_protbfn_is_renoising_with_the_noise_of_the_start() -> None:
    model = classes(bfn.QuadraticSchedule(2.0))
    shown, out = ours(model, noise="fixed", **EVERY_CALL)
    fixed, y, expected = noises(LENGTH, K)[0], torch.zeros(N, LENGTH, K, dtype=torch.float64), []
    for i in range(STEPS + 1):
        expected.append(y.softmax(-1))
        p, beta = logits(expected[-1], time(i)).softmax(-1), 2.0 * ((i + 1) / STEPS) ** 2
        y = beta * (K * p - 1) + math.sqrt(beta * K) * fixed
    agree(shown, expected)
    assert torch.equal(out.x, p.argmax(-1))


def end_back(
    sigma_1: float, beta_1: float, calls: int, *, mode: bool = False
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Renoise the predicted positions and classes after each call; return what the calls are shown, and the last x."""
    mu, theta = torch.zeros(N, LENGTH, 3, dtype=torch.float64), torch.full((N, LENGTH, K), 1 / K, dtype=torch.float64)
    expected, noise = [], noises(LENGTH * (3 + K))
    for i in range(calls):
        expected.append((mu, theta))
        x, p = positions(mu, time(i)), logits(theta, time(i)).softmax(-1)
        p = nn.functional.one_hot(p.argmax(-1), K).double() if mode else p
        t, eps = (i + 1) / STEPS, noise[(i + 1) % len(noise)]  # after the last call they are not used
        gamma, beta = 1 - sigma_1 ** (2 * t), beta_1 * t**2
        mu = gamma * x + math.sqrt(gamma * (1 - gamma)) * eps[:, : LENGTH * 3].view(N, LENGTH, 3)
        theta = (beta * (K * p - 1) + math.sqrt(beta * K) * eps[:, LENGTH * 3 :].view(N, LENGTH, K)).softmax(-1)
    return expected, x


def agree_in_both(shown: list[Any], expected: list[tuple[Tensor, Tensor]]) -> None:
    for part, name in enumerate(("x", "kind")):
        agree([one[name] for one in shown], [one[part] for one in expected])


@pytest.mark.parametrize("mode", [False, True])
def test_molcraft_end_back_is_renoising_of_all_parts(mode: bool) -> None:
    """Its end_back_pmf, and its end_back_mode."""
    model = both(bfn.ContinuousFlow(0.03), bfn.DiscreteFlow(K, 1.5))
    shown, _ = ours(model, **EVERY_CALL, temperature=1e-9 if mode else 1.0)
    agree_in_both(shown, end_back(0.03, 1.5, STEPS + 1, mode=mode)[0])


def test_crysbfn_makes_no_call_at_the_end() -> None:
    """Lattice and atom types; the last prediction, one step before t = 1, is the sample."""
    model = both(bfn.ContinuousFlow(0.03), bfn.DiscreteFlow(K, 0.8))
    table = plan(model, "multistep:1:s", g=math.inf, grid=[i / STEPS for i in range(STEPS)]).table
    shown, out = ours(model, table)
    expected, x = end_back(0.03, 0.8, STEPS)
    agree_in_both(shown, expected)
    torch.testing.assert_close(out.x["x"], x, rtol=1e-9, atol=1e-11)


def test_abbfn2_is_the_reverse_sde_without_drawn_classes() -> None:
    sigma_1, beta_1 = 0.05, 2.0
    model = both(bfn.ContinuousFlow(sigma_1), bfn.DiscreteFlow(K, beta_1))
    shown, _ = ours(model, g=1.0, grid="uniform", t_start=0.0)
    mu, rho, y = torch.zeros(N, LENGTH, 3, dtype=torch.float64), 1.0, torch.zeros(N, LENGTH, K, dtype=torch.float64)
    expected, noise = [], noises(LENGTH * (3 + K))
    for i in range(STEPS + 1):
        expected.append((mu, y.softmax(-1)))
        if i < STEPS:
            x, p, eps = positions(mu, time(i)), logits(expected[-1][1], time(i)).softmax(-1), noise[i + 1]
            alpha = sigma_1 ** (-2 * (i + 1) / STEPS) - sigma_1 ** (-2 * i / STEPS)
            message = x + eps[:, : LENGTH * 3].view(N, LENGTH, 3) / math.sqrt(alpha)
            mu, rho = (rho * mu + alpha * message) / (rho + alpha), rho + alpha
            alpha = beta_1 * ((i + 1) ** 2 - i**2) / STEPS**2
            y = y + alpha * (K * p - 1) + math.sqrt(alpha * K) * eps[:, LENGTH * 3 :].view(N, LENGTH, K)
    agree_in_both(shown, expected)


def test_abbfn2s_conditional_score_is_steering() -> None:
    """One step: alpha K grad_y log p(known) on the logits, where probabilities stay within their simplex."""
    model, scale, t_start, t_end = classes(bfn.QuadraticSchedule(2.0)), 1e-3, 0.6, 0.8

    def log_known(p: Tensor) -> Tensor:
        return scale * p[:, 2, 4].log()

    table = plan(model, "multistep:1:s", g=1.0, grid=[t_start, t_end]).table
    shown, _ = ours(model, table, steer=log_known)
    noise = noises(LENGTH, K)
    beta_start, beta_end = 2.0 * t_start**2, 2.0 * t_end**2
    y = (math.sqrt(K * beta_start) * noise[0]).requires_grad_()
    p = logits(y.softmax(-1), torch.full((N,), t_start, dtype=torch.float64)).softmax(-1)
    (score,) = torch.autograd.grad(log_known(p).sum(), y)
    alpha = beta_end - beta_start
    after = y + alpha * (K * p - 1) + math.sqrt(alpha * K) * noise[1] + alpha * K * score
    agree([shown[-1]], [after.softmax(-1).detach()])


def test_geobfn_with_noise_in_its_subspace_is_the_original_sampler_under_a_centred_network() -> None:
    """Its loop centres means, noise and predictions. Ours needs to centre only inputs and outputs of the network."""
    sigma_1 = 0.05

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True)

    def network(mu: Tensor, t: Tensor) -> Tensor:
        return centred(positions(centred(mu), t))

    model = bfn.BFN(Recorder(network), bfn.ContinuousFlow(sigma_1), "data", (LENGTH, 3))
    shown, out = ours(model, "bfn")
    mu, rho, expected, noise = torch.zeros(N, LENGTH, 3, dtype=torch.float64), 1.0, [], noises(LENGTH, 3)
    for i in range(STEPS + 1):
        expected.append(mu)
        x = centred(positions(mu, time(i)))
        if i < STEPS:
            alpha = sigma_1 ** (-2 * (i + 1) / STEPS) * (1 - sigma_1 ** (2 / STEPS))
            message = centred(x + noise[i + 1] / math.sqrt(alpha))
            mu, rho = (rho * mu + alpha * message) / (rho + alpha), rho + alpha
    agree([centred(one) for one in shown], expected)
    torch.testing.assert_close(out.x, x, rtol=1e-9, atol=1e-11)
    assert float(out.x.mean(1).abs().max()) < 1e-12
