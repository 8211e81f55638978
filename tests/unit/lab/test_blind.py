"""Blind pairs for people: shuffled, with the key apart, and counted with an interval."""

import json

import pytest
import torch
from PIL import Image

import tiny
from bfn.quality import Setting
from bfn_lab import blind


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


def test_a_study_is_written_and_scored(tmp_path) -> None:
    settings = [Setting("bfn", 2), Setting("auto", 2)]
    said = blind.write_study(tiny.build("text"), settings, tmp_path / "new", 3, 0, 2)
    assert (tmp_path / "new" / "pairs.md").read_text().count("> ") == 6
    assert said.startswith("3 pairs written to")
    (tmp_path / "new" / "answers.csv").write_text("pair,answer\n1,left\n")
    assert " of 1 pairs, 2 skipped" in blind.score_answers(tmp_path / "new" / "answers.csv")
