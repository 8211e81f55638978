"""Table 4: how far drawing classes moves the original sampler's trajectory, against the step size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from bfn.estimate import Estimate, mean_estimate
from bfn.model import Model
from bfn.paper import printed
from bfn.paper.judged_model import JudgedModel
from bfn.paper.report import Options, Section
from bfn.paper.slope import log_log_slope
from bfn.quality import markdown_table
from bfn.sampling import Step

__all__ = ["STEPS", "cs_trajectories", "told_of", "trajectory_distance"]

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


def cs_trajectories(judged: JudgedModel, options: Options) -> Section:
    """Distances at each step size with intervals, and how they go with it, beside the paper's."""
    table = printed.printed_table("cs-trajectories")
    n = max(2, options.n or min(judged.n, 16))
    steps = sorted((1 / nfe for nfe in options.nfe), reverse=True) if options.nfe else STEPS
    batches = torch.split(torch.arange(n), options.batch or judged.batch)
    measured: dict[float, Estimate] = {}
    for step in steps:
        parts = [
            trajectory_distance(judged.model, len(batch), round(1 / step), options.seed + 1000 * index)
            for index, batch in enumerate(batches)
        ]
        measured[step] = mean_estimate(torch.cat(parts))
    theirs = {f.column.step: f.value for f in table.figures if f.column.step is not None}
    rows = [[f"{step:g}", str(m), f"{theirs[step]:g}" if step in theirs else ""] for step, m in measured.items()]
    ours = {step: m.value for step, m in measured.items()}
    compared = {step: value for step, value in theirs.items() if step in measured}
    compared = compared if len(compared) > 1 else theirs
    powers = {"measured": _power(ours), "paper": _power(compared)}
    lines = [
        "Mean over times, positions and classes of |z - z'| where z = s u is the state of the original sampler with "
        "drawn classes, z' without, both under the same Gaussian noise; 95 % intervals over "
        f"{n} pairs of trajectories. The paper does not say how its norm is scaled: compare how the figures fall.",
        "",
        *markdown_table(["step size", "measured", "paper"], rows),
        "",
        told_of(measured, powers),
    ]
    results = {
        "n": n,
        "distances": {f"{step:g}": m.asdict() for step, m in measured.items()},
        "power": powers,
    }
    curves = {"measured": list(ours.items()), "paper": list(theirs.items())}
    pictures = {f"{judged.name}.png": partial(_draw, curves)}
    return Section(judged.name, judged.title, "\n".join(lines), results, pictures)


def told_of(measured: Mapping[float, Estimate], powers: Mapping[str, float]) -> str:
    """What the distances, from the largest step to the smallest, say about the paper's fall."""
    pairs = list(pairwise(measured.values()))
    if not pairs:
        return f"One step size alone says nothing about a fall; the paper's distances go as step^{powers['paper']:.2f}."
    fallen = sum(after.high < before.low for before, after in pairs)
    risen = sum(after.low > before.high for before, after in pairs)
    if fallen == len(pairs):
        told = "The distances fall with the step size, every one below the one before by its interval, as in the paper"
    elif risen == len(pairs):
        told = "The distances rise as the steps get smaller, every one by its interval: the opposite of the paper"
    else:
        told = (
            f"From one step size to the next smaller one, {fallen} of {len(pairs)} distances fall by their intervals, "
            f"{risen} rise and {len(pairs) - fallen - risen} are not told apart: not the paper's steady fall"
        )
    if math.isnan(powers["measured"]):
        return f"{told}."
    return f"{told}. They go as step^{powers['measured']:.2f}; the paper's as step^{powers['paper']:.2f}."


def _power(values: Mapping[float, float]) -> float:
    return log_log_slope(list(values), list(values.values()))


def _draw(curves: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from bfn.paper.plots import lines_plot

    lines_plot(curves, path, x="step size", y="L1 distance of trajectories", dashed=["paper"])
