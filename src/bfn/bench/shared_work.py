"""What a second process brings: the same samples drawn by one process and by two, each with one core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from statistics import median

from bfn.bench.contest import Figure

__all__ = ["processes"]

TWICE = 1.7


def processes(quick: bool) -> Iterator[Figure]:
    """The speed of two processes over that of one, each with one core, by the wall clock: take an idle machine."""
    n, rounds = (512, 1) if quick else (1024, 3)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for round_ in range(rounds):
        for count in (1, 2) if round_ % 2 else (2, 1):
            seconds[count].append(_seconds(count, n))
    ratios = sorted(one / two for one, two in zip(seconds[1], seconds[2], strict=True))
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    name = f"{n:,} digits of 20 calls, two processes over one"
    note = f"{os.cpu_count()} cores, load {busy:.1f} in the end"
    yield Figure("processes", name, median(ratios), ratios[0], ratios[-1], rounds, TWICE, "at least", note=note)


def _seconds(count: int, n: int) -> float:
    """Of drawing alone: not of starting Python, nor of loading the model."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        command = ["-m", "bfn", "--", "sample", "digits", "--n", str(n), "--nfe", "20", "--batch", "64"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*launch, *command, "--device", "cpu", "--out", folder, "--json"],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
    return float(json.loads(done.stdout)["seconds"])
