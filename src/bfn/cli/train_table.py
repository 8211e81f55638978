"""Training on a table, for ``bfn train``."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bfn.cli.common import shown, tell
from bfn.errors import UserError, did_you_mean
from bfn.progress import say

__all__ = ["is_table", "resume_of_table", "train_table"]

FILES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
SETTINGS = "table.json"
"""What a run was asked for, in its directory."""
NAMES = ("steps", "batch", "lr", "width", "n_blocks", "dropout", "kinds", "drop", "network")
STOPPED = {"SIGINT": 130, "SIGTERM": 143}


def is_table(source: str, changes: Sequence[str]) -> bool:
    """Whether what is given without a role for any column is a table: by the name of the file, or of a standard one."""
    from bfn.data import SOURCES

    of_records = any(change.startswith("data.") for change in changes)
    known = source in SOURCES and SOURCES[source].is_table
    return known or (source.lower().endswith(FILES) and not of_records)


def resume_of_table(run: Path) -> bool:
    """Whether a directory holds a run on a table."""
    return (run / SETTINGS).is_file()


def train_table(
    source: str | None, changes: Sequence[str], classes: Sequence[str], network: str | None, run: Path,
    seed: int | None, resume: bool, cpu: bool, as_json: bool,
) -> int:  # fmt: skip
    """Learn a table into a directory."""
    import torch

    from bfn import TableSynthesizer
    from bfn.data.table_inference import UnlearnableColumnsError
    from bfn.data.table_streaming import columns_in, open_table
    from bfn.files import atomic_write
    from bfn.training.settings import parse_change

    settings: dict[str, Any] = {}
    for name, value in map(parse_change, changes):
        part, dot, column = name.partition(".")
        if dot and part == "kinds":
            settings["kinds"] = {**settings.get("kinds", {}), column: value}
        else:
            settings[name] = value
    wrong = next((name for name in settings if name not in NAMES), None)
    if wrong is not None:
        raise UserError(f"{wrong}: expected one of {', '.join(NAMES)} for a table{did_you_mean(wrong, NAMES)}")
    if isinstance(settings.get("drop"), str):
        settings["drop"] = [one.strip() for one in settings["drop"].split(",")]
    if classes:
        settings["kinds"] = {**settings.get("kinds", {}), **dict.fromkeys(classes, "class")}
    settings |= {key: value for key, value in {"network": network, "seed": seed}.items() if value is not None}
    if resume and resume_of_table(run):
        stored = json.loads((run / SETTINGS).read_text())
        source, settings = source or stored.pop("data"), {**stored, **settings}
        settings.pop("data", None)
    elif any((run / name).exists() for name in (SETTINGS, "config.json", "checkpoints")):
        raise UserError(f"{run}: holds a run already: resume it, --resume, or choose another directory")
    assert source is not None
    table = open_table(source)
    left_out: dict[str, str] = {}
    try:
        columns_in(table, settings.get("kinds"), settings.get("drop", ()))
    except UnlearnableColumnsError as error:
        left_out = error.reasons
        if set(error.names) <= {*settings.get("drop", ()), *left_out}:
            raise
        settings["drop"] = [*settings.get("drop", ()), *left_out]
    for name, reason in left_out.items():
        say(f"left out: column {name!r}, {reason}", shown(as_json))
    device = "cuda" if torch.cuda.is_available() and not cpu else None
    synthesizer = TableSynthesizer(**settings, device=device, progress=shown(as_json))
    where = source if not Path(source).exists() else str(Path(source).resolve())
    new = not run.exists()
    atomic_write(run / SETTINGS, json.dumps({"data": where, **settings}, indent=2) + "\n")
    began = time.perf_counter()
    try:
        synthesizer.fit(table, run)
    except UserError:
        if new and not (run / "checkpoints").exists():
            shutil.rmtree(run)
        raise
    seconds = time.perf_counter() - began
    card = synthesizer.model.info.card
    values = {"data": source, "out": str(run), "left_out": left_out, "seconds": round(seconds, 1), **card}
    line = f"{len(table)} rows of {source}: {seconds:.0f} s, held-out loss {card['held_out_loss']:.4g}"
    ends = [f"the model is in {run}; rows of it: bfn sample {run} --n 1000 --out rows.csv"]
    if synthesizer.stopped_by is not None:
        ends = [f"stopped by {synthesizer.stopped_by}; to go on: bfn train --out {run} --resume"]
    tell(values, [line, *ends], as_json)
    return STOPPED.get(synthesizer.stopped_by or "", 0)
