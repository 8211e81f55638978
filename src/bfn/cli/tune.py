"""``bfn tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bfn.cli.common import DIRECTORY, AsJson, Data, Device, ModelName, Network, Seed, check_positive, load, shown, tell
from bfn.errors import UserError
from bfn.progress import Progress

if TYPE_CHECKING:
    from bfn.model import Model
    from bfn.solvers import Anchor

__all__ = ["tune"]


def tune(
    model: ModelName,
    nfe: int = 6,
    calibrate: bool = False,
    calls: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100),
    out: Annotated[Path | None, DIRECTORY] = None,
    objective: Literal["data", "endpoint", "grid"] = "data",
    data: Data = None,
    steps: int | None = None,
    batch: int = 200,
    starts: int | None = None,
    held_out: int = 500,
    teacher_nfe: int = 100,
    network: Network = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Fit a solver of a few network calls to one model, and store it there: "auto" takes it at that number of calls.

    The grid, the noise and the coefficients are moved to lower the distance of samples from data (of features for
    images, of n-grams for text), or the distance to a many-step solver's end points. Held-out starts decide.
    Ctrl-C stores the best so far, as does a network that gives NaN.

    With --calibrate no table is fitted, but the settings that "auto" has at any number of calls: the dial, the order,
    the end and the exponent of the grid, found at some numbers of calls and interpolated between them.

    Example: bfn tune digits --nfe 5 --out digits-tuned

    Example: bfn tune runs/mine --objective endpoint --starts 400 --teacher-nfe 200

    Example: bfn tune digits --objective grid --nfe 5 --out digits-grid

    Example: bfn tune runs/mine --calibrate --batch 300

    Args:
        nfe: network calls of the solver.
        calibrate: find the settings of "auto" over the number of calls instead.
        calls: numbers of calls that are searched, with --calibrate.
        out: directory for a copy of the model with the table, new, empty or such a copy already; without it the model's
            own config.json gets it.
        objective: data compares samples with data (joint data: as grid); endpoint fits a table without noise to a
            many-step teacher; grid does so by the times of fast-ode alone.
        steps: at most; 40 of gradient descent, five a number in a search (for classes), 6 rounds of a grid's times if
            left out.
        batch: samples in each step, or in each trial of a calibration.
        starts: how many different starts are used; fresh ones at each step if left out.
        held_out: starts that decide when to stop and what to keep.
        teacher_nfe: network calls of the teacher, for the objectives endpoint and grid.
    """
    from bfn import storage, tuning

    check_positive(steps=steps, batch=batch, held_out=held_out, teacher_nfe=teacher_nfe)
    if out is None and model in storage.bundled() and not (Path(model) / storage.CONFIG).is_file():
        raise UserError(f"{model} is a bundled model: give --out DIR for a copy of it with the table")
    storage.place_for_tables(model, out)
    source = load(model, device, network)
    if calibrate:
        _calibrate(model, source, calls, out, data, batch, seed, json)
        return
    goal = (
        tuning.objective_for(source, data) if objective == "data"
        else tuning.EndPoint(teacher_nfe) if objective == "endpoint"
        else tuning.SearchedGrid(teacher_nfe)
    )  # fmt: skip
    steps = tuning.default_steps(source, nfe, goal) if steps is None else steps
    with Progress(steps, "tuning", "step", shown(json)) as bar:

        def on_step(step: int, value: float | None) -> None:
            bar.update(step - bar.n)
            if value is not None:
                bar.note(**{"held-out": f"{value:.4g}"})

        tuned = tuning.tune(
            source, nfe, goal, steps=steps, batch=batch, starts=starts, held_out=held_out, seed=seed, on_step=on_step
        )
    folder = storage.store_tables(model, {nfe: tuned.table}, out) if tuned.after < tuned.before else None
    record = dict(tuned.table.record)
    line = (
        f"{model} at {nfe} calls, {record['objective']} on {held_out} held-out starts: {tuned.before:.4g} by "
        f"{record['start']}, {tuned.after:.4g} tuned ({tuned.curve[-1][0]} steps"
        f"{f', {tuned.stopped}' if tuned.stopped else ''}); "
        f"{'nothing gained, nothing stored' if folder is None else f'stored in {folder}'}"
    )
    values = {"model": model, "nfe": nfe, "stored": folder and str(folder), "stopped": tuned.stopped}
    tell({**values, "record": record, "curve": tuned.curve}, [line], json)


def _calibrate(
    name: str, model: Model, calls: tuple[int, ...], out: Path | None, data: Data, n: int, seed: int, json: bool
) -> None:
    """The settings of "auto" over the number of calls, found and stored."""
    from bfn import storage, tuning
    from bfn.core.plain import to_plain

    objective = tuning.objective_for(model, data)
    with Progress(None, "calibrating", "trial", shown(json)) as bar:

        def on_trial(anchor: Anchor, value: float) -> None:
            bar.update()
            bar.note(calls=anchor.calls, g=f"{anchor.g:g}", objective=f"{value:.4g}")

        found = tuning.calibrate(model, objective, calls, n=n, seed=seed, on_trial=on_trial)
    folder = storage.store_tables(name, {}, out, calibration=found)
    lines = [f"{name}, {found.objective}; stored in {folder}"]
    lines += [
        f"{a.calls:4d} calls: g = {a.g:.3g}, order {a.order}, end {a.end:.3g}, exponent {a.exponent:.3g}: {loss:.4g}"
        for a, loss in zip(found.anchors, found.losses, strict=True)
    ]
    tell({"model": name, "stored": str(folder), "calibration": to_plain(found)}, lines, json)
