"""``bfn.fit``: any form of data, and what the model knows afterwards."""

import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import bfn
from bfn.core.losses import error_curve, noised_output, weighting_of
from bfn.exact.joint import JointMixture
from bfn.networks.mlp import MLP
from bfn.networks.transformer import Transformer
from bfn.training.objective import Batch, DenoisingObjective
from bfn.training.source import DataOptions, open_data, take_batch
from bfn.training.trainer import OneProcess, StoppingRule, Trainer

Y = torch.arange(300) % 3
X = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) * 0.1 + torch.stack([Y - 1.0, (Y == 1) * 1.0], 1)


def points(**options):
    torch.manual_seed(0)
    return bfn.BFN(MLP(2, width=32, n_blocks=2, **options), bfn.ContinuousFlow.for_data(X), "preconditioned", (2,))


def test_a_fitted_model_draws_what_it_was_shown_and_knows_it():
    model = bfn.fit(points(n_labels=3), X, 300, label=Y, lr=3e-3, ema=0.99, progress=False)
    assert not model.training
    assert model.info.classes.shares == pytest.approx([1 / 3] * 3)
    assert model.info.value_range == (float(X.min()), float(X.max()))
    assert model.info.error_curve is not None
    out = model.sample(600, nfe=20, seed=0)
    for k in range(3):
        drawn, real = out.x[out.label == k], X[k == Y]
        assert float((drawn.mean(0) - real.mean(0)).norm()) < 0.06
        assert float((drawn.std(0) - real.std(0)).abs().max()) < 0.05


def test_the_same_seed_gives_the_same_weights_and_the_random_state_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    models = [points(), points()]
    torch.set_rng_state(before)
    one, other = (bfn.fit(model, X, 4, seed=3, progress=False).state_dict() for model in models)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.get_rng_state(), before)


