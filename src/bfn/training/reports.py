"""What a run leaves to look at: a JSONL log, TensorBoard, sheets of samples."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from bfn.files import atomic, atomic_write

LOG = "log.jsonl"


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

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def sheet(x: Tensor, levels: int | None = None) -> Tensor:
    """Images in [-1, 1] (or classes 0..levels-1) side by side: (n, channel, h, w) -> uint8 (H, W, channel)."""
    pixels = (x.float() + 1) / 2 if levels is None else x.float() / (levels - 1)
    pixels = (pixels.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
    n, channels, height, width = pixels.shape
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    padded = torch.zeros(rows * columns, channels, height, width, dtype=torch.uint8)
    padded[:n] = pixels
    grid = padded.view(rows, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    return grid.reshape(rows * height, columns * width, channels)


def write_samples(path: Path, x: Tensor, alphabet: str | None, levels: int | None) -> Path:
    """Samples as a PNG sheet (images) or as lines (text); returns the file."""
    if alphabet is not None:
        path = path.with_suffix(".txt")
        lines = ("".join(alphabet[k] for k in row) for row in x.reshape(len(x), -1).tolist())
        atomic_write(path, "".join(f"{line}\n" for line in lines))
        return path
    from PIL import Image

    path = path.with_suffix(".png")
    pixels = sheet(x, levels).numpy()
    with atomic(path) as temporary:
        Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(temporary, format="PNG")
    return path
