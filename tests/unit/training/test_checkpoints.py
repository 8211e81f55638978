"""Checkpoints: a run never destroys its own good state, whatever happens to it."""

import multiprocessing
import os
import resource
import time
import warnings

import pytest
import torch

import bfn
import tiny
from bfn.data import loading as own_paths
from bfn.training import checkpoints
from bfn.training.checkpoints import CheckpointError, is_finite, read_log
from bfn.training.fitting import train
from bfn.training.trainer import Trainer, TrainingError


def write(run, step, size=3):
    weights = {"w": torch.full((40,), float(step))}

    def save(folder):
        checkpoints.write_weights(folder / "model.safetensors", weights)
        (folder / "config.json").write_text("{}")

    return checkpoints.write(run, step, weights, {"step": step, "optimiser": {"m": torch.ones(size)}}, save)


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


def test_damaged_files_are_named(tmp_path, refuses):
    folder = write(tmp_path, 3)
    state = folder / "state.pt"
    whole = state.read_bytes()
    state.write_bytes(whole[:-5])
    refuses(f"state.pt: {len(whole) - 5} bytes instead of {len(whole)}", checkpoints.verify, folder)
    state.write_bytes(whole[:-5] + b"12345")
    refuses("state.pt: its SHA-256 is not the one in manifest.json", checkpoints.verify, folder)
    state.unlink()
    refuses("state.pt: missing", checkpoints.verify, folder)
    with pytest.warns(UserWarning, match="state.pt"):
        refuses("none of its 1 checkpoints is whole", checkpoints.latest, tmp_path)
    assert checkpoints.latest(tmp_path / "elsewhere") is None
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("state.pt", "other.pt"))
    refuses("does not list state.pt", checkpoints.verify, folder)


class Harmful:
    def __reduce__(self):
        return os.system, ("true",)


def test_code_in_a_state_is_not_run(tmp_path, refuses):
    folder = write(tmp_path, 4)
    torch.save({"step": Harmful()}, folder / "state.pt")
    refuses("eights", checkpoints.read, folder)


@pytest.fixture
def wild(settings):
    """Settings of a run that diverges."""
    return settings.override({"lr": 1e18, "grad_clip": 0.0, "warmup": 0, "log_every": 50, "checkpoint_every": 1})


def states(run):
    """The steps of the checkpoints, all of which must be good."""
    for folder in checkpoints.existing(run):
        checkpoints.verify(folder)
        assert is_finite(list(checkpoints.read(folder)))
        bfn.load(folder)
    return [int(folder.name[-8:]) for folder in checkpoints.existing(run)]


def test_a_run_that_diverges_keeps_its_last_good_state_and_goes_on_with_a_lower_rate(settings, wild, tmp_path):
    train(settings.override({"steps": 4, "checkpoint_every": 2, "log_every": 50}), tmp_path, progress=False)
    wild = wild.override({"steps": 100})
    with pytest.raises(TrainingError) as error:
        train(wild, tmp_path, resume=True, progress=False)
    last = states(tmp_path)[-1]
    assert f"step-{last:08d}, is kept" in str(error.value)
    assert f"bfn train --out {tmp_path} --resume lr=1e+17 grad_clip=1" in str(error.value)
    done = wild.override({"lr": 1e-4, "grad_clip": 1.0, "steps": last + 3})
    assert train(done, tmp_path, resume=True, progress=False).step == last + 3
    changes = [line for line in read_log(tmp_path) if line["kind"] == "settings"]
    assert changes[-1]["lr"] == {"before": 1e18, "now": 1e-4}
    assert bfn.load(tmp_path).info.card["changed settings"] == changes
    assert states(tmp_path)


def test_a_run_that_diverges_at_once_stores_nothing(wild, tmp_path, refuses):
    refuses("nothing was stored yet; go on with a lower learning rate", train, wild, tmp_path, progress=False)
    assert states(tmp_path) == []


def test_a_state_with_an_infinite_next_loss_is_not_stored(settings, tmp_path, monkeypatch, refuses):
    def explode(self):
        original(self)
        if self.step == 3:
            with torch.no_grad():
                for parameter in self.objective.model.parameters():
                    parameter.mul_(1e30)

    original = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", explode)
    settings = settings.override({"checkpoint_every": 1, "log_every": 50})
    message = "NaN or infinite numbers at step 3: the last good state, step-00000002"
    refuses(message, train, settings, tmp_path, progress=False)
    assert states(tmp_path) == [1, 2]


def test_two_processes_do_not_train_in_one_folder(settings, tmp_path, refuses):
    long = settings.override({"steps": 10_000, "eval_every": 0})
    first = multiprocessing.get_context("fork").Process(target=train, args=(long, tmp_path), kwargs={"progress": False})
    first.start()
    try:
        while not (tmp_path / "log.jsonl").exists():
            time.sleep(0.05)
        refuses("another process is training there", train, settings, tmp_path, resume=True, progress=False)
    finally:
        first.kill()
        first.join()
    assert train(settings.override({"steps": 1}), tmp_path / "other", progress=False).step == 1


@pytest.mark.parametrize("resume", [False, True])
def test_a_model_without_checkpoints_is_not_written_over(settings, tmp_path, resume, refuses):
    tiny.save("vectors", tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    refuses("holds a model and no checkpoints", train, settings, tmp_path, resume=resume, progress=False)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def limited(run, answer):
    """A process whose files may have 200,000 bytes, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        write(run, 2, 100_000)
    except Exception as error:
        answer.put((type(error).__name__, str(error)))


def test_a_full_disk_is_one_line_and_leaves_the_checkpoint_before(tmp_path):
    old = write(tmp_path, 1)
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=limited, args=(tmp_path, answer))
    process.start()
    kind, line = answer.get(timeout=60)
    process.join()
    assert kind == CheckpointError.__name__
    assert "could not be written, is the disk full?" in line
    assert "\n" not in line
    assert list((tmp_path / "checkpoints").iterdir()) == [old]


def test_what_a_killed_run_left_is_removed(settings, tmp_path):
    left = tmp_path / "checkpoints" / ".step-00000099.tmp"
    left.mkdir(parents=True)
    (left / "state.pt").write_bytes(b"half")
    (tmp_path / ".settings.json.abc.tmp").write_text("{")
    train(settings.override({"steps": 1}), tmp_path, progress=False)
    assert not [path for path in tmp_path.rglob(".*") if path.name.endswith((".tmp", ".lock"))]


def test_a_path_in_a_card_is_opened_only_if_the_user_trained_on_it(tmp_path, monkeypatch, refuses):
    monkeypatch.setenv("BFN_HOME", str(tmp_path / "home"))
    (tmp_path / "secret.txt").write_text("words")
    refuses("you have not trained", own_paths.from_card, str(tmp_path / "secret.txt"))
    own_paths.remember_path(str(tmp_path / "secret.txt"))
    own_paths.remember_path("digits")
    assert own_paths.from_card(str(tmp_path / "secret.txt")) == str(tmp_path / "secret.txt")
    monkeypatch.chdir(tmp_path)
    assert own_paths.from_card("secret.txt") == "secret.txt"
    assert own_paths.from_card("digits") == "digits"
    for name in (None, 5, os.devnull):
        refuses("", own_paths.from_card, name)
