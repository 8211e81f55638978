"""Comparisons: crossed settings, the advice, the tables and the picture."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from bfn._utils.estimate import Estimate
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn.quality.comparison import Comparison, Record, Setting, crossed, markdown_table
from bfn.quality.judge import Measure
from bfn.viz.plots import quality

LOW = Measure("frechet", "Frechet distance", "low")
NOTE = Measure("note", "aside", "low", "%", 100, 1, headline=False)


def record(solver: str, nfe: int, value: float, half: float = 0.5) -> Record:
    figures = {"frechet": Estimate(value, value - half, value + half), "note": Estimate(0.5)}
    return Record(Setting(solver, nfe), 100, (0,), figures, 1.0, (figures,))


@pytest.fixture
def comparison() -> Comparison:
    records = [record("a", 5, 9), record("b", 5, 4), record("c", 5, 3.5), record("a", 10, 2), record("b", 10, 1)]
    real = {"frechet": Estimate(0.5, 0.2, 0.8), "note": Estimate(0.01)}
    return Comparison("m", "values", (NOTE, LOW), tuple(records), real, 90, ("a note",))


def test_solvers_are_crossed_with_what_they_take() -> None:
    flow = ContinuousFlow()
    settings = crossed(flow, ["bfn", "bfn-solver++2", "fast-sde"], [5, 10], t_start=(0.01, 0.001), g=(0.0, 2.0))
    assert [(s.name, s.nfe, s.t_start, s.g) for s in settings] == [
        ("bfn", 5, None, None), ("bfn", 10, None, None),
        ("bfn-solver++2", 5, 0.01, None), ("bfn-solver++2", 5, 0.001, None),
        ("bfn-solver++2", 10, 0.01, None), ("bfn-solver++2", 10, 0.001, None),
        ("fast-sde", 5, None, 0.0), ("fast-sde", 5, None, 2.0),
        ("fast-sde", 10, None, 0.0), ("fast-sde", 10, None, 2.0),
    ]  # fmt: skip
    assert len(crossed(DiscreteFlow(3), ["bfn", "bfn"], [5, 5])) == 1


def test_advice_names_the_best_and_those_not_told_apart(comparison: Comparison) -> None:
    assert comparison.main is LOW
    five, ten = comparison.advice
    assert (five.nfe, five.best.setting.name, [r.setting.name for r in five.not_told_apart]) == (5, "c", ["b"])
    # 2 - 0.5 and 1 + 0.5 touch.
    assert [r.setting.name for r in ten.not_told_apart] == ["a"]
    high = replace(comparison, measures=(replace(LOW, better="high"),))
    assert [advice.best.setting.name for advice in high.advice] == ["a", "a"]
    assert five.sentence(LOW) == "5 calls: c, 3.50 [3.00, 4.00]; not distinguishable from it: b"


def test_tables_have_samplers_down_calls_across_and_real_data_last(comparison: Comparison) -> None:
    header, rows = comparison.cells(LOW)
    assert header == ["", "5 calls", "10 calls"]
    assert rows[0] == ["a", "9.00 [8.50, 9.50]", "2.00 [1.50, 2.50]"]
    assert rows[2] == ["c", "3.50 [3.00, 4.00]", ""]
    assert rows[-1] == ["real data, 90 samples", "0.50 [0.20, 0.80]", ""]
    assert comparison.cells(NOTE, intervals=False)[1][0] == ["a", "50.0 %", "50.0 %"]
    text = comparison.markdown()
    assert "| b | 4.00 [3.50, 4.50] | 1.00 [0.50, 1.50] |" in text
    assert "- 10 calls: b, 1.00 [0.50, 1.50]; not distinguishable from it: a" in text
    assert "a note." in text
    assert markdown_table(["a", "b"], [["1", "2"]]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_json_has_everything(comparison: Comparison) -> None:
    plain = json.loads(json.dumps(comparison.asdict(), allow_nan=False))
    assert plain["main"] == "frechet"
    assert plain["records"][0]["measures"]["frechet"] == {"value": 9, "low": 8.5, "high": 9.5}
    best, near = {"solver": "c", "nfe": 5}, [{"solver": "b", "nfe": 5}]
    assert plain["advice"][0] == {"nfe": 5, "best": best, "not_told_apart": near}
    assert plain["real"]["n"] == 90
    assert plain["real"]["measures"]["note"] == {"value": 0.01, "low": None, "high": None}


def test_the_picture_shows_every_sampler_with_its_intervals(comparison: Comparison) -> None:
    axes = quality(comparison.records, LOW, real=comparison.real["frechet"])
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["real data", "a", "b", "c"]
    bars = {c.get_label(): c for c in axes.containers}
    assert bars["b"].lines[0].get_ydata().tolist() == [4, 1]
    segments = bars["b"].lines[2][0].get_segments()
    assert [(s[0][1], s[1][1]) for s in segments] == [(3.5, 4.5), (0.5, 1.5)]
    given = Figure().add_subplot()
    assert quality(comparison.records, NOTE, given) is given
