"""Conditions on rows: how they are read, that drawn rows meet them, and the distribution of these rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bfn.core.info import ModelInfo
from bfn.data.table_files import infer_columns
from bfn.exact.joint import JointMixture
from bfn.tables.conditions import cell_conditions, constraints_of
from bfn.tables.sampling import RowRequest, draw_rows
from bfn.tables.synthesizer import TableSynthesizer
from messages import refused


def test_conditions_are_read_from_texts(people: pd.DataFrame) -> None:
    table, columns = people, infer_columns(people)
    cases = {
        "age>40": table["age"] > 40, "age >= 40.5": table["age"] >= 40.5, "age != 41": table["age"] != 41,
        "age==41": table["age"] == 41, "country of birth=FR": table["country of birth"] == "FR",
        "`country of birth` in FR, IT": table["country of birth"].isin(["FR", "IT"]),
        "income<= 20": table["income"] <= 20, "income=0": table["income"] == 0, "member=true": table["member"],
        "born < 1980-06-01": table["born"] < "1980-06-01", "grade>=mid": table["grade"] >= "mid",
        "note=": table["note"].isna(), "note!=yes": table["note"] == "no", "start>-1": table["start"] > -1,
    }  # fmt: skip
    for text, expected in cases.items():
        (condition,) = cell_conditions(text, columns)
        assert condition.of_rows(table).tolist() == expected.tolist(), text
        states, _ = condition.column.states(table[condition.column.name])
        # A state that is ruled out has no cell that meets it.
        assert not expected.to_numpy()[~condition.states[states]].any(), text


def test_rules_are_checked_for_each_row(people: pd.DataFrame) -> None:
    table, columns = people, infer_columns(people)
    cases = {
        "start <= end": table["start"] <= table["end"],
        "start + 100 < end and not member": (table["start"] + 100 < table["end"]) & ~table["member"],
        "0 < end - start <= 1000": (table["end"] - table["start"]).between(1, 1000),
        "`country of birth` == 'FR' or age > 50": (table["country of birth"] == "FR") | (table["age"] > 50),
        "note in ('yes', 'maybe')": table["note"] == "yes",
    }
    for text, expected in cases.items():
        (rule,) = constraints_of(text, columns)
        assert rule.of_rows(table).tolist() == expected.tolist(), text
    allowed = pd.DataFrame({"country of birth": ["FR", "NO"], "member": [True, False]})
    (rule,) = constraints_of([allowed], columns)
    french, member = table["country of birth"] == "FR", table["member"]
    expected = (french & member) | ((table["country of birth"] == "NO") & ~member)
    assert rule.of_rows(table).tolist() == expected.tolist()


def test_rows_meet_their_conditions(of_people: TableSynthesizer, people: pd.DataFrame) -> None:
    given = ["country of birth=FR", "age>40", "age <= 50", "income>10", "grade!=low"]
    settings = {"constraints": ["start <= end", lambda t: t["end"] > 1000], "nfe": 5, "seed": 1}
    rows = of_people.sample(200, given, **settings)
    assert rows.dtypes.equals(people.dtypes)
    wanted = "`country of birth` == 'FR' and 41 <= age <= 50 and income > 10 and grade != 'low' and end > 1000"
    assert len(rows.query(f"{wanted} and start <= end")) == len(rows) == 200
    report = rows.attrs["sampling"]
    rate = report["acceptance_rate"]
    assert 0 < rate["low"] < rate["value"] < rate["high"] < 1
    assert set(report["met"]) == {"age > 40", "age <= 50", "grade != low", "income > 10", "start <= end", "<lambda>"}
    assert report["known"] == ["country of birth = FR"]
    pd.testing.assert_frame_equal(rows, of_people.sample(200, given, **settings))


def test_particles_steer_numbers_into_a_range(of_people: TableSynthesizer) -> None:
    rows = of_people.sample(20, ["start>4000"], particles=16, nfe=8)
    assert (rows["start"] > 4000).all()
    assert (rows.attrs["sampling"]["drawn"], rows.attrs["sampling"]["particles"]) == (20, 16)


def test_rare_classes_are_taken_from_found_rows_in_a_table_without_numbers(quick_settings: dict) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"kind": rng.choice(["a", "b"], 2000, p=[0.97, 0.03]), "other": rng.choice(["x", "y"], 2000)})
    rows = TableSynthesizer(**quick_settings | {"steps": 200}).fit(table).sample(600, "kind in b", nfe=3)
    assert (rows["kind"] == "b").all()
    assert rows.attrs["sampling"]["classes_taken_from"] > 0


KINDS = ("a", "b", "c")


def exact_model(probs: list[list[float]]) -> JointMixture:
    """Return an exact model of a table: two clusters with their own means of numbers and shares of classes."""
    draft = JointMixture({"numbers": ([[-1.0], [1.0]], [[0.5], [0.5]])}, {"kind": probs})
    x = draft.sample_data(4000, torch.Generator().manual_seed(0))
    table = pd.DataFrame({"size": x["numbers"][:, 0].numpy(), "kind": np.array(KINDS)[x["kind"].numpy()]})
    # Whatever the scale of the numbers, decoding them as such makes this model that of some table.
    draft.__dict__["info"] = ModelInfo(exact=True, columns=infer_columns(table))
    return draft


@pytest.mark.parametrize(
    ("probs", "given", "of"),
    [
        ([[0.9, 0.1, 0.0], [0.1, 0.3, 0.6]], "size>0.5", "kind=a"),
        ([[0.9, 0.1, 0.0], [0.1, 0.3, 0.6]], "kind=b", "size>0"),
        ([[0.9, 0.1, 0.0], [0.1, 0.3, 0.6]], "kind in b, c", "size>0"),
        # Rare, so that classes are taken from rows that were found: both their shares and what goes with them.
        ([[0.97, 0.03, 0.0], [0.85, 0.05, 0.1]], "kind!=a", "size>0"),
        ([[0.97, 0.03, 0.0], [0.85, 0.05, 0.1]], "kind!=a", "kind=c"),
    ],
)
def test_rows_of_an_exact_model_follow_its_conditional_distribution(
    probs: list[list[float]], given: str, of: str
) -> None:
    model = exact_model(probs)
    columns = model.info.columns
    truth = columns.decode(model.sample_data(200_000, torch.Generator().manual_seed(1)))
    request = RowRequest.read(columns, [given])
    report = request.report()
    rows = pd.concat(list(draw_rows(model, 3000, request, report, seed=0)))
    (condition,), (wanted,) = cell_conditions(given, columns), cell_conditions(of, columns)
    assert condition.of_rows(rows).all()
    assert (report.taken is not None) == (given == "kind!=a")
    expected = wanted.of_rows(truth[condition.of_rows(truth)]).mean()
    # Four standard errors of a share of 3000 rows, of 200 classes where these are taken; and what 20 calls leave.
    assert abs(wanted.of_rows(rows).mean() - expected) < (0.05 if report.taken is None else 0.15)


def test_rows_are_written_as_they_are_drawn(of_people: TableSynthesizer, people: pd.DataFrame, tmp_path: Path) -> None:
    for name in ("rows.csv", "rows.tsv", "rows.parquet"):
        assert of_people.sample_to(tmp_path / name, 50, ["age>30"], nfe=2, batch=16).accepted >= 50
    rows = of_people.sample(50, ["age>30"], nfe=2, batch=16)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "rows.parquet").astype({"note": object}), rows)
    written = pd.read_csv(tmp_path / "rows.csv", parse_dates=["born"])
    assert (written[["income", "born"]] == rows[["income", "born"]]).all(axis=None)
    assert (tmp_path / "rows.tsv").read_text().splitlines()[0] == "\t".join(people)
    refused("0 of", of_people.sample_to, tmp_path / "none.csv", 5, constraints="start > 2000000", nfe=2)
    assert len(list(tmp_path.iterdir())) == 3  # a file appears when all of its rows are there


def test_ranges_of_imputed_numbers_have_their_coverage() -> None:
    """Of 21 exchangeable numbers the true one is neither the least nor the largest with probability 19 / 21."""
    model = exact_model([[0.9, 0.1, 0.0], [0.1, 0.3, 0.6]])
    n = 400
    table = model.info.columns.decode(model.sample_data(n, torch.Generator().manual_seed(1)))
    draws = TableSynthesizer.of(model).impute(table.assign(size=np.nan), draws=20, nfe=20)
    values = np.stack([draw["size"] for draw in draws])
    covered = ((values.min(0) <= table["size"]) & (table["size"] <= values.max(0))).mean()
    # 4 standard errors, false alarms 1e-4; 0.01 for what 20 calls leave to be done.
    assert abs(covered - 19 / 21) < 4 * (19 / 21 * 2 / 21 / n) ** 0.5 + 0.01
    assert all((draw["kind"] == table["kind"]).all() for draw in draws)
