"""Training on people's own data: defaults, batches by length, scale, resuming, what padding counts."""

import random

import numpy as np
import pytest
import torch

import bfn
from bfn import training
from bfn.core.schedules import QuadraticSchedule
from bfn.data.loading import read_model_data
from bfn.training.building import open_recipe_data as open_source
from bfn.training.source import TensorSource, batch_rows, take_batch

QUICK = {
    "steps": 6, "batch": 8, "warmup": 2, "log_every": 3, "eval_every": 0, "eval_count": 8, "sample_every": 0,
    "sample_count": 4, "sample_nfe": 3, "checkpoint_every": 3, "tensorboard": False,
}  # fmt: skip
SMALL = {
    "transformer": {"network.width": 16, "network.n_heads": 2, "network.n_blocks": 1},
    "mlp": {"network.width": 16},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("own"), random.Random(0)
    rows = []
    for _ in range(120):
        n = rng.randint(2, 9)
        smiles = "".join(rng.choice(["C", "O", "Cl", "c1ccccc1"]) for _ in range(n))
        rows.append(f"{smiles},{n / 10},{'long' if n > 5 else 'short'}")
    (folder / "drugs.csv").write_text("smiles,gap,kind\n" + "\n".join(rows) + "\n")
    proteins = [f">p{i}\n{''.join(rng.choice('ACDEF') for _ in range(rng.randint(2, 7)))}" for i in range(40)]
    (folder / "proteins.fasta").write_text("\n".join(proteins) + "\n")
    y = np.arange(120) % 3
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 2)) * [50, 0.01] + np.stack([1000 + 100 * y, y / 10], 1)
    np.savez(folder / "points.npz", x=x, label=y)
    np.savez(folder / "parts.npz", place=x, kind=y, count=draw.integers(0, 4, (120, 2)))
    return folder


def settings_of(folder, name, **options):
    settings = training.default_settings({"name": str(folder / name), **options})
    return settings.override({**QUICK, **SMALL[settings.network["name"]]})


DRUGS = {"sequence": ["smiles"], "conditions": ["gap"], "label": "kind", "tokenizer": "smiles"}
KINDS = {
    "drugs.csv": ("transformer", "discrete", DRUGS),
    "proteins.fasta": ("transformer", "discrete", {}),
    "points.npz": ("mlp", "continuous", {}),
    "parts.npz": ("mlp", "joint", {"parts": ["place", "kind", "count"]}),
}


@pytest.mark.parametrize("name", KINDS)
def test_settings_that_suit_the_data_train_a_model_that_knows_them(folder, tmp_path, name):
    network, flow, options = KINDS[name]
    settings = settings_of(folder, name, **options)
    assert (settings.network["name"], settings.flow["name"]) == (network, flow)
    training.train(settings, tmp_path / "run", progress=False, cpu=True)
    model = bfn.load(tmp_path / "run")
    out = model.sample(5, nfe=3, seed=0)
    there = out.present
    shown = model.decode(out.x, there)
    if name == "drugs.csv":
        assert model.info.classes.names == ("long", "short")
        assert model.info.conditions["gap"].high == pytest.approx(0.9)
        assert model.flow.schedule.beta_1 == pytest.approx(18 / len(model.info.tokenizer))
        assert all(len(model.info.tokenizer.encode(text)) == n for text, n in zip(shown, there.sum(1), strict=True))
        assert model.sample(2, nfe=2, label="long", condition={"gap": 0.5}, lengths=4).present.sum(1).tolist() == [4, 4]
    if name == "points.npz":
        assert 600 < shown[:, 0].mean() < 1700
    if name == "parts.npz":
        assert set(shown) == {"place", "kind", "count"}
        assert shown["count"].shape == (5, 2)
        assert 600 < shown["place"][:, 0].mean() < 1700
    read = read_model_data(model, part="validation")
    assert (read.present is None) == (model.info.lengths is None)
    assert np.isfinite(model.log_likelihood(read.x, "bound", 5, **read.arguments(model)).bits.value)


