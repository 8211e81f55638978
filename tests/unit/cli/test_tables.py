"""``bfn sample`` and ``bfn impute`` on models of tables: rows in files, conditions met, wrong input in one line."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bfn.cli import main
from bfn.tables.synthesizer import TableSynthesizer

Refused = Callable[..., str]


def people(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "age": rng.integers(20, 60, n),
        "country": rng.choice(["FR", "IT", "NO"], n),
        "low": rng.normal(size=n).round(3),
        "high": rng.normal(1, 1, n).round(3),
    })  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "people"
    table = people()
    table.loc[::7, "country"] = None
    TableSynthesizer(steps=10, batch=64, width=16, n_blocks=1, progress=False).fit(table).save(directory)
    return directory


def do(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def test_rows_meet_conditions_and_are_the_librarys(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    conditions = ("--given", "country=FR", "--given", "age>30", "--constraint", "low <= high")
    settings = ("--n", 40, "--nfe", 4, "--seed", 3)
    do("sample", run, *settings, *conditions, "--out", tmp_path / "rows.csv", "--json")
    told = json.loads(capsys.readouterr().out)
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert len(rows) == 40
    assert (rows["country"] == "FR").all()
    assert (rows["age"] > 30).all()
    assert (rows["low"] <= rows["high"]).all()
    assert told["files"] == [str(tmp_path / "rows.csv")]
    assert told["conditions"]["known"] == ["country = FR"]
    assert 0 < told["conditions"]["acceptance_rate"]["value"] < 1
    synthesizer = TableSynthesizer.load(run)
    expected = synthesizer.sample(40, ["country=FR", "age>30"], constraints=["low <= high"], nfe=4, seed=3)
    pd.testing.assert_frame_equal(rows, expected, check_dtype=False)
    do("sample", run, *settings, *conditions, "--out", tmp_path / "rows.parquet")
    assert "drawn rows met all checks" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "rows.parquet"), rows, check_dtype=False)
    do("sample", run, "--n", 3, "--nfe", 2, "--out", tmp_path / "plain")
    assert len(pd.read_csv(tmp_path / "plain" / "samples.csv")) == 3


def test_missing_cells_are_filled_once_or_several_times(run: Path, tmp_path: Path) -> None:
    holes = people(30)
    holes["note"] = "kept"
    holes.loc[::3, "age"] = np.nan
    holes.loc[1::3, "country"] = None
    holes.to_csv(tmp_path / "holes.csv", index=False)
    do("impute", run, tmp_path / "holes.csv", "--nfe", 3)
    filled = pd.read_csv(tmp_path / "holes-filled.csv")
    assert list(filled) == list(holes)
    assert not filled.isna().any(axis=None)
    for name in holes:
        there = holes[name].notna()
        assert (filled[name][there] == holes[name][there]).all()
    do("impute", run, tmp_path / "holes.csv", "--draws", 2, "--nfe", 3, "--out", tmp_path / "several.parquet")
    first, second = (pd.read_parquet(tmp_path / f"several-{k}.parquet") for k in (1, 2))
    assert first["age"].tolist() == filled["age"].tolist()
    assert first["age"].tolist() != second["age"].tolist()


def test_wrong_input_ends_in_one_line_and_writes_nothing(run: Path, tmp_path: Path, refused: Refused) -> None:
    def sample(*arguments: object) -> str:
        return refused("sample", run, "--n", 5, "--nfe", 2, "--out", tmp_path / "rows.csv", *arguments)

    assert "did you mean 'country'" in sample("--given", "contry=FR")
    assert "expected one of FR, IT, NO" in sample("--given", "country=DE")
    assert "no value of this column can meet it" in sample("--given", "age>99")
    assert "drawn rows met" in sample("--constraint", "low > high + 1000", "--tries", 2)
    assert "expected at least 1" in refused("impute", run, tmp_path / "x.csv", "--draws", 0)
    assert "not for a table" in sample("--prompt", "a")
    assert "files ending with" in refused("sample", run, "--out", tmp_path / "rows.xls")
    assert "no such file" in refused("impute", run, tmp_path / "none.csv")
    good = people(5)
    good.drop(columns="age").to_csv(tmp_path / "less.csv", index=False)
    assert "column 'age'" in refused("impute", run, tmp_path / "less.csv")
    good.assign(country="DE").to_csv(tmp_path / "other.csv", index=False)
    assert "row 0: 'DE': expected one of" in refused("impute", run, tmp_path / "other.csv")
    (tmp_path / "ragged.csv").write_text("age,country\n1,FR\n2,IT,3,4\n")
    assert "line 3" in refused("impute", run, tmp_path / "ragged.csv")
    (tmp_path / "latin.csv").write_bytes("age,country\n1,Österreich\n".encode("latin-1"))
    assert "UTF-8" in refused("impute", run, tmp_path / "latin.csv")


def test_other_models_have_no_columns(models: Path, tmp_path: Path, refused: Refused) -> None:
    assert "no columns" in refused("sample", models / "vectors", "--given", "a=1", "--out", tmp_path / "x")
    people(5).to_csv(tmp_path / "people.csv", index=False)
    assert "something else than a table" in refused("impute", models / "vectors", tmp_path / "people.csv")


def strangers(path: Path) -> Path:
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


def test_a_csv_is_learned_as_a_table_by_the_shortest_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    strangers(Path("people.csv"))
    do("train", "people.csv", *SMALL)
    told = capsys.readouterr().out
    for name in ("id", "name", "empty"):
        assert f"left out: column {name!r}, " in told
    assert "bfn sample runs/people" in told
    do("sample", "runs/people", "--n", 20, "--nfe", 3, "--out", "rows.csv")
    rows, table = pd.read_csv("rows.csv"), pd.read_csv("people.csv")
    assert list(rows) == ["age", "country", "low", "high", "since"]
    assert rows["country"].isin(table["country"]).all()
    assert rows["since"].str.fullmatch(r"200\d-\d\d-\d\d").all()
    do("impute", "runs/people", "people.csv", "--nfe", 2, "--out", "filled.csv")
    filled = pd.read_csv("filled.csv")
    assert list(filled) == list(table)
    assert not filled["age"].isna().any()


def test_roles_of_columns_lead_to_records(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    strangers(tmp_path / "people.csv")
    tiny = ("steps=2", "batch=8", "network.width=16", "tensorboard=false")
    do("train", tmp_path / "people.csv", "--sequence", "country", "--out", tmp_path / "run", "--cpu", *tiny)
    assert (tmp_path / "run" / "settings.json").exists()


def test_training_on_a_table_goes_on_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    strangers(tmp_path / "people.csv")
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    do("train", tmp_path / "people.csv", "--out", whole, *SMALL)
    from bfn.training.trainer import Trainer

    step = Trainer.train_step

    def interrupted(self: Trainer) -> None:
        step(self)
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    assert main(["train", str(tmp_path / "people.csv"), "--out", str(halved), *SMALL]) == 130
    monkeypatch.undo()
    assert "--resume" in capsys.readouterr().out
    do("train", "--out", halved, "--resume")
    a, b = (TableSynthesizer.load(run).sample(30, nfe=3) for run in (whole, halved))
    pd.testing.assert_frame_equal(a, b)


def test_wrong_wishes_leave_nothing_behind(tmp_path: Path, refused: Refused) -> None:
    strangers(tmp_path / "people.csv")
    run = tmp_path / "run"

    def told(*more: str, data: str = "people.csv") -> str:
        line = refused("train", tmp_path / data, "--out", run, *more)
        assert not run.exists()
        return line

    assert "widht: expected one of steps" in told("widht=3")
    assert "steps=0" in told("steps=0", "drop=id,name,empty")
    assert "column 'agee': expected one of" in told("drop=agee")
    assert "kinds['age']='colour'" in told("kinds.age=colour")
    for content, expected in {
        b"": "empty file",
        b"a\n1\n": "a table of 1 rows",
        b"a,b\n1,2\n3,4,5\n": "line 3",
        "a,b\né,2\n".encode("latin-1"): "UTF-8",
        b"a,a\n1,2\n3,4\n": "column 'a' comes 2 times",
        b"a,b\n1,inf\n2,3\n": "column 'b', row 0: inf: expected a finite number",
        b"a,b\n1,1\n1,1\n": "nothing to learn",
        b"a,b\n,\n,\n": "cells are missing",
    }.items():
        (tmp_path / "wrong.csv").write_bytes(content)
        assert expected in told(data="wrong.csv")
    do("train", tmp_path / "people.csv", "--out", run, *SMALL)
    assert "holds a run already" in refused("train", tmp_path / "people.csv", "--out", run, *SMALL)
    assert "steps=9: the run has" in refused("train", tmp_path / "people.csv", "--out", run, "--resume", "steps=9")
