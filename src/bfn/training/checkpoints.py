"""Checkpoints and the log of a run.

A checkpoint is a folder ``checkpoints/step-00001000``: a stored model with the averaged weights, which ``bfn.load``
reads; the weights that are trained, the state of the optimiser and of the run; and a manifest with the size and SHA-256
of each file. It is written under another name, flushed and renamed, so that a killed process leaves no partial one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bfn._utils.files import atomic_write, sync
from bfn.core.errors import UserError
from bfn.storage import models as storage
from bfn.storage.models import read_weights, write_weights

KEEP = 2
"""Number of checkpoints of a run that are kept."""

FOLDER, MANIFEST, WEIGHTS, STATE, LOG = (
    "checkpoints", "manifest.json", "training.safetensors", "state.pt", "log.jsonl"
)  # fmt: skip
"""Names of the files of a run and of its checkpoints."""


class CheckpointError(UserError):
    """A checkpoint is incomplete or damaged."""


def write(
    run: Path, step: int, weights: Mapping[str, Tensor], state: Mapping[str, Any], save: Callable[[Path], object]
) -> Path:
    """Write the checkpoint of a step, then remove all but the last ``KEEP``.

    Args:
        run: folder of the run.
        step: number of steps done.
        weights: trained weights.
        state: state of the optimiser and of the run. It should be finite, see ``is_finite``.
        save: function that stores the averaged model in a folder.

    Returns:
        The folder of the checkpoint.
    """
    folder = run / FOLDER / f"step-{step:08d}"
    temporary = run / FOLDER / f".{folder.name}.tmp"
    for left in (run / FOLDER).glob(".step-*.tmp"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save(temporary)
        write_weights(temporary / WEIGHTS, weights)
        try:
            torch.save(dict(state), temporary / STATE)
        except RuntimeError as error:  # torch raises this on a full disk, not an OSError
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{folder}: could not be written, is the disk full? ({reason})") from None
        sync(temporary / STATE)
        files = {path.name: _fingerprint(path) for path in sorted(temporary.iterdir())}
        atomic_write(temporary / MANIFEST, json.dumps({"step": step, "files": files}, indent=2) + "\n")
        if folder.exists():  # damaged, or of a run that is repeated
            shutil.rmtree(folder)
        temporary.replace(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in existing(run)[:-KEEP]:
        shutil.rmtree(old)
    return folder


def is_finite(state: Any) -> bool:
    """Return True if all floats in the tensors of nested mappings and lists are finite."""
    if isinstance(state, Tensor):
        return not state.is_floating_point() or bool(state.isfinite().all())
    if isinstance(state, Mapping):
        return all(is_finite(value) for value in state.values())
    return all(is_finite(value) for value in state) if isinstance(state, list | tuple) else True


def existing(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first, complete or not."""
    return sorted((run / FOLDER).glob("step-*"))


def latest(run: Path) -> Path | None:
    """Return the newest complete checkpoint, or None; warn about each newer one that is damaged."""
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
    """Raise a CheckpointError unless every file has the size and SHA-256 of the manifest."""
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
    """Return trained weights, averaged weights of the network, and the state. Code in the files is never run."""
    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return read_weights(folder / WEIGHTS), read_weights(folder / storage.WEIGHTS), state


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


class Log:
    """The log of a run, one JSON object per line, also written to TensorBoard if it is installed.

    Args:
        run: folder of the run.
        step: number of steps done. Lines of later steps, written after the last checkpoint, are removed.
        tensorboard: whether to write to TensorBoard.
    """

    def __init__(self, run: Path, step: int, tensorboard: bool) -> None:
        path = run / LOG
        if path.exists():
            atomic_write(path, "".join(f"{line}\n" for line in _lines(path) if json.loads(line)["step"] <= step))
        self._file = path.open("a", encoding="utf-8")
        self._board = _board(run, step) if tensorboard else None

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write the figures of a step."""
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if self._board is not None and isinstance(value, float | int):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(run: Path | str) -> list[dict[str, Any]]:
    """Return all lines of the log of a run."""
    return [json.loads(line) for line in _lines(Path(run) / LOG)]


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file. The last line may be cut if the process was killed."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _board(run: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(run / "tensorboard", purge_step=step + 1)


# --- weights that are sharded over processes (FSDP 2): the same files as for whole ones -------------------------------


def is_sharded(devices: Any) -> bool:
    """Return True if each process holds a part of the weights. Raises a UserError for FSDP 1."""
    if getattr(devices, "distributed_type", None) is None or devices.distributed_type.value != "FSDP":
        return False
    if not devices.is_fsdp2:
        raise UserError("FSDP version 1: its flat parameters cannot be averaged; launch with --fsdp_version 2")
    return True


def shard(module: nn.Module) -> None:
    """Split a module's weights over all processes, as FSDP 2 does with the trained ones."""
    from torch.distributed.fsdp import fully_shard

    # The weights are split again after the outermost forward pass too, since no backward pass follows here.
    fully_shard(module, reshard_after_forward=True)


def _distributed(call: str, *arguments: Any) -> Any:
    """Call a function of torch for whole states of sharded modules."""
    states = import_module("torch.distributed.checkpoint.state_dict")
    options = states.StateDictOptions(full_state_dict=True, cpu_offload=call.startswith("get"))
    return getattr(states, call)(*arguments, options=options)


def whole_weights(module: nn.Module, sharded: bool) -> dict[str, Tensor]:
    """Return all weights; if they are sharded, on the main process only. All processes take part."""
    weights: dict[str, Tensor] = module.state_dict() if not sharded else _distributed("get_model_state_dict", module)
    return weights


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], sharded: bool) -> None:
    """Load weights that every process has as a whole."""
    load = partial(_distributed, "set_model_state_dict", module) if sharded else module.load_state_dict
    load(dict(weights))


def whole_optimiser(module: nn.Module, optimiser: torch.optim.Optimizer, sharded: bool) -> Any:
    """Return the state of the optimiser, like ``whole_weights``."""
    return _distributed("get_optimizer_state_dict", module, optimiser) if sharded else optimiser.state_dict()


def load_optimiser(
    module: nn.Module, optimiser: torch.optim.Optimizer, state: Mapping[str, Any], sharded: bool
) -> None:
    """Load the state of an optimiser that every process has as a whole."""
    load = (
        partial(_distributed, "set_optimizer_state_dict", module, optimiser) if sharded else optimiser.load_state_dict
    )
    load(dict(state))
