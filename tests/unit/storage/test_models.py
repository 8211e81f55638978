import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bfn
import tiny
from bfn import networks
from bfn.core.codec import Scaling
from bfn.core.conditions import Classes
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.core.heads import PreconditionedHead
from bfn.core.info import ErrorCurve, ModelInfo
from bfn.core.model import BFN
from bfn.core.table import Row, Table
from bfn.kinds.discretised import DiscretisedHead
from bfn.solvers.few_step import Anchor, Calibration
from bfn.storage import models as storage
from messages import refused


def small(width=8, **options):
    network = networks.MLP(3, width=width, n_blocks=1, condition_features=8, **options)
    return BFN(network, ContinuousFlow(0.02), PreconditionedHead(0.7), (3,))


def edited(directory, config):
    """The config changed by hand: without its digest, which would tell."""
    kept = {key: value for key, value in config.items() if key != "sha256"}
    (directory / "config.json").write_text(json.dumps(kept))


def randomised(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def test_a_model_comes_back_as_it_was(tmp_path):
    model = randomised(small(n_labels=4))
    model.info.card = {"steps": 7}
    model.save(tmp_path / "m")
    again = bfn.load(tmp_path / "m")
    assert (again.flow, again.head, again.data_shape) == (model.flow, model.head, (3,))
    assert not again.training
    u, t = torch.randn(5, 3), torch.rand(5)
    torch.testing.assert_close(again.network(u, t), model.network(u, t), rtol=0, atol=0)
    assert again.info == storage.read_info(tmp_path / "m") == model.info
    assert again.info.classes == Classes.equal(4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shipped_weights_are_rounded_and_read_as_float32(tmp_path, dtype):
    model = randomised(small())
    full = storage.save(model, tmp_path / "full") / "model.safetensors"
    half = storage.save(model, tmp_path / "half", dtype=dtype) / "model.safetensors"
    header = 3000  # the names and shapes of the tensors
    assert half.stat().st_size < full.stat().st_size / 2 + header
    for ours, theirs in zip(model.parameters(), bfn.load(tmp_path / "half").parameters(), strict=True):
        assert theirs.dtype == torch.float32
        torch.testing.assert_close(theirs, ours.to(getattr(torch, dtype)).float(), rtol=0, atol=0)


def test_discrete_flows_and_heads_with_parameters_are_kept(tmp_path):
    text = BFN(networks.Transformer(n_classes=5, width=8, n_heads=2, n_blocks=1), DiscreteFlow(5, 0.3), "logits", (6,))
    text.info.alphabet = "abcde"
    storage.save(text, tmp_path / "text")
    assert bfn.load(tmp_path / "text").flow == DiscreteFlow(5, 0.3)
    assert bfn.load(tmp_path / "text").info.alphabet == "abcde"
    binned = BFN(nn.Linear(3, 6), ContinuousFlow(0.1), DiscretisedHead(n_bins=16), (3,))
    storage.save(binned, tmp_path / "binned")
    assert bfn.load(tmp_path / "binned", network=nn.Linear(3, 6)).head == DiscretisedHead(n_bins=16)


def test_a_network_of_the_users_own_is_given_again(tmp_path):
    storage.save(BFN(nn.Linear(3, 3), ContinuousFlow(0.1), "data", (3,)), tmp_path)
    refused(r"network of its own: give it again, load\(..., network=", bfn.load, tmp_path)
    network = nn.Linear(3, 3)
    assert bfn.load(tmp_path, network=network).network is network


def test_other_architectures_are_refused_by_name(tmp_path):
    storage.save(small(), tmp_path)
    wider = networks.MLP(3, width=8, n_blocks=1, condition_features=16)
    for network, message in [
        (nn.Linear(3, 3), r"another architecture: no weight, bias; blocks\.0\..*, which the network"),
        (wider, r"\S+ has shape \(8, 64\), the network's has \(16, 64\)"),
    ]:
        refused(message, bfn.load, tmp_path, network=network)


def test_missing_and_foreign_things_are_named(tmp_path):
    refused("'nonsense': neither a directory nor one of the bundled models", bfn.load, "nonsense")
    refused(r"config.json: not there: expected a directory with model.safetensors", bfn.load, tmp_path)
    refused("dtype='float8': expected one of float32", storage.save, small(), tmp_path, dtype="float8")


def test_a_full_disk_leaves_the_old_model(tmp_path, monkeypatch):
    storage.save(randomised(small(), 1), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bfn._utils.files.sync", full)
    with pytest.raises(OSError) as error:  # noqa: PT011
        storage.save(randomised(small(), 2), tmp_path)
    assert error.value.errno == 28
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def tuned_table():
    rows = (Row(0.0, 1.0, (1 / 3,), 0.25), Row(0.1, 0.7, (0.2, -0.1), 0.0), Row(2 / 3))
    return Table(rows, (1.25, -0.25), record={"objective": "endpoint", "seed": 3})


def test_tuned_tables_come_back_to_the_last_bit_and_auto_takes_them(tmp_path):
    model = randomised(small())
    model.info.tables = {3: tuned_table()}
    again = bfn.load(storage.save(model, tmp_path / "m"))
    assert again.info.tables == model.info.tables
    assert again.info.tables[3].record == {"objective": "endpoint", "seed": 3}
    x = {
        name: m.sample(4, solver, 3, seed=0).x
        for name, m, solver in (
            ("before", model, "auto"), ("after", again, "auto"), ("table", again, again.info.tables[3]),
            ("other", again, "fast-sde"),
        )
    }  # fmt: skip
    assert torch.equal(x["before"], x["after"])
    assert torch.equal(x["before"], x["table"])
    assert not torch.equal(x["before"], x["other"])
    assert again.sample(4, nfe=4).times != again.sample(4, nfe=3).times


def test_a_grid_or_dial_of_the_users_own_leaves_the_table_aside():
    model = small()
    model.info.tables = {3: tuned_table()}
    assert model.sample(2, nfe=3).times == tuned_table().times
    for own in ({"g": 1.0}, {"grid": "uniform"}, {"t_start": 0.01}):
        assert model.sample(2, nfe=3, **own).times != tuned_table().times
    refused(r"nfe=4: the given table makes 3 calls", model.sample, 2, tuned_table(), 4)
    refused(r"g=1.0 beside a table", model.sample, 2, tuned_table(), g=1.0)


FORMAT_1 = {
    "format": 1,
    "flow": {"name": "continuous", "schedule": {"name": "exponential", "sigma_1": 0.02}},
    "head": {"name": "preconditioned", "data_std": 0.7},
    "data_shape": [3],
    "n_labels": 4,
    "alphabet": None,
    "card": {"settings": {"data": {"name": "points"}}, "loss_by_t": {"t": [0.25, 0.75], "squared_error": [2.0, 3.0]}},
}


def test_the_scaling_of_a_model_of_format_2_is_read(tmp_path):
    randomised(small()).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scaling = {"": {"shift": [1.0, 2.0, 3.0], "scale": [1.0, 1.0, 2.0]}}  # without the name of its class
    edited(tmp_path, {**config, "format": 2, "info": {"scaling": scaling}})
    assert bfn.load(tmp_path).info.scaling == {"": Scaling((1.0, 2.0, 3.0), (1.0, 1.0, 2.0))}


def test_a_model_of_format_1_is_read_as_it_was_meant(tmp_path):
    model = randomised(small(n_labels=4))
    save_file(model.network.state_dict(), tmp_path / "model.safetensors")
    tables = json.loads(json.dumps({"3": dataclasses.asdict(tuned_table())}))
    config = {**FORMAT_1, "network": model.network.config, "tables": tables}
    (tmp_path / "config.json").write_text(json.dumps(config))
    info = bfn.load(tmp_path).info
    expected = ModelInfo(
        classes=Classes.equal(4), error_curve=ErrorCurve((0.25, 0.75), (2.0, 2.0)), tables={3: tuned_table()},
        card={"settings": {"data": {"name": "points"}}},
    )  # fmt: skip
    assert info == expected
    assert info.trained_on == {"name": "points"}
    for key in ("n_labels", "alphabet", "card", "tables"):
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != key}))
        bfn.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphabet": 5}, "alphabet 5: expected a string"),
        ({"n_labels": 10**15}, "n_labels 1000000000000000: expected at most"),
        ({"n_labels": "ten"}, "n_labels 'ten': expected a whole number"),
        ({"card": []}, r"card \[\]: expected an object"),
        ({"card": {"loss_by_t": {"t": [0.1]}}}, "expected lists of numbers t and squared_error"),
        ({"card": {"loss_by_t": {"t": [2.0], "squared_error": [1.0]}}}, r"increase within \[0, 1\]"),
    ],
)
def test_wrong_values_of_format_1_are_refused_in_one_line(tmp_path, change, message):
    model = small(n_labels=4)
    save_file(model.network.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**FORMAT_1, "network": model.network.config, **change}))
    refused(message, bfn.load, tmp_path)


