"""``bfn sample`` and ``bfn impute`` on models of tables: rows in files, conditions met, wrong input in one line."""

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bfn.cli import main
from bfn.tables.synthesizer import TableSynthesizer
from bfn.training.trainer import Trainer
from commands import run


def people(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "age": rng.integers(20, 60, n),
        "country": rng.choice(["FR", "IT", "NO"], n),
        "low": rng.normal(size=n).round(3),
        "high": rng.normal(1, 1, n).round(3),
    })  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "people"
    table = people()
    table.loc[::7, "country"] = None
    TableSynthesizer(steps=10, batch=64, width=16, n_blocks=1, progress=False).fit(table).save(directory)
    return directory


def test_rows_meet_conditions_and_are_the_librarys(stored, tmp_path, capsys):
    conditions = ("--given", "country=FR", "--given", "age>30", "--constraint", "low <= high")
    settings = ("--n", 40, "--nfe", 4, "--seed", 3)
    run("sample", stored, *settings, *conditions, "--out", tmp_path / "rows.csv", "--json")
    told = json.loads(capsys.readouterr().out)
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert len(rows) == 40
    assert (rows["country"] == "FR").all()
    assert (rows["age"] > 30).all()
    assert (rows["low"] <= rows["high"]).all()
    assert told["files"] == [str(tmp_path / "rows.csv")]
    assert told["conditions"]["known"] == ["country = FR"]
    assert 0 < told["conditions"]["acceptance_rate"]["value"] < 1
    synthesizer = TableSynthesizer.load(stored)
    expected = synthesizer.sample(40, ["country=FR", "age>30"], constraints=["low <= high"], nfe=4, seed=3)
    pd.testing.assert_frame_equal(rows, expected, check_dtype=False)
    run("sample", stored, *settings, *conditions, "--out", tmp_path / "rows.parquet")
    assert "drawn rows met all checks" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "rows.parquet"), rows, check_dtype=False)
    run("sample", stored, "--n", 3, "--nfe", 2, "--out", tmp_path / "plain")
    assert len(pd.read_csv(tmp_path / "plain" / "samples.csv")) == 3


def test_missing_cells_are_filled_once_or_several_times(stored, tmp_path):
    holes = people(30)
    holes["note"] = "kept"
    holes.loc[::3, "age"] = np.nan
    holes.loc[1::3, "country"] = None
    holes.to_csv(tmp_path / "holes.csv", index=False)
    run("impute", stored, tmp_path / "holes.csv", "--nfe", 3)
    filled = pd.read_csv(tmp_path / "holes-filled.csv")
    assert list(filled) == list(holes)
    assert not filled.isna().any(axis=None)
    for name in holes:
        there = holes[name].notna()
        assert (filled[name][there] == holes[name][there]).all()
    run("impute", stored, tmp_path / "holes.csv", "--draws", 2, "--nfe", 3, "--out", tmp_path / "several.parquet")
    first, second = (pd.read_parquet(tmp_path / f"several-{k}.parquet") for k in (1, 2))
    assert first["age"].tolist() == filled["age"].tolist()
    assert first["age"].tolist() != second["age"].tolist()


def test_wrong_input_ends_in_one_line_and_writes_nothing(stored, tmp_path, refused):
    for options, message in [
        (("--given", "contry=FR"), "did you mean 'country'"),
        (("--given", "age>99"), "no value of this column can meet it"),
        (("--constraint", "low > high + 1000", "--tries", 2), "drawn rows met"),
        (("--prompt", "a"), "not for a table"),
        (("--out", tmp_path / "rows.xls"), "files ending with"),
    ]:
        assert message in refused("sample", stored, "--n", 5, "--nfe", 2, "--out", tmp_path / "rows.csv", *options)
    assert "expected at least 1" in refused("impute", stored, tmp_path / "x.csv", "--draws", 0)
    assert "no such file" in refused("impute", stored, tmp_path / "none.csv")
    for content, message in {
        "country,low,high\nFR,1,2\n": "column 'age'",
        "age,country,low,high\n30,DE,1,2\n": "row 0: 'DE': expected one of",
        "age,country\n1,FR\n2,IT,3,4\n": "line 3",
    }.items():
        (tmp_path / "wrong.csv").write_text(content)
        assert message in refused("impute", stored, tmp_path / "wrong.csv")


