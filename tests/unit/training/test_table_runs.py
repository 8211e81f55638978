"""Runs on tables: they can be stopped at any step, and a resume that is refused changes nothing."""

import json
import os
import signal

import numpy as np
import pandas as pd
import pytest
import torch

import bfn
from bfn.tables.synthesizer import TableSynthesizer, fit_in
from bfn.training import checkpoints
from bfn.training.trainer import Trainer

STEPS = 9
SMALL = {"steps": STEPS, "batch": 32, "width": 8, "n_blocks": 1, "seed": 3}


@pytest.fixture(scope="module")
def table():
    draw = np.random.default_rng(0)
    return pd.DataFrame({"age": draw.normal(size=200), "home": draw.choice(["a", "b", "c"], 200)})


def trained(run):
    """The weights after the last step, and those that were kept."""
    weights, averaged, state = checkpoints.read(checkpoints.latest(run))
    return {**weights, **{f"averaged {name}": value for name, value in averaged.items()}, **state["kept"]}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_table_run_resumed_at_any_step_ends_with_the_same_weights(table, dropout, tmp_path, monkeypatch):
    settings = {**SMALL, "dropout": dropout, "progress": False}
    TableSynthesizer(**settings).fit(table, tmp_path / "whole")
    original = Trainer.train_step

    def interrupted(self):
        original(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    for _ in range(STEPS):  # every call does one step
        TableSynthesizer(**settings).fit(table, tmp_path / "stopped")
    whole, stopped = trained(tmp_path / "whole"), trained(tmp_path / "stopped")
    assert whole.keys() == stopped.keys()
    assert [name for name in whole if not torch.equal(whole[name], stopped[name])] == []


def test_a_refused_resume_leaves_the_run_as_it_was(table, tmp_path):
    table.to_csv(tmp_path / "table.csv", index=False)
    run = tmp_path / "run"
    fit_in(run, str(tmp_path / "table.csv"), SMALL, progress=False)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(bfn.UserError):
        fit_in(run, None, {"steps": STEPS + 1}, resume=True, progress=False)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert json.loads((run / "table.json").read_text())["steps"] == STEPS
