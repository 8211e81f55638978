"""``bfn train``: which settings it trains with, and wrong input. The training itself is not run here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bfn import training
from bfn.cli import main
from bfn.cli.train import settings_first
from bfn.training.fitting import Result
from commands import run


@pytest.fixture
def called(monkeypatch) -> list:
    """What ``bfn.training.train`` was called with; it returns at once, told to stop by ``called.stopped_by``."""
    calls = []

    def train(settings, run, *, resume=False, progress=True, cpu=False):
        calls.append((settings, run, resume, cpu))
        return Result(run, 1, None)

    monkeypatch.setattr(training, "train", train)
    return calls


def test_a_recipe_with_changes(called, tmp_path):
    changes = ("steps=3", "lr=1e-3", "network.channels=8")
    run("train", "--recipe", "digits", "--out", tmp_path, *changes, "--seed", 5, "--cpu")
    [(settings, folder, resume, cpu)] = called
    expected = training.recipe("digits").override({"steps": 3, "lr": 1e-3, "network.channels": 8, "seed": 5})
    assert settings == expected
    assert (folder, resume, cpu) == (tmp_path, False, True)


def test_a_file_of_settings_on_other_data(called, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('data = "digits"\nnetwork = "unet"\nflow = "continuous"\nhead = "data"\nbatch = 8\n')
    run("train", "--config", file, "--data", "photos/", "--resume")
    [(settings, folder, resume, _)] = called
    assert (settings.data, settings.batch) == ({"name": "photos/"}, 8)
    assert (folder, resume) == (Path("runs/mine"), True)


@pytest.mark.parametrize(("signal", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_run_that_was_stopped_says_so_by_its_code(signal, code, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "train", lambda settings, run, **_: Result(run, 1, signal))
    assert main(["train", "--recipe", "digits", "--out", str(tmp_path)]) == code


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "say what to train"),
        (["--recipe", "digit"], "did you mean 'digits'?"),
        (["--recipe", "digits", "--config", "a.yaml"], "give one of them"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--recipe", "digits", "step=3"], "did you mean 'steps'?"),
        (["--recipe", "digits", "steps"], "expected name=value"),
        (["--recipe", "digits", "lr=fast"], "fast"),
        (["--recipe", "digits", "--data", "nowhere/"], "no such file or folder"),
        (["--out", "nowhere", "--resume"], "no run to resume in nowhere"),
    ],
)
def test_wrong_input(arguments, part, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert part in refused("train", *arguments)


def test_wrong_data(refused, tmp_path):
    for folder, size in (("broken", (8, 8)), ("mixed", (9, 8))):
        (tmp_path / folder).mkdir()
        Image.new("L", (8, 8), 128).save(tmp_path / folder / "a.png")
        Image.new("L", size, 128).save(tmp_path / folder / "b.png")
    (tmp_path / "broken" / "b.png").write_text("not a picture")
    (tmp_path / "empty").mkdir()
    torch.save({"x": torch.zeros(2)}, tmp_path / "data.pt")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    for source, message in {
        "broken": "b.png",
        "mixed": "b.png",
        "empty": "empty",
        "data.pt": "never loaded",
        "objects.npy": "objects.npy",
        "a.txt": "is text",
    }.items():
        line = refused("train", "--recipe", "digits", "--data", tmp_path / source, "--out", tmp_path / "run")
        assert message in line


def test_data_fetch_refuses_a_set_it_does_not_know(refused):
    assert "expected one of mnist" in refused("data", "fetch", "imagenet")
    assert "scikit-learn" in refused("data", "fetch", "digits")


def test_records_of_ones_own_are_trained_on_and_sampled(tmp_path, capsys, values, refused):
    rows = [f"{'CO' * (n % 5 + 1)},{n % 5 / 10},{'odd' if n % 2 else 'even'}" for n in range(60)]
    source, folder = tmp_path / "drugs.csv", tmp_path / "run"
    source.write_text("smiles,gap,kind\n" + "\n".join(rows) + "\n")
    small = ["steps=20", "batch=8", "network.width=16", "network.n_heads=2", "network.n_blocks=1", "tensorboard=false"]
    columns = ["--sequence", "smiles", "--conditions", "gap", "--label", "kind", "--tokenizer", "smiles"]
    run("train", source, *columns, "--out", folder, "--cpu", *small)
    asked = ["--label", "odd", "--condition", "gap=0.2", "--length", 4, "--n", 3, "--nfe", 3]
    told = values("sample", folder, *asked, "--out", tmp_path / "s")
    assert told["labels"] == ["odd"] * 3
    assert (tmp_path / "s" / "samples.txt").read_text().splitlines() == told["text"]
    assert all(len(text) == 4 and set(text) <= {"C", "O"} for text in told["text"])
    run("info", folder)
    shown = capsys.readouterr().out
    assert "condition gap" in shown
    assert "2 to 10, " in shown
    assert values("evaluate", folder, "--n", 3)["conditions"] == ["gap"]
    run("compare", folder, "--nfe", 3, "--n", 12, "--solvers", "auto", "bfn", "--json", tmp_path / "c.json")
    assert "best by valid" in capsys.readouterr().out  # strings cut as SMILES are molecules; few have no distance
    line = refused("sample", folder, "--condition", "gap=9", "--n", 1, "--out", tmp_path / "s")
    assert "condition gap=9: the data that the model was made for have 0 to 0.4" in line


def test_every_command_takes_records_of_several_parts(tmp_path, capsys, monkeypatch, refused):
    monkeypatch.setenv("BFN_HOME", str(tmp_path / "home"))
    rows = [f"{'CO'[i % 2] * (1 + i % 3)},{i % 7 / 7:.3f},{'even' if i % 2 else 'odd'}" for i in range(80)]
    source, folder, out = tmp_path / "drugs.csv", tmp_path / "run", tmp_path / "out"
    source.write_text("smiles,gap,kind\n" + "\n".join(rows) + "\n")
    columns = ["--sequence", "smiles", "--parts", "gap", "--label", "kind"]
    small = ["steps=4", "warmup=1", "batch=16", "eval_count=8", "sample_count=2", "sample_nfe=2", "network.width=16"]
    run("train", source, *columns, "--out", folder, "--cpu", *small)
    run("sample", folder, "--n", 3, "--nfe", 2, "--label", "even", "--length", 2, "--out", out)
    header, *lines = (out / "samples.csv").read_text().splitlines()
    assert header == "smiles,gap,label"
    assert all(len(line.split(",")[0]) == 2 and line.endswith(",even") for line in lines)
    run("compare", folder, "--nfe", 2, "--n", 40)
    assert "Frechet distance" in capsys.readouterr().out
    run("likelihood", folder, "--n", 4, "--nfe", 5)
    run("tune", folder, "--nfe", 3, "--steps", 1, "--batch", 8, "--held-out", 8, "--teacher-nfe", 5)
    assert "grid on 8 held-out starts" in capsys.readouterr().out
    assert "lengths from 9 to 9: expected 1 to 3" in refused("sample", folder, "--length", 9)
    assert "is for continuous data: for discrete" in refused("compare", folder, "--solvers", "bfn-solver++2")


@pytest.mark.parametrize(
    ("words", "arranged"),
    [
        (["a.csv", "--sequence", "x", "y", "lr=1"], ["a.csv", "lr=1", "--sequence", "x", "y"]),
        (["--out", "a=b", "lr=1", "--cpu", "steps=2"], ["lr=1", "steps=2", "--out", "a=b", "--cpu"]),
        ([], []),
    ],
)
def test_settings_may_stand_anywhere(words, arranged):
    assert settings_first(words) == arranged


OWN_NETWORK = """
import torch


