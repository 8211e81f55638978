"""Distillation: a student ends in one call where the ODE of the teacher does; the critic."""

import signal

import pytest
import torch
from accelerate import Accelerator

import bfn
import tiny
from bfn.core.conditions import rows_of
from bfn.core.losses import EDM, Bound
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.networks.mlp import MLP
from bfn.solvers.few_step import RENOISING
from bfn.training.checkpoints import read_log
from bfn.training.distillation import Critic, Distance, distill, draw_paths
from bfn.training.trainer import Trainer
from bfn.training.tuning.calibration import choose_tables
from bfn.training.tuning.objectives import energy_distance


@pytest.fixture(scope="module")
def mixture():
    means = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return GaussianMixture(means, stds=torch.full((4,), 0.15))


@pytest.fixture(scope="module")
def strings():
    return StringSet(torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2], [2, 0, 0, 1]]), n_classes=3)


def perceptron(teacher, **sizes):
    torch.manual_seed(0)
    network = MLP(*teacher.data_shape, width=64, condition_features=32, **sizes)
    predicts = "preconditioned" if teacher.flow.has_range else "logits"
    return bfn.BFN(network, teacher.flow, predicts, teacher.data_shape)


def test_one_call_ends_where_the_ode_does(mixture):
    student = distill(mixture, 600, student=perceptron(mixture), paths=4000, calls=2, lr=3e-3, seed=1)
    start = torch.randn(1000, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    end = mixture.sample(1000, "fast-ode", 40, initial=start).x
    one_call, posterior_mean = (
        float((model.sample(1000, nfe=1, initial=start.to(model.dtype)).x - end).square().mean())
        for model in (student, mixture)
    )
    # The exact model's own one call is the mean of the data, whatever the start.
    assert posterior_mean == pytest.approx(float((end - mixture.sample(1, nfe=1).x).square().mean()))
    assert one_call < 0.1 * posterior_mean
    # Samples of one and of two calls are distributed as the data; those of the teacher's one call are not.
    data = mixture.sample_data(1000, torch.Generator().manual_seed(8))
    teacher = energy_distance(mixture.sample(1000, nfe=1, seed=3).x, data)
    for nfe in (1, 2):
        out = student.sample(1000, nfe=nfe, seed=3)
        assert out.nfe == nfe
        assert energy_distance(out.x, data) < 0.05 * teacher


def test_where_ends_differ_the_distance_asks_for_their_median(mixture):
    ends = torch.tensor([-1.0, -1.0, -0.9, 0.5, 1.0])
    guesses = torch.linspace(-1, 1, 201)[:, None]
    losses = {
        small: Distance(small).values(mixture.flow, None, ends, (ends - guesses).square()).mean(1)
        for small in (1e-3, 100.0)
    }
    # A small number rounds the distance at 0; beside a large one all errors are small, and their squares count.
    least = {small: float(guesses[loss.argmin()]) for small, loss in losses.items()}
    assert least[1e-3] == pytest.approx(float(ends.median()), abs=0.01)
    assert least[100.0] == pytest.approx(float(ends.mean()), abs=0.01)


def test_classes_too(strings):
    student = distill(strings, 300, student=perceptron(strings, n_classes=3), paths=1500, calls=2, lr=3e-3)
    start = torch.randn(500, 4, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    end = strings.sample(500, "fast-ode", 40, initial=start).x
    same = {
        name: float((model.sample(500, nfe=1, initial=start.to(model.dtype)).x == end).all(1).float().mean())
        for name, model in {"student": student, "teacher": strings}.items()
    }
    assert student.info.card["distilled"]["weighting"]["match"] == 0  # 1 for images alone
    assert same["student"] > 0.9
    assert same["teacher"] < 0.5


def test_noise_that_leads_to_the_end_gives_the_state_back(mixture, strings):
    for model in (mixture, strings):
        paths = draw_paths(model, 40, {"solver": "fast-ode", "nfe": 5}, seed=2)
        node, index = torch.arange(40) % 5, torch.arange(40)
        batch, u = paths.batch(model.flow, node, index, torch.device("cpu")), paths.u[index, node].float()
        s = model.flow.noise_level(batch.t, 40, u.ndim - 1, like=u).s
        torch.testing.assert_close(model.flow.noised(batch.x, s, batch.eps), u, atol=1e-4, rtol=1e-4)
        # At t = 0 it is the noise that the path starts from.
        torch.testing.assert_close(batch.eps[node == 0] * model.flow.noise_scale(u), u[node == 0])


def test_paths_are_kept_and_found_again(mixture, tmp_path):
    sampling = {"solver": "fast-ode", "nfe": 4}
    first = draw_paths(mixture, 1200, sampling, seed=5, folder=tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = draw_paths(mixture, 1200, sampling, seed=5, folder=tmp_path)
    assert len(files) == 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    assert torch.equal(first.u, again.u)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, draw_paths(mixture, 1200, sampling, seed=6).x)
    torch.testing.assert_close(
        first.x, mixture.sample(1200, initial=first.u[:, 0].double(), **sampling).x.float(), atol=0.02, rtol=0
    )


def test_times_are_chosen_for_samples_like_the_data(mixture):
    # Of an exact model, whose one call is the mean, two calls are the better the more of the noise the second sees.
    data = mixture.sample_data(400, torch.Generator().manual_seed(3))
    times = (1e-3, 0.1, 0.2)
    tables = choose_tables(mixture, mixture, data, {}, times, 2)
    drawn = {t: mixture.sample(400, RENOISING.table(mixture.flow, [0.0, t]), seed=0).x for t in times}
    of_data = {t: energy_distance(x, data) for t, x in drawn.items()}
    assert tables[2].times == (0.0, min(of_data, key=of_data.get))


def test_a_distilled_model_is_stored_resumed_and_loaded(tmp_path, refuses):
    teacher = tiny.build("images")
    options = {"paths": 16, "batch": 8, "calls": 2, "teacher": {"nfe": 3}, "run": tmp_path / "run"}
    distill(teacher, 4, **options)
    refuses("holds a run already", distill, teacher, 6, **options)
    student = distill(teacher, 6, resume=True, **options)
    assert [entry["step"] for entry in read_log(tmp_path / "run") if entry["kind"] == "eval"] == [4, 6]
    loaded = bfn.load(tmp_path / "run")
    assert loaded.info.card["distilled"]["steps"] == 6
    assert loaded.info.card["distilled"]["weighting"] == {"name": "distance", "match": 1.0}
    assert set(loaded.info.tables) == {1, 2}
    for nfe in (1, 2):
        ours, theirs = (model.sample(3, nfe=nfe, seed=1) for model in (student, loaded))
        torch.testing.assert_close(ours.x, theirs.x)
        assert ours.nfe == nfe
    # Where nobody says how many there are as many calls as the largest table has; beyond it auto noises again too.
    assert student.sample(3).nfe == 2
    beyond = bfn.solvers.plan(loaded, nfe=5)
    assert all(row.a == 0 and row.c == 1 for row in beyond.table.rows[:-1])
    # The teacher is as it was, and what was measured of it is not said of the student.
    untouched = tiny.build("images")
    assert teacher.info == untouched.info
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), untouched.parameters(), strict=True))
    assert "quality" not in loaded.info.card


