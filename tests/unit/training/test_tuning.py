"""Tuning: tables and grids that are fitted to a model, and the objectives."""

import pytest
import torch

import tiny
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.solver import plan
from bfn.data.tokenizers import TokenList
from bfn.exact.joint import JointMixture
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.quality import metrics
from bfn.training.tuning import objectives
from bfn.training.tuning.calibration import search_grid
from bfn.training.tuning.objectives import (
    Draws,
    EndPoint,
    FeatureDistance,
    MoleculeDivergence,
    NGramDivergence,
    SearchedGrid,
)
from bfn.training.tuning.tables import default_steps, tune


def mixture(seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    return GaussianMixture(means, stds=torch.full((5,), 0.15))


def test_tuning_on_an_exact_mixture_more_than_halves_the_error_of_fast_ode():
    model = mixture()
    looks = []
    tuned = tune(
        model, 5, EndPoint(60), steps=60, batch=256, starts=1024, held_out=512, seed=3, part=512,
        on_step=lambda step, value: looks.append((step, value)) if value is not None else None,
    )  # fmt: skip
    assert tuned.after < 0.5 * tuned.before
    assert tuned.curve == tuple(looks)
    assert tuned.stopped is None
    assert all(row.c == 0 and row.a == 1 for row in tuned.table.rows)
    # Starts that took no part: the table beats the solver there too.
    draws = Draws.make(model, 512, 5, torch.Generator().manual_seed(99))
    end = EndPoint(60).target(model, draws)
    ours, theirs = (
        float((model.sample(512, solver, 5, initial=draws.u).x - end).square().mean())
        for solver in (tuned.table, "fast-ode")
    )
    assert ours < 0.5 * theirs


def test_tuning_towards_data_fits_the_noise_too():
    model = mixture()
    real = model.sample_data(4000, torch.Generator().manual_seed(0))
    objective = FeatureDistance(lambda x: torch.cat([x, x.square()], 1), real, model.flow)
    tuned = tune(model, 3, objective, steps=30, batch=400, held_out=400, seed=1, part=400)
    assert tuned.after < 0.7 * tuned.before
    assert any(row.c > 0 for row in tuned.table.rows)
    assert tuned.table.record["before"] == tuned.before
    again = tune(model, 3, objective, steps=30, batch=400, held_out=400, seed=1, part=400)
    assert again.table == tuned.table


@pytest.fixture(scope="module")
def strings():
    words = torch.randint(0, 3, (12, 8), generator=torch.Generator().manual_seed(5))
    return StringSet(words, n_classes=3, beta_1=9.0)


def ngrams(strings):
    return NGramDivergence(strings.sample_data(2000, torch.Generator().manual_seed(0)), strings.flow, 4)


def losses(objective, model, solvers, nfe):
    """The objective on fresh starts, by the sampler."""
    return [float(objective.loss(model.sample(1000, solver, nfe, seed=9).x)) for solver in solvers]


def test_classes_are_searched_and_nothing_is_kept_that_does_not_help(strings):
    objective = ngrams(strings)
    objective.start = "bfn-solver1"
    settings = {"batch": 300, "held_out": 300, "part": 300}
    tuned = tune(strings, 4, objective, **settings)
    assert tuned.after < 0.8 * tuned.before
    assert tuned.after == min(value for _, value in tuned.curve)
    assert tuned.curve[-1][0] <= default_steps(strings, 4, objective)
    assert tune(strings, 4, objective, **settings).table == tuned.table
    ours, theirs = losses(objective, strings, (tuned.table, "bfn-solver1"), 4)
    assert ours < 0.9 * theirs


@pytest.mark.parametrize("nfe", [1, 2])
def test_one_or_two_calls_start_late(nfe, strings):
    """At t = 0 the network sees nothing: one call there makes all samples alike."""
    objective = ngrams(strings)
    tuned = tune(strings, nfe, objective, steps=10, batch=300, held_out=300, part=300)
    assert tuned.after < 0.8 * tuned.before
    assert tuned.table.nfe == nfe
    assert tuned.table.times[0] > 0
    ours, theirs = losses(objective, strings, (tuned.table, "fast-sde"), nfe)
    assert ours < 0.9 * theirs


def test_an_interrupt_keeps_the_best_so_far_and_no_gradient_of_the_network():
    model = tiny.build("vectors")

    def stop(step, value):
        if step == 3:
            raise KeyboardInterrupt

    settings = {"steps": 8, "batch": 16, "starts": 16, "held_out": 16}
    stopped = tune(model, 4, EndPoint(20), on_step=stop, **settings)
    assert stopped.stopped == "interrupted"
    values = [value for _, value in stopped.curve]
    assert [step for step, _ in stopped.curve] == [0, 1, 2, 3]
    assert stopped.after == min(values) < stopped.before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_network_that_breaks_keeps_the_best_so_far(refuses):
    model = mixture()
    output, broken = model.output, []
    model.output = lambda u, level, label=None: output(u * torch.nan if broken else u, level)
    settings = {"steps": 8, "batch": 16, "starts": 16, "held_out": 16, "patience": 9}
    tuned = tune(model, 4, EndPoint(20), on_step=lambda step, _: broken.append(1) if step == 3 else None, **settings)
    assert [step for step, _ in tuned.curve] == [0, 1, 2, 3]
    assert "has NaN or infinite values" in tuned.stopped == tuned.table.record["stopped"]
    assert tuned.after == min(value for _, value in tuned.curve)
    refuses("NaN", tune, model, 4, EndPoint(20), **settings)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_searched_grid_becomes_a_table_where_held_out_starts_gain(kind):
    words = torch.randint(0, 3, (6, 4), generator=torch.Generator().manual_seed(5))
    model = mixture() if kind == "continuous" else StringSet(words, n_classes=3, beta_1=2.0)
    tuned = tune(model, 4, SearchedGrid(40, start="bfn-solver1" if kind == "discrete" else "bfn-solver++1"),
                 steps=2, batch=32, held_out=64)  # fmt: skip
    assert tuned.after < tuned.before
    assert tuned.table.record["objective"] == "grid"
    own = plan(model, tuned.table.record["start"], 4).table
    assert tuned.table.times != own.times
    again = plan(model, tuned.table.record["start"], grid=tuned.table.times).table
    assert tuned.table == again


def test_early_stopping_ends_where_held_out_starts_gain_nothing():
    model = mixture()
    tuned = tune(model, 4, EndPoint(40), steps=400, batch=4, starts=4, held_out=64, rate=0.3, patience=2)
    assert tuned.curve[-1][0] < 400
    assert tuned.after == min(value for _, value in tuned.curve)


def test_the_grid_found_is_better_on_fresh_starts() -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    model = GaussianMixture(means, stds=torch.full((5,), 0.1))
    times = search_grid(model, 5, "bfn-solver++1", n=32, reference=50, rounds=4, generator=generator)
    assert times.dtype == torch.float64
    assert times.shape == (5,)
    assert float(times[0]) == 1e-3
    assert bool((times.diff() > 0).all())
    fresh = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    target = model.sample(300, "fast-ode", 100, initial=fresh, t_start=1e-3).x
    ours, theirs = (
        float((model.sample(300, "bfn-solver++1", initial=fresh, **own).x - target).norm(dim=1).mean())
        for own in ({"grid": times}, {"nfe": 5})
    )
    assert ours < 0.5 * theirs


def test_a_searched_grid_brings_joint_samples_nearer_to_their_end() -> None:
    model = JointMixture(
        {"x": (torch.tensor([[-1.0, 0.5], [1.0, -0.5]]), torch.full((2, 2), 0.2))},
        {"kind": torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.2, 0.7]])},
        flows={"x": ContinuousFlow(0.02), "kind": DiscreteFlow(3, 6.0)},
    )
    tuned = tune(model, 5, SearchedGrid(teacher_nfe=60), steps=4, batch=64, held_out=64)
    assert tuned.after < 0.9 * tuned.before
    assert set(tuned.table.parts) == {"x", "kind"}
    model.info.tables = {5: tuned.table}
    initial = torch.randn(64, 5, generator=torch.Generator().manual_seed(7), dtype=model.dtype)
    end = model.sample(64, "fast-ode", 60, initial=initial).final
    tuned_error, plain_error = (
        float((model.sample(64, name, 5, initial=initial).final - end).square().mean()) for name in ("auto", "fast-ode")
    )
    assert tuned_error < plain_error


