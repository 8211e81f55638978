"""A report folder: report.md for people, results.json for programs, pictures."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bfn.files import atomic, atomic_write
from bfn.progress import Shown

__all__ = ["Options", "Section", "machine", "write_report"]


@dataclass(frozen=True)
class Options:
    """What a user may set for every experiment; None: the experiment's own choice.

    n: samples. nfe: numbers of calls. ceiling: calls at which the model's limit is measured; 0 for none.
    beyond: solvers to measure beside the paper's; () for none. store: file of measurements to go on from.
    """

    n: int | None = None
    nfe: tuple[int, ...] | None = None
    seed: int = 0
    ceiling: int = 0
    beyond: tuple[str, ...] | None = None
    batch: int | None = None
    store: Path | None = None
    progress: Shown = False


@dataclass(frozen=True)
class Section:
    """What an experiment found on one model. pictures: by file name, a function that writes the file."""

    name: str
    title: str
    markdown: str
    results: Mapping[str, Any]
    pictures: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


def machine() -> dict[str, Any]:
    """What figures of time depend on, and nothing that tells one machine of a kind from another."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write_report(
    out: Path, title: str, intro: Sequence[str], sections: Sequence[Section], options: Options, started: float
) -> Path:
    """Write the folder: pictures and results first, report.md last, each file atomically; returns report.md."""
    seconds = time.perf_counter() - started
    facts = machine()
    lines = [f"# {title}", "", *intro, ""]
    lines += [
        f"Seed {options.seed}; {facts['cores']} cores ({facts['processor']}, {facts['vector instructions']}), "
        f"{facts['threads']} threads, torch {facts['torch']}; this run took {_duration(seconds)}"
        + (" (what was in the store of measurements already was not measured again)." if options.store else "."),
    ]
    for section in sections:
        lines += ["", f"## On {section.title}", "", section.markdown]
        for name, draw in section.pictures.items():
            with atomic(out / name) as temporary:
                draw(temporary)
            lines += ["", f"![{section.title}]({name})"]
    results = {
        "title": title,
        "machine": facts,
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "on": {section.name: dict(section.results) for section in sections},
    }
    atomic_write(out / "results.json", json.dumps(_rounded(results), indent=1) + "\n")
    atomic_write(out / "report.md", "\n".join(lines).rstrip() + "\n")
    return out / "report.md"


def _rounded(value: Any) -> Any:
    """Six digits are more than any figure here has, and JSON knows no NaN."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
