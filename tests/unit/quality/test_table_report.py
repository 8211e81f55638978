"""The report on a table's rows, and the judge of models of tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import bfn
from bfn.cli import main
from bfn.data.table_files import infer_columns
from bfn.quality.comparison import compare, crossed
from bfn.quality.judge_choice import judge_for
from bfn.quality.table_report import TableReport, table_report
from bfn.tables.training import table_model


def people(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    return pd.DataFrame({
        "age": age, "place": rng.choice(["here", "<there>", "7"], n),
        "income": np.where(age > 60, 0.0, rng.gamma(2, 2, n)),
        "old": np.where(age + 5 * rng.normal(size=n) > 60, "yes", "no"),
    })  # fmt: skip


@pytest.fixture(scope="module")
def report() -> TableReport:
    return table_report(people(120, 0), people(150, 1), people(100, 2), name="<b>people</b>", seed=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of people that has learned nothing, beside files of people."""
    folder = tmp_path_factory.mktemp("tables")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        untrained = table_model(infer_columns(people(400, 0)), width=8, n_blocks=1)
    untrained.save(folder / "model")
    people(100, 1).to_csv(folder / "train.csv", index=False)
    people(80, 2).to_csv(folder / "held-out.csv", index=False)
    return folder / "model"


def test_every_figure_is_there_with_its_ends(report: TableReport) -> None:
    header, cells = report.cells()
    assert header[1:4] == ["<b>people</b>", "real rows", "independent columns"]
    assert len(cells) == len(report.quality.measures) == 9
    assert all(cell for row in cells for cell in row)
    markdown = report.markdown()
    assert all(measure.label in markdown for measure in report.quality.measures)
    assert "120 rows against 150 training rows and 100 held-out rows" in markdown
    values = json.loads(json.dumps(report.asdict(), allow_nan=False))
    assert values["rows"]["two_sample"]["value"] == report.figures["two_sample"].value
    assert set(values["rows"]) == set(values["real"]) == set(values["independent_columns"])
    assert len(values["trends"]) == 6


def test_the_page_stands_alone_and_writes_names_as_text(report: TableReport, tmp_path: Path) -> None:
    files = report.save(tmp_path / "new")
    assert [path.name for path in files] == ["report.html", "report.md", "report.json"]
    page = files[0].read_text()
    assert "<b>people</b>" not in page
    assert "&lt;b&gt;people&lt;/b&gt;" in page

    assert page.count("<img ") == page.count(' src="data:image/svg+xml;base64,') == page.count("src=") == 3
    assert not re.search("<(script|link)", page)
    assert all((tmp_path / "new" / f"{name}.svg").exists() for name in ("scales", "columns", "pairs"))


def test_a_model_of_a_table_is_compared_with_both_ends(model: Path) -> None:
    source = bfn.load(model)
    folder = model.parent
    judge = judge_for(source, data=folder / "held-out.csv", train=folder / "train.csv")
    comparison = compare(source, crossed(source.flow, ["auto"], [2, 3]), judge, 60)
    _, rows = comparison.cells(comparison.main)
    assert [row[0] for row in rows] == ["auto", "real data, 60 samples", "independent columns"]
    assert comparison.real["two_sample"].value > comparison.records[0].measures["two_sample"].value
    assert comparison.asdict()["baseline"]["name"] == "independent columns"


def test_evaluate_writes_a_report(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--data", str(model.parent / "held-out.csv"), "--train", str(model.parent / "train.csv")]
    assert main(["evaluate", str(model), *files, "--n", "50", "--nfe", "2", "--out", str(tmp_path / "report")]) == 0
    assert "independent columns" in capsys.readouterr().out
    assert json.loads((tmp_path / "report" / "report.json").read_text())["sizes"] == {
        "rows": 50, "train": 100, "held_out": 80,
    }  # fmt: skip