def test_feature_distance_is_the_frechet_distance():
    generator = torch.Generator().manual_seed(0)
    real, drawn = torch.randn(200, 1, 2, 3, generator=generator), 2 + torch.randn(50, 1, 2, 3, generator=generator)
    objective = FeatureDistance(lambda x: x.flatten(1), real, ContinuousFlow())
    value = float(objective.loss(objective.summary(drawn)))
    assert value == pytest.approx(metrics.frechet_distance(drawn.flatten(1), real.flatten(1)), rel=1e-6)
    assert objective.least == 7


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ngram_divergence_is_that_of_the_metrics(n, monkeypatch):
    monkeypatch.setattr(objectives, "PSEUDO_COUNT", 0.0)
    monkeypatch.setattr(objectives, "SMOOTHING", 0.0)
    generator = torch.Generator().manual_seed(0)
    real, drawn = (torch.randint(0, k, (30, 12), generator=generator) for k in (5, 4))
    objective = NGramDivergence(real, DiscreteFlow(5), n)
    value = float(objective.loss(objective.summary(torch.nn.functional.one_hot(drawn, 5).double())))
    counts = [metrics.ngram_counts(["".join(map(str, row)) for row in x.tolist()], n) for x in (drawn, real)]
    assert value == pytest.approx(metrics.jensen_shannon(*counts), abs=1e-9)


def test_strings_that_are_no_molecules_count_and_their_ngrams_do_not():
    pytest.importorskip("rdkit")
    real = ["CCOCC", "C1CCC1", "CCCCN", "OCCCO"]
    tokenizer = TokenList.from_texts(real, "smiles")

    def classes(*texts: str) -> torch.Tensor:
        rows = [tokenizer.encode(text) for text in texts]
        return torch.stack([torch.nn.functional.pad(row.long(), (0, 6 - len(row)), value=-1) for row in rows])

    flow = DiscreteFlow(len(tokenizer.pieces))
    objective, plain = MoleculeDivergence(classes(*real), flow, tokenizer), NGramDivergence(classes(*real), flow)
    drawn = classes("CCOCC", "CCCCN", "C1CCCN", "OCCCO")  # the third has an open ring
    expected = 0.25 + float(plain.loss(drawn[[0, 1, 3]]))
    assert float(objective.loss(drawn)) == pytest.approx(expected)
    assert float(objective.loss(classes("C1CCCN"))) == 2
    assert float(objective.loss(classes(*real))) == float(plain.loss(classes(*real)))


@pytest.mark.parametrize(("n_classes", "n"), [(27, 4), (60, 3), (2000, 1)])
def test_many_classes_take_shorter_ngrams(n_classes, n):
    assert NGramDivergence(torch.zeros(2, 8, dtype=torch.int64), DiscreteFlow(n_classes)).n == n
