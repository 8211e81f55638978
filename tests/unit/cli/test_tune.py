"""``bfn tune``: the table is stored with the model, or with a copy of it, and ``auto`` takes it."""

import json

import pytest

import bfn
import tiny
from bfn.cli import main
from bfn.storage import models as storage
from messages import refused
from planned import make_table


def test_the_command_stores_the_table_and_auto_takes_it(tmp_path, capsys):
    folder = tiny.save("vectors", tmp_path / "m")
    arguments = ["--nfe", "4", "--objective", "endpoint", "--steps", "6", "--batch", "16", "--starts", "16"]
    assert main(["tune", str(folder), *arguments, "--held-out", "16", "--teacher-nfe", "20"]) == 0
    assert f"stored in {folder}" in capsys.readouterr().out
    model = bfn.load(folder)
    assert model.info.tables[4].record["objective"] == "endpoint"
    assert model.sample(2, nfe=4).times == model.info.tables[4].times
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
    assert bfn.load(copy).info.tables == tables
    assert bfn.load(folder).info.tables == {3: tables[3]}
    assert (copy / storage.WEIGHTS).read_bytes() == (folder / storage.WEIGHTS).read_bytes()
    # A copy keeps what it has been given before, and one that was cut off before its config is finished.
    storage.store_tables(folder, {5: make_table(bfn.load(folder).flow, "fast-ode", 5)}, copy)
    assert set(bfn.load(copy).info.tables) == {3, 4, 5}
    (copy / storage.CONFIG).unlink()
    storage.store_tables(folder, {4: tables[4]}, copy)
    assert bfn.load(copy).info.tables == tables


def test_tables_are_not_stored_over_anything_else(tmp_path):
    folder, other = tiny.save("vectors", tmp_path / "m"), tiny.save("text", tmp_path / "other")
    renamed = tiny.save("vectors", tmp_path / "renamed")
    config = json.loads((renamed / storage.CONFIG).read_text())
    del config["sha256"]  # changed by hand
    (renamed / storage.CONFIG).write_text(json.dumps({**config, "head": {"name": "noise"}}))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out in (other, renamed, tmp_path / "notes"):
        refused("holds something else than a copy of", storage.store_tables, folder, {}, out)
    for out in (tmp_path / "notes" / "a.txt", tmp_path / "notes" / "a.txt" / "below"):
        refused("no directory that can be written to", storage.store_tables, folder, {}, out)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits"], "digits is a bundled model: give --out DIR"),
        (["digits", "--nfe", "1", "--out", "x"], "nfe=1: a table of one call"),
        (
            ["digits", "--out", "x", "--objective", "endpoint", "--teacher-nfe", "6"],
            "teacher_nfe=6: expected more calls",
        ),
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
    monkeypatch.setattr("bfn.training.tuning.tables.tune", lambda *_, **__: pytest.fail("tuned first"))
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
    assert model.info.tables[4].record["objective"] == "grid"
    assert all(row.c == 0 for row in model.info.tables[4].rows)
    assert model.sample(2, nfe=4).times == model.info.tables[4].times


def test_a_model_without_a_card_is_told_to_name_data(tmp_path, capsys):
    folder = tiny.save("binary", tmp_path / "m")
    assert main(["tune", str(folder)]) == 2
    assert "the model's card does not say what it was trained on" in capsys.readouterr().err