def test_a_run_that_goes_on_ends_where_one_in_a_piece_does(folder, tmp_path):
    settings = settings_of(folder, "drugs.csv", **DRUGS)
    settings = settings.override({"decay_from": 1.0})  # the rate of a shorter run falls sooner
    for name, steps in (("whole", 6), ("cut", 3), ("cut", 6)):
        own = settings.override({"steps": steps})
        training.train(own, tmp_path / name, resume=True, progress=False, cpu=True)
    one, other = (bfn.load(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_batches_are_of_like_lengths_cut_to_the_longest_and_the_same_however_they_are_shared(folder):
    source = open_source({"name": str(folder / "drugs.csv"), **DRUGS}, "discrete", "train")
    lengths = [take_batch(source, 0, step, 8)[1]["present"].sum(1) for step in range(13)]
    for step in range(13):
        x, conditions = take_batch(source, 0, step, 8)
        assert x.shape == conditions["present"].shape
        assert x.shape[1] == int(lengths[step].max())
        half, its_own = take_batch(source, 0, step, 8, slice(4, 8))
        assert torch.equal(half, x[4:])
        assert all(torch.equal(its_own[name], conditions[name][4:]) for name in conditions)
    spread = torch.stack([own.float().std() for own in lengths]).mean()
    assert float(spread) < 0.3 * float(torch.cat(lengths).float().std())
    # Not from short to long: batches come in any order.
    means = torch.stack([own.float().mean() for own in lengths])
    assert not torch.equal(means, means.sort().values)


def test_grouped_batches_take_every_item_once_each_time_round():
    source = TensorSource(torch.zeros(40), {}, bfn.ModelInfo(), torch.arange(40) % 7)
    items = torch.cat([batch_rows(source, 3, step, 4) for step in range(10)])
    assert items.sort().values.tolist() == list(range(40))
    assert not torch.equal(batch_rows(source, 3, 0, 4), batch_rows(source, 4, 0, 4))


def test_numbers_are_scaled_in_training_and_come_back_in_their_own_units(folder):
    source = open_source({"name": str(folder / "points.npz")}, "continuous", "train")
    x, conditions = source.first(1000)
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)
    model = bfn.BFN(torch.nn.Identity(), bfn.ContinuousFlow(0.01), "data", (2,), source.facts)
    own = np.load(folder / "points.npz")["x"]
    back = model.decode(x)
    assert all(np.abs(own - row).max(1).min() < 1e-3 for row in back)
    assert set(conditions) == {"label"}
    held_out = open_source({"name": str(folder / "points.npz")}, "continuous", "validation", like=source)
    assert held_out.facts is source.facts


OWN = """
import torch

class Own(torch.nn.Module):
    def __init__(self, data_shape, n_labels, width=8):
        super().__init__()
        self.label = torch.nn.Embedding(n_labels + 1, width)
        self.hidden = torch.nn.Linear(data_shape[0] + 1, width)
        self.out = torch.nn.Linear(width, data_shape[0])

    def forward(self, inputs, t, label):
        return self.out(torch.tanh(self.hidden(torch.cat([inputs, t[:, None]], 1)) + self.label(label + 1)))
"""


def test_a_network_of_the_users_own_is_made_with_the_sizes_it_takes(folder, tmp_path, monkeypatch, refuses):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    settings = training.default_settings({"name": str(folder / "points.npz")}, "mine:Own")
    settings = settings.override({**QUICK, "network.width": 5})
    training.train(settings, tmp_path / "run", progress=False, cpu=True)
    refuses("stored with a network of its own", bfn.load, tmp_path / "run")
    model = training.load_with_network(str(tmp_path / "run"), f"{tmp_path / 'mine.py'}:Own")
    assert model.network.hidden.out_features == 5
    assert model.sample(3, nfe=2, label=1).x.shape == (3, 2)
    for wrong, message in (
        ("nowhere_to_be_found:Own", "no module 'nowhere_to_be_found'"),
        ("mine:Owm", "has no class 'Owm'"),
    ):
        refuses(message, training.load_with_network, str(tmp_path / "run"), wrong)


def test_a_schedule_of_joint_data_is_that_of_a_part(folder, tmp_path, refuses):
    settings = settings_of(folder, "parts.npz", parts=["place", "kind", "count"])
    wrong = settings.override({"flow.schedule.name": "quadratic"})
    refuses("of one part it is flow.parts.place.schedule", training.train, wrong, tmp_path / "wrong", progress=False)
    own = {"flow.parts.place.schedule.name": "quadratic", "flow.parts.place.schedule.beta_1": 9.0, "steps": 1}
    training.train(settings.override(own), tmp_path / "run", progress=False, cpu=True)
    assert bfn.load(tmp_path / "run").flow.parts["place"].schedule == QuadraticSchedule(9.0)
