"""Training on a table, for ``bfn train``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bfn.cli.common import shown, tell
from bfn.errors import UserError, did_you_mean

__all__ = ["STOPPED", "is_table", "train_table"]

FILES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
NAMES = ("steps", "batch", "lr", "width", "n_blocks", "dropout", "kinds", "drop", "network")
STOPPED = {"SIGINT": 130, "SIGTERM": 143}
"""How a training that a signal ended exits, as shells say it."""


def is_table(source: str, changes: Sequence[str]) -> bool:
    """Whether what is given without a role for any column is a table: by the name of the file, or of a standard one."""
    from bfn.data import SOURCES

    of_records = any(change.startswith("data.") for change in changes)
    known = source in SOURCES and SOURCES[source].is_table
    return known or (source.lower().endswith(FILES) and not of_records)


def train_table(
    source: str | None, changes: Sequence[str], classes: Sequence[str], network: str | None, run: Path,
    seed: int | None, resume: bool, cpu: bool, as_json: bool,
) -> int:  # fmt: skip
    """Learn a table into a directory."""
    import torch

    from bfn.tables.runs import fit_in

    settings = _settings(changes, classes)
    settings |= {key: value for key, value in {"network": network, "seed": seed}.items() if value is not None}
    device = "cuda" if torch.cuda.is_available() and not cpu else None
    began = time.perf_counter()
    synthesizer = fit_in(run, source, settings, resume=resume, device=device, progress=shown(as_json))
    seconds, card = time.perf_counter() - began, synthesizer.model.info.card
    values = {"out": str(run), "left_out": synthesizer.left_out, "seconds": round(seconds, 1), **card}
    line = f"{card['rows']} rows: {seconds:.0f} s, held-out loss {card['held_out_loss']:.4g}"
    ends = [f"the model is in {run}; rows of it: bfn sample {run} --n 1000 --out rows.csv"]
    if synthesizer.stopped_by is not None:
        ends = [f"stopped by {synthesizer.stopped_by}; to go on: bfn train --out {run} --resume"]
    tell(values, [line, *ends], as_json)
    return STOPPED.get(synthesizer.stopped_by or "", 0)


def _settings(changes: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """What NAME=VALUE and --classes say: kinds.COLUMN=number, drop=a,b, steps=5000."""
    from bfn.training.settings import parse_change

    settings: dict[str, Any] = {}
    kinds = dict.fromkeys(classes, "class")
    for name, value in map(parse_change, changes):
        part, dot, column = name.partition(".")
        if dot and part == "kinds":
            kinds[column] = value
        elif name in NAMES:
            settings[name] = value
        else:
            raise UserError(f"{name}: expected one of {', '.join(NAMES)} for a table{did_you_mean(name, NAMES)}")
    if isinstance(settings.get("drop"), str):
        settings["drop"] = [one.strip() for one in settings["drop"].split(",")]
    return settings | ({"kinds": {**settings.get("kinds", {}), **kinds}} if kinds else {})
