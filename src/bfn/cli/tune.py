"""Commands that fit a model to few network calls: ``bfn distill`` and ``bfn tune``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

import bfn
from bfn.cli import common
from bfn.core.errors import UserError

if TYPE_CHECKING:
    from bfn.solvers.few_step import Anchor


@dataclass(frozen=True)
class StudentOptions:
    """Options of ``bfn.distill``.

    Args:
        steps: number of training steps.
        paths: number of paths of the model to learn from; 500 more are held out.
        calls: maximum number of network calls for which the distilled model gets tables.
        match: weight of the matching loss, which makes samples of one call as likely under noise as the teacher's; 0
            for the paths alone, in half the time per step. By default 1 for images and 0 for other data.
        batch: samples per training step.
        lr: largest learning rate.
    """

    steps: int = 2000
    paths: int = 16_000
    calls: int = 4
    match: common.Number = None
    batch: int = 128
    lr: float = 1e-3


TEACHER, STUDENT = common.PathOptions(("fast-ode",), 16), StudentOptions()


def distill(
    model: common.ModelName,
    out: Annotated[Path, common.DIRECTORY],
    student: StudentOptions = STUDENT,
    teacher: common.PathOptions = TEACHER,
    start: Annotated[str | None, arg(metavar="MODEL")] = None,
    resume: bool = False,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    json: common.AsJson = False,
) -> None:
    """Train a copy of a model to sample in one to four network calls.

    The training data are paths of the model itself, from noise to data and without noise on the way: the copy learns
    where each path ends. --solver and the other options of bfn sample draw the paths. Ctrl-C writes a checkpoint, and
    --resume continues from it.

    Example: bfn distill digits --out one-call

    Example: bfn distill mnist --out mnist-one --nfe 8 --paths 12000 --batch 64

    Example: bfn distill mnist --out mnist-one --nfe 8 --paths 12000 --batch 64 --resume

    Args:
        out: directory of the run: paths, checkpoints, log, and in the end the distilled model.
        start: model to start from, such as an earlier student; MODEL itself by default.
        resume: continue with the paths and from the checkpoint in --out.
    """
    import shlex

    from bfn import training
    from bfn.training.distillation import distill as run_distillation

    settings = {**vars(student), "seed": seed}
    common.check_positive(
        steps=student.steps, paths=student.paths, calls=student.calls, nfe=teacher.nfe, batch=student.batch
    )

    def again(rate: float | None) -> str:
        """Return the command that continues the run."""
        usual = {**vars(TEACHER), **vars(STUDENT), "seed": 0, "start": None, "device": "auto"}
        given = {**vars(teacher), **settings, "start": start, "device": device, "lr": rate or student.lr}
        changed = {name: value for name, value in given.items() if value != usual[name]}
        options = [(f"--{name}", *(value if isinstance(value, tuple) else (value,))) for name, value in changed.items()]
        return shlex.join(map(str, ("bfn", "distill", model, "--out", out, *chain(*options), "--resume")))

    first = None if start is None else common.load(start, device)
    distilled = run_distillation(
        common.load(model, device), teacher={"nfe": 16, **teacher.given()}, student=first, run=out, resume=resume,
        again=again, progress=common.shown(), **settings,
    )  # fmt: skip
    error = next(entry for entry in reversed(training.read_log(out)) if entry["kind"] == "eval")
    figures = {key: error[key] for key in ("end_error", "end_error_low", "end_error_high")}
    times = {calls: [round(t, 4) for t in table.times] for calls, table in distilled.info.tables.items()}
    line = (
        f"{model} distilled in {student.steps} steps: one call ends {error['end_error']:.4g} "
        f"[{error['end_error_low']:.4g}, {error['end_error_high']:.4g}] per dimension from the teacher's end; "
        f"stored in {out} with tables of {', '.join(map(str, times))} calls"
    )
    common.tell({"model": model, "out": str(out), "steps": student.steps, **figures, "times": times}, [line], json)


def tune(
    model: common.ModelName,
    nfe: int = 6,
    calibrate: bool = False,
    calls: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100),
    out: Annotated[Path | None, common.DIRECTORY] = None,
    objective: Literal["data", "endpoint", "grid"] = "data",
    data: common.Data = None,
    steps: int | None = None,
    batch: int = 200,
    starts: int | None = None,
    held_out: int = 500,
    teacher_nfe: int = 100,
    network: common.Network = None,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    json: common.AsJson = False,
) -> None:
    """Fit a solver of a few network calls to a model and store it with the model, where "auto" finds it.

    The grid, the noise and the coefficients are fitted to lower the distance of samples from data (of features for
    images, of n-grams for text), or the distance from the end points of a solver with many steps. Held-out starts
    decide which solver is kept. Ctrl-C stores the best one so far, as does a network that returns NaN.

    With --calibrate no table is fitted, but the settings of "auto" for any number of calls: the stochasticity, the
    order, and the end and exponent of the grid, searched at some numbers of calls and interpolated between them.

    Example: bfn tune digits --nfe 5 --out digits-tuned

    Example: bfn tune runs/mine --objective endpoint --starts 400 --teacher-nfe 200

    Example: bfn tune digits --objective grid --nfe 5 --out digits-grid

    Example: bfn tune runs/mine --calibrate --batch 300

    Args:
        nfe: network calls of the solver.
        calibrate: search the settings of "auto" for any number of calls instead.
        calls: numbers of calls that --calibrate searches.
        out: directory for a copy of the model with the table: new, empty, or such a copy already; by default the
            model's own config.json is changed.
        objective: data compares samples with data (joint data: as grid); endpoint fits a table without noise to a
            teacher with many steps; grid does the same with the times of fast-ode alone.
        steps: maximum number of steps; by default 40 of gradient descent, five per parameter of a search (for classes),
            6 rounds for the times of a grid.
        batch: samples per step, or per trial of a calibration.
        starts: number of different starts; by default new ones in each step.
        held_out: number of starts that decide when to stop and what to keep.
        teacher_nfe: network calls of the teacher, for the objectives endpoint and grid.
    """
    from bfn._utils.progress import Progress
    from bfn.storage import models as storage
    from bfn.training import tuning

    common.check_positive(steps=steps, batch=batch, held_out=held_out, teacher_nfe=teacher_nfe)
    if out is None and model in storage.bundled() and not (Path(model) / storage.CONFIG).is_file():
        raise UserError(f"{model} is a bundled model: give --out DIR for a copy of it with the table")
    storage.place_for_tables(model, out)
    source = common.load(model, device, network)
    if calibrate:
        _calibrate(model, source, calls, out, data, batch, seed, json)
        return
    teachers = {"grid": tuning.SearchedGrid, "endpoint": tuning.EndPoint}
    goal = tuning.objective_for(source, data) if objective == "data" else teachers[objective](teacher_nfe)
    steps = tuning.default_steps(source, nfe, goal) if steps is None else steps
    with Progress(steps, "tuning", "step", common.shown(json)) as bar:

        def on_step(step: int, value: float | None) -> None:
            bar.update(step - bar.n)
            if value is not None:
                bar.note(**{"held-out": f"{value:.4g}"})

        tuned = tuning.tune(
            source, nfe, goal, steps=steps, batch=batch, starts=starts, held_out=held_out, seed=seed, on_step=on_step
        )
    folder = storage.store_tables(model, {nfe: tuned.table}, out) if tuned.after < tuned.before else None
    record = dict(tuned.table.record)
    stopped = f", {tuned.stopped}" if tuned.stopped else ""
    stored = "no gain, nothing stored" if folder is None else f"stored in {folder}"
    line = (
        f"{model} at {nfe} calls, {record['objective']} on {held_out} held-out starts: {tuned.before:.4g} by "
        f"{record['start']}, {tuned.after:.4g} tuned ({tuned.curve[-1][0]} steps{stopped}); {stored}"
    )
    values = {"model": model, "nfe": nfe, "stored": folder and str(folder), "stopped": tuned.stopped}
    common.tell({**values, "record": record, "curve": tuned.curve}, [line], json)


def _calibrate(
    name: str, model: bfn.Model, calls: tuple[int, ...], out: Path | None, data: common.Data, n: int, seed: int,
    json: bool,
) -> None:  # fmt: skip
    """Search the settings of "auto" over the number of calls, and store them."""
    from bfn._utils.progress import Progress
    from bfn.core.plain import to_plain
    from bfn.storage import models as storage
    from bfn.training import tuning

    objective = tuning.objective_for(model, data)
    with Progress(None, "calibrating", "trial", common.shown(json)) as bar:

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
    common.tell({"model": name, "stored": str(folder), "calibration": to_plain(found)}, lines, json)