def test_other_models_have_no_columns(models, tmp_path, refused):
    assert "no columns" in refused("sample", models / "vectors", "--given", "a=1", "--out", tmp_path / "x")
    people(5).to_csv(tmp_path / "people.csv", index=False)
    assert "something else than a table" in refused("impute", models / "vectors", tmp_path / "people.csv")


def strangers(path) -> Path:
    """A table as people have them: identifiers, names, an empty column, missing cells."""
    table = people(200)
    table.insert(0, "id", range(1, 201))
    table["name"] = [f"person {i}" for i in range(200)]
    table["empty"] = None
    table["since"] = pd.date_range("2001-01-01", periods=200).strftime("%Y-%m-%d")
    table.loc[::9, "age"] = None
    table.to_csv(path, index=False)
    return path


SMALL = ("steps=8", "batch=32", "width=16", "n_blocks=1")


def test_a_csv_is_learned_as_a_table_by_the_shortest_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    strangers(Path("people.csv"))
    run("train", "people.csv", *SMALL)
    told = capsys.readouterr().out
    for name in ("id", "name", "empty"):
        assert f"left out: column {name!r}, " in told
    assert "bfn sample runs/people" in told
    run("sample", "runs/people", "--n", 20, "--nfe", 3, "--out", "rows.csv")
    rows, table = pd.read_csv("rows.csv"), pd.read_csv("people.csv")
    assert list(rows) == ["age", "country", "low", "high", "since"]
    assert rows["country"].isin(table["country"]).all()
    assert rows["since"].str.fullmatch(r"200\d-\d\d-\d\d").all()
    run("impute", "runs/people", "people.csv", "--nfe", 2, "--out", "filled.csv")
    filled = pd.read_csv("filled.csv")
    assert list(filled) == list(table)
    assert not filled["age"].isna().any()


def test_roles_of_columns_lead_to_records(tmp_path, capsys):
    strangers(tmp_path / "people.csv")
    tiny = ("steps=2", "batch=8", "network.width=16", "tensorboard=false")
    run("train", tmp_path / "people.csv", "--sequence", "country", "--out", tmp_path / "run", "--cpu", *tiny)
    assert (tmp_path / "run" / "settings.json").exists()


def test_training_on_a_table_goes_on_after_an_interrupt(tmp_path, monkeypatch, capsys):
    table, whole, halved = strangers(tmp_path / "people.csv"), tmp_path / "whole", tmp_path / "halved"
    run("train", table, "--out", whole, *SMALL)
    step = Trainer.train_step

    def interrupted(self):
        step(self)
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    assert main(["train", str(table), "--out", str(halved), *SMALL]) == 130
    monkeypatch.undo()
    assert "--resume" in capsys.readouterr().out
    run("train", "--out", halved, "--resume")
    a, b = (TableSynthesizer.load(folder).sample(30, nfe=3) for folder in (whole, halved))
    pd.testing.assert_frame_equal(a, b)


def test_wrong_wishes_leave_nothing_behind(tmp_path, refused):
    table, out = strangers(tmp_path / "people.csv"), tmp_path / "run"
    for words, message in [
        (("widht=3",), "widht: expected one of steps"),
        (("steps=0", "drop=id,name,empty"), "steps=0"),
        (("drop=agee",), "column 'agee': expected one of"),
        (("kinds.age=colour",), "kinds['age']='colour'"),
    ]:
        assert message in refused("train", table, "--out", out, *words)
    for content, message in {
        b"": "empty file",
        b"a\n1\n": "a table of 1 rows",
        b"a,b\n1,2\n3,4,5\n": "line 3",
        "a,b\n\u00e9,2\n".encode("latin-1"): "UTF-8",
        b"a,a\n1,2\n3,4\n": "column 'a' comes 2 times",
        b"a,b\n1,inf\n2,3\n": "column 'b', row 0: inf: expected a finite number",
        b"a,b\n1,1\n1,1\n": "nothing to learn",
        b"a,b\n,\n,\n": "cells are missing",
    }.items():
        (tmp_path / "wrong.csv").write_bytes(content)
        assert message in refused("train", tmp_path / "wrong.csv", "--out", out)
    run("train", table, "--out", out, *SMALL)
    assert "holds a run already" in refused("train", table, "--out", out, *SMALL)
    assert "steps=9: the run has" in refused("train", table, "--out", out, "--resume", "steps=9")
