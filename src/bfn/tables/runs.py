"""A training on a table in a directory: it can be stopped, and goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bfn.errors import UserError
from bfn.files import atomic_write
from bfn.progress import Shown
from bfn.tables.synthesizer import TableSynthesizer

__all__ = ["fit_in", "is_table_run"]

SETTINGS = "table.json"
"""What a run was asked for, in its directory."""


def is_table_run(run: Path) -> bool:
    """Whether a directory holds a run on a table."""
    return (run / SETTINGS).is_file()


def fit_in(
    run: Path, source: str | None, settings: Mapping[str, Any], *, resume: bool = False, device: str | None = None,
    progress: Shown = True,
) -> TableSynthesizer:  # fmt: skip
    """Learn a table into a directory.

    source: a file or a standard table; None on resuming. settings: of :class:`TableSynthesizer`; on resuming those of
        the run, but for these.
    """
    if resume and is_table_run(run):
        stored = json.loads((run / SETTINGS).read_text())
        before = stored.pop("data")
        source, settings = source or before, {**stored, **settings}
    elif any((run / name).exists() for name in (SETTINGS, "config.json", "checkpoints")):
        raise UserError(f"{run}: holds a run already: resume it, --resume, or choose another directory")
    if source is None:
        raise UserError(f"{run}: holds no run on a table that could go on: say which table to learn")
    synthesizer = TableSynthesizer(**settings, drop_unlearnable=True, device=device, progress=progress)
    where = str(Path(source).resolve()) if Path(source).exists() else source
    new = not run.exists()
    atomic_write(run / SETTINGS, json.dumps({"data": where, **settings}, indent=2) + "\n")
    try:
        return synthesizer.fit(source, run)
    except UserError:
        if new and not (run / "checkpoints").exists():
            shutil.rmtree(run)
        raise
