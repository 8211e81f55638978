"""Stored models under attack: changed bytes, kills, several writers, configs that ask for too much."""

import json
import multiprocessing
import os
import random
import resource
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

import bfn
import tiny
from bfn import networks
from bfn._utils.files import sweep
from bfn.cli import main
from bfn.core.table import Row, Table
from bfn.networks import build_for
from bfn.storage import models as storage
from fuzzing import cases, damage
from messages import refused

FILES = ("model.safetensors", "config.json")


def edit(directory, change):
    """Change the config by hand, and take out the digest, as the message says one can."""
    config = json.loads((directory / "config.json").read_text())
    config.pop("sha256", None)
    change(config)
    (directory / "config.json").write_text(json.dumps(config))


@cases(100, 500)
@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_is_seen(tmp_path, name, n):
    folder = tiny.save("vectors", tmp_path / "m")
    whole, chance = (folder / name).read_bytes(), random.Random(0)
    for changed in (damage(whole, chance) for _ in range(n)):
        if changed != whole:
            (folder / name).write_bytes(changed)
            refused(name, bfn.load, folder)
    (folder / name).write_bytes(whole)
    bfn.load(folder)


def test_the_bundled_models_carry_digests():
    for name in storage.bundled():
        path = storage.locate(name) / "model.safetensors"
        digest = storage.read_header(path).digest
        assert digest is not None
        assert json.loads((path.parent / "config.json").read_text())["weights"] == digest
        storage.verify(path)


def test_other_programs_read_the_weights(tmp_path):
    tensors = {
        "a": torch.arange(3.0), "b": torch.tensor(True), "c": torch.arange(4, dtype=torch.int64).view(2, 2),
        "d": torch.randn(3, 5).bfloat16(), "e": torch.empty(0, 3), "f": torch.arange(7, dtype=torch.uint8),
    }  # fmt: skip
    storage.write_weights(tmp_path / "w.safetensors", tensors, {"who": "me"})
    again = load_file(tmp_path / "w.safetensors")
    assert set(again) == set(tensors)
    assert all(torch.equal(again[name], value) and again[name].dtype == value.dtype for name, value in tensors.items())
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    assert storage.read_header(tmp_path / "w.safetensors").shapes == shapes


def test_a_kill_between_the_two_files_leaves_a_whole_model(tmp_path, monkeypatch):
    folder = tiny.save("text", tmp_path / "m")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "_write_config", killed)
    with pytest.raises(KeyboardInterrupt):
        tiny.save("vectors", folder)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="of other weights, as a save that was killed leaves it"):
        model = bfn.load(folder)
    assert model.data_shape == (2,)
    assert "written again from the copy" in storage.repair(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bfn.load(folder).data_shape == (2,)
    assert "nothing to repair" in storage.repair(folder)


def save_in_turn(folder, saved):
    """Two models, one over the other, for ever."""
    models = [tiny.build("vectors"), tiny.build("vectors")]
    for number, model in enumerate(models):
        model.info.card = {"number": number}
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, float(number))
    while True:
        for model in models:
            model.save(folder)
        saved.set()


def test_whenever_save_is_killed_the_model_is_whole(tmp_path):
    folder, chance, context = tmp_path / "m", random.Random(0), multiprocessing.get_context("fork")
    for _ in range(30):
        saved = context.Event()
        process = context.Process(target=save_in_turn, args=(folder, saved))
        process.start()
        assert saved.wait(120)
        time.sleep(0.05 * chance.random())  # some way into one of the next saves, over the other model
        process.kill()
        process.join()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = bfn.load(folder)
        assert all(bool((p == model.info.card["number"]).all()) for p in model.parameters())
    model.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_what_kills_left_is_removed_by_the_next_save(tmp_path):
    folder = tiny.save("vectors", tmp_path / "m")
    (folder / ".model.safetensors.abc.tmp").write_bytes(b"half")
    (folder / ".config.json.abc.tmp").write_bytes(b"half")
    (folder / ".mine.abc.tmp").write_bytes(b"keep")
    tiny.save("vectors", folder)
    assert sorted(path.name for path in folder.iterdir()) == [".mine.abc.tmp", "config.json", "model.safetensors"]
    sweep(folder / "mine")
    assert len(list(folder.iterdir())) == 2


def test_files_have_the_modes_that_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        folder = tiny.save("vectors", tmp_path / "m")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o640"}