def test_samples_of_different_lengths(tmp_path):
    teacher = tiny.build("molecules")
    sampling = {"solver": "fast-ode", "nfe": 3}
    student = distill(teacher, 2, paths=16, batch=8, calls=2, teacher=sampling, run=tmp_path / "run")
    paths = draw_paths(teacher, 516, sampling, dropout=0.1, folder=tmp_path / "run/paths")
    present = paths.conditions["present"]
    # Paths are as long as the teacher's samples are, and where there is no data there is none at their end.
    assert set(present.sum(1).tolist()) == {2, 3, 4, 6}
    assert not bool(paths.x[~present].any())
    assert student.sample(3, nfe=2, lengths=3, seed=1).present.sum(1).tolist() == [3, 3, 3]
    # One call of two paths that differ in padding alone ends alike.
    t, u, conditions = paths.times[[0] * 8], paths.u[:8, 0].float(), rows_of(paths.conditions, slice(8))
    other = torch.where(present[:8, :, None], u, torch.randn_like(u))
    level = teacher.flow.noise_level(t, len(u), u.ndim - 1, u)
    ends = [student.output(state, level, **conditions).mean[present[:8]] for state in (u, other)]
    torch.testing.assert_close(*ends)


def test_the_direction_between_normals_is_the_exact_one():
    # Of N(m, v) beside N(0, v) the posterior means differ by m / (1 + v s^2) whatever the state.
    shift, v = 0.8, 0.25
    teacher, moved = (GaussianMixture(torch.tensor([[mean]]), stds=torch.tensor([0.5])) for mean in (0.0, shift))
    own = bfn.BFN(MLP(1, width=8), teacher.flow, "preconditioned", (1,))
    critic = Critic(teacher, own, {}, Bound(), Accelerator(cpu=True), lr=1e-3, grad_clip=0.0)
    critic.model = moved
    x = torch.randn(200, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    away = critic.direction(x, x, {}, torch.Generator().manual_seed(3))
    t, _, eps = critic._noise(x, torch.Generator().manual_seed(3))
    s = teacher.flow.noise_level(t, 200, 1, like=eps).s
    u = s * x + eps
    error = (x - u * v * s / (1 + v * s**2)).abs().clamp(min=1e-3)
    torch.testing.assert_close(away * error, shift / (1 + v * s**2), rtol=1e-6, atol=1e-9)


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
