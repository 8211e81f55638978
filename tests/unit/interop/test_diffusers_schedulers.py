"""Schedulers of diffusers: the steps of the library's own loop, in the interface that diffusers expects."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bfn
from bfn import solvers
from bfn.core.info import ErrorCurve

pytest.importorskip("diffusers")
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler

from bfn.interop.diffusers.schedulers import BFNScheduler, DiscreteBFNScheduler, TableScheduler, VPSolverScheduler

CALLS = 10
SHAPES = {"continuous": (4, 3, 8, 8), "discrete": (4, 6, 5)}
MAKE: dict[str, Callable[..., TableScheduler]] = {
    "continuous": BFNScheduler,
    "discrete": lambda **settings: DiscreteBFNScheduler(5, **settings),
}
kinds = pytest.mark.parametrize("kind", ["continuous", "discrete"])


def network(inputs: Tensor, timestep: Tensor | float) -> Tensor:
    """Smooth, and different at each timestep."""
    level = 1 - torch.as_tensor(timestep, dtype=inputs.dtype) / 1000
    return torch.tanh(inputs * (1 + level)) * 0.8 + 0.1 * level


def noise_for(kind: str, seed: int = 0) -> Tensor:
    return torch.randn(SHAPES[kind], generator=torch.Generator().manual_seed(seed))


def generate(scheduler: TableScheduler, kind: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sample = noise_for(kind, seed) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        output = network(scheduler.scale_model_input(sample, t), t)
        sample = scheduler.step(output, t, sample, generator=generator).prev_sample
    return sample


def reference(kind: str, predicts: str) -> bfn.BFN:
    flow = bfn.ContinuousFlow() if kind == "continuous" else bfn.DiscreteFlow(5)
    shape = SHAPES[kind][1:] if kind == "continuous" else SHAPES[kind][1:-1]
    model = bfn.BFN(lambda inputs, t: network(inputs, (1 - t[0]) * 1000), flow, predicts, shape)
    model.info.error_curve = ErrorCurve((0.0, 0.5, 1.0), (1.0, 0.3, 0.1))
    return model


CASES = [
    ("continuous", predicts, name)
    for predicts in ("noise", "data", "preconditioned")
    for name in solvers.names("continuous")
]
CASES += [("discrete", "logits", name) for name in solvers.names("discrete")]


@pytest.mark.parametrize(("kind", "predicts", "solver"), CASES)
def test_steps_are_those_of_sample(kind: str, predicts: str, solver: str) -> None:
    model = reference(kind, predicts)
    ours = model.sample(4, solver, CALLS, initial=noise_for(kind), generator=torch.Generator().manual_seed(0))
    scheduler = type(MAKE[kind]()).from_model(model, solver=solver)
    scheduler.set_timesteps(CALLS)
    theirs = generate(scheduler, kind)
    assert len(scheduler.timesteps) == CALLS
    torch.testing.assert_close(ours.x, theirs if kind == "continuous" else theirs.argmax(-1), rtol=1e-5, atol=1e-5)


@kinds
@pytest.mark.parametrize("solver", ["auto", "fast-ode", "bfn-optimal"])
def test_a_loaded_scheduler_gives_the_same_samples(kind: str, solver: str, tmp_path: Path) -> None:
    model = reference(kind, "preconditioned" if kind == "continuous" else "logits")
    model.info.tables = {CALLS: solvers.plan(model, "bfn-solver1", CALLS).table}
    model.info.calibration = solvers.Calibration((solvers.Anchor(5, 1.0, 2, 4.0),))
    scheduler = type(MAKE[kind]()).from_model(model, solver=solver)
    scheduler.save_pretrained(tmp_path)
    loaded = type(scheduler).from_pretrained(tmp_path)
    kept = {key: value for key, value in scheduler.config.items() if key != "_use_default_values"}
    assert kept == dict(loaded.config)
    assert loaded.head == scheduler.head == model.head
    for one in (scheduler, loaded):
        one.set_timesteps(CALLS)
    assert torch.equal(generate(scheduler, kind), generate(loaded, kind))


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_step_keeps_shape_and_type(kind: str, dtype: torch.dtype) -> None:
    scheduler = MAKE[kind](solver="fast-sde")
    scheduler.set_timesteps(CALLS)
    sample = noise_for(kind).to(dtype)
    for t in scheduler.timesteps[:2]:
        assert scheduler.scale_model_input(sample, t).dtype == dtype
        out = scheduler.step(sample, t, sample, generator=torch.Generator().manual_seed(0))
        for tensor in (out.prev_sample, out.pred_original_sample):
            assert tensor.shape == sample.shape
            assert tensor.dtype == dtype


@kinds
@pytest.mark.parametrize("solver", ["auto", "fast-ode"])
def test_runs_are_independent(kind: str, solver: str) -> None:
    """Anew, after set_timesteps, straight after a whole run, and after one that was given up."""
    scheduler = MAKE[kind](solver=solver)
    scheduler.set_timesteps(CALLS)
    first = generate(scheduler, kind)
    assert torch.equal(generate(scheduler, kind), first)
    sample = noise_for(kind, 5)
    for t in scheduler.timesteps[:3]:
        sample = scheduler.step(sample, t, sample).prev_sample
    assert torch.equal(generate(scheduler, kind), first)
    scheduler.set_timesteps(CALLS + 2)
    assert not torch.equal(generate(scheduler, kind), first)
    scheduler.set_timesteps(CALLS)
    assert torch.equal(generate(scheduler, kind), first)
    fresh = MAKE[kind](solver=solver)
    fresh.set_timesteps(CALLS)
    assert torch.equal(generate(fresh, kind), first)


@kinds
def test_given_timesteps(kind: str) -> None:
    scheduler = MAKE[kind](solver="bfn-solver1")
    own = [990.0, 700.5, 400.0, 20.0]
    scheduler.set_timesteps(timesteps=own)
    torch.testing.assert_close(scheduler.timesteps, torch.tensor(own))
    model = reference(kind, "noise" if kind == "continuous" else "logits")
    grid = 1 - torch.tensor(own, dtype=torch.float64) / 1000
    ours = model.sample(4, "bfn-solver1", grid=grid, initial=noise_for(kind)).x
    theirs = generate(scheduler, kind)
    torch.testing.assert_close(ours, theirs if kind == "continuous" else theirs.argmax(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", ["fast-ode", "sde-bfn-solver++2", "bfn"])
def test_a_run_may_begin_later_as_from_a_noised_image(solver: str) -> None:
    """The rest of the grid is a grid: the same as the library's loop on it."""
    scheduler = BFNScheduler(solver=solver)
    scheduler.set_timesteps(CALLS)
    rest = scheduler.timesteps[4:]
    image = torch.linspace(-1, 1, 768).view(4, 3, 8, 8)
    sample = scheduler.add_noise(image, noise_for("continuous"), rest[:1])
    times = 1 - rest.double() / 1000
    s = float(scheduler.flow.schedule.s(times[0]))
    generator = torch.Generator().manual_seed(1)
    initial = sample * (1 + s * s) ** 0.5
    ours = reference("continuous", "noise").sample(4, solver, grid=times, initial=initial, generator=generator).x
    generator = torch.Generator().manual_seed(1)
    for t in rest:
        output = network(scheduler.scale_model_input(sample, t), t)
        sample = scheduler.step(output, t, sample, generator=generator).prev_sample
    torch.testing.assert_close(sample, ours, rtol=1e-4, atol=1e-4)


