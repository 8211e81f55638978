"""The command line from end to end: train, resume, evaluate, sample, convert; and as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import bfn
import tiny
from bfn import interop
from bfn.cli import main
from bfn.storage import models as storage
from commands import run

PUBLISHED = Path(__file__).parents[1] / "data" / "official-checkpoints"
SETTINGS = """
data: digits
network: {name: unet, channels: 8, multipliers: [1], n_blocks: 1, attention_levels: [], condition_features: 16}
flow: {name: continuous, sigma_1: 0.001}
head: preconditioned
weighting: edm
"""
SMALL = (
    "batch=8", "warmup=1", "eval_every=0", "eval_count=8", "sample_every=0", "sample_count=4", "sample_nfe=2",
    "tensorboard=false",
)  # fmt: skip


def process(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "bfn", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False, **options)


def test_train_resume_evaluate_info_sample(tmp_path, capsys):
    settings = tmp_path / "mine.yaml"
    settings.write_text(SETTINGS)
    out, whole = tmp_path / "run", tmp_path / "whole"
    run("train", "--config", settings, "--out", out, *SMALL, "steps=2", "final_lr=1")
    assert "holds a run already" in _refused(capsys, "train", "--config", settings, "--out", out)
    run("train", "--out", out, "--resume", "steps=4")
    run("train", "--config", settings, "--out", whole, *SMALL, "steps=4", "final_lr=1")
    ours, theirs = (storage.read_weights(folder / storage.WEIGHTS) for folder in (out, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    assert "batch=" in _refused(capsys, "train", "--out", out, "--resume", "batch=3")
    run("evaluate", out, "--n", 20, "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["data"], report["part"], report["n"], report["with_labels"]) == ("digits", "test", 20, True)
    run("info", out, "--json")
    assert json.loads(capsys.readouterr().out)["card"]["step"] == 4
    run("sample", out, "--nfe", 2, "--n", 20, "--out", tmp_path / "samples")
    with np.load(tmp_path / "samples" / "samples.npz") as stored:
        assert stored["x"].shape == (20, 1, 8, 8)
        assert stored["labels"].tolist() == bfn.load(out).sample(20, nfe=2, seed=0).label.tolist()


def _refused(capsys, *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("case", ["text8", "mnist"])
def test_a_published_checkpoint_is_converted_and_sampled(case, tmp_path, capsys):
    cases = json.loads((PUBLISHED / "small-cases.json").read_text())
    (tmp_path / "settings.json").write_text(json.dumps(cases[case]))
    out = tmp_path / "converted"
    run("convert", PUBLISHED / f"{case}_ema.pt", "--config", tmp_path / "settings.json", out)
    ours, theirs = bfn.load(out), interop.load_official(PUBLISHED / f"{case}_ema.pt", cases[case])
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    capsys.readouterr()
    run("sample", out, "--nfe", 2, "--n", 2, "--out", tmp_path / "samples")
    assert (tmp_path / "samples" / ("samples.txt" if case == "text8" else "samples.png")).is_file()


def test_a_checkpoint_that_cannot_be_converted_leaves_nothing(tmp_path, capsys):
    file, out = PUBLISHED / "text8_ema.pt", tmp_path / "out"
    (tmp_path / "cut.pt").write_bytes(file.read_bytes()[:1000])
    (tmp_path / "list.json").write_text("[]")
    for source, config, message in [
        (file, "mnist_discrete", "does not fit"),
        (file, "text8", "text8_discrete"),
        (tmp_path / "none.pt", "text8_discrete", "no such file"),
        (tmp_path / "cut.pt", "text8_discrete", "cut.pt: cut off at byte 1000"),
        (file, tmp_path / "list.json", "expected an object"),
    ]:
        assert message in _refused(capsys, "convert", source, "--config", config, out)
    assert not out.exists()


def test_a_process_of_its_own_gives_the_same_files_and_tells_errors_in_one_line(tmp_path):
    model = tiny.save("text", tmp_path / "model")
    options = ["--nfe", 3, "--n", 2, "--seed", 5, "--out"]
    done = process("sample", model, *options, tmp_path / "a", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    run("sample", model, *options, tmp_path / "b")
    text = (tmp_path / "a" / "samples.txt").read_text()
    assert text == (tmp_path / "b" / "samples.txt").read_text()
    assert json.loads(done.stdout)["text"] == text.splitlines()
    done = process("sample", "nothing", "--nfe", "3")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("bfn: 'nothing': neither a directory")


def test_an_interrupted_process_leaves_with_130_and_nothing_half_written(tmp_path):
    model = tiny.save("images", tmp_path / "model")
    code = "import bfn.cli, sys; print('ready', flush=True); sys.exit(bfn.cli.main(sys.argv[1:]))"
    arguments = ["sample", str(model), "--nfe", "100000", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", code, *arguments]
    # A shell starts background jobs with SIGINT ignored, which a child inherits: the tests may be such a job.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heed)
    try:
        assert started.stdout.readline() == "ready\n"
        time.sleep(1)
        started.send_signal(signal.SIGINT)
        _, error = started.communicate(timeout=120)
    finally:
        started.kill()
    assert started.returncode == 130
    assert error.endswith("bfn: interrupted\n")
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_output_into_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m bfn solvers | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("solver ")
    assert done.stderr == ""