class Net(torch.nn.Module):
    def __init__(self, in_features, n_labels=None):
        super().__init__()
        self.embedding = torch.nn.Embedding((n_labels or 0) + 1, 4)
        self.layers = torch.nn.Linear(in_features + 5, in_features)

    def forward(self, inputs, t, label=None):
        label = torch.full((len(inputs),), -1) if label is None else label
        return self.layers(torch.cat([inputs, t[:, None], self.embedding(label + 1)], 1))
"""


def test_a_network_of_ones_own_goes_through_all_commands(tmp_path, values, refused):
    numbers = np.random.default_rng(0)
    np.savez(tmp_path / "points.npz", x=numbers.normal(size=(60, 2)), label=numbers.integers(0, 2, 60))
    (tmp_path / "own_network.py").write_text(OWN_NETWORK)
    network = ["--network", f"{tmp_path / 'own_network.py'}:Net"]
    folder, tuned = tmp_path / "run", tmp_path / "tuned"
    run("train", tmp_path / "points.npz", "--out", folder, *network, "steps=5", "batch=8", "tensorboard=false", "--cpu")
    measured = ["--n", 20, "--nfe", 3, "--solvers", "auto", "--store", tmp_path / "kept.jsonl"]
    run("compare", folder, *measured, *network)
    run("tune", folder, "--nfe", 3, "--steps", 1, "--held-out", 20, "--batch", 20, "--out", tuned, *network)
    asked = ["--n", 2, "--nfe", 3, "--label", 1, "--out", tmp_path / "samples"]
    assert values("sample", tuned, *asked, *network)["labels"] == ["1", "1"]
    assert "network" in refused("sample", tuned, "--n", 2)