@pytest.mark.parametrize("name", ["digits", "mnist", "mnist-binary", "text8", "text8-plain"])
def test_a_bundled_model_loses_nothing_on_the_way_through_a_directory(tmp_path, name):
    model = bfn.load(name)
    again = bfn.load(model.save(tmp_path))
    assert again.info == model.info
    assert [table.record for table in again.info.tables.values()] == [t.record for t in model.info.tables.values()]
    assert (again.flow, again.head, again.data_shape) == (model.flow, model.head, model.data_shape)
    assert again.network.config == model.network.config
    weights, theirs = model.network.state_dict(), again.network.state_dict()
    assert list(weights) == list(theirs)
    assert all(torch.equal(weights[key], theirs[key]) for key in weights)
    assert storage.read_config(tmp_path) == storage.describe(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["info"].update(tables=[1]), r"info.tables \[1\]: expected an object"),
        (lambda c: c["info"]["tables"]["3"].pop("rows"), "info.tables.3: has no 'rows'"),
        (lambda c: c["info"]["tables"]["3"]["rows"].pop(), "the table for 3 calls: has 2 rows: expected one a call"),
        (lambda c: c["info"]["tables"]["3"]["rows"][0].update(a=float("nan")), "nan: expected a finite number"),
        (lambda c: c["info"]["tables"]["3"]["rows"][0].update(b=[0.1, 0.2]), "row 0: expected at most 1 numbers b"),
        (lambda c: c["info"]["tables"]["3"]["rows"][1].update(c=-0.1), "row 1: .* c of at least 0"),
        (lambda c: c["info"]["tables"]["3"]["rows"][1].update(commit=1), "1: expected true or false"),
        (lambda c: c["info"]["tables"].update({"0": {"rows": []}}), "for 0 calls: has no rows"),
        (lambda c: c["info"]["tables"].update({"03": c["info"]["tables"]["3"]}), "'03': expected a whole number"),
        (lambda c: c.update(format=99), "format 99: this version reads formats 1 to 3"),
        (lambda c: c.update(head={"name": "logits"}), "it is for discrete data, the flow is continuous"),
        (lambda c: c.update(head={"name": "data", "depth": 2}), "head data: has no 'depth'"),
        (lambda c: c["flow"].update(name="wavy"), "flow 'wavy': expected one of continuous, discrete"),
        (lambda c: c["flow"].pop("schedule"), "flow continuous: has no 'schedule'"),
        (lambda c: c["flow"]["schedule"].update(sigma_1=-1.0), "sigma_1=-1"),
        (lambda c: c.update(data_shape="abc"), "data_shape 'abc': expected a list"),
        (lambda c: c.update(data_shape=[0]), r"data_shape \[0\]: expected whole numbers above 0"),
        (lambda c: c["info"].update(alphabet="abca"), "is in it more than once"),
        (lambda c: c["info"].update(value_range=[1.0, -1.0]), r"expected \(lowest, highest\)"),
        (lambda c: c["info"].update(card=[]), r"card \[\]: expected an object"),
        (lambda c: c["info"].update(colour="blue"), "info: has no 'colour'"),
        (
            lambda c: c["info"].update(classes={"names": ["a"], "shares": [1.0]}),
            "1 classes: the network was made for 0",
        ),
        (lambda c: c["info"].update(classes={"names": ["a", "b"], "shares": [1.0]}), "2 class names, 1 shares"),
        (lambda c: c["info"].update(error_curve={"t": [2.0], "squared_error": [1.0]}), r"increase within \[0, 1\]"),
    ],
)
def test_wrong_values_are_refused_in_one_line(tmp_path, change, message):
    model = small()
    model.info.tables = {3: tuned_table()}
    storage.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(config)
    edited(tmp_path, config)
    refused(message, bfn.load, tmp_path)


def test_a_part_that_no_registry_knows_is_not_stored_in_silence(tmp_path):
    class Own(PreconditionedHead):
        pass

    model = BFN(networks.MLP(3, width=8, n_blocks=1, condition_features=8), ContinuousFlow(0.02), Own(0.7), (3,))
    refused(r"head Own: only .* can be stored; register it", model.save, tmp_path)


def test_tables_are_added_beside_a_calibration_that_stays(tmp_path):
    folder = tiny.save("vectors", tmp_path / "m")
    own, other = (Calibration((Anchor(5, g, 2, 1.0),)) for g in (0.0, 1.0))
    storage.store_tables(folder, {}, calibration=own)
    storage.store_tables(folder, {1: Table((Row(0.5),))})
    assert bfn.load(folder).info.calibration == own
    storage.store_tables(folder, {}, calibration=other)
    assert bfn.load(folder).info.calibration == other
    assert list(bfn.load(folder).info.tables) == [1]
