"""Comparisons: what is crossed with what, the advice, the tables, the picture, the blind pairs."""

import json

import pytest
import torch
from matplotlib.figure import Figure

import tiny
from bfn._utils.estimate import Estimate
from bfn.core.flows import ContinuousFlow, DiscreteFlow
from bfn_lab import blind
from bfn.quality.comparison import Comparison, compare, markdown_table
from bfn.quality.judge import Measure
from bfn.quality.judge_choice import judge_for
from bfn.quality.comparison import Record, Setting, crossed
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


def test_wrong_crossings() -> None:
    flow = ContinuousFlow()
    for arguments, message in [
        ((flow, [], [5]), "nothing to compare"),
        ((flow, ["bfn"], []), "nothing to compare"),
        ((flow, ["bfn-solver2"], [5]), "is for discrete data"),
        ((flow, ["nonsense"], [5]), "expected one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            crossed(*arguments)
    with pytest.raises(ValueError, match=r"t_start=0.01: none of bfn takes it"):
        crossed(flow, ["bfn"], [5], t_start=[0.01])
    with pytest.raises(ValueError, match=r"g=2: none of bfn takes it"):
        crossed(flow, ["bfn"], [5], g=[2.0])
    with pytest.raises(ValueError, match="t_start=2: expected a time between 0 and 1"):
        crossed(flow, ["bfn-solver++2"], [5], t_start=[2.0])


def test_advice_names_the_best_and_those_not_told_apart(comparison: Comparison) -> None:
    assert comparison.main is LOW
    five, ten = comparison.advice
    assert (five.nfe, five.best.setting.name, [r.setting.name for r in five.not_told_apart]) == (5, "c", ["b"])
    # 2 - 0.5 and 1 + 0.5 touch: not told apart.
    assert [r.setting.name for r in ten.not_told_apart] == ["a"]
    assert five.sentence(LOW) == "5 calls: c, 3.50 [3.00, 4.00]; not told apart from it: b"


def test_a_high_measure_ranks_the_other_way() -> None:
    high = Measure("frechet", "share", "high")
    comparison = Comparison("m", "x", (high,), (record("a", 5, 9), record("b", 5, 4)), {"frechet": Estimate(1)}, 1)
    assert comparison.advice[0].best.setting.name == "a"


def test_tables_have_samplers_down_calls_across_and_real_data_last(comparison: Comparison) -> None:
    header, rows = comparison.cells(LOW)
    assert header == ["", "5 calls", "10 calls"]
    assert rows[0] == ["a", "9.00 [8.50, 9.50]", "2.00 [1.50, 2.50]"]
    assert rows[2] == ["c", "3.50 [3.00, 4.00]", ""]
    assert rows[-1] == ["real data, 90 samples", "0.50 [0.20, 0.80]", ""]
    assert comparison.cells(NOTE, intervals=False)[1][0] == ["a", "50.0 %", "50.0 %"]
    text = comparison.markdown()
    assert "| b | 4.00 [3.50, 4.50] | 1.00 [0.50, 1.50] |" in text
    assert "- 10 calls: b, 1.00 [0.50, 1.50]; not told apart from it: a" in text
    assert "a note." in text
    assert markdown_table(["a", "b"], [["1", "2"]]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_json_has_everything(comparison: Comparison) -> None:
    plain = json.loads(json.dumps(comparison.asdict(), allow_nan=False))
    assert plain["main"] == "frechet"
    assert plain["records"][0]["measures"]["frechet"] == {"value": 9, "low": 8.5, "high": 9.5}
    assert plain["advice"][0] == {
        "nfe": 5,
        "best": {"solver": "c", "nfe": 5},
        "not_told_apart": [{"solver": "b", "nfe": 5}],
    }
    assert plain["real"] == {
        "n": 90,
        "measures": {
            "frechet": {"value": 0.5, "low": 0.2, "high": 0.8},
            "note": {"value": 0.01, "low": None, "high": None},
        },
    }


def test_a_model_is_compared() -> None:
    model = tiny.build("vectors")
    judge = judge_for(model, None, torch.randn(200, 2, generator=torch.Generator().manual_seed(0)))
    settings = crossed(model.flow, ["bfn", "auto"], [2, 3])
    found = compare(model, settings, judge, 20, name="vectors")
    assert [r.setting for r in found.records] == settings
    assert found.n_real == 20
    assert len(found.advice) == 2


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
    with pytest.raises(ValueError, match="no records"):
        quality([], LOW)


def pairs(tmp_path, n: int = 12, seed: int = 0):
    settings = [Setting("bfn", 5), Setting("auto", 5)]
    samples = [torch.full((n, 1, 4, 4), value) for value in (-1.0, 1.0)]
    blind.write_pairs(tmp_path / "pairs", tiny.build("images"), settings, samples, seed=seed)
    return json.loads((tmp_path / "pairs-key.json").read_text())


def answer(tmp_path, lines: list[str]):
    path = tmp_path / "pairs" / "answers.csv"
    path.write_text("pair,answer\n" + "".join(f"{line}\n" for line in lines))
    return path


def test_pairs_are_shuffled_and_the_key_is_apart_and_right(tmp_path) -> None:
    from PIL import Image

    key = pairs(tmp_path)
    assert 0 < sum(key["left"]) < 12
    assert sorted(p.suffix for p in (tmp_path / "pairs").iterdir()) == sorted([".md", ".csv", *[".png"] * 12])
    for number, left in enumerate(key["left"], 1):
        picture = Image.open(tmp_path / "pairs" / f"pair-{number:03d}.png").convert("L")
        dark_left = picture.crop((20, 60, 120, 160)).resize((1, 1)).getpixel((0, 0)) < 128
        # Sampler 0 draws black, sampler 1 white.
        assert dark_left == (left == 0)
    for name in ("bfn", "auto"):
        assert name not in (tmp_path / "pairs" / "pairs.md").read_text()


def test_preference_is_counted_with_wilson_s_interval(tmp_path) -> None:
    key = pairs(tmp_path)
    first = ["left" if left == 0 else "right" for left in key["left"]]
    other = {"left": "right", "right": "left"}
    answers = [f"{i},{side if i <= 9 else other[side]}" for i, side in enumerate(first[:11], 1)]
    result = blind.score(answer(tmp_path, [*answers, "12,"]), tmp_path / "pairs-key.json")
    assert (result.n_first, result.n_second, result.n_skipped) == (9, 2, 1)
    assert result.share.low == pytest.approx(0.5230, abs=1e-3)
    assert result.share.high == pytest.approx(0.9486, abs=1e-3)
    assert result.sentence().endswith("81.8 % [52.3, 94.9]; bfn, 5 calls is preferred")
    half = [f"{i},{side if i <= 6 else other[side]}" for i, side in enumerate(first, 1)]
    assert "no preference" in blind.score(answer(tmp_path, half), tmp_path / "pairs-key.json").sentence()


def test_texts_are_quoted(tmp_path) -> None:
    x = torch.tensor([[3, 1, 20]])
    settings = [Setting("bfn", 5), Setting("auto", 5)]
    blind.write_pairs(tmp_path / "p", tiny.build("text"), settings, [x, x + 1])
    text = (tmp_path / "p" / "pairs.md").read_text()
    assert "> cat" in text
    assert "> dbu" in text


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1,up"], "line 2: answer 'up': expected left, right"),
        (["13,left"], "line 2: pair '13': expected 1 to 12"),
        (["x,left"], "pair 'x'"),
        (["1,left", "1,right"], "line 3: pair 1 is answered twice"),
        (["1,", "2,"], "no pair is answered"),
    ],
)
def test_wrong_answers(tmp_path, lines: list[str], message: str) -> None:
    pairs(tmp_path)
    with pytest.raises(ValueError, match=message):
        blind.score(answer(tmp_path, lines), tmp_path / "pairs-key.json")


def test_wrong_pairs_and_keys(tmp_path) -> None:
    pairs(tmp_path)
    two = [Setting("bfn", 5), Setting("auto", 5)]
    image, model = torch.zeros(2, 1, 4, 4), tiny.build("images")
    with pytest.raises(ValueError, match="not an empty folder"):
        blind.write_pairs(tmp_path / "pairs", model, two, [image, image])
    with pytest.raises(ValueError, match="two different ones"):
        blind.write_pairs(tmp_path / "q", model, two[:1] * 2, [image, image])
    with pytest.raises(ValueError, match="neither images nor text"):
        blind.write_pairs(tmp_path / "q", tiny.build("vectors"), two, [torch.zeros(2, 2)] * 2)
    answers = answer(tmp_path, ["1,left"])
    with pytest.raises(ValueError, match="no such file"):
        blind.score(answers, tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="not the key"):
        blind.score(answers, tmp_path / "bad.json")