class Mapped(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return {"x": X[i], "label": int(Y[i]), "gap": X[i, 0]}


@pytest.mark.parametrize("form", ["array", "pairs", "mapping", "frame", "path"])
def test_every_form_of_data_gives_the_same_facts(form, tmp_path):
    network = {"n_labels": 3, "conditions": {"gap": {"shape": []}} if form == "mapping" else None}
    model, label = points(**network), None
    if form == "array":
        given, label = X.numpy(), Y.numpy()
    elif form == "pairs":
        given = TensorDataset(X, Y)
    elif form == "mapping":
        given = Mapped()
    elif form == "frame":
        pandas = pytest.importorskip("pandas")
        given, label = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": [f"k{y}" for y in Y]}), "kind"
    else:
        np.savez(tmp_path / "x.npz", x=X.numpy(), label=Y.numpy())
        given = str(tmp_path / "x.npz")
    bfn.fit(model, given, 3, label=label, batch=16, progress=False)
    assert len(model.info.classes) == 3
    assert model.info.classes.shares == pytest.approx([1 / 3] * 3, abs=0.03)
    assert set(model.info.conditions) == ({"gap"} if form == "mapping" else set())
    assert bool(model.info.scaling) == (form in ("frame", "path"))
    if form == "frame":
        assert model.info.classes.names == ("k0", "k1", "k2")
    if form in ("frame", "path"):
        assert model.decode(torch.zeros(1, 2)) == pytest.approx(X.mean(0)[None].numpy(), abs=0.06)


def test_names_of_classes_and_lengths_are_taken_from_the_data():
    x = torch.randint(0, 4, (40, 6))
    lengths = torch.arange(40) % 5 + 2
    present = torch.arange(6) < lengths[:, None]
    network = Transformer(n_classes=4, width=16, n_heads=2, n_blocks=1, n_labels=2)
    model = bfn.BFN(network, bfn.DiscreteFlow(4), "logits", (6,))
    names = ["odd" if i % 2 else "even" for i in range(40)]
    bfn.fit(model, x, 3, label=names, present=present, batch=8, progress=False)
    assert model.info.classes.names == ("even", "odd")
    assert model.info.lengths.shares == pytest.approx([0, 0, 0.2, 0.2, 0.2, 0.2, 0.2])
    assert model.sample(4, nfe=2, label="odd", lengths=3).present.sum(1).tolist() == [3] * 4
    source = open_data(model, x, DataOptions(present=present))
    for step in range(5):
        taken, conditions = take_batch(source, 0, step, 8)
        assert taken.shape[1] == int(conditions["present"].sum(1).max())


def test_joint_data_have_a_weighting_for_each_part():
    torch.manual_seed(0)
    flow = bfn.JointFlow(x=bfn.ContinuousFlow(0.05), kind=bfn.DiscreteFlow(3))
    head = bfn.heads.PreconditionedHead(data_std=0.7)
    from bfn.core.joint import JointHead

    joint = JointHead.make({"x": head, "kind": "logits"}, flow, flat=True)
    model = bfn.BFN(MLP(5, width=32, n_blocks=2), flow, joint, {"x": (2,), "kind": ()})
    data = {"x": X, "kind": Y}
    before = float(model.loss(data, generator=torch.Generator().manual_seed(0)).mean().detach())
    bfn.fit(model, data, 200, lr=3e-3, ema=0.99, progress=False)
    assert float(model.loss(data, generator=torch.Generator().manual_seed(0)).mean().detach()) < 0.5 * before
    out = model.sample(300, nfe=20, seed=0).x
    means = torch.stack([X[k == Y].mean(0) for k in range(3)])
    nearest = torch.cdist(out["x"], means).argmin(1)
    assert float((nearest == out["kind"]).float().mean()) > 0.8


def test_refused_data_leave_the_model_as_it_was(refuses):
    pd = pytest.importorskip("pandas")
    model = points()
    before = model.info
    refuses("the model's data are (2,)", bfn.fit, model, pd.DataFrame({"a": [1.0, 2.0]}), 3, progress=False)
    assert model.info is before


def test_the_noise_at_the_end_is_a_hundredth_of_the_spread_of_the_data():
    assert bfn.ContinuousFlow.for_data(X).schedule.sigma_1 == pytest.approx(0.01 * float(X.std(correction=0)))


def test_the_quick_starts_lines_run(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    text = (Path(__file__).parents[3] / "docs" / "index.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert "steps=900" in block
    monkeypatch.chdir(tmp_path)
    exec(compile(block.replace("steps=900", "steps=2, progress=False"), "index.md", "exec"), {})
    assert bfn.load(tmp_path / "runs" / "my-digits").info.classes.shares == pytest.approx([0.1] * 10, abs=0.01)


def test_the_time_budget_plans_the_number_of_steps():
    rule = StoppingRule(10_000, minutes=1.0)
    for step, seconds, planned in (
        (1, 0.5, 10_000),  # the first step is slow, and not counted
        (2, 0.6, 10_000),
        (31, 3.5, 31 + 565),  # 0.1 seconds for each step
        (91, 9.5, 91 + 505),
        (116, 15.5, 116 + 185),  # slower
    ):
        rule.plan(step, seconds)
        assert rule.steps == planned
    assert rule.is_done(301)
    assert StoppingRule(100).steps == 100


def test_the_learning_rate_falls_to_zero_when_minutes_end_the_run(monkeypatch):
    rates = []
    step = Trainer.train_step

    def recorded(self):
        step(self)
        rates.append(self.optimiser.param_groups[0]["lr"])

    monkeypatch.setattr(Trainer, "train_step", recorded)
    began = time.monotonic()
    model = bfn.fit(points(), X, 10**6, minutes=0.03, progress=False)
    assert time.monotonic() - began < 10
    assert model.info.card["steps"] == len(rates) < 10**5
    assert max(rates) > 0.5e-3
    assert rates[-1] < 0.1e-3


@pytest.mark.parametrize("times", ["shared", "separate"])
def test_the_error_curve_of_joint_data_is_that_of_the_part_whose_schedule_it_is_read_with(times):
    flows = {"x": bfn.ContinuousFlow(0.02), "kind": bfn.DiscreteFlow(3, 6.0)}
    numbers = {"x": (torch.tensor([[-1.0, 0.5], [1.0, -0.5]]), torch.full((2, 2), 0.2))}
    model = JointMixture(numbers, {"kind": torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.2, 0.7]])}, flows=flows)
    model.flow = bfn.JointFlow(flows, times=times).for_shape(model.data_shape) if times == "separate" else model.flow
    n, generator = 3000, torch.Generator().manual_seed(0)
    x = model.as_data(model.sample_data(n, generator))
    weighting = weighting_of(model, "bound")
    t, factor = weighting.draw(model.flow, n, generator)
    eps = torch.randn((n, *model.flow.state_shape(model.data_shape)), generator=generator, dtype=model.dtype)
    objective = DenoisingObjective(model, None, weighting, n, OneProcess(torch.device("cpu")))
    objective.loss(objective.module, Batch(x, t, eps, factor, {}))
    own, found = (t[:, 0] if times == "separate" else t), objective.record.recent
    mean = noised_output(model, x, t, None, {}, eps)[0].mean
    errors = model.flow.split(model.flow.errors(x, mean))
    error, slope = errors["x"].flatten(1).mean(1), flows["x"].schedule.slope(own)
    bins = (own * 64).long().clamp(max=63)
    for row, values in enumerate((torch.ones(n), error, (error * slope / 2).square())):
        torch.testing.assert_close(found[row], torch.zeros(64).double().index_add(0, bins, values.double()))
    # The curve that is measured after training is that of the same part.
    curve = error_curve(model, x, 3, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    for at, value in zip(curve.t, curve.squared_error, strict=True):
        mean = noised_output(model, x, torch.full((n,), at).double(), generator)[0].mean
        assert value == pytest.approx(float(model.flow.split(model.flow.errors(x, mean))["x"].mean()))
    # The mean over all parts is another curve: that of the classes falls along another schedule.
    assert abs(float(errors["kind"].mean() / error.mean()) - 1) > 0.2
