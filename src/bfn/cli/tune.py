"""``bfn distill``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from bfn._utils.progress import Progress
from bfn.cli.common import (
    DIRECTORY,
    NAME,
    AsJson,
    Data,
    Device,
    ModelName,
    Network,
    Seed,
    check_positive,
    load,
    shown,
    tell,
)
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn.core.model import Model
    from bfn.solvers.few_step import Anchor


def distill(
    model: ModelName,
    out: Annotated[Path, DIRECTORY],
    steps: int = 2000,
    paths: int = 16_000,
    calls: int = 4,
    solver: Annotated[str, NAME] = "fast-ode",
    nfe: int = 16,
    grid: Annotated[str | None, NAME] = None,
    g: Annotated[float | None, arg(metavar="NUMBER")] = None,
    guidance: Annotated[float | None, arg(metavar="SCALE")] = None,
    temperature: Annotated[float | None, arg(metavar="NUMBER")] = None,
    match: Annotated[float | None, arg(metavar="NUMBER")] = None,
    batch: int = 128,
    lr: float = 1e-3,
    start: Annotated[str | None, arg(metavar="MODEL")] = None,
    resume: bool = False,
    seed: Seed = 0,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Train a copy of a model to sample in one to four network calls.

    The model's own paths, from noise to data without further noise, are the data: the copy learns where each ends.
    Ctrl-C writes a checkpoint, and --resume goes on from there.

    Example: bfn distill digits --out one-call

    Example: bfn distill mnist --out mnist-one --nfe 8 --paths 12000 --batch 64

    Example: bfn distill mnist --out mnist-one --nfe 8 --paths 12000 --batch 64 --resume

    Args:
        out: directory of the run: paths, checkpoints, log, and in the end the distilled model.
        steps: of training.
        paths: of the model, to learn from; 500 more are kept back to measure with.
        calls: the distilled model gets tables of 1 to so many calls.
        solver: that draws the paths, without noise.
        nfe: its network calls a path.
        grid: its grid, by name as bfn sample takes it.
        g: its stochasticity dial, for solvers that have one: 0.
        guidance: scale by which the classes count in the paths; the distilled model needs no guidance of its own.
        temperature: the logits of classes are divided by it in the paths.
        match: how much it counts that samples of one call are as likely under noise as the teacher's; 0 for the paths
            alone, in half the time a step. Left out, 1 for images and 0 for other data.
        batch: samples a step.
        lr: learning rate at its highest.
        start: model to begin with, an earlier student for one; MODEL itself if left out.
        resume: go on with the paths and from the checkpoint in --out.
    """
    import inspect
    import shlex

    from bfn.training import distillation as distilling
    from bfn.training.checkpoints import read_log

    check_positive(steps=steps, paths=paths, calls=calls, nfe=nfe, batch=batch)
    given: dict[str, Any] = {"grid": grid, "g": g, "guidance": guidance, "temperature": temperature}
    teacher = {"solver": solver, "nfe": nfe, **{key: value for key, value in given.items() if value is not None}}
    more: dict[str, Any] = {
        "steps": steps, "paths": paths, "calls": calls, "match": match, "batch": batch, "seed": seed,
    }  # fmt: skip
    said = {**teacher, **more, "start": start, "device": device}

    def again(rate: float | None) -> str:
        """The command that goes on, with what is not as it is where nothing is said."""
        usual = {name: about.default for name, about in inspect.signature(distill).parameters.items()}
        changed = {name: value for name, value in {**said, "lr": rate or lr}.items() if value != usual[name]}
        options = [word for name, value in changed.items() for word in (f"--{name}", str(value))]
        return shlex.join(["bfn", "distill", model, "--out", str(out), *options, "--resume"])

    first = None if start is None else load(start, device)
    student = distilling.distill(
        load(model, device), teacher=teacher, student=first, lr=lr, run=out, resume=resume, again=again,
        progress=shown(), **more,
    )  # fmt: skip
    error = next(entry for entry in reversed(read_log(out)) if entry["kind"] == "eval")
    figures = {key: error[key] for key in ("end_error", "end_error_low", "end_error_high")}
    noised = {calls: [round(t, 4) for t in table.times] for calls, table in student.info.tables.items()}
    line = (
        f"{model} distilled in {steps} steps: one call ends {error['end_error']:.4g} "
        f"[{error['end_error_low']:.4g}, {error['end_error_high']:.4g}] from the teacher's end, a dimension; "
        f"stored in {out} with tables of {', '.join(map(str, noised))} calls"
    )
    tell({"model": model, "out": str(out), "steps": steps, **figures, "times": noised}, [line], json)


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
    from bfn.storage import models as storage
    from bfn.training import tuning

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
    from bfn.core.plain import to_plain
    from bfn.storage import models as storage
    from bfn.training import tuning

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