def test_added_noise_is_that_of_a_variance_preserving_diffusion() -> None:
    scheduler = BFNScheduler()
    x, eps = torch.linspace(-1, 1, 768).view(4, 3, 8, 8), noise_for("continuous")
    timesteps = torch.tensor([1000.0, 800.0, 300.0, 0.0])
    beta = scheduler.flow.schedule.beta(1 - timesteps.double() / 1000).float().view(4, 1, 1, 1)
    alpha, sigma = (beta / (1 + beta)).sqrt(), (1 / (1 + beta)).sqrt()
    torch.testing.assert_close(scheduler.add_noise(x, eps, timesteps), alpha * x + sigma * eps)
    # One timestep for all, which diffusers' own checks give as a vector of one.
    torch.testing.assert_close(scheduler.add_noise(x, eps, timesteps[1:2])[1], (alpha * x + sigma * eps)[1])
    # What the network sees is mu = alpha x_t.
    noised = scheduler.add_noise(x, eps, timesteps)
    torch.testing.assert_close(scheduler.scale_model_input(noised, timesteps), alpha * noised)


def test_added_noise_on_classes_is_the_flows() -> None:
    scheduler = DiscreteBFNScheduler(5)
    x, eps, timesteps = torch.arange(24).view(4, 6) % 5, noise_for("discrete"), torch.tensor([900.0, 500.0, 100.0, 0.0])
    noised = scheduler.add_noise(x, eps, timesteps)
    level = scheduler.flow.noise_level(1 - timesteps / 1000, 4, 2, eps)
    u = scheduler.flow.noised(x, level.s, eps)
    torch.testing.assert_close(noised * (1 + level.s**2) ** 0.5, u)
    theta = scheduler.scale_model_input(noised, timesteps)
    torch.testing.assert_close(theta, torch.softmax(level.s * u, -1))
    torch.testing.assert_close(theta.sum(-1), torch.ones(4, 6))


