"""Numbered files of samples: they hold what one call draws, after any interruption and for any size of file."""

import json

import numpy as np
import pytest
import torch

import bfn
import tiny
from bfn.cli import main
from bfn.core.sampling import Request
from bfn.storage.sample_files import pieces_for, sample_to
from messages import refused

DRAW = {"batch": 2, "seed": 5}


def joined(files, name="x"):
    return np.concatenate([np.load(file)[name] for file in files])


@pytest.mark.parametrize("options", [{}, {"label": [0, 2, 1] * 3 + [0, 0]}, {"guidance": 2.0, "label": 1}])
def test_the_files_hold_what_one_call_draws(tmp_path, options):
    model = tiny.build("images")
    whole = model.sample(11, "fast-sde", 3, **DRAW, **options)
    files, planned = sample_to(model, tmp_path, 11, "fast-sde", 3, per_file=4, **DRAW, **options)
    assert [file.name for file in files] == [f"samples-00000{i}.npz" for i in range(3)]
    assert planned.table.times == whole.times
    assert np.array_equal(joined(files), whole.x.numpy())
    assert np.array_equal(joined(files, "labels"), whole.label.numpy())
    assert (tmp_path / "samples.png").is_file()
    files[1].unlink()
    request = Request.from_options("fast-sde", 3, **options)
    again, _ = sample_to(model, tmp_path, 11, request, per_file=4, **DRAW)
    assert np.array_equal(joined(again), whole.x.numpy())


@pytest.mark.parametrize(
    ("change", "named"), [({"nfe": 4}, "request"), ({"seed": 6}, "seed"), ({"label": 1}, "request")]
)
def test_files_of_another_request_are_not_mixed(tmp_path, change, named):
    model, settings = tiny.build("images"), {"solver": "fast-sde", "nfe": 3, "per_file": 2, **DRAW}
    sample_to(model, tmp_path, 6, **settings)
    refused(f"of another request, with {named} ", sample_to, model, tmp_path, 6, **{**settings, **change})


def test_changed_weights_and_tuned_tables_are_another_request(tmp_path):
    model, settings = tiny.build("images"), {"nfe": 3, "per_file": 2, **DRAW}
    sample_to(model, tmp_path, 4, **settings)
    model.info.tables = {3: bfn.core.solver.plan(model, "fast-ode", 3).table}
    refused("of another request, with table", sample_to, model, tmp_path, 4, **settings)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    refused("of another request, with model", sample_to, model, tmp_path, 4, **settings)


@pytest.mark.parametrize(
    ("n", "batch", "per_file", "size"),
    [
        (10**7, 256, None, 64 * 256),
        (10**6, 256, None, 61 * 256),  # at least 64 files
        (16_000, 256, None, 64 * 256),  # one file
        (10**6, 100, 250, 200),
        (10**6, 100, 7, 100),
    ],
)
def test_files_hold_whole_batches(tmp_path, n, batch, per_file, size):
    bound = Request("fast-sde", 3).bind(tiny.build("images"), n)  # 64 numbers per sample
    assert pieces_for(bound, tmp_path, batch, per_file).size == size


def test_the_command_writes_many_as_the_library_does(tmp_path, capsys):
    stored = tiny.save("images", tmp_path / "model")
    words = ["--nfe", "2", "--batch", "2", "--seed", "3", "--label", "1", "0", "--json"]
    assert main(["sample", str(stored), "--n", "7", "--per-file", "4", "--out", str(tmp_path / "many"), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    whole = bfn.load(stored).sample(7, nfe=2, batch=2, seed=3, label=[1, 0, 1, 0, 1, 0, 1])
    assert np.array_equal(joined(told["files"]), whole.x.numpy())
    assert joined(told["files"], "labels").tolist() == [1, 0, 1, 0, 1, 0, 1]


def test_text_is_one_line_per_sample(tmp_path):
    model = tiny.build("text")
    files, _ = sample_to(model, tmp_path, 5, nfe=2, batch=2, per_file=2)
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert lines == model.decode(model.sample(5, nfe=2, batch=2).x)
