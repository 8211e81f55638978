"""Checkpoints that are whole or not there.

A checkpoint is a directory ``checkpoints/step-00001000``: a stored model (``bfn.load`` reads it) with the averaged
weights, the weights that are trained, the optimiser and the like, and a manifest with the size and SHA-256 of each.
It is written beside its place, flushed, and renamed; what a kill leaves behind is a directory nobody reads.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn._utils.files import atomic_write, sync
from bfn.core.errors import UserError
from bfn.storage import models as storage
from bfn.storage.models import read_weights, write_weights

KEEP = 2
FOLDER = "checkpoints"
MANIFEST = "manifest.json"
WEIGHTS = "training.safetensors"
STATE = "state.pt"


class CheckpointError(UserError):
    """A checkpoint that is not whole; the message says which and why."""


def write(
    run: Path, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Any], save: Callable[[Path], object]
) -> Path:
    """Write the checkpoint of a step, then remove all but the last two. ``save(folder)`` adds the stored model.

    Only for a state that is good: see :func:`is_finite`.
    """
    folder = run / FOLDER / f"step-{step:08d}"
    temporary = run / FOLDER / f".{folder.name}.tmp"
    for left in (run / FOLDER).glob(".step-*.tmp"):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save(temporary)
        write_weights(temporary / WEIGHTS, weights)
        try:
            torch.save(dict(state), temporary / STATE)
        except RuntimeError as error:  # a full disk is told by this, not by an OSError
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{folder}: could not be written, is the disk full? ({reason})") from None
        sync(temporary / STATE)
        files = {path.name: _fingerprint(path) for path in sorted(temporary.iterdir())}
        atomic_write(temporary / MANIFEST, json.dumps({"step": step, "files": files}, indent=2) + "\n")
        if folder.exists():  # a damaged one of the same step, or one of a run that is written again
            shutil.rmtree(folder)
        temporary.replace(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in existing(run)[:-KEEP]:
        shutil.rmtree(old)
    return folder


def is_finite(state: Any) -> bool:
    """Whether all floats in tensors are finite, in a state of mappings and lists."""
    if isinstance(state, Tensor):
        return not state.is_floating_point() or bool(state.isfinite().all())
    if isinstance(state, Mapping):
        return all(is_finite(value) for value in state.values())
    return all(is_finite(value) for value in state) if isinstance(state, list | tuple) else True


def existing(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, whole or not."""
    return sorted((run / FOLDER).glob("step-*"))


def latest(run: Path) -> Path | None:
    """The newest whole checkpoint, with a warning for each newer one that is not; None if there is none at all."""
    found = existing(run)
    for folder in reversed(found):
        try:
            verify(folder)
        except CheckpointError as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=2)
        else:
            return folder
    if found:
        raise CheckpointError(f"{run / FOLDER}: none of its {len(found)} checkpoints is whole: start anew elsewhere")
    return None


def verify(folder: Path) -> None:
    """Raise CheckpointError unless every file has the size and SHA-256 of the manifest."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        expected = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{folder}: its {MANIFEST} is missing or damaged") from None
    for name in (WEIGHTS, storage.WEIGHTS, STATE):
        if name not in expected:
            raise CheckpointError(f"{folder}: its {MANIFEST} does not list {name}")
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing")
        if path.stat().st_size != size:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes instead of {size}")
        if _fingerprint(path)["sha256"] != digest:
            raise CheckpointError(f"{path}: its SHA-256 is not the one in {MANIFEST}")


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Trained weights, the network's averaged weights, and the state; nothing that could run code is unpickled."""
    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return read_weights(folder / WEIGHTS), read_weights(folder / storage.WEIGHTS), state


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


LOG = "log.jsonl"
"""The file of a run's log."""


class Log:
    """One JSON object a line, flushed at once; TensorBoard beside it where it is installed."""

    def __init__(self, run: Path, step: int, tensorboard: bool) -> None:
        path = run / LOG
        if path.exists():
            # A run that was killed has lines beyond its last checkpoint: they will be written again.
            atomic_write(path, "".join(f"{line}\n" for line in _lines(path) if json.loads(line)["step"] <= step))
        self._file = path.open("a", encoding="utf-8")
        self._board = _board(run, step) if tensorboard else None

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Log values of a step."""
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if self._board is not None and isinstance(value, float | int):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Nothing more is to be written."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(run: Path | str) -> list[dict[str, Any]]:
    """All lines of a run's log."""
    return [json.loads(line) for line in _lines(Path(run) / LOG)]


def _lines(path: Path) -> list[str]:
    """Whole lines; the last may have been cut by a kill."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _board(run: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(run / "tensorboard", purge_step=step + 1)
