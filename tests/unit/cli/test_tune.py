"""``bfn tune``: the table is stored with the model, or with a copy of it, and ``auto`` takes it."""

import json

import pytest

import bfn
import tiny
from bfn.storage import models as storage
from commands import run
from messages import refused
from planned import make_table


@pytest.fixture
def folder(tmp_path):
    return tiny.save("vectors", tmp_path / "m")


@pytest.mark.parametrize("objective", ["endpoint", "grid"])
def test_the_command_stores_the_table_and_auto_takes_it(objective, folder, tmp_path, capsys, values):
    arguments = ["--nfe", 4, "--objective", objective, "--steps", 6, "--batch", 16, "--teacher-nfe", 30]
    run("tune", folder, *arguments, "--held-out", 32)
    assert f"stored in {folder}" in capsys.readouterr().out
    model = bfn.load(folder)
    table = model.info.tables[4]
    assert table.record["objective"] == objective
    assert all(row.c == 0 for row in table.rows)
    assert model.sample(2, nfe=4).times == table.times
    run("info", folder, "--nfe", 4, 5)
    assert "tuned" in capsys.readouterr().out
    told = values("tune", folder, *arguments, "--held-out", 16, "--out", tmp_path / "copy")
    better = told["record"]["after"] < told["record"]["before"]
    assert told["stored"] == (str(tmp_path / "copy") if better else None)


def test_a_copy_keeps_the_weights_and_the_other_tables(folder, tmp_path):
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


def test_tables_are_not_stored_over_anything_else(folder, tmp_path):
    other = tiny.save("text", tmp_path / "other")
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
        (["digits", "--nfe", 1, "--out", "x"], "nfe=1: a table of one call"),
        (["digits", "--out", "x", "--objective", "endpoint", "--teacher-nfe", 6], "teacher_nfe=6: expected more calls"),
        (["digits", "--steps", 0, "--out", "x"], "--steps 0: expected at least 1"),
        (["digits", "--batch", 20, "--out", "x"], "batch=20: expected at least 65"),
    ],
)
def test_wrong_command_lines_are_told_in_one_line(arguments, message, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert message in refused("tune", *arguments)


def test_a_place_that_is_taken_or_data_that_miss_are_told_before_the_tuning(folder, models, tmp_path, refused):
    (tmp_path / "file").write_text("mine")
    assert "no directory" in refused("tune", folder, "--objective", "endpoint", "--out", tmp_path / "file")
    assert "a copy of" in refused("tune", folder, "--objective", "endpoint", "--out", models / "text")
    assert "card does not say what it was trained on" in refused("tune", models / "binary")
