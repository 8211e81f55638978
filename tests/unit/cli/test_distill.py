"""``bfn distill``: a stored model that samples in one call; wrong input in one line."""

import shlex
import signal

import pytest
import torch

import bfn
import tiny
from bfn.cli import main
from bfn.training.trainer import Trainer
from commands import run

FEW = ("--paths", 8, "--batch", 4, "--nfe", 3)


def test_the_command_stores_a_model_that_samples_in_one_call(models, tmp_path, values):
    arguments = ("distill", models / "binary", "--out", tmp_path / "student", *FEW, "--steps", 3, "--calls", 2)
    told = values(*arguments)
    model = bfn.load(tmp_path / "student")
    assert told["times"]["2"][0] == 0
    assert told["end_error_low"] < told["end_error"] < told["end_error_high"]
    assert model.sample(2, nfe=1).nfe == 1
    assert model.sample(2, nfe=2).times == model.info.tables[2].times
    run(*arguments, "--resume")
    run("sample", tmp_path / "student", "--nfe", 1, "--n", 2, "--out", tmp_path / "samples")


def test_an_earlier_student_to_begin_with(models, tmp_path):
    folder, first, second = models / "images", tmp_path / "first", tmp_path / "second"
    run("distill", folder, "--out", first, *FEW, "--calls", 1, "--steps", 4, "--lr", 0.1)
    run("distill", folder, "--out", second, *FEW, "--calls", 1, "--start", first, "--steps", 1, "--lr", 1e-9)
    teacher, before, after = (
        torch.nn.utils.parameters_to_vector(bfn.load(path).parameters()) for path in (folder, first, second)
    )
    torch.testing.assert_close(after, before)
    assert not torch.allclose(before, teacher)


def test_what_is_told_to_go_on_with_is_a_command_that_does(tmp_path, capsys, monkeypatch):
    folder, out = tiny.save("binary", tmp_path / "a model"), tmp_path / "student"
    first = tiny.save("binary", tmp_path / "first")
    options = map(str, (*FEW, "--steps", 4, "--calls", 1, "--seed", 3, "--start", first))
    step = Trainer.train_step

    def interrupted(self):
        step(self)
        if self.step == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    assert main(["distill", str(folder), "--out", str(out), *options]) != 0
    told = next(line for line in capsys.readouterr().err.splitlines() if "to go on: bfn " in line)
    words = shlex.split(told.partition("to go on: bfn ")[2])
    assert words[words.index("--start") + 1] == str(first)
    monkeypatch.undo()
    assert main(words) == 0
    assert "distilled in 4 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", 0), "--steps 0"),
        (("--paths", 20), "at least a batch of 128 paths"),
        (("--solver", "fast-sde"), "a teacher with noise"),
        (("--guidance", 2), "guidance"),
        (("--start", "digitz"), "neither a directory nor"),
    ],
)
def test_wrong_input_is_told_in_one_line(options, message, models, tmp_path, refused):
    assert message in refused("distill", models / "vectors", "--out", tmp_path / "student", *options)
