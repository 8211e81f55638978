"""Many samples go to numbered files: those that one call draws, whatever was killed and however the files are cut."""

import json

import numpy as np
import pytest
import torch

import bfn
import tiny
from bfn.cli import main
from bfn.core.sampling import sample_in_batches
from bfn.storage.sample_files import pieces_for, sample_to


def joined(files, name="x"):
    return np.concatenate([np.load(file)[name] for file in files])


def test_the_files_hold_what_one_call_draws(tmp_path):
    model = tiny.build("images")
    whole = sample_in_batches(model, 11, "fast-sde", 3, batch=2, seed=5)
    files, planned = sample_to(model, tmp_path, 11, "fast-sde", 3, batch=2, per_file=4, seed=5)
    assert [file.name for file in files] == [f"samples-00000{i}.npz" for i in range(3)]
    assert planned == whole.plan
    assert np.array_equal(joined(files), whole.x.numpy())
    assert np.array_equal(joined(files, "labels"), whole.label.numpy())
    assert (tmp_path / "samples.png").is_file()
    files[1].unlink()
    again, _ = sample_to(model, tmp_path, 11, "fast-sde", 3, batch=2, per_file=4, seed=5)
    assert np.array_equal(joined(again), whole.x.numpy())


def test_another_model_or_wish_is_not_mixed_in(tmp_path):
    model = tiny.build("images")
    sample_to(model, tmp_path, 6, "fast-sde", 3, batch=2, per_file=2)
    with pytest.raises(bfn.UserError, match="of another request, with table"):
        sample_to(model, tmp_path, 6, "fast-sde", 4, batch=2, per_file=2)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    with pytest.raises(bfn.UserError, match="of another request, with model"):
        sample_to(model, tmp_path, 6, "fast-sde", 3, batch=2, per_file=2)


def test_files_are_as_large_as_is_handy(tmp_path):
    model = tiny.build("images")  # 64 numbers each
    assert pieces_for(model, tmp_path, 10**7, 256).size == 64 * 256
    assert pieces_for(model, tmp_path, 10**6, 256).size == 61 * 256  # 64 files at least
    assert len(pieces_for(model, tmp_path, 16_000, 256)) == 1
    assert pieces_for(model, tmp_path, 10**6, 100, 250).size == 200
    assert pieces_for(model, tmp_path, 10**6, 100, 7).size == 100


def test_the_command_writes_many_as_the_library_does(tmp_path, capsys):
    stored = tiny.save("images", tmp_path / "model")
    wishes = ["--nfe", "2", "--batch", "2", "--seed", "3", "--label", "1", "0", "--json"]
    assert main(["sample", str(stored), "--n", "7", "--per-file", "4", "--out", str(tmp_path / "many"), *wishes]) == 0
    told = json.loads(capsys.readouterr().out)
    whole = sample_in_batches(bfn.load(stored), 7, nfe=2, batch=2, seed=3, label=[1, 0, 1, 0, 1, 0, 1])
    assert np.array_equal(joined(told["files"]), whole.x.numpy())
    assert joined(told["files"], "labels").tolist() == [1, 0, 1, 0, 1, 0, 1]


def test_text_is_one_line_a_sample(tmp_path):
    model = tiny.build("text")
    files, _ = sample_to(model, tmp_path, 5, nfe=2, batch=2, per_file=2)
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert lines == model.decode(sample_in_batches(model, 5, nfe=2, batch=2).x)
