"""``bfn distill``: a stored model that samples in one call; wrong input in one line."""

import json
import shlex
import signal

import torch

import bfn
import tiny
from bfn.cli import main
from bfn.training.trainer import Trainer


def test_the_command_stores_a_model_that_samples_in_one_call(tmp_path, capsys):
    folder, out = tiny.save("binary", tmp_path / "m"), tmp_path / "student"
    arguments = ["--steps", "3", "--paths", "8", "--batch", "4", "--nfe", "3", "--calls", "2", "--json"]
    assert main(["distill", str(folder), "--out", str(out), *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    model = bfn.load(out)
    assert told["times"]["2"][0] == 0
    assert told["end_error_low"] < told["end_error"] < told["end_error_high"]
    assert model.sample(2, nfe=1).nfe == 1
    assert model.sample(2, nfe=2).times == model.info.tables[2].times
    # What was done is not done again; more steps are.
    assert main(["distill", str(folder), "--out", str(out), *arguments, "--resume"]) == 0
    assert main(["sample", str(out), "--nfe", "1", "--n", "2", "--out", str(tmp_path / "samples")]) == 0


def test_an_earlier_student_to_begin_with(tmp_path):
    folder, first, second = tiny.save("images", tmp_path / "m"), tmp_path / "first", tmp_path / "second"
    few = ["--paths", "8", "--batch", "4", "--nfe", "3", "--calls", "1"]
    assert main(["distill", str(folder), "--out", str(first), *few, "--steps", "4", "--lr", "0.1"]) == 0
    begin = ["--start", str(first), "--steps", "1", "--lr", "1e-9"]
    assert main(["distill", str(folder), "--out", str(second), *few, *begin]) == 0
    teacher, before, after = (
        torch.nn.utils.parameters_to_vector(bfn.load(path).parameters()) for path in (folder, first, second)
    )
    torch.testing.assert_close(after, before)
    assert not torch.allclose(before, teacher)


def test_what_is_told_to_go_on_with_is_a_command_that_does(tmp_path, capsys, monkeypatch):
    folder, out = tiny.save("binary", tmp_path / "a model"), tmp_path / "student"
    first = tiny.save("binary", tmp_path / "first")
    options = ["--steps", "4", "--paths", "8", "--batch", "4", "--nfe", "3", "--calls", "1", "--seed", "3"]
    options += ["--start", str(first)]
    step = Trainer.train_step

    def interrupted(self):
        step(self)
        if self.step == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    assert main(["distill", str(folder), "--out", str(out), *options]) != 0
    told = next(line for line in capsys.readouterr().err.splitlines() if "to go on: " in line)
    bfn_, *words = shlex.split(told.partition("to go on: ")[2])
    assert bfn_ == "bfn"
    assert words[words.index("--start") + 1] == str(first)
    monkeypatch.undo()
    assert main(words) == 0
    assert "distilled in 4 steps" in capsys.readouterr().out


def test_wrong_input_is_told_in_one_line(tmp_path, refused):
    folder = tiny.save("vectors", tmp_path / "m")
    out = ["--out", tmp_path / "student"]
    assert "--steps 0" in refused("distill", folder, *out, "--steps", "0")
    assert "at least a batch of 128 paths" in refused("distill", folder, *out, "--paths", "20")
    assert "a teacher with noise" in refused("distill", folder, *out, "--solver", "fast-sde")
    assert "solver='fast-od'" in refused("distill", folder, *out, "--solver", "fast-od")
    assert "guidance" in refused("distill", folder, *out, "--guidance", "2")
    assert "neither a directory nor" in refused("distill", "digitz", *out)
    assert "neither a directory nor" in refused("distill", folder, *out, "--start", "digitz")
    other = tiny.save("images", tmp_path / "other")
    assert "expected ContinuousFlow" in refused("distill", folder, *out, "--start", other)
