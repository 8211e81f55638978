"""What a run leaves to look at: a JSONL log, and TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bfn.files import atomic_write

__all__ = ["LOG", "Log", "read_log"]

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