def test_the_first_samples_standard_deviation() -> None:
    scheduler = DiscreteBFNScheduler(5, t_start=0.5, solver="bfn-solver1", beta_1=4.0)
    assert scheduler.init_noise_sigma == pytest.approx(5**0.5)
    scheduler.set_timesteps(CALLS)
    assert scheduler.init_noise_sigma == pytest.approx((5 / 2) ** 0.5)
    assert BFNScheduler().init_noise_sigma == 1


@pytest.mark.parametrize("limits", [(-0.5, 0.5), (-0.25, 0.75)])
def test_predicted_data_are_clipped_to_the_range_of_the_model(limits: tuple[float, float]) -> None:
    model = reference("continuous", "data")
    model.info.value_range = limits
    scheduler = BFNScheduler.from_model(model, solver="bfn-solver++2")
    scheduler.set_timesteps(CALLS)
    ours = model.sample(4, "bfn-solver++2", CALLS, initial=noise_for("continuous")).x
    torch.testing.assert_close(generate(scheduler, "continuous"), ours, rtol=1e-5, atol=1e-5)
    assert (float(ours.min()), float(ours.max())) == limits
    symmetric = BFNScheduler(prediction_type="sample", clip_sample=True, clip_sample_range=0.5)
    assert symmetric.info.value_range == (-0.5, 0.5)


@pytest.mark.parametrize("kind", ["continuous", "discrete", "vp"])
def test_the_public_surface_of_a_scheduler(kind: str) -> None:
    scheduler = VPSolverScheduler() if kind == "vp" else MAKE[kind]()
    assert scheduler.order == 1
    assert len(scheduler) == 1000
    assert "kwargs" not in inspect.signature(type(scheduler).__init__).parameters
    scheduler.anything = 5
    assert scheduler.anything == 5
    with pytest.warns(FutureWarning):
        assert scheduler.solver == scheduler.config.solver
    assert not hasattr(scheduler, "does_not_exist")


def test_a_list_of_generators_gives_each_sample_its_own_noise() -> None:
    scheduler, sample = BFNScheduler(solver="fast-sde"), noise_for("continuous")

    def step(seeds: list[int]) -> Tensor:
        scheduler.set_timesteps(CALLS)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        first = scheduler.step(sample, scheduler.timesteps[0], sample, generator=generators).prev_sample
        return scheduler.step(first, scheduler.timesteps[1], first, generator=generators).prev_sample

    assert torch.equal(step([1, 2, 3, 4])[2], step([5, 6, 3, 8])[2])


# Ordinary diffusion models.


def test_configs_cross_over_to_diffusers_schedulers_and_back() -> None:
    for other in (DDIMScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler):
        theirs = other(
            beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, prediction_type="v_prediction"
        )
        ours = VPSolverScheduler.from_config(theirs.config)
        torch.testing.assert_close(ours.alphas_cumprod, theirs.alphas_cumprod)
        assert ours.config.prediction_type == "v_prediction"
        assert ours.config.solver == "fast-ode"
        back = other.from_config(ours.config)
        torch.testing.assert_close(back.alphas_cumprod, theirs.alphas_cumprod)
    assert all(scheduler is not None for scheduler in VPSolverScheduler().compatibles)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_on_their_timesteps_it_is_dpm_solver_pp_2m(prediction: str) -> None:
    theirs = DPMSolverMultistepScheduler(prediction_type=prediction)
    theirs.set_timesteps(CALLS)
    ours = VPSolverScheduler.from_config(theirs.config, solver="bfn-solver++2")
    ours.set_timesteps(timesteps=theirs.timesteps)
    torch.testing.assert_close(ours.timesteps, theirs.timesteps.float())
    samples = [noise_for("continuous"), noise_for("continuous")]
    for t in theirs.timesteps:
        for i, scheduler in enumerate((ours, theirs)):
            output = network(scheduler.scale_model_input(samples[i], t), t)
            samples[i] = scheduler.step(output, t, samples[i]).prev_sample
    scale = float(samples[1].abs().max())
    torch.testing.assert_close(samples[0] / scale, samples[1] / scale, rtol=1e-5, atol=1e-5)


def test_the_schedule_of_a_model_without_noise_at_its_end() -> None:
    scheduler = VPSolverScheduler(rescale_betas_zero_snr=True, prediction_type="v_prediction")
    scheduler.set_timesteps(CALLS)
    assert bool(torch.isfinite(generate(scheduler, "continuous")).all())
