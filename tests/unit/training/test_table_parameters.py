import math
from dataclasses import replace

import pytest
import torch

import bfn
import tiny
from bfn.core.sampling import clip_range, integrate
from bfn.core.solver import plan
from bfn.training.tuning.objectives import Draws
from bfn.training.tuning.tables import TableParameters
from planned import make_table

FLOWS = {"continuous": bfn.ContinuousFlow(), "discrete": bfn.DiscreteFlow(5, 1.5)}


def moved_at_random(parameters, seed=0):
    """Parameters moved at random, far from any known solver."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in parameters.fitted:
            each.add_(torch.randn(each.shape, generator=generator, dtype=torch.float64), alpha=0.5)
    return parameters


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize(("solver", "nfe"), [("fast-ode", 9), ("fast-ode", 2), ("fast-sde", 5), ("sde-bfn-solver", 6)])
def test_parameters_stand_for_the_table_they_were_made_from(kind, solver, nfe):
    solver = {"continuous": "sde-bfn-solver++2", "discrete": "sde-bfn-solver2"}[kind] if "bfn" in solver else solver
    table = make_table(FLOWS[kind], solver, nfe)
    again = TableParameters(FLOWS[kind], table, noisy=False).table()
    torch.testing.assert_close(again.times, table.times, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(again.rows[:-1], table.rows[:-1], strict=True):
        width = len(ours.b)
        padded = (*theirs.b, *[0.0] * width)[:width]
        torch.testing.assert_close((ours.a, ours.b, ours.c), (theirs.a, padded, theirs.c), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(again.final[: len(table.final)], table.final, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize("seed", range(5))
def test_every_value_of_the_parameters_keeps_both_sums_but_for_gain_and_noise(kind, seed):
    flow = FLOWS[kind]
    parameters = moved_at_random(TableParameters(flow, make_table(flow, "fast-sde", 6)), seed)
    gain, noise = parameters.gain.exp().tolist(), parameters.noise.exp().tolist()
    table = parameters.table()
    s = flow.schedule.s_of(table.times)
    assert s == sorted(s)
    assert table.times[0] >= 0
    assert table.times[-1] <= 1
    for i, (row, s_0, s_1) in enumerate(zip(table.rows[:-1], s[:-1], s[1:], strict=True)):
        assert row.a * s_0 + sum(row.b) / gain[i] == pytest.approx(s_1, abs=1e-12)
        assert row.a**2 + (row.c / noise[i]) ** 2 / flow.kappa == pytest.approx(1, abs=1e-12)
    assert sum(table.final) == pytest.approx(1, abs=1e-12)
    again = TableParameters(flow, table).table()
    for ours, theirs in zip(again.rows, table.rows, strict=True):
        torch.testing.assert_close((ours.a, ours.b, ours.c), (theirs.a, theirs.b, theirs.c), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", FLOWS)
def test_the_vector_holds_all_that_is_free_and_nothing_else(kind):
    parameters = TableParameters(FLOWS[kind], make_table(FLOWS[kind], "fast-sde", 5))
    # Intervals and what is left at the end; angle, gain, noise of 4 rows; 0 + 1 + 2 + 2 older shares; 2 of the mix.
    assert len(parameters.vector) == 5 + 3 * 4 + 5 + 2
    wanted = parameters.vector + torch.linspace(-0.1, 0.1, len(parameters.vector), dtype=torch.float64)
    before = parameters.table()
    parameters.set(wanted)
    assert torch.equal(parameters.vector, wanted)
    assert parameters.table() != before
    assert len(TableParameters(FLOWS[kind], before, noisy=False).vector) == 5 + 5 + 2


@pytest.mark.parametrize("kind", FLOWS)
@pytest.mark.parametrize("nfe", [1, 2, 4])
def test_a_late_start_is_fitted_with_the_width_of_the_first_state(kind, nfe):
    flow = FLOWS[kind]
    late = flow.schedule.time_of_s(torch.linspace(0.2, 0.8, nfe, dtype=torch.float64)).tolist()
    table = replace(
        plan(tiny.build("vectors" if kind == "continuous" else "text"), "fast-sde", grid=late).table, start=1.3
    )
    parameters = TableParameters(flow, table)
    again = parameters.table()
    torch.testing.assert_close((again.times, again.start), (table.times, 1.3), rtol=1e-9, atol=1e-12)
    assert parameters.shared_directions.any(0).all()
    moved = moved_at_random(parameters).table()
    assert moved.times[0] != pytest.approx(table.times[0])
    assert moved.start != pytest.approx(1.3)
    assert TableParameters(flow, moved).table().start == pytest.approx(moved.start)
    fixed = TableParameters(flow, table, noisy=False)
    assert len(fixed.vector) == len(parameters.vector) - 2 - 3 * (nfe - 1)
    assert moved_at_random(fixed).table().times[0] == pytest.approx(table.times[0])
    assert fixed.table().start == pytest.approx(1.3)


@pytest.mark.parametrize("kind", FLOWS)
def test_shared_directions_move_one_thing_in_all_rows(kind):
    flow = FLOWS[kind]
    parameters = TableParameters(flow, make_table(flow, "fast-sde", 5, grid="power:1:0.8", g=2.0))
    start, shared = parameters.vector, parameters.shared_directions
    tilt, end, angle, gain, noise, older, mix = shared.T
    assert shared.shape == (24, 7)

    def moved(way):
        parameters.set(start + 0.1 * way)
        return [*parameters.coefficients()]

    s, a, b, c, final = moved(torch.zeros_like(tilt))
    later = moved(tilt)[0]
    assert later[1].item() < s[1].item()
    torch.testing.assert_close(moved(end)[0][1:] / s[1:], (moved(end)[0][1] / s[1]).expand(4))
    torch.testing.assert_close(moved(gain)[2], b * math.exp(0.1))
    torch.testing.assert_close(moved(noise)[3], c * math.exp(0.1))
    torch.testing.assert_close(moved(angle)[1], (a.acos() + 0.1).cos())
    torch.testing.assert_close(moved(older)[2][:, 1], b[:, 1] * 1.1)
    torch.testing.assert_close(moved(mix)[4], final + torch.tensor([-0.1, 0.1, 0.0], dtype=torch.float64))


def batch_of(model, nfe, n=5):
    return Draws.make(model, n, nfe, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["images", "binary", "text", "vectors"])
def test_bound_parameters_sample_as_their_table_does(kind):
    model = tiny.build(kind).double()
    parameters = moved_at_random(TableParameters(model.flow, plan(model, "fast-sde", 4).table))
    draws = batch_of(model, 4)
    noise = iter(draws.noise).__next__
    ours = integrate(
        model.output, parameters.bind(draws.u), draws.u, noise, conditions=draws.conditions, clip=clip_range(model)
    ).final
    drawn = model.sample(5, parameters.table(), condition=draws.conditions, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours, drawn.final, rtol=1e-9, atol=1e-9)
    assert torch.equal(model.flow.decode(ours), drawn.x) or model.flow.has_range
