"""Two processes: the files and figures of one, in order; and a killed worker's share is made by the next command."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import bfn
import tiny

pytestmark = pytest.mark.long


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(*words: object, count: int = 2, fails: bool = False) -> str:
    """Standard output of a command in so many processes."""
    one = [sys.executable, "-m"]
    several = [*one, "torch.distributed.run", "--nproc_per_node", str(count), "--master_port", str(free_port()), "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*(one if count == 1 else several), "bfn", *([] if count == 1 else ["--"]), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.save("images", tmp_path_factory.mktemp("model") / "images")


def joined(folder: Path, name: str = "x"):
    return np.concatenate([np.load(file)[name] for file in sorted(folder.glob("samples*.npz"))])


def test_samples_are_those_of_one_process_and_a_killed_share_is_made_up_for(model, tmp_path):
    wishes = ["sample", model, "--n", 50, "--batch", 4, "--nfe", 3, "--solver", "fast-sde", "--seed", 5]
    for out, count, more in (("one", 1, []), ("two", 2, []), ("cut", 2, ["--per-file", 8])):
        launch(*wishes, "--out", tmp_path / out, *more, count=count)
    assert np.array_equal(joined(tmp_path / "two"), joined(tmp_path / "one"))
    assert np.array_equal(joined(tmp_path / "cut"), joined(tmp_path / "one"))
    files = sorted((tmp_path / "cut").glob("samples-*.npz"))
    assert len(files) == 7
    for lost in files[1::2]:  # the share of the second process
        lost.unlink()
    launch(*wishes, "--out", tmp_path / "cut", "--per-file", 8, count=1)
    assert np.array_equal(joined(tmp_path / "cut"), joined(tmp_path / "one"))


def test_rows_of_a_table_are_those_of_one_process(tmp_path):
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"a": draw.normal(size=200), "b": draw.choice(["x", "y"], 200)})
    bfn.TableSynthesizer(steps=20, width=16, n_blocks=1, progress=False).fit(table).save(tmp_path / "model")
    for count in (1, 2):
        wishes = ["--n", 2500, "--nfe", 3, "--given", "a>0", "--out", tmp_path / f"{count}.csv"]
        launch("sample", tmp_path / "model", *wishes, count=count)
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()
    assert (pd.read_csv(tmp_path / "1.csv").a > 0).all()
    assert len(pd.read_csv(tmp_path / "1.csv")) == 2500


def test_a_distillation_is_that_of_one_process(model, tmp_path):
    few = ["--paths", 16, "--batch", 8, "--steps", 4, "--calls", 1, "--nfe", 3]
    for out, count, match in (("one", 1, 0), ("two", 2, 0), ("matched", 2, 1000)):
        launch("distill", model, "--out", tmp_path / out, *few, "--match", match, count=count)
    one, two, matched = (bfn.load(tmp_path / name).network.state_dict() for name in ("one", "two", "matched"))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, atol=1e-5, rtol=1e-4)
    # Both train the critic, and what it says moves the student.
    assert any(not torch.allclose(matched[name], weights, atol=1e-5) for name, weights in one.items())
