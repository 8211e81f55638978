import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bfn
import bfn.training.objective as objective
import bfn.training.trainer as trainer
from bfn.core.solver import plan
from bfn.storage import models as storage
from bfn.training import checkpoints
from bfn.training.building import default_settings
from bfn.training.checkpoints import read_log
from bfn.training.fitting import Result, train
from bfn.training.settings import Settings, read_settings


def weights(run):
    """All numbers of a finished run: the averaged model and the trained weights."""
    last = checkpoints.existing(Path(run))[-1]
    return {**load_file(Path(run) / "model.safetensors"), **load_file(last / "training.safetensors")}


def assert_same(run_a, run_b):
    a, b = weights(run_a), weights(run_b)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def stop_at(monkeypatch, *steps):
    original = trainer.Trainer.train_step

    def step(self):
        original(self)
        if self.step in steps:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(trainer.Trainer, "train_step", step)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"weighting": "importance", "optimiser": "muon", "accumulate": 2},
        {"flow": "discrete", "head": "logits", "weighting": "bound", "data.binarise": True, "data.labels": False},
        {"flow": "discrete", "head": "logits", "weighting": "cross-entropy", "data.binarise": True},
    ],
    ids=["edm", "importance-muon", "discrete", "cross-entropy"],
)
def test_a_run_that_was_stopped_ends_with_the_same_weights_to_the_bit(settings, change, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(objective, "REFRESH", 3)
    settings = settings.override(change)
    assert train(settings, tmp_path / "whole", progress=False) == Result(tmp_path / "whole", 12)
    stop_at(monkeypatch, 4, 7)
    for step in (4, 7):
        result = train(settings, tmp_path / "parts", resume=True, progress=False)
        assert (result.step, result.stopped_by) == (step, "SIGTERM")
        assert f"stopped by SIGTERM at step {step} of 12; checkpoint written" in capsys.readouterr().out
    assert train(None, tmp_path / "parts", resume=True, progress=False).stopped_by is None
    assert_same(tmp_path / "whole", tmp_path / "parts")
    timeless = [
        [{k: v for k, v in line.items() if k not in ("minutes", "samples_per_second")} for line in read_log(run)]
        for run in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert timeless[0] == timeless[1]
    assert [line["step"] for line in timeless[0] if line["kind"] == "train"] == [2, 4, 6, 8, 10, 12]


def test_a_finished_run_is_a_model_with_its_settings_and_measured_loss(settings, tmp_path):
    settings = settings.override({"steps": 4, "sample_every": 4})
    train(settings, tmp_path, progress=False)
    model = bfn.load(tmp_path)
    info = model.info
    assert info.classes.names == ("0", "1")
    assert info.classes.shares == pytest.approx((0.5, 0.5), abs=0.05)
    assert info.value_range == (-1, 1)
    assert info.trained_on == settings.data
    assert info.card["step"] == 4
    assert 0 < len(info.error_curve.t) <= 64
    assert min(info.error_curve.squared_error) > 0
    assert model.head.data_std == pytest.approx(0.77, abs=0.05)
    assert Settings.from_dict(info.card["settings"]) == settings
    assert model.sample(2, nfe=3, label=["0", "1"]).x.shape == (2, 1, 4, 4)
    assert (tmp_path / "samples" / "step-00000004.png").stat().st_size > 50
    evaluation = [line for line in read_log(tmp_path) if line["kind"] == "eval"][-1]
    assert evaluation["transmission_bits_low"] < evaluation["transmission_bits"]
    parts = evaluation["transmission_bits"] + evaluation["reconstruction_bits"]
    assert evaluation["total_bits"] == pytest.approx(parts)


def test_a_model_that_took_a_while_gets_a_default_solver_of_its_own(settings, tmp_path, monkeypatch, capsys):
    short = settings.override({"steps": 2})
    train(short, tmp_path / "short", progress=False)
    monkeypatch.setattr("bfn.training.fitting.LEAST_SECONDS", 0)
    train(short.override({"calibration": 0}), tmp_path / "none", progress=False)
    assert all(storage.read_info(tmp_path / name).calibration is None for name in ("short", "none"))
    train(short.override({"calibration": 1.0}), tmp_path / "run", progress=False)
    model = bfn.load(tmp_path / "run")
    found = model.info.calibration
    assert "finding the settings of auto for this model" in capsys.readouterr().out
    assert [anchor.calls for anchor in found.anchors][:3] == [1, 2, 3]
    assert plan(model, "auto", 2).solver.g == found.anchors[1].g


def test_text_is_trained_and_sampled_as_lines(settings, tmp_path):
    (tmp_path / "t.txt").write_text("abc de " * 60)
    change = {
        "data": {"name": str(tmp_path / "t.txt"), "length": 8}, "flow": {"name": "discrete", "beta_1": 0.5},
        "network": {"name": "transformer", "width": 8, "n_heads": 2, "n_blocks": 1, "max_length": 8},
        "head": "logits", "weighting": "bound", "steps": 2, "sample_every": 2, "eval_count": 2,
    }  # fmt: skip
    train(settings.override(change), tmp_path / "run", progress=False)
    lines = (tmp_path / "run" / "samples" / "step-00000002.txt").read_text().splitlines()
    assert [len(line) for line in lines] == [8] * 4
    assert storage.read_info(tmp_path / "run").alphabet == " abcde"


def test_what_cannot_be_resumed_is_refused(settings, tmp_path, refuses):
    refuses("no run to resume there: settings.json is missing", train, None, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    settings = settings.override({"steps": 2, "eval_every": 0})
    train(settings, tmp_path / "run", progress=False)
    refuses("holds a run already: resume it, or choose another", train, settings, tmp_path / "run", progress=False)
    refuses("has 8; resume with that", train, settings.override({"batch": 4}), tmp_path / "run", resume=True)
    assert train(settings.override({"steps": 3}), tmp_path / "run", resume=True, progress=False).step == 3


def test_threads_and_random_state_are_left_as_they_were(settings, tmp_path):
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    train(settings.override({"steps": 1, "threads": 1, "eval_every": 0}), tmp_path, progress=False)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from bfn.solvers import plan
from bfn.training import checkpoints, read_settings, train
settings, run, longest, chance = read_settings(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), random.Random(7)
kills = 0
while True:
    child = os.fork()
    if child == 0:
        train(settings, run, resume=True, progress=False)
        os._exit(0)
    if kills == 20:
        _, status = os.waitpid(child, 0)
        sys.exit(status)
    # The first at its first checkpoint, which tells how long a start takes on this machine; the others at a random
    # moment, but before a twentieth of what is to be done is over.
    begun = time.monotonic()
    deadline = begun + chance.uniform(0.05, longest) if kills else float("inf")
    enough = f"step-{settings.steps * (kills + 1) // 22:08d}" if kills else "step-*"
    while time.monotonic() < deadline and not any((run / "checkpoints").glob(enough)):
        time.sleep(0.003)
    if not kills:
        longest += time.monotonic() - begun
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills += 1
"""


@pytest.mark.long
def test_a_run_killed_20_times_ends_with_the_same_weights(settings, tmp_path):
    settings = settings.override({"steps": 110, "checkpoint_every": 1, "log_every": 50, "eval_every": 0})
    start = time.monotonic()
    train(settings, tmp_path / "whole", progress=False)
    longest = (time.monotonic() - start) / 6
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings.to_dict()))
    command = [sys.executable, "-c", KILLER, str(path), str(tmp_path / "killed"), str(longest)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "resuming from" in result.stdout
    assert_same(tmp_path / "whole", tmp_path / "killed")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LAUNCHED = """
import sys
import torch
torch.set_num_threads(1)
import accelerate
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from bfn.solvers import plan
from bfn.training import read_settings, train

def fsdp(**options):
    # accelerate takes FSDP for GPUs only; its code runs on CPUs as well.
    accelerator = Accelerator(**options)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    return accelerator

if sys.argv[3] == "fsdp":
    accelerate.Accelerator = fsdp
settings = read_settings(sys.argv[1])
for steps in (8, settings.steps):
    train(settings.override({"steps": steps}), sys.argv[2], resume=True, progress=False, cpu=True)
# One write: both processes end at the same moment, and their pieces would mix.
sys.stdout.write(f"one of {torch.distributed.get_world_size()} processes\\n")
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_have_the_loss_curve_of_one_and_resume(settings, kind, tmp_path):
    change = {"network.dropout": 0.0, "steps": 20, "weighting": "importance", "decay_from": 1.0}
    settings = settings.override(change)
    settings_path, script = tmp_path / "settings.json", tmp_path / "run.py"
    settings_path.write_text(json.dumps(settings.to_dict()))
    script.write_text(LAUNCHED)
    train(settings, tmp_path / "one", progress=False)
    # torchrun: on CPUs `accelerate launch` starts several processes through MPI only.
    launch = f"torch.distributed.run --nproc_per_node 2 --master_port {free_port()}"
    command = [sys.executable, "-m", *launch.split(), str(script), str(settings_path), str(tmp_path / "two"), kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("one of 2 processes") == 2
    assert "at step 8" in result.stdout
    one, two = (
        [line["loss"] for line in read_log(tmp_path / run) if line["kind"] == "train"] for run in ("one", "two")
    )
    assert len(one) == 10
    assert two == pytest.approx(one, rel=2e-4)
    a, b = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)


def test_a_run_tells_programs_its_log_and_how_to_go_on(settings, tmp_path, monkeypatch, capsys):
    settings = settings.override({"eval_every": 0})
    stop_at(monkeypatch, 4)
    train(settings, tmp_path / "a run", progress="json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [2, 4]
    told = next(line["text"] for line in lines if line["kind"] == "message")
    assert told.endswith(f"to go on: bfn train --out '{tmp_path / 'a run'}' --resume")


def test_a_run_goes_on_from_any_folder_and_if_its_data_have_moved(tmp_path, monkeypatch, refuses):
    monkeypatch.setenv("BFN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    np.save("points.npy", np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32))
    quick = {"steps": 2, "batch": 8, "network.width": 8, "network.n_blocks": 1, "eval_count": 8, "sample_count": 2}
    settings = default_settings({"name": "points.npy"}).override({**quick, "threads": 1, "sample_nfe": 2})
    train(settings, tmp_path / "run", progress=False, cpu=True)
    stored = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert stored["data"]["name"] == str(tmp_path / "points.npy")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    own = read_settings(tmp_path / "run" / "settings.json")
    assert train(own.override({"steps": 3}), tmp_path / "run", resume=True, progress=False, cpu=True).step == 3
    (tmp_path / "points.npy").rename(tmp_path / "elsewhere" / "moved.npy")
    refuses("points.npy: the run's data are not there: bfn train", train, own, tmp_path / "run", resume=True, cpu=True)
    moved = own.override(["steps=4", "data.path=moved.npy"])
    assert train(moved, tmp_path / "run", resume=True, progress=False, cpu=True).step == 4
    change = next(line for line in read_log(tmp_path / "run") if line["kind"] == "settings")["data.name"]
    assert change == {"before": str(tmp_path / "points.npy"), "now": str(tmp_path / "elsewhere" / "moved.npy")}


def test_a_run_begins_with_the_weights_of_another_and_needs_them_no_more_on_resuming(settings, tmp_path, refuses):
    train(settings, tmp_path / "first", progress=False, cpu=True)
    still = {"start": str(tmp_path / "first"), "lr": 1e-30, "weight_decay": 0.0, "seed": 5}
    train(settings.override({**still, "steps": 2}), tmp_path / "second", progress=False, cpu=True)
    first, second = bfn.load(tmp_path / "first"), bfn.load(tmp_path / "second")
    theirs = second.state_dict()
    assert [name for name, value in first.state_dict().items() if not torch.allclose(value, theirs[name])] == []
    wider = settings.override({"start": str(tmp_path / "first"), "network.channels": 16})
    refuses("expected the same network", train, wider, tmp_path / "third", progress=False, cpu=True)
    assert not (tmp_path / "third").exists()
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    assert train(None, tmp_path / "second", resume=True, progress=False, cpu=True).step == 2
