import json
import math

import pytest
import torch

import bfn
import tiny
from bfn import storage
from bfn.cli import main
from bfn.errors import NetworkError
from bfn.exact import GaussianMixture, StringSet
from bfn.sampling import make_table, walk
from bfn.solvers import get
from bfn.tuning import Knobs, default_steps, tune
from bfn.tuning.objectives import Draws, EndPoint, FeatureDistance, NGramDivergence, SearchedGrid

FLOWS = {"continuous": bfn.ContinuousFlow(), "discrete": bfn.DiscreteFlow(5, 1.5)}


def mixture(seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    return GaussianMixture(means, stds=torch.full((5,), 0.15))


def turned(knobs, seed=0):
    """Knobs turned at random, far from any known solver."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for knob in knobs.parameters:
            knob.add_(torch.randn(knob.shape, generator=generator, dtype=torch.float64), alpha=0.5)
    return knobs


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize(("solver", "nfe"), [("fast-ode", 9), ("fast-ode", 2), ("untuned", 5), ("sde-bfn-solver", 6)])
def test_knobs_stand_for_the_table_they_were_made_from(kind, solver, nfe):
    solver = {"continuous": "sde-bfn-solver++2", "discrete": "sde-bfn-solver2"}[kind] if "bfn" in solver else solver
    table = make_table(FLOWS[kind], solver, nfe)
    again = Knobs(FLOWS[kind], table, noisy=False).table()
    torch.testing.assert_close(again.times, table.times, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(again.rows[:-1], table.rows[:-1], strict=True):
        width = len(ours.b)
        padded = (*theirs.b, *[0.0] * width)[:width]
        torch.testing.assert_close((ours.a, ours.b, ours.c), (theirs.a, padded, theirs.c), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(again.final[: len(table.final)], table.final, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize("seed", range(5))
def test_every_turn_of_the_knobs_keeps_both_sums_but_for_gain_and_noise(kind, seed):
    flow = FLOWS[kind]
    knobs = turned(Knobs(flow, make_table(flow, "untuned", 6)), seed)
    gain, noise = knobs.gain.exp().tolist(), knobs.noise.exp().tolist()
    table = knobs.table()
    s = flow.schedule.s_of(table.times)
    assert s == sorted(s)
    assert table.times[0] >= 0
    assert table.times[-1] <= 1
    for i, (row, s_0, s_1) in enumerate(zip(table.rows[:-1], s[:-1], s[1:], strict=True)):
        assert row.a * s_0 + sum(row.b) / gain[i] == pytest.approx(s_1, abs=1e-12)
        assert row.a**2 + (row.c / noise[i]) ** 2 / flow.kappa == pytest.approx(1, abs=1e-12)
    assert sum(table.final) == pytest.approx(1, abs=1e-12)
    again = Knobs(flow, table).table()
    for ours, theirs in zip(again.rows, table.rows, strict=True):
        torch.testing.assert_close((ours.a, ours.b, ours.c), (theirs.a, theirs.b, theirs.c), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", FLOWS)
def test_the_vector_holds_all_that_is_free_and_nothing_else(kind):
    knobs = Knobs(FLOWS[kind], make_table(FLOWS[kind], "untuned", 5))
    # Intervals and what is left at the end; angle, gain, noise of 4 rows; 0 + 1 + 2 + 2 older shares; 2 of the mix.
    assert len(knobs.vector) == 5 + 3 * 4 + 5 + 2
    wanted = knobs.vector + torch.linspace(-0.1, 0.1, len(knobs.vector), dtype=torch.float64)
    before = knobs.table()
    knobs.turn_to(wanted)
    assert torch.equal(knobs.vector, wanted)
    assert knobs.table() != before
    assert len(Knobs(FLOWS[kind], before, noisy=False).vector) == 5 + 5 + 2


@pytest.mark.parametrize("kind", FLOWS)
def test_shared_turns_move_one_thing_in_all_rows(kind):
    flow = FLOWS[kind]
    knobs = Knobs(flow, make_table(flow, "untuned", 5, grid="power:1:0.8", g=2.0))
    start, shared = knobs.vector, knobs.shared
    tilt, end, angle, gain, noise, older, mix = shared.T
    assert shared.shape == (24, 7)

    def moved(way):
        knobs.turn_to(start + 0.1 * way)
        return [*knobs.coefficients()]

    s, a, b, c, final = moved(torch.zeros_like(tilt))
    later = moved(tilt)[0]
    assert later[1].item() < s[1].item()
    torch.testing.assert_close(moved(end)[0][1:] / s[1:], (moved(end)[0][1] / s[1]).expand(4))
    torch.testing.assert_close(moved(gain)[2], b * math.exp(0.1))
    torch.testing.assert_close(moved(noise)[3], c * math.exp(0.1))
    torch.testing.assert_close(moved(angle)[1], (a.acos() + 0.1).cos())
    torch.testing.assert_close(moved(older)[2][:, 1], b[:, 1] * 1.1)
    torch.testing.assert_close(moved(mix)[4], final + torch.tensor([-0.1, 0.1, 0.0], dtype=torch.float64))


def test_stages_of_runge_kutta_and_drawn_classes_are_refused():
    flow = FLOWS["discrete"]
    for solver in ("bfn-solver2-singlestep", "bfn"):
        with pytest.raises(ValueError, match="tune from a multistep solver"):
            Knobs(flow, make_table(flow, solver, 6))


def batch_of(model, nfe, n_labels=0, n=5):
    return Draws.make(model, n, nfe, n_labels, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["images", "binary", "text", "vectors"])
def test_bound_knobs_sample_as_their_table_does(kind):
    model, extras = tiny.build(kind)
    model = model.double()
    clip = (-1.0, 1.0) if kind == "images" else None
    knobs = turned(Knobs(model.flow, make_table(model.flow, "untuned", 4)))
    model.tables = {4: knobs.table()}
    draws = batch_of(model, 4, extras.get("n_labels", 0))
    noise = iter(draws.noise).__next__
    ours = walk(model.output, knobs.bind(draws.u), draws.u, noise, label=draws.label, clip=clip).final
    drawn = model.sample(5, "tuned", 4, label=draws.label, clip=clip, generator=torch.Generator().manual_seed(1))
    if model.flow.kind == "continuous":
        torch.testing.assert_close(ours, drawn.x, rtol=1e-9, atol=1e-9)
    else:
        assert torch.equal(model.flow.decode(ours), drawn.x)


def test_gradients_through_the_loop_are_those_of_finite_differences():
    model = mixture()
    knobs = turned(Knobs(model.flow, make_table(model.flow, "untuned", 4)))
    draws = batch_of(model, 4)

    def loss():
        return walk(model.output, knobs.bind(draws.u), draws.u, iter(draws.noise).__next__).final.square().sum()

    gradients = torch.autograd.grad(loss(), knobs.parameters)
    ours = torch.cat([g[used] for g, (_, used) in zip(gradients, knobs._used(), strict=True)])
    start, h = knobs.vector, 1e-5
    for i, slope in enumerate(ours.tolist()):
        ends = []
        for sign in (1, -1):
            moved = start.clone()
            moved[i] += sign * h
            knobs.turn_to(moved)
            ends.append(loss().item())
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4, abs=1e-6)


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
    draws = Draws.make(model, 512, 5, 0, torch.Generator().manual_seed(99))
    end = EndPoint(60).target(model, draws, None)
    tables = {"tuned": tuned.table, "fast-ode": make_table(model.flow, "fast-ode", 5)}
    errors = {}
    for name, table in tables.items():
        model.tables = {5: table}
        errors[name] = float((model.sample(512, "tuned", 5, initial=draws.u).x - end).square().mean())
    assert errors["tuned"] < 0.5 * errors["fast-ode"]


def test_tuning_towards_data_fits_the_noise_too():
    model = mixture()
    real = model.sample_data(4000, torch.Generator().manual_seed(0))
    objective = FeatureDistance(lambda x: torch.cat([x, x.square()], 1), real)
    tuned = tune(model, 3, objective, steps=30, batch=400, held_out=400, seed=1, part=400)
    assert tuned.after < 0.7 * tuned.before
    assert any(row.c > 0 for row in tuned.table.rows)
    assert tuned.table.record["before"] == tuned.before
    again = tune(model, 3, objective, steps=30, batch=400, held_out=400, seed=1, part=400)
    assert again.table == tuned.table


def test_classes_are_searched_and_nothing_is_kept_that_does_not_help():
    words = torch.randint(0, 3, (12, 8), generator=torch.Generator().manual_seed(5))
    strings = StringSet(words, n_classes=3, beta_1=9.0)
    objective = NGramDivergence(strings.sample_data(2000, torch.Generator().manual_seed(0)), 3, 4)
    objective.start = "bfn-solver1"
    settings = {"batch": 300, "held_out": 300, "part": 300}
    tuned = tune(strings, 4, objective, **settings)
    assert tuned.after < 0.8 * tuned.before
    assert tuned.after == min(value for _, value in tuned.curve)
    assert tuned.curve[-1][0] <= default_steps(strings, 4, objective)
    assert tune(strings, 4, objective, **settings).table == tuned.table
    # Fresh starts, by the sampler: what was gained is the table's.
    errors = {}
    for name, table in {"tuned": tuned.table, "start": make_table(strings.flow, "bfn-solver1", 4)}.items():
        strings.tables = {4: table}
        x = strings.sample(2000, "tuned", 4, generator=torch.Generator().manual_seed(9)).x
        errors[name] = float(objective.loss(torch.nn.functional.one_hot(x, 3).double()))
    assert errors["tuned"] < 0.9 * errors["start"]


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
    own = make_table(model.flow, tuned.table.record["start"], 4)
    assert tuned.table.times != own.times
    again = make_table(model.flow, tuned.table.record["start"], grid=tuned.table.times)
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
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        tune(mixture(), settings.pop("nfe", 4), EndPoint(20), **settings)


def test_too_few_samples_for_the_features():
    objective = FeatureDistance(lambda x: x, torch.randn(9, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="batch=2: expected at least 3"):
        tune(mixture(), 4, objective, batch=2)


def test_the_command_stores_the_table_and_auto_takes_it(tmp_path, capsys):
    folder = tiny.save("vectors", tmp_path / "m")
    arguments = ["--nfe", "4", "--objective", "endpoint", "--steps", "6", "--batch", "16", "--starts", "16"]
    assert main(["tune", str(folder), *arguments, "--held-out", "16", "--teacher-nfe", "20"]) == 0
    assert f"stored in {folder}" in capsys.readouterr().out
    model = bfn.load(folder)
    assert model.tables[4].record["objective"] == "endpoint"
    assert model.sample(2, nfe=4).times == model.tables[4].times
    assert main(["info", str(folder), "--nfe", "4", "5"]) == 0
    assert "tuned" in capsys.readouterr().out
    copy = tmp_path / "copy"
    assert main(["tune", str(folder), *arguments, "--teacher-nfe", "20", "--out", str(copy), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stored"] == (str(copy) if told["record"]["after"] < told["record"]["before"] else None)


def test_a_copy_keeps_the_weights_and_the_other_tables(tmp_path):
    folder = tiny.save("vectors", tmp_path / "m")
    tables = {n: make_table(bfn.load(folder).flow, "fast-ode", n) for n in (3, 4)}
    storage.store_tables(folder, {3: tables[3]})
    copy = storage.store_tables(folder, {4: tables[4]}, tmp_path / "copy")
    assert bfn.load(copy).tables == tables
    assert bfn.load(folder).tables == {3: tables[3]}
    assert (copy / storage.WEIGHTS).read_bytes() == (folder / storage.WEIGHTS).read_bytes()
    # A copy keeps what it has been given before, and one that was cut off before its config is finished.
    storage.store_tables(folder, {5: make_table(bfn.load(folder).flow, "fast-ode", 5)}, copy)
    assert set(bfn.load(copy).tables) == {3, 4, 5}
    (copy / storage.CONFIG).unlink()
    storage.store_tables(folder, {4: tables[4]}, copy)
    assert bfn.load(copy).tables == tables


def test_tables_are_not_stored_over_anything_else(tmp_path):
    folder, other = tiny.save("vectors", tmp_path / "m"), tiny.save("text", tmp_path / "other")
    renamed = tiny.save("vectors", tmp_path / "renamed")
    config = json.loads((renamed / storage.CONFIG).read_text())
    (renamed / storage.CONFIG).write_text(json.dumps({**config, "head": {"name": "noise"}}))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out in (other, renamed, tmp_path / "notes"):
        with pytest.raises(storage.StorageError, match="holds something else than a copy of"):
            storage.store_tables(folder, {}, out)
    for out in (tmp_path / "notes" / "a.txt", tmp_path / "notes" / "a.txt" / "below"):
        with pytest.raises(storage.StorageError, match="no directory that can be written to"):
            storage.store_tables(folder, {}, out)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits"], "digits is a bundled model: give --out DIR"),
        (["digits", "--nfe", "1", "--out", "x"], "nfe=1: a table of one call"),
        (["digits", "--out", "x", "--objective", "endpoint", "--teacher-nfe", "6"], "a teacher makes more calls"),
        (["digits", "--steps", "0", "--out", "x"], "--steps 0: expected at least 1"),
        (["digits", "--batch", "20", "--out", "x"], "batch=20: expected at least 65"),
        (["nothing"], "neither a directory nor one of the bundled models"),
    ],
)
def test_wrong_command_lines_are_told_in_one_line(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("taken", ["file", "other"])
def test_a_place_that_is_taken_is_told_before_the_tuning(taken, tmp_path, capsys, monkeypatch):
    folder, _ = tiny.save("vectors", tmp_path / "m"), tiny.save("text", tmp_path / "other")
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("bfn.tuning.tune", lambda *_, **__: pytest.fail("tuned first"))
    arguments = ["--objective", "endpoint", "--nfe", "4", "--out", str(tmp_path / taken)]
    assert main(["tune", str(folder), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_searched_grid_is_stored_sampled_from_and_compared(tmp_path, capsys):
    folder = tiny.save("vectors", tmp_path / "m")
    arguments = ["--nfe", "4", "--objective", "grid", "--steps", "2", "--batch", "16", "--held-out", "32"]
    assert main(["tune", str(folder), *arguments, "--teacher-nfe", "30"]) == 0
    assert f"stored in {folder}" in capsys.readouterr().out
    model = bfn.load(folder)
    assert model.tables[4].record["objective"] == "grid"
    assert all(row.c == 0 for row in model.tables[4].rows)
    assert model.sample(2, nfe=4).times == model.tables[4].times


def test_a_model_without_a_card_is_told_to_name_data(tmp_path, capsys):
    folder = tiny.save("binary", tmp_path / "m")
    assert main(["tune", str(folder)]) == 2
    assert "the model's card does not say what it was trained on" in capsys.readouterr().err


def test_a_start_may_be_any_multistep_solver_and_one_without_noise_for_end_points():
    settings = {"steps": 2, "batch": 8, "held_out": 8}
    assert tune(mixture(), 4, EndPoint(20, start=get("bfn-solver1")), **settings).table.record["start"] == "bfn-solver1"
    with pytest.raises(ValueError, match="stretches the state or steps back: tune from a multistep solver"):
        tune(mixture(), 4, EndPoint(20, start="euler-ode"), **settings)
    with pytest.raises(ValueError, match="a start with noise"):
        tune(mixture(), 4, EndPoint(20, start="sde-bfn-solver++2"), **settings)
