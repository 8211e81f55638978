"""The example of data of one's own: trained for a few steps it draws what was asked for, as a picture."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_data.py"))


def test_rings_are_what_the_example_says() -> None:
    parts, present, radius = EXAMPLE["rings"](50, torch.Generator().manual_seed(0))
    torch.testing.assert_close(parts["at"].norm(dim=-1)[present], radius[:, None].expand(50, 6)[present])
    assert not parts["at"][~present].any()
    turns = (parts["kind"][:, 1:] - parts["kind"][:, :-1]) % 3
    assert (turns[present[:, 1:]] == 1).all()


def test_it_trains_draws_and_writes_a_picture(tmp_path, capsys) -> None:
    assert EXAMPLE["main"](["--out", str(tmp_path / "rings.png"), "--steps", "5", "--width", "16"]) == 0
    told = capsys.readouterr().out
    assert "3, 4, 5 and 6 points, radius 0.7: [3, 4, 5, 6] points" in told
    assert "a star at (0.8, 0): [5, 5, 5, 5] points" in told
    assert np.asarray(Image.open(tmp_path / "rings.png")).std() > 0


def test_wrong_numbers_are_refused(tmp_path) -> None:
    with pytest.raises(SystemExit, match="2"):
        EXAMPLE["main"](["--out", str(tmp_path / "rings.png"), "--steps", "0"])
