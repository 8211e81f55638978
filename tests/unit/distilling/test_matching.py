"""Where a critic and the teacher disagree, samples go where the teacher finds them likelier."""

import signal

import pytest
import torch
from accelerate import Accelerator

import bfn
import tiny
from bfn.core.losses import EDM, Bound
from bfn.exact.numbers import GaussianMixture
from bfn.networks.mlp import MLP
from bfn.training.distillation import Critic, distill
from bfn.training.trainer import Trainer


def normal(mean: float, std: float) -> GaussianMixture:
    return GaussianMixture(torch.tensor([[mean]]), stds=torch.tensor([std]))


def critic_of(teacher, weighting):
    own = bfn.BFN(MLP(1, width=8), teacher.flow, "preconditioned", (1,))
    return Critic(teacher, own, {}, weighting, Accelerator(cpu=True), lr=1e-3, grad_clip=0.0)


def test_the_direction_between_normals_is_the_exact_one():
    # Of N(m, v) beside N(0, v) the posterior means differ by m / (1 + v s^2) whatever the state.
    teacher, shift, v = normal(0.0, 0.5), 0.8, 0.25
    critic = critic_of(teacher, Bound())
    critic.model = normal(shift, 0.5)
    x = torch.randn(200, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    away = critic.direction(x, x, {}, torch.Generator().manual_seed(3))
    t, _, eps = critic._noise(x, torch.Generator().manual_seed(3))
    s = teacher.flow.noise_level(t, 200, 1, like=eps).s
    u = s * x + eps
    error = (x - u * v * s / (1 + v * s**2)).abs().clamp(min=1e-3)
    torch.testing.assert_close(away * error, shift / (1 + v * s**2), rtol=1e-6, atol=1e-9)


def test_samples_that_follow_it_become_the_teacher_s():
    teacher = normal(0.3, 0.5)
    critic = critic_of(teacher, EDM(data_std=0.5))
    mean, std = torch.tensor(-1.0, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    optimiser = torch.optim.Adam([mean, std], lr=0.05)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        x = mean + std * torch.randn(256, 1, generator=generator)
        critic.model = normal(mean.item(), std.item())  # one that has learned its samples
        optimiser.zero_grad()
        (x * critic.direction(x.detach(), x.detach(), {}, generator)).mean().backward()
        optimiser.step()
    assert float(mean) == pytest.approx(0.3, abs=0.1)
    assert float(std) == pytest.approx(0.5, abs=0.1)


def test_a_critic_that_is_the_teacher_moves_nothing_and_then_learns_the_samples():
    teacher = tiny.build("vectors")
    critic = Critic(teacher, teacher, {}, EDM(), Accelerator(cpu=True), lr=1e-2, grad_clip=1.0)
    x = 3 + 0.1 * torch.randn(64, 2, generator=torch.Generator().manual_seed(1))
    assert not bool(critic.direction(x, x, {}, torch.Generator().manual_seed(2)).any())
    before = [parameter.clone() for parameter in teacher.parameters()]
    for step in range(200):
        critic.learn(x, x, {}, torch.Generator().manual_seed(step))
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), before, strict=True))
    # It now expects data at 3, which the teacher does not: samples there must go back.
    away = critic.direction(x, x, {}, torch.Generator().manual_seed(2))
    assert bool((away.mean(0) > 0.1).all())


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, monkeypatch):
    options = {"paths": 16, "batch": 8, "calls": 1, "teacher": {"nfe": 3}}
    teacher = tiny.build("images")
    whole = distill(teacher, 6, run=tmp_path / "whole", **options)
    step = Trainer.train_step

    def stopped(self):
        step(self)
        if self.step == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        distill(teacher, 6, run=tmp_path / "stopped", **options)
    monkeypatch.setattr(Trainer, "train_step", step)
    resumed = distill(teacher, 6, run=tmp_path / "stopped", resume=True, **options)
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    alone = distill(teacher, 6, match=0, **options)
    assert not all(torch.equal(a, b) for a, b in zip(alone.parameters(), whole.parameters(), strict=True))


def test_it_is_for_images_unless_asked_for(tmp_path):
    for kind, weight, asked in (("images", 1.0, None), ("vectors", 0.0, None), ("vectors", 0.5, 0.5)):
        student = distill(tiny.build(kind), 1, paths=4, batch=2, calls=1, match=asked)
        assert student.info.card["distilled"]["weighting"]["match"] == weight
    for wrong in (-1, float("nan"), float("inf"), "x"):
        with pytest.raises(bfn.UserError, match="match="):
            distill(tiny.build("images"), 1, match=wrong)
