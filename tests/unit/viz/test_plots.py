"""Plots show the numbers that they are made from."""

import numpy as np
import torch
from matplotlib.collections import PathCollection

import bfn
from bfn import viz as plot
from bfn.core.info import ErrorCurve
from bfn.core.solver import plan
from bfn.core.table import Table


def mixture() -> bfn.exact.GaussianMixture:
    means = torch.tensor([[-1.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    return bfn.exact.GaussianMixture(means, stds=torch.tensor([0.1, 0.2]))


def strings() -> bfn.exact.StringSet:
    return bfn.exact.StringSet(torch.tensor([[0, 1], [1, 2], [2, 2]]), n_classes=3, beta_1=4.0)


def rows(solver: str, nfe: int, model: bfn.Model | None = None) -> Table:
    return plan(model or mixture(), solver, nfe).table


def test_recording_changes_nothing_and_keeps_every_call() -> None:
    model = mixture()
    start = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    paths = plot.record(model, 5, solver="fast-ode", nfe=7, initial=start)
    plain = bfn.sample(model, 5, solver="fast-ode", nfe=7, initial=start)
    assert torch.equal(paths.samples.x, plain.x)
    assert paths.u.shape == (7, 5, 2)
    assert tuple(paths.times.tolist()) == plain.times
    assert torch.equal(paths.u[0], start)
    s = model.flow.schedule.s_of(plain.times)[3]
    assert torch.allclose(paths.inputs[3], paths.u[3] * s / (1 + s * s))


def test_plane_draws_each_path_to_its_sample() -> None:
    model = mixture()
    paths = plot.record(model, 4, solver="bfn-solver++2", nfe=6, generator=torch.Generator().manual_seed(1))
    axes = plot.plane(paths, model=model)
    assert len(axes.lines) == 4
    for line, end in zip(axes.lines, paths.samples.x, strict=True):
        assert np.allclose(line.get_xydata()[-1], end)
        assert len(line.get_xydata()) == 7
    ground = axes.collections[0]
    assert isinstance(ground, PathCollection)
    assert len(ground.get_offsets()) == 2000


def test_simplex_puts_a_certain_class_in_its_corner() -> None:
    paths = plot.record(strings(), 6, solver="bfn-solver2", nfe=30, generator=torch.Generator().manual_seed(2))
    axes = plot.simplex(paths, variable=1)
    corners = axes.lines[0].get_xydata()[:3]
    for line, theta in zip(axes.lines[1:], paths.inputs[-1, :, 1], strict=True):
        assert np.allclose(line.get_xydata()[-1], theta.double().numpy() @ corners)
        assert np.allclose(line.get_xydata()[0], corners.mean(0), atol=0.05)


def test_table_shares_of_a_step_sum_to_one_and_reach_back_as_far_as_the_order() -> None:
    shares = plot.table(rows("bfn-solver++2", 8)).images[0].get_array()
    assert np.allclose(shares.sum(1), 1)
    assert np.all(np.triu(shares, 1) == 0)
    assert np.all(np.tril(shares, -2) == 0)
    assert np.any(np.diag(shares, -1) < 0)


def test_noise_is_shown_only_where_there_is_some() -> None:
    for solver, dots in (("bfn-solver2", 0), ("sde-bfn-solver2", 4)):
        drawn = plot.table(rows(solver, 5, strings())).collections
        assert sum(isinstance(c, PathCollection) for c in drawn) == dots


def test_loss_by_t_draws_what_is_stored() -> None:
    axes = plot.loss_by_t({"a": ErrorCurve((0.1, 0.9), (1.0, 0.1))})
    assert np.allclose(axes.lines[0].get_xydata(), [[0.1, 1.0], [0.9, 0.1]])


def test_saved_pictures_are_pictures(tmp_path) -> None:
    plot.save(plot.nodes(bfn.ContinuousFlow(), {"fast-ode": rows("fast-ode", 5)}), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
