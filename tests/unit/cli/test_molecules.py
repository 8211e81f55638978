"""Molecules on the command line: strings, a sheet, what is told of them, and one line where something is missing."""

import sys

import pytest
from PIL import Image

from bfn.quality.molecules import Molecules
from commands import run


@pytest.fixture
def stored(models):
    return models / "molecules"


def test_molecules_are_printed_drawn_and_judged(stored, tmp_path, capsys):
    run("sample", stored, "--condition", "gap=0.25", "--nfe", 3, "--n", 40, "--out", tmp_path)
    told = capsys.readouterr().out.splitlines()
    strings = (tmp_path / "samples.txt").read_text().splitlines()
    assert told[:40] == strings
    assert {len(one) for one in strings} <= {2, 3, 4, 6}
    molecules = Molecules.read(strings)
    assert 0 < len(molecules.valid) < 40
    counts = f"{len(molecules.valid)} of 40 are molecules"
    line = next(one for one in told if one.startswith(counts))
    assert f"{len(molecules.unique)} of these different" in line
    with Image.open(tmp_path / "samples.png") as sheet:
        assert sheet.mode == "RGB"
        assert min(sheet.size) >= 180


def test_programs_get_the_same_in_json(stored, tmp_path, values):
    told = values("sample", stored, "--nfe", 2, "--n", 30, "--out", tmp_path)
    found = Molecules.read(told["text"])
    assert (told["molecules"]["valid"], told["molecules"]["canonical"]) == (len(found.valid), list(found.canonical))
    assert told["files"] == [str(tmp_path / "samples.txt"), str(tmp_path / "samples.png")]


def test_without_rdkit_strings_come_and_one_line_says_what_to_install(stored, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    for name in [name for name in sys.modules if name.startswith("rdkit.")]:
        monkeypatch.setitem(sys.modules, name, None)
    run("sample", stored, "--nfe", 2, "--n", 3, "--out", tmp_path)
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == (tmp_path / "samples.txt").read_text().splitlines()
    (line,) = [one for one in told if "is needed" in one]
    assert line == "not drawn, not judged: rdkit is needed to read molecules: pip install 'bayesian-flow[chem]'"
    assert not (tmp_path / "samples.png").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--condition", "gap=7"], "condition gap=7: the data that the model was made for have 0.1 to 0.4"),
        (["--length", "7"], "lengths from 7 to 7: expected 1 to 6, the model's longest"),
        (["--prompt", "CCCCCCC"], "a prompt of 7 tokens: the model's texts have 6; shorten it"),
    ],
)
def test_what_the_model_cannot_do_is_one_line(stored, tmp_path, refused, given, told):
    assert told in refused("sample", stored, "--nfe", 2, "--out", tmp_path / "none", *given)


def test_data_that_cannot_be_read_or_are_too_long_are_told(stored, tmp_path, refused):
    path = tmp_path / "own.csv"
    path.write_text("smiles,gap\nCCO,0.3\nC1CC,0.2\nCCN,0.25\n")
    line = refused("train", path, "--sequence", "smiles", "--tokenizer", "smiles", "--out", tmp_path / "run")
    assert "line 3: smiles is 'C1CC', not a molecule: ring number 1, which comes an odd number of times" in line
    path.write_text("smiles,gap\n" + "CCO,0.3\n" * 60 + "CCCCCCCCCO,0.2\n" * 60)
    assert "has 10 tokens: the model's longest is 6" in refused("evaluate", stored, "--data", path)
