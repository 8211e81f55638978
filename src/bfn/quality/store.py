"""A file of JSON lines that only grows: what was measured, by its key."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bfn.files import flush, home

__all__ = ["append", "default_store", "read"]


def default_store() -> Path:
    """The store that commands share."""
    return home() / "measured.jsonl"


def read(store: Path) -> dict[str, dict[str, Any]]:
    """Lines by their keys; one that is not whole, as a run leaves it that was killed while writing, counts as none."""
    if not store.exists():
        return {}
    lines: dict[str, dict[str, Any]] = {}
    for text in store.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "key" in line:
            lines[line["key"]] = line
    return lines


def append(store: Path, line: Mapping[str, Any]) -> None:
    """Add a line in one write; one that was left half-written before it is closed first."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
        flush(file)
