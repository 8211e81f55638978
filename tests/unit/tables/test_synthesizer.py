"""Rows like those of a table: what is learned, what is given, what is missing."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import bfn
import bfn_lab.bayesian_network
from bfn.core.errors import UserError
from bfn.tables.synthesizer import TableSynthesizer


def small_table(n: int = 1500) -> pd.DataFrame:
    """city is Rome (0.7) or Oslo; warmth is normal about +2 or -2 by city; visits are missing in Oslo half the time."""
    rng = np.random.default_rng(0)
    rome = rng.random(n) < 0.7
    warmth = np.where(rome, 2.0, -2.0) + 0.5 * rng.normal(size=n)
    visits = pd.Series(rng.integers(0, 4000, n), dtype="Int64").mask(~rome & (rng.random(n) < 0.5))
    return pd.DataFrame({
        "city": pd.Categorical(np.where(rome, "Rome", "Oslo"), ["Oslo", "Rome", "Bonn"]),
        "warmth": warmth,
        "visits": visits,
        "planet": "Earth",
        "south": rome,
    })  # fmt: skip


QUICK = {"steps": 20, "batch": 64, "width": 16, "n_blocks": 1, "progress": False}


@pytest.fixture(scope="module")
def quick() -> TableSynthesizer:
    return TableSynthesizer(**QUICK).fit(small_table(300))


@pytest.fixture(scope="module")
def fitted() -> TableSynthesizer:
    settings = {"steps": 1200, "batch": 128, "width": 64, "n_blocks": 2, "dropout": 0.0, "lr": 5e-3}
    return TableSynthesizer(**settings, progress=False).fit(small_table())


@pytest.mark.long
def test_rows_have_the_types_and_the_dependence(fitted: TableSynthesizer) -> None:
    table, rows = small_table(), fitted.sample(1000)
    assert rows.dtypes.equals(table.dtypes)
    assert list(rows) == list(table)
    assert (rows["planet"] == "Earth").all()
    # Shares of 1000 rows have a standard error of 0.015; the rest is what a small network may miss.
    assert abs((rows["city"] == "Rome").mean() - 0.7) < 0.08
    assert ((rows["city"] == "Rome") == rows["south"]).mean() > 0.97
    assert ((rows["warmth"] > 0) == rows["south"]).mean() > 0.95
    assert abs(rows["visits"].isna().mean() - 0.15) < 0.06
    assert rows["visits"][rows["south"]].isna().mean() < 0.05


def test_seeds(quick: TableSynthesizer) -> None:
    pd.testing.assert_frame_equal(quick.sample(5, seed=3), quick.sample(5, seed=3))
    assert not quick.sample(5, seed=3).equals(quick.sample(5, seed=4))
    again = TableSynthesizer(**QUICK).fit(small_table(300))
    pd.testing.assert_frame_equal(again.sample(5), quick.sample(5))


def test_given_and_known_cells_are_kept(quick: TableSynthesizer) -> None:
    table = small_table(300)
    rows = quick.sample(50, given={"city": "Oslo", "visits": 1234, "warmth": 1.23456789})
    assert rows.dtypes.equals(table.dtypes)
    assert (rows["city"] == "Oslo").all()
    assert (rows["visits"] == 1234).all()
    assert np.allclose(rows["warmth"], 1.23456789, rtol=1e-12)
    assert quick.sample(50, given={"visits": None})["visits"].isna().all()
    holes = table.head(40).copy()
    holes.loc[::2, "warmth"] = np.nan
    holes["south"] = holes["south"].astype(object).where(np.arange(40) % 3 > 0, None)
    filled = quick.impute(holes)
    assert filled.dtypes.equals(table.dtypes)
    for name in holes:
        there = holes[name].notna()
        assert filled[name].notna().all()
        assert (filled[name][there] == holes[name][there]).all()


@pytest.mark.long
def test_given_cells_are_followed(fitted: TableSynthesizer) -> None:
    # By the table's shares alone 0.3, 0.7 and 0.3. The rules of the table have next to no exceptions, and a network of
    # this size does not follow them fully after so few steps (the last: 0.65 of the rows).
    assert (fitted.sample(400, given={"city": "Oslo"})["warmth"] < 0).mean() > 0.7
    assert (fitted.sample(400, given={"warmth": 1.987654321})["city"] == "Rome").mean() > 0.9
    assert (fitted.sample(400, given={"visits": None})["city"] == "Oslo").mean() > 0.55


@pytest.mark.long
def test_missing_cells_are_drawn_given_the_others(fitted: TableSynthesizer) -> None:
    table = small_table().head(200).set_index(np.arange(200) + 7)
    holes = table.copy()
    rng = np.random.default_rng(1)
    for name in ("city", "warmth"):
        holes[name] = holes[name].mask(rng.random(200) < 0.4)
    holes["note"] = "as it was"
    filled = fitted.impute(holes)
    assert not filled.drop(columns="note").isna().any(axis=None)
    assert filled.dtypes.drop("note").equals(table.dtypes)
    for name in holes:
        there = holes[name].notna()
        assert (filled[name][there] == holes[name][there]).all()
    assert (filled["city"] == table["city"]).mean() > 0.97
    assert ((filled["warmth"] > 0) == table["south"]).mean() > 0.9
    draws = fitted.impute(holes, draws=2)
    assert len(draws) == 2
    pd.testing.assert_frame_equal(draws[0], filled)
    assert not draws[1]["warmth"].equals(filled["warmth"])


RAIN = """
variable rain { type discrete [ 2 ] { yes, no }; }
variable grass { type discrete [ 3 ] { wet, damp, dry }; }
probability ( rain ) { table 0.2, 0.8; }
probability ( grass | rain ) { (yes) 0.7, 0.2, 0.1; (no) 0.1, 0.3, 0.6; }
"""


def test_expected_cells_are_the_most_probable_given_the_others(tmp_path: Path) -> None:
    """Of an exact model: P(yes | wet) = 0.14 / 0.22, P(yes | damp) = 0.04 / 0.28, P(yes | dry) = 0.02 / 0.5."""
    (tmp_path / "rain.bif").write_text(RAIN)
    exact = TableSynthesizer.of(bfn_lab.bayesian_network.BayesianNetwork.read(tmp_path / "rain.bif"))
    holes = pd.DataFrame({"rain": [None, None, None, "yes", "no"], "grass": ["wet", "damp", "dry", None, None]})
    filled = exact.impute(holes, expected=True)
    assert filled["rain"].tolist() == ["yes", "no", "no", "yes", "no"]
    assert filled["grass"].tolist() == ["wet", "damp", "dry", "wet", "dry"]


def test_expected_cells_are_means_of_numbers(quick: TableSynthesizer) -> None:
    table = small_table(300)
    holes = table.head(30).copy()
    holes.loc[::2, ["warmth", "visits"]] = None
    filled = quick.impute(holes, expected=True, draws=3, nfe=3)
    assert filled.dtypes.equals(table.dtypes)
    draws = quick.impute(holes, draws=3, nfe=3)
    gaps = holes["warmth"].isna()
    mean = sum(draw["warmth"][gaps] for draw in draws) / 3
    np.testing.assert_allclose(filled["warmth"][gaps], mean)
    assert (filled["warmth"][~gaps] == table["warmth"].head(30)[~gaps]).all()


def test_numbers_that_no_row_had_are_taken_for_the_nearest() -> None:
    table = pd.DataFrame({"age": [20, 30, 40] * 20, "member": [True, False, False] * 20})
    some = TableSynthesizer(**QUICK).fit(table)
    asked = pd.DataFrame({"age": [20, 36, 99], "member": [None, None, True]})
    with pytest.warns(UserWarning, match=r"column 'age', row 1: 36, which .* nearest, 40, and 1 more"):
        filled = some.impute(asked, nfe=2)
    assert filled["age"].tolist() == [20, 36, 99]
    with pytest.warns(UserWarning, match="nearest, 40"):
        found = some.log_likelihood(asked.assign(member=[True, False, True]).tail(1), nfe=5)
    assert np.isfinite(found).all()


@pytest.mark.long
def test_log_likelihood_is_close_to_the_truth(fitted: TableSynthesizer) -> None:
    table = small_table().head(300)
    rome = table["south"].to_numpy()
    density = -0.5 * ((table["warmth"] - np.where(rome, 2, -2)) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    visits = np.where(rome, -np.log(4000), np.where(table["visits"].isna(), np.log(0.5), np.log(0.5 / 4000)))
    truth = np.where(rome, np.log(0.7), np.log(0.3)) + density + visits
    found = fitted.log_likelihood(table, nfe=30)
    assert found.shape == (300,)
    # A bound: below the truth, by what noise the classes were seen through and what the network missed.
    assert -1.5 < (found - truth).mean() < 0.2


def test_stored_it_is_a_model_as_any_other(quick: TableSynthesizer, tmp_path: Path) -> None:
    quick.save(tmp_path / "model")
    model = bfn.load(tmp_path / "model")
    assert model.decode(model.sample(4, seed=0).x).dtypes.equals(small_table().dtypes)
    again = TableSynthesizer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.sample(5), quick.sample(5))


def test_files_and_tables_of_one_kind_of_column(tmp_path: Path) -> None:
    table = small_table(60)
    table[["warmth"]].to_csv(tmp_path / "numbers.csv", index=False)
    assert TableSynthesizer(**QUICK).fit(tmp_path / "numbers.csv").sample(3).shape == (3, 1)
    assert TableSynthesizer(**QUICK).fit(table[["south"]]).sample(3).dtypes.tolist() == [np.dtype(bool)]


def test_wrong_use_ends_in_one_line(quick: TableSynthesizer, tmp_path: Path) -> None:
    def fails(message: str, act: object) -> None:
        assert callable(act)
        with pytest.raises(UserError, match=message):
            act()

    fails("has seen no table", lambda: TableSynthesizer().sample(3))
    fails("column 'citty': expected one of .*did you mean", lambda: quick.sample(3, given={"citty": "Rome"}))
    fails("'Paris': expected one of Oslo, Rome, Bonn", lambda: quick.sample(3, given={"city": "Paris"}))
    fails("'Bonn': expected one of", lambda: quick.sample(3, given={"city": "Bonn"}))
    fails("beyond the table's range", lambda: quick.sample(3, given={"visits": 10**6}))
    fails("no cell of this column was missing", lambda: quick.sample(3, given={"city": None}))
    fails("n=0", lambda: quick.sample(0))
    fails("column 'south'", lambda: quick.impute(small_table(5).drop(columns="south")))
    fails("no such file", lambda: TableSynthesizer().fit(tmp_path / "none.csv"))
    fails(r"n=10+: expected a whole number", lambda: quick.sample(10**12))
    fails(r"particles=tensor.*: expected a whole number", lambda: quick.sample(3, particles=torch.zeros(2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": float("inf")}, "seed=inf: expected a whole number"),
        ({"seed": "x"}, "seed='x': expected a whole number"),
        ({"seed": 2**80}, r"seed=\d+: expected a whole number"),
        ({"steps": 0}, "steps=0: expected a whole number"),
        ({"batch": 2.7}, "batch=2.7: expected a whole number"),
        ({"width": torch.zeros(2)}, "width=tensor.*: expected a whole number"),
        ({"n_blocks": True}, "n_blocks=True: expected a whole number"),
        ({"dropout": 2}, "dropout=2: expected a share from 0 to 1"),
        ({"dropout": float("nan")}, "dropout=nan: expected a share from 0 to 1"),
        ({"lr": 0}, "lr=0: expected a positive number"),
        ({"lr": float("inf")}, "lr=inf: expected a positive number"),
        ({"network": "mpl"}, "network='mpl': expected one of mlp, transformer; did you mean 'mlp'"),
        ({"kinds": "class"}, "kinds of type str: expected kinds by column"),
        ({"drop": "age"}, "drop of type str: expected names of columns"),
    ],
)
def test_wrong_options_are_refused_before_there_is_a_table(options, message) -> None:
    with pytest.raises(UserError, match=message):
        TableSynthesizer(**options)
