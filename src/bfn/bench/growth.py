"""How cost grows: with calls, batch, length and classes over the network's own; memory; and with samples written."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from time import process_time
from typing import Any

import torch

from bfn.bench.cases import point_model, text_model
from bfn.bench.contest import Figure, ratio_of
from bfn.bench.sampling_cost import over_network
from bfn.sample_files import sample_to

__all__ = ["growth", "memory", "peak", "written"]

MOST_GIGABYTES, FLAT = 2.0, 1.1


def growth(quick: bool) -> Iterator[Figure]:
    """Sampling over its network alone as one thing after another grows."""
    model, rounds = text_model(), 3 if quick else 9
    for calls in (5, 20) if quick else (5, 20, 100):
        yield over_network("growth", f"calls {calls} (batch 4)", model, "fast-ode", 4, calls, rounds)
    for batch in (1, 16) if quick else (1, 4, 16, 64):
        yield over_network("growth", f"batch {batch} (5 calls)", model, "fast-ode", batch, 5, rounds)
    for length in (16, 64) if quick else (16, 64, 256):
        yield over_network("growth", f"length {length} (batch 4)", text_model(length), "fast-ode", 4, 5, rounds)
    for n_classes in (2, 1000) if quick else (2, 27, 1000, 50_000):
        own = text_model(n_classes=n_classes)
        yield over_network("growth", f"classes {n_classes:,} (batch 4)", own, "fast-ode", 4, 3, rounds)


def memory(quick: bool) -> Iterator[Figure]:
    """The most memory of a process with 50,000 classes, length 64, batch 4; torch alone is a third of a GB."""
    for what in ("loss", "sampling"):
        command = [sys.executable, "-c", f"from bfn.bench.growth import peak; print(peak({what!r}))"]
        found = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        name = f"50,000 classes, length 64, batch 4: {what}"
        yield Figure("memory", name, found, found, found, 1, goal=MOST_GIGABYTES, unit="GB")


def peak(what: str) -> float:
    """The most memory of this process, GB, after one loss with its gradients, or a sample; for a process of its own."""
    import resource

    torch.set_num_threads(1)
    model = text_model(n_classes=50_000)
    if what == "loss":
        model.loss(torch.randint(50_000, (4, 64))).mean().backward()  # type: ignore[no-untyped-call]
    else:
        model.sample(4, nfe=5, seed=0)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def written(quick: bool) -> Iterator[Figure]:
    """The time of a hundred samples and their file where many have been written, over that where few have.

    Each is taken over the time of a hundred samples that are not written, drawn just before: what else the machine does
    changes while so many are written.
    """
    n, few, model = (10_000 if quick else 100_000), 20 if quick else 50, point_model()
    ratios: list[float] = []
    unwritten = start = 0.0

    def given(rows: range) -> dict[str, Any]:
        """Called before each file: the one before is done."""
        nonlocal unwritten, start
        now, number = process_time(), rows.start // 100
        if unwritten:
            ratios.append((now - start) / unwritten)
        unwritten = 0.0
        if 0 < number <= few or number >= n // 100 - few - 1:
            model.sample(100, "fast-ode", 10, seed=0)
            unwritten = process_time() - now
        start = process_time()
        return {}

    with tempfile.TemporaryDirectory() as folder:
        sample_to(model, folder, n, "fast-ode", 10, batch=100, per_file=100, given=given)
    name = f"a sample after {n:,} over one after 100 written"
    yield ratio_of("written", name, ratios[-few:], ratios[:few], goal=FLAT)
