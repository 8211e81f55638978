"""Table 4: how far drawing classes moves the original sampler's trajectory, against the step size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from bfn.model import Model
from bfn.paper import paper
from bfn.paper.reports import Options, Section, markdown_table
from bfn.paper.subjects import Subject
from bfn.quality import t_interval
from bfn.quality.judges import Measured
from bfn.sampling import Step, batches

STEPS = (0.1, 0.05, 0.02, 0.01, 0.005)


def trajectory_distance(model: Model, n: int, n_steps: int, seed: int, *, mean_only: bool = False) -> Tensor:
    """Distance of z(t) = s u with and without drawn classes, each of n pairs under the same Gaussian noise: (n,).

    Mean over times, positions and classes of |z - z'|. mean_only: both without drawn classes, which must give 0.
    """
    grid = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64)

    def run(solver: str, look: Callable[[Step], None]) -> None:
        model.sample(
            n, solver, grid=grid, generator=torch.Generator(model.device).manual_seed(seed),
            class_generator=torch.Generator(model.device).manual_seed(seed + 1), on_step=look,
        )  # fmt: skip

    drawn: list[Tensor] = []
    run("sde-bfn-solver1" if mean_only else "bfn", lambda step: drawn.append(step.u))
    distance = torch.zeros(n, dtype=torch.float64)

    def compare(step: Step) -> None:
        s = float(model.flow.schedule.s(step.t))
        distance.add_((drawn[step.index] - step.u).abs().flatten(1).mean(1).double().cpu(), alpha=s)

    run("sde-bfn-solver1", compare)
    return distance / len(drawn)


def cs_trajectories(subject: Subject, options: Options) -> Section:
    """Distances at each step size with intervals, and how fast they fall, beside the paper's."""
    table = paper.table("cs-trajectories")
    n = max(2, options.n or min(subject.n, 16))
    steps = tuple(1 / nfe for nfe in options.nfe) if options.nfe else STEPS
    measured: dict[float, Measured] = {}
    for step in steps:
        parts = [
            trajectory_distance(subject.model, size, round(1 / step), options.seed + 1000 * index)
            for index, size in enumerate(batches(n, options.batch or subject.batch))
        ]
        values = torch.cat(parts)
        interval = t_interval(values)
        measured[step] = Measured(values.mean().item(), interval.low, interval.high)
    printed = {f.column.step: f.value for f in table.figures if f.column.step is not None}
    rows = [
        [f"{step:g}", f"{m.value:.4f} [{m.low:.4f}, {m.high:.4f}]", f"{printed[step]:g}" if step in printed else ""]
        for step, m in measured.items()
    ]
    ours = _power({step: m.value for step, m in measured.items()})
    theirs = _power({step: value for step, value in printed.items() if step in measured} or printed)
    falls = all(later.high < before.low for before, later in pairwise(measured.values()))
    told = "every one smaller than the one before, by its interval, as in the paper" if falls else (
        "not every one smaller than the one before by its interval: the paper's fall is not found everywhere"
    )  # fmt: skip
    lines = [
        "Mean over times, positions and classes of |z - z'| where z = s u is the state of the original sampler with "
        "drawn classes, z' without, both under the same Gaussian noise; 95 % intervals over "
        f"{n} pairs of trajectories. The paper does not say how its norm is scaled: compare how the figures fall.",
        "",
        *markdown_table(["step size", "measured", "paper"], rows),
        "",
        f"The distances fall with the step size, {told}. They go as step^{ours:.2f}; the paper's as step^{theirs:.2f}.",
    ]
    results = {
        "n": n,
        "distances": {f"{step:g}": dataclasses.asdict(m) for step, m in measured.items()},
        "power": {"measured": ours, "paper": theirs},
    }
    curves = {"measured": [(step, m.value) for step, m in measured.items()], "paper": list(printed.items())}
    pictures = {f"{subject.name}.png": partial(_draw, curves)}
    return Section(subject.name, subject.title, "\n".join(lines), results, pictures)


def _power(values: dict[float, float]) -> float:
    """Slope of log value against log step, by least squares; NaN for a single point or a zero."""
    if len(values) < 2 or any(value <= 0 for value in values.values()):
        return math.nan
    x = torch.tensor([math.log(step) for step in values], dtype=torch.float64)
    y = torch.tensor([math.log(value) for value in values.values()], dtype=torch.float64)
    centred = x - x.mean()
    return float((centred * y).sum() / centred.square().sum())


def _draw(curves: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from bfn.paper.pictures import lines_picture

    lines_picture(curves, path, x="step size", y="L1 distance of trajectories", dashed=["paper"])
