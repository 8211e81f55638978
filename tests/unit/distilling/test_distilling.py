"""A student ends in one call where the teacher's ODE does."""

import pytest
import torch

import bfn
import tiny
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.networks.mlp import MLP
from bfn.solvers.diffusion import RENOISING
from bfn.training.checkpoints import read_log
from bfn.training.distillation import Distance, distill
from bfn.training.distillation import coupled_noise, draw_paths
from bfn.training.tuning.calibration import choose_tables, error_profile
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
    assert same["student"] > 0.9
    assert same["teacher"] < 0.5


def test_noise_that_leads_to_the_end_gives_the_state_back(mixture, strings):
    for model in (mixture, strings):
        paths = draw_paths(model, 40, {"solver": "fast-ode", "nfe": 5}, seed=2)
        node, index = torch.arange(40) % 5, torch.arange(40)
        t, u, x, _ = paths.at(node, index)
        eps = coupled_noise(model.flow, u, x, t)
        s = model.flow.noise_level(t, 40, u.ndim - 1, like=u).s
        torch.testing.assert_close(model.flow.noised(x, s, eps), u, atol=1e-4, rtol=1e-4)
        # At t = 0 it is the noise that the path starts from.
        torch.testing.assert_close(eps[node == 0] * model.flow.noise_scale(u), u[node == 0])


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
        first.x, mixture.sample(1200, initial=first.u[0].double(), **sampling).x.float(), atol=0.02, rtol=0
    )


def test_noising_again_forgets_the_state(mixture):
    table = RENOISING.table(mixture.flow, [0.0, 0.1, 0.2])
    s = [float(mixture.flow.schedule.s(t)) for t in (0.1, 0.2)]
    assert [(row.a, row.c) for row in table.rows[:-1]] == [(0.0, 1.0), (0.0, 1.0)]
    assert [row.b for row in table.rows[:-1]] == [pytest.approx((each,)) for each in s]


def test_times_are_chosen_for_samples_like_the_data(mixture):
    # Of an exact model, whose one call is the mean, two calls are the better the more of the noise the second sees.
    data = mixture.sample_data(400, torch.Generator().manual_seed(3))
    times = (1e-3, 0.1, 0.2)
    tables = choose_tables(mixture, mixture, data, {}, times, 2)
    drawn = {t: mixture.sample(400, RENOISING.table(mixture.flow, [0.0, t]), seed=0).x for t in times}
    of_data = {t: energy_distance(x, data) for t, x in drawn.items()}
    assert tables[2].times == (0.0, min(of_data, key=of_data.get))


def test_samples_are_as_hard_for_the_teacher_as_data_if_they_are_alike(mixture):
    data, others = (mixture.sample_data(1000, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    times = (0.05, 0.2, 0.4)
    ours = error_profile(mixture, data, {}, times)
    assert ours.shape == (1000, 3)
    assert torch.equal(ours, error_profile(mixture, data, {}, times))
    # Errors fall with the noise. Data off the clusters are hard where the noise no longer hides it.
    assert bool((ours.mean(0).diff() < 0).all())
    alike, apart = (
        energy_distance(error_profile(mixture, x, {}, times), ours)
        for x in (others, others + 0.3 * torch.randn(others.shape, generator=torch.Generator().manual_seed(3)))
    )
    assert abs(alike) < 0.02
    assert apart > 0.1


def test_a_distilled_model_is_stored_resumed_and_loaded(tmp_path):
    teacher = tiny.build("images")
    options = {"paths": 16, "batch": 8, "calls": 2, "teacher": {"nfe": 3}, "run": tmp_path / "run"}
    distill(teacher, 4, **options)
    with pytest.raises(bfn.UserError, match="holds a run already"):
        distill(teacher, 6, **options)
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
    t, u, _, conditions = paths.at(torch.zeros(8, dtype=torch.long), torch.arange(8))
    other = torch.where(present[:8, :, None], u, torch.randn_like(u))
    level = teacher.flow.noise_level(t, len(u), u.ndim - 1, u)
    ends = [student.output(state, level, **conditions).mean[present[:8]] for state in (u, other)]
    torch.testing.assert_close(*ends)


def test_what_cannot_be_distilled_is_told_in_a_line(mixture, tmp_path):
    network = perceptron(mixture).network
    noise = bfn.BFN(network, mixture.flow, "noise", (2,))
    model = perceptron(mixture)
    for wrong, message in (
        (lambda: distill(mixture), "an exact model has no network"),
        (lambda: distill(noise), "a network that predicts noise"),
        (lambda: distill(model, paths=10), "at least a batch of 128 paths"),
        (lambda: distill(model, calls=0), "calls=0: expected a whole number"),
        (lambda: distill(model, paths=10**12), "paths=10+: expected a whole number"),
        (lambda: distill(model, batch=torch.zeros(2)), "batch=tensor.*: expected a whole number"),
        (lambda: distill(model, teacher=torch.zeros(2)), "teacher of type Tensor: expected settings of a sample"),
        (lambda: distill(model, student=3), "student of type int: expected bfn.BFN"),
        (lambda: distill(model, teacher={"solvr": "auto"}), "did you mean 'solver'"),
        (lambda: distill(model, teacher={"solver": "fast-sde"}, run=tmp_path / "a"), "a teacher with noise"),
        (lambda: distill(mixture, student=bfn.BFN(network, bfn.ContinuousFlow(0.1), "data", (2,))), "expected"),
    ):
        with pytest.raises(bfn.UserError, match=message):
            wrong()