def test_weights_that_are_not_finite_are_neither_stored_nor_loaded(tmp_path):
    model = tiny.build("vectors")
    folder = model.save(tmp_path / "m")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for value in (float("nan"), float("inf")):
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] = value
        refused(r"not stored: .*: 1 of its \d+ values are NaN or infinite", model.save, folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
        (tmp_path / "old").mkdir(exist_ok=True)
        save_file(model.network.state_dict(), tmp_path / "old" / "model.safetensors")
        (tmp_path / "old" / "config.json").write_text(json.dumps(storage.describe(model)))
        refused(r"model.safetensors: .*: 1 of its \d+ values are NaN or infinite", bfn.load, tmp_path / "old")


def test_a_damaged_config_is_repaired_from_the_weights_by_a_command(tmp_path, capsys):
    folder = tiny.save("images", tmp_path / "m")
    whole = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(whole[:-300])
    assert main(["info", str(folder)]) == 2
    assert f"bfn info {folder} --repair" in capsys.readouterr().err
    assert main(["info", str(folder), "--repair"]) == 0
    assert (folder / "config.json").read_bytes() == whole


def test_damaged_weights_are_taken_from_a_checkpoint_of_the_run(tmp_path, capsys):
    folder = tiny.save("vectors", tmp_path / "run")
    whole = (folder / "model.safetensors").read_bytes()
    old = tiny.build("vectors")
    torch.nn.init.zeros_(next(old.parameters()))
    old.save(folder / "checkpoints" / "step-00000020")
    tiny.save("vectors", folder / "checkpoints" / "step-00000010")
    (folder / "model.safetensors").write_bytes(whole[:-1] + b"x")
    assert main(["info", str(folder), "--repair"]) == 0
    assert "taken from" in capsys.readouterr().out
    assert (folder / "model.safetensors").read_bytes() == whole
    (folder / "model.safetensors").write_bytes(b"")
    refused("no copy is known: restore it from a backup", storage.repair, folder)


def test_a_config_changed_by_hand_is_refused_or_taken_as_the_message_says(tmp_path):
    folder = tiny.save("images", tmp_path / "m")
    text = (folder / "config.json").read_text().replace("1.23456", "9.9")
    (folder / "config.json").write_text(text)
    refused('changed since it was stored; undo the change, or delete the line "sha256"', bfn.load, folder)
    (folder / "config.json").write_text("".join(line for line in text.splitlines(True) if '"sha256"' not in line))
    assert bfn.load(folder).info.card["quality"] == {"bits a dimension": 9.9}
    storage.save(bfn.load(folder), folder)
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes().replace(b"\n", b"\r\n"))
    bfn.load(folder)


def test_weights_of_another_program_in_place_of_the_stored_ones(tmp_path):
    folder = tiny.save("vectors", tmp_path / "m")
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    refused(r"not the weights that config.json was stored with", bfn.load, folder)


def table(nfe: int) -> Table:
    times = [i / nfe for i in range(nfe)]
    return Table((*(Row(t, 1.0, (0.1,)) for t in times[:-1]), Row(times[-1])))


def test_of_several_writers_of_tables_none_is_lost(tmp_path):
    folder = tiny.save("vectors", tmp_path / "m")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda nfe: storage.store_tables(folder, {nfe: table(nfe)}), range(2, 22)))
    assert sorted(bfn.load(folder).info.tables) == list(range(2, 22))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["network"].update(n_blocks=10_000), "larger than its file"),
        (lambda c: c["network"].update(n_blocks=2**63), "n_blocks=.*expected a whole number from 1 to 10,000"),
        (lambda c: c["network"].update(width=10**9), "weights of another architecture"),
        (lambda c: c["network"].update(width=2**62), "config.json"),
        (lambda c: c["network"].update(width=8.5), "config.json"),
        (lambda c: c["network"].update(n_blocks="many"), "config.json"),
        (lambda c: c["network"].update(n_labels=10**12), "weights of another architecture"),
        (lambda c: c.update(data_shape=[2**40, 2**40]), "data_shape"),
        (lambda c: c.update(colour="blue"), "'colour': a config of format 3 has format, flow"),
        (lambda c: c["info"].update(alphabet="ab"), "2 characters: the flow has None classes"),
        (lambda c: c["info"].setdefault("card", {}).update(deep=json.loads("[" * 60 + "]" * 60)), "more than 50 deep"),
    ],
)
def test_a_config_that_asks_for_too_much_costs_little(tmp_path, change, message):
    folder = tiny.save("vectors", tmp_path / "m")
    edit(folder, change)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    refused(message, bfn.load, folder)
    assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_table_of_positions_that_asks_for_too_much(tmp_path):
    folder = tiny.save("text", tmp_path / "m")
    edit(folder, lambda c: c["network"].update(max_length=10**9))
    refused("larger than its file", bfn.load, folder)


def test_json_nested_without_end_is_one_line(tmp_path):
    folder = tiny.save("vectors", tmp_path / "m")
    (folder / "config.json").write_text("[" * 100_000)
    refused(r"config.json", bfn.load, folder)


def test_every_network_is_built_for_its_own_weights_and_no_others():
    unet = {"width": 8, "n_blocks": 1, "n_heads": 1, "groups": 4}
    made = {
        "mlp": {"in_features": 2}, "unet": {"in_channels": 1}, "transformer": {"n_classes": 5},
        "table-mlp": {"n_numbers": 2, "class_counts": [2, 3], "width": 16},
        "table-transformer": {"n_numbers": 2, "class_counts": [2, 3], "width": 16},
        "official-transformer": {"n_classes": 5, "length": 8, "width": 16, "n_layers": 1, "n_heads": 2},
        "official-flat-unet": {"channels": 3, "n_outputs": 3, **unet},
        "official-binary-unet": {"multipliers": [1], "attention_rates": [], **unet},
    }  # fmt: skip
    for name in networks.NETWORKS:
        config = {"name": name, **made.get(name, {})}
        weights = networks.build(config).state_dict()
        build_for(config, weights)
        refused("another architecture: no", build_for, config, {key: weights[key] for key in list(weights)[1:]})
