"""Ordinary diffusion models as models of this library: the change of variables is exact."""

import pytest
import torch
from torch import Tensor

import bfn
from bfn.core.flows import ContinuousFlow, NoiseLevel
from bfn.interop.variance_preserving import VariancePreservingSchedule, variance_preserving

N = 1000
ALPHAS = torch.cumprod(1 - torch.linspace(1e-4, 0.02, N, dtype=torch.float64), 0)
SCHEDULE = VariancePreservingSchedule(tuple(ALPHAS.tolist()))


def mixture(dim: int = 8) -> bfn.exact.GaussianMixture:
    g = torch.Generator().manual_seed(0)
    means = torch.randn(6, dim, generator=g, dtype=torch.float64) * 0.7
    stds = torch.rand(6, generator=g, dtype=torch.float64) * 0.3 + 0.05
    return bfn.exact.GaussianMixture(means, stds=stds, flow=ContinuousFlow(schedule=SCHEDULE))


def network(exact: bfn.exact.GaussianMixture, predicts: str = "epsilon"):  # type: ignore[no-untyped-def]
    """The exact posterior of the mixture as a diffusion network of (x_t, timestep)."""

    def call(x_t: Tensor, timestep: Tensor) -> Tensor:
        t = 1 - timestep.double() / (N - 1)
        s = SCHEDULE.s(t).view(-1, 1)
        sigma = (1 + s * s).rsqrt()
        x_hat = exact.output(x_t.double() / sigma, NoiseLevel(t, s)).mean
        eps = (x_t.double() - s * sigma * x_hat) / sigma
        outputs = {"epsilon": eps, "sample": x_hat, "v_prediction": s * sigma * eps - sigma * x_hat}
        return outputs[predicts].to(x_t.dtype)

    return call


def test_the_schedule_is_the_signal_to_noise_ratio_at_every_timestep() -> None:
    t = 1 - torch.arange(N, dtype=torch.float64) / (N - 1)
    torch.testing.assert_close(SCHEDULE.beta(t), ALPHAS / (1 - ALPHAS), rtol=1e-9, atol=0)
    torch.testing.assert_close(SCHEDULE.inverse(SCHEDULE.beta(t)), t, rtol=0, atol=1e-12)


def test_slope_inverse_and_increment_fit_beta_between_timesteps() -> None:
    t = torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.99
    torch.testing.assert_close(SCHEDULE.inverse(SCHEDULE.beta(t)), t, rtol=0, atol=1e-12)
    h = 1e-9
    torch.testing.assert_close(SCHEDULE.increment(t, t + h) / h, SCHEDULE.slope(t), rtol=1e-5, atol=0)
    total = SCHEDULE.increment(t, t + 0.01)
    torch.testing.assert_close(total, SCHEDULE.beta(t + 0.01) - SCHEDULE.beta(t), rtol=1e-9, atol=1e-12)


def test_a_schedule_that_ends_in_pure_noise_stays_finite() -> None:
    schedule = VariancePreservingSchedule((0.9, 0.5, 0.0))
    assert 0 < float(schedule.s(0.0)) < 1e-3
    assert torch.isfinite(schedule.beta(torch.linspace(0, 1, 7))).all()


@pytest.mark.parametrize("predicts", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("solver", ["bfn-solver++2", "fast-ode", "fast-sde", "bfn"])
def test_the_wrapped_network_samples_as_the_exact_model_does(predicts: str, solver: str) -> None:
    exact = mixture()
    model = variance_preserving(network(exact, predicts), ALPHAS, (8,), predicts)
    model.info = exact.info  # what the few-step solvers go by
    initial = torch.randn(32, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def draw(one: bfn.Model) -> Tensor:
        return bfn.sample(one, 32, solver, 12, initial=initial, generator=torch.Generator().manual_seed(2)).x

    torch.testing.assert_close(draw(model), draw(exact), rtol=1e-8, atol=1e-8)


def dpm_solver(
    exact: bfn.exact.GaussianMixture, noise: Tensor, calls: int, **settings: object
) -> tuple[Tensor, Tensor]:
    """diffusers' DPM-Solver++ 2M, as it comes: samples and its timesteps."""
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.DPMSolverMultistepScheduler(**settings)
    scheduler.set_timesteps(calls)
    epsilon = network(exact)
    x = noise.float()
    for timestep in scheduler.timesteps:
        x = scheduler.step(epsilon(x, timestep.expand(len(x))), timestep, x).prev_sample
    return x.double(), scheduler.timesteps


def ours(
    exact: bfn.exact.GaussianMixture, noise: Tensor, solver: str, calls: int | None, grid: Tensor | None
) -> Tensor:
    """From the same noise x_T, which is u = x_T / sigma."""
    s = float(SCHEDULE.s(0.0 if grid is None else grid[0]))
    return bfn.sample(exact, len(noise), solver, calls, grid=grid, initial=noise * (1 + s * s) ** 0.5).x


NOISE = torch.randn(256, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("calls", [5, 10, 20])
def test_bfn_solver_pp_2_is_dpm_solver_pp_2m(calls: int) -> None:
    theirs, timesteps = dpm_solver(mixture(), NOISE, calls)
    grid = 1 - timesteps.double() / (N - 1)
    torch.testing.assert_close(ours(mixture(), NOISE, "bfn-solver++2", None, grid), theirs, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def end() -> Tensor:
    """Return the end point of the exact ODE."""
    fine, finer = (ours(mixture(), NOISE, "fast-ode", calls, None) for calls in (150, 300))
    torch.testing.assert_close(fine, finer, rtol=0, atol=5e-3)
    return finer


def error(x: Tensor, end: Tensor) -> float:
    return float((x - end).norm(dim=1).mean())


@pytest.mark.parametrize("spacing", [{}, {"timestep_spacing": "trailing"}, {"use_lu_lambdas": True}])
def test_fast_ode_has_at_most_half_the_error_of_dpm_solver_pp_at_10_calls(
    spacing: dict[str, object], end: Tensor
) -> None:
    """Each on its own grid: DPM-Solver++ on those that diffusers offers, its default first."""
    theirs, _ = dpm_solver(mixture(), NOISE, 10, **spacing)
    assert error(ours(mixture(), NOISE, "fast-ode", 10, None), end) <= error(theirs, end) / 2
