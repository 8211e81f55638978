"""The demo shows the models that are there and names those that are not."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def demo(*arguments: object) -> int:
    return runpy.run_path(str(DEMO))["main"]([str(argument) for argument in arguments])


def test_what_is_there_is_shown_and_what_is_not_is_named(tmp_path, capsys):
    images, text = tiny.save("images", tmp_path / "images"), tiny.save("text", tmp_path / "text")
    out = tmp_path / "out"
    assert demo("--out", out, "--models", images, "no-such-model", text, "--n", 20, "--nfe", 4) == 0
    told = capsys.readouterr().out
    assert "missing: no-such-model" in told
    assert "2 of 3 models shown" in told
    # Once for each model as it is drawn, once more above the lines of text.
    assert told.count("the original sampler, bfn: 4 calls") == 3
    assert told.count("the default, auto: 4 calls") == 3
    assert {file.name for file in out.iterdir()} == {
        "images.png", "images-forming.gif", "text.txt", "text-forming.gif",
    }  # fmt: skip
    lines = (out / "text.txt").read_text().splitlines()
    assert [len(line) for line in lines if line.startswith("  ")] == [22] * 4
    picture = np.asarray(Image.open(out / "images.png"))
    # Two sheets of 3 columns (one a class) and 7 rows, each image 56 pixels wide.
    assert picture.shape[0] >= 7 * 58
    assert picture.shape[1] >= 2 * 3 * 58


def test_molecules_are_drawn_and_counted(tmp_path, capsys):
    molecules, out = tiny.save("molecules", tmp_path / "molecules"), tmp_path / "out"
    assert demo("--out", out, "--models", molecules, "--n", 100, "--nfe", 3) == 0
    assert capsys.readouterr().out.count(" of 30 are molecules") == 2
    assert {file.name for file in out.iterdir()} == {"molecules.txt", "molecules.png", "molecules-forming.gif"}


def test_without_any_model_it_says_so(tmp_path, capsys):
    assert demo("--out", tmp_path / "out", "--models", "no-such-model") == 1
    told = capsys.readouterr().out
    assert "missing: no-such-model" in told
    assert "bfn train --recipe" in told
    assert not (tmp_path / "out").exists()


def test_wrong_numbers_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="2"):
        demo("--out", tmp_path / "out", "--nfe", 0)
