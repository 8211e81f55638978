"""TableSynthesizer: drawn rows, given cells, missing cells, likelihoods, files and resumed runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bfn
import bfn_lab.bayesian_network
from bfn.tables.synthesizer import SETTINGS, TableSynthesizer, fit_in
from messages import refused


@pytest.mark.long
def test_rows_have_the_types_and_the_dependence(fitted: TableSynthesizer, cities: pd.DataFrame) -> None:
    table, rows = cities, fitted.sample(1000)
    assert rows.dtypes.equals(table.dtypes)
    assert list(rows) == list(table)
    assert (rows["planet"] == "Earth").all()
    # Shares of 1000 rows have a standard error of 0.015; the rest is what a small network may miss.
    assert abs((rows["city"] == "Rome").mean() - 0.7) < 0.08
    assert ((rows["city"] == "Rome") == rows["south"]).mean() > 0.97
    assert ((rows["warmth"] > 0) == rows["south"]).mean() > 0.95
    assert abs(rows["visits"].isna().mean() - 0.15) < 0.06
    assert rows["visits"][rows["south"]].isna().mean() < 0.05
    # Given cells are followed. By the table's shares alone 0.3, 0.7 and 0.3. The rules of the table have next to no
    # exceptions, and a small network does not follow them fully after so few steps (the last: 0.65 of the rows).
    assert (fitted.sample(400, given={"city": "Oslo"})["warmth"] < 0).mean() > 0.7
    assert (fitted.sample(400, given={"warmth": 1.987654321})["city"] == "Rome").mean() > 0.9
    assert (fitted.sample(400, given={"visits": None})["city"] == "Oslo").mean() > 0.55


def test_the_seed_determines_training_and_rows(of_cities: TableSynthesizer, cities, quick_settings) -> None:
    pd.testing.assert_frame_equal(of_cities.sample(5, seed=3), of_cities.sample(5, seed=3))
    assert not of_cities.sample(5, seed=3).equals(of_cities.sample(5, seed=4))
    again = TableSynthesizer(**quick_settings).fit(cities.head(300))
    pd.testing.assert_frame_equal(again.sample(5), of_cities.sample(5))


def test_given_and_known_cells_are_kept(of_cities: TableSynthesizer, cities: pd.DataFrame) -> None:
    table = cities
    rows = of_cities.sample(50, given={"city": "Oslo", "visits": 1234, "warmth": 1.23456789})
    assert rows.dtypes.equals(table.dtypes)
    assert ((rows["city"] == "Oslo") & (rows["visits"] == 1234)).all()
    assert np.allclose(rows["warmth"], 1.23456789, rtol=1e-12)
    assert of_cities.sample(50, given={"visits": None})["visits"].isna().all()
    holes = table.head(40).copy()
    holes.loc[::2, "warmth"] = np.nan
    holes["south"] = holes["south"].astype(object).where(np.arange(40) % 3 > 0, None)
    filled = of_cities.impute(holes)
    assert filled.dtypes.equals(table.dtypes)
    for name in holes:
        there = holes[name].notna()
        assert filled[name].notna().all()
        assert (filled[name][there] == holes[name][there]).all()


@pytest.mark.long
def test_missing_cells_are_drawn_given_the_others(fitted: TableSynthesizer, cities: pd.DataFrame) -> None:
    table = cities.head(200).set_index(np.arange(200) + 7)
    holes = table.copy()
    rng = np.random.default_rng(1)
    for name in ("city", "warmth"):
        holes[name] = holes[name].mask(rng.random(200) < 0.4)
    holes["note"] = "as it was"
    filled = fitted.impute(holes)
    assert (filled["note"] == "as it was").all()
    assert (filled["city"] == table["city"]).mean() > 0.97
    assert ((filled["warmth"] > 0) == table["south"]).mean() > 0.9
    first, second = fitted.impute(holes, draws=2)
    pd.testing.assert_frame_equal(first, filled)
    assert not second["warmth"].equals(filled["warmth"])


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


def test_expected_cells_are_means_of_numbers(of_cities: TableSynthesizer, cities: pd.DataFrame) -> None:
    holes = cities.head(30).copy()
    holes.loc[::2, ["warmth", "visits"]] = None
    filled = of_cities.impute(holes, expected=True, draws=3, nfe=3)
    assert filled.dtypes.equals(cities.dtypes)
    draws = of_cities.impute(holes, draws=3, nfe=3)
    np.testing.assert_allclose(filled["warmth"], sum(draw["warmth"] for draw in draws) / 3)


def test_a_warning_names_cells_that_the_training_table_could_not_have(quick_settings, recwarn) -> None:
    table = pd.DataFrame({"age": [20, 30, 40] * 20, "member": [True, False, False] * 20, "pay": np.arange(60) / 7})
    some = TableSynthesizer(**quick_settings).fit(table)
    asked = pd.DataFrame({"age": [20, 36, 99], "member": [None, None, True], "pay": [1.0, 200.0, 300.0]})
    filled = some.impute(asked, nfe=2)
    assert filled[["age", "pay"]].equals(asked[["age", "pay"]])
    age, pay = (str(warning.message) for warning in recwarn)
    assert (age[:23], age[-14:]) == ("column 'age', row 1: 36", "40, and 1 more")
    assert "column 'pay', row 1: 200.0 is outside the range of the training table, 0.0 to 8.4" in pay
    assert recwarn[1].filename == __file__
    assert np.isfinite(some.log_likelihood(asked.assign(member=True).tail(1), nfe=5)).all()
    assert "nearest, 40" in str(recwarn[2].message)


@pytest.mark.long
def test_log_likelihood_is_close_to_the_truth(fitted: TableSynthesizer, cities: pd.DataFrame) -> None:
    table = cities.head(300)
    rome = table["south"].to_numpy()
    density = -0.5 * ((table["warmth"] - np.where(rome, 2, -2)) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    visits = np.where(rome, -np.log(4000), np.where(table["visits"].isna(), np.log(0.5), np.log(0.5 / 4000)))
    truth = np.where(rome, np.log(0.7), np.log(0.3)) + density + visits
    found = fitted.log_likelihood(table, nfe=30)
    assert found.shape == (300,)
    # A bound: below the truth, by what noise the classes were seen through and what the network missed.
    assert -1.5 < (found - truth).mean() < 0.2


def test_a_stored_synthesizer_is_a_model(of_cities: TableSynthesizer, cities: pd.DataFrame, tmp_path: Path) -> None:
    of_cities.save(tmp_path / "model")
    model = bfn.load(tmp_path / "model")
    assert model.decode(model.sample(4, seed=0).x).dtypes.equals(cities.dtypes)
    again = TableSynthesizer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.sample(5), of_cities.sample(5))


def test_tables_of_one_kind_of_column(cities: pd.DataFrame, quick_settings, tmp_path: Path) -> None:
    cities.head(60)[["warmth"]].to_csv(tmp_path / "numbers.csv", index=False)
    assert TableSynthesizer(**quick_settings).fit(tmp_path / "numbers.csv").sample(3).shape == (3, 1)
    classes = TableSynthesizer(**quick_settings).fit(cities.head(60)[["south"]]).sample(3)
    assert classes.dtypes.tolist() == [np.dtype(bool)]


def test_columns_that_cannot_be_learned_are_left_out_on_request(quick_settings, capsys) -> None:
    table = pd.DataFrame({"id": range(1, 101), "x": [i % 7 for i in range(100)], "y": ["a", "b"] * 50})
    synthesizer = TableSynthesizer(**quick_settings | {"progress": True}, drop_unlearnable=True).fit(table)
    assert list(synthesizer.left_out) == ["id"]
    assert "left out: column 'id'" in capsys.readouterr().out
    assert list(synthesizer.sample(3)) == ["x", "y"]


def test_a_refused_resume_changes_nothing(cities: pd.DataFrame, quick_settings, tmp_path: Path) -> None:
    settings = {name: value for name, value in quick_settings.items() if name != "progress"}
    cities.head(80).to_csv(tmp_path / "cities.csv", index=False)
    run, source = tmp_path / "run", str(tmp_path / "cities.csv")
    first = fit_in(run, source, settings, progress=False)
    stored = (run / SETTINGS).read_text()
    refused("steps=3000: the run has 20", fit_in, run, None, {"steps": 3000}, resume=True, progress=False)
    assert (run / SETTINGS).read_text() == stored
    pd.testing.assert_frame_equal(fit_in(run, None, {}, resume=True, progress=False).sample(3), first.sample(3))
    refused("column 'none'", fit_in, tmp_path / "new", source, {"drop": ["none"]}, progress=False)
    assert not (tmp_path / "new").exists()
