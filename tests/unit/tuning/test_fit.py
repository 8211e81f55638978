import pytest
import torch

import tiny
from bfn.core.errors import NetworkError
from bfn.core.solver import plan
from bfn.exact.numbers import GaussianMixture
from bfn.exact.strings import StringSet
from bfn.solvers.named import get
from bfn.training.tuning.objectives import Draws, EndPoint, FeatureDistance, NGramDivergence, SearchedGrid
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


def test_classes_are_searched_and_nothing_is_kept_that_does_not_help():
    words = torch.randint(0, 3, (12, 8), generator=torch.Generator().manual_seed(5))
    strings = StringSet(words, n_classes=3, beta_1=9.0)
    objective = NGramDivergence(strings.sample_data(2000, torch.Generator().manual_seed(0)), strings.flow, 4)
    objective.start = "bfn-solver1"
    settings = {"batch": 300, "held_out": 300, "part": 300}
    tuned = tune(strings, 4, objective, **settings)
    assert tuned.after < 0.8 * tuned.before
    assert tuned.after == min(value for _, value in tuned.curve)
    assert tuned.curve[-1][0] <= default_steps(strings, 4, objective)
    assert tune(strings, 4, objective, **settings).table == tuned.table
    # Fresh starts, by the sampler: what was gained is the table's.
    ours, theirs = (
        float(objective.loss(strings.sample(2000, solver, 4, seed=9).x)) for solver in (tuned.table, "bfn-solver1")
    )
    assert ours < 0.9 * theirs


@pytest.mark.parametrize("nfe", [1, 2])
def test_one_or_two_calls_start_late(nfe):
    """At t = 0 the network sees nothing: one call there makes all samples alike."""
    words = torch.randint(0, 3, (12, 8), generator=torch.Generator().manual_seed(5))
    strings = StringSet(words, n_classes=3, beta_1=9.0)
    objective = NGramDivergence(strings.sample_data(2000, torch.Generator().manual_seed(0)), strings.flow, 4)
    tuned = tune(strings, nfe, objective, steps=10, batch=300, held_out=300, part=300)
    assert tuned.after < 0.8 * tuned.before
    assert tuned.table.nfe == nfe
    assert tuned.table.times[0] > 0
    ours, theirs = (
        float(objective.loss(strings.sample(1000, solver, nfe, seed=9).x)) for solver in (tuned.table, "fast-sde")
    )
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


def test_a_network_that_breaks_keeps_the_best_so_far():
    model = mixture()
    output, broken = model.output, []
    model.output = lambda u, level, label=None: output(u * torch.nan if broken else u, level)
    settings = {"steps": 8, "batch": 16, "starts": 16, "held_out": 16, "patience": 9}
    tuned = tune(model, 4, EndPoint(20), on_step=lambda step, _: broken.append(1) if step == 3 else None, **settings)
    assert [step for step, _ in tuned.curve] == [0, 1, 2, 3]
    assert "has NaN or infinite values" in tuned.stopped == tuned.table.record["stopped"]
    assert tuned.after == min(value for _, value in tuned.curve)
    with pytest.raises(NetworkError, match="NaN"):
        tune(model, 4, EndPoint(20), **settings)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nfe": 1}, "nfe=1: a table of one call has no step to tune"),
        ({"steps": 0}, "steps=0: expected at least 1"),
        ({"held_out": 0}, "held_out=0: expected at least 1"),
        ({"starts": 5}, "starts=5: expected at least 300"),
        ({"part": 0}, "part=0: expected at least 1"),
        ({"nfe": 20}, "teacher_nfe=20: a teacher makes more calls than the table's 20"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        tune(mixture(), settings.pop("nfe", 4), EndPoint(20), **settings)


def test_too_few_samples_for_the_features():
    objective = FeatureDistance(lambda x: x, torch.randn(9, 2, dtype=torch.float64), mixture().flow)
    with pytest.raises(ValueError, match="batch=2: expected at least 3"):
        tune(mixture(), 4, objective, batch=2)


def test_a_start_may_be_any_multistep_solver_and_one_without_noise_for_end_points():
    settings = {"steps": 2, "batch": 8, "held_out": 8}
    assert tune(mixture(), 4, EndPoint(20, start=get("bfn-solver1")), **settings).table.record["start"] == "bfn-solver1"
    with pytest.raises(ValueError, match="stretches the state or steps back: tune from a multistep solver"):
        tune(mixture(), 4, EndPoint(20, start="euler-ode"), **settings)
    with pytest.raises(ValueError, match="a start with noise"):
        tune(mixture(), 4, EndPoint(20, start="sde-bfn-solver++2"), **settings)
