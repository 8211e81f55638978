import json
import os
import warnings

import pytest
import torch

from bfn.training import checkpoints
from bfn.training.checkpoints import CheckpointError


def write(run, step):
    weights = {"w": torch.full((40,), float(step))}

    def save(folder):
        checkpoints.write_weights(folder / "model.safetensors", weights)
        (folder / "config.json").write_text("{}")

    return checkpoints.write(run, step, weights, {"step": step, "optimiser": {"m": torch.ones(3)}}, save)


def test_the_last_two_are_kept(tmp_path):
    for step in (5, 10, 100, 20_000):
        write(tmp_path, step)
    assert [folder.name for folder in checkpoints.existing(tmp_path)] == ["step-00000100", "step-00020000"]
    weights, averaged, state = checkpoints.read(checkpoints.latest(tmp_path))
    assert (float(weights["w"][0]), float(averaged["w"][0]), state["step"]) == (20_000, 20_000, 20_000)


def test_a_checkpoint_cut_to_any_length_is_refused_and_the_one_before_used(tmp_path):
    old = write(tmp_path, 1)
    new = write(tmp_path, 2)
    for path in sorted(new.iterdir()):
        whole = path.read_bytes()
        for length in range(0, len(whole), 7 if len(whole) < 800 else 97):
            path.write_bytes(whole[:length])
            if path.name == "manifest.json" and length == len(whole) - 1:
                continue  # only the line's end is missing: all is said
            with pytest.warns(UserWarning, match="step-00000002.*; using the checkpoint before it"):
                assert checkpoints.latest(tmp_path) == old
        path.write_bytes(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoints.latest(tmp_path) == new


def test_what_is_wrong_is_said(tmp_path):
    folder = write(tmp_path, 3)
    state = folder / "state.pt"
    whole = state.read_bytes()
    state.write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match=rf"state.pt: {len(whole) - 5} bytes instead of {len(whole)}"):
        checkpoints.verify(folder)
    state.write_bytes(whole[:-5] + b"12345")
    with pytest.raises(CheckpointError, match=r"state.pt: its SHA-256 is not the one in manifest.json"):
        checkpoints.verify(folder)
    state.unlink()
    with pytest.raises(CheckpointError, match=r"state.pt: missing"):
        checkpoints.verify(folder)
    with (
        pytest.warns(UserWarning, match="state.pt"),
        pytest.raises(CheckpointError, match="none of its 1 checkpoints is whole"),
    ):
        checkpoints.latest(tmp_path)
    assert checkpoints.latest(tmp_path / "elsewhere") is None


class Harmful:
    def __reduce__(self):
        return os.system, ("true",)


def test_a_state_that_would_run_code_is_not_unpickled(tmp_path):
    folder = write(tmp_path, 4)
    torch.save({"step": Harmful()}, folder / "state.pt")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        checkpoints.read(folder)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    old = write(tmp_path, 1)

    def full(state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [old.name]
    assert checkpoints.latest(tmp_path) == old


def test_a_manifest_cannot_leave_out_what_is_needed(tmp_path):
    folder = write(tmp_path, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["state.pt"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"does not list state.pt"):
        checkpoints.verify(folder)
