"""Distillation: a model that samples in one to four network calls, learned from the paths of another.

    student = distill(model, steps=2000)
    student.sample(16, nfe=1)

The student is the teacher's network with other weights: it predicts where a state's path ends, not the mean of what it
may come from. It is stored, loaded, compared and tuned like any model.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bfn.arguments import MOST_COUNT, check_real, check_whole
from bfn.distilling.distiller import Distillation
from bfn.errors import UserError, did_you_mean
from bfn.model import BFN, Model
from bfn.progress import Shown, say
from bfn.training import Settings
from bfn.training.loop import train_with
from bfn.training.trainer import Trainer

__all__ = ["distill"]

SAMPLING = ("solver", "nfe", "grid", "t_start", "g", "guidance", "temperature", "clip")
"""What a teacher's paths may be asked for, of the settings of ``model.sample``."""
MOST_MATCH = 1e6
"""Weight of matching beside which the paths would count for nothing."""


def distill(
    model: Model,
    steps: int = 2000,
    *,
    paths: int = 16_000,
    teacher: Mapping[str, Any] | None = None,
    student: BFN | None = None,
    calls: int = 4,
    match: float | None = None,
    batch: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
    run: Path | str | None = None,
    resume: bool = False,
    again: Callable[[float | None], str] | None = None,
    progress: Shown = False,
) -> BFN:
    """A model that maps a state to the end of its path in one call, learned from ``paths`` paths of this one.

    steps, batch, lr: of training; the rate rises over 100 steps and falls along a cosine to 0, weights are averaged.
    teacher: settings of ``model.sample`` by which paths are drawn, without noise; {"solver": "fast-ode", "nfe": 16} if
        left out. Guidance in them is learned too: the student then needs none, and is as good as the guided teacher.
    student: the model to start from, of the same data; a copy of the model itself if left out. An exact model has no
        network, and needs one.
    calls: the student gets tables of 1 to so many calls, which "auto" takes.
    match: how much it counts, beside the paths, that samples of one call are as likely under noise as the teacher's;
        it doubles the time of a step. 0: only the paths. Left out, 1 for images, where one call rounds what is fine,
        and 0 for other data, where it was not found to help.
    run: directory of checkpoints, log and paths, and in the end of the model itself; resume: go on with what is there.
        An interrupt writes a checkpoint there.
    again: what the user is told to do to go on, with another learning rate or the same; this call, with resume=True, if
        left out.
    """
    first = _first_student(model, student)
    flow = first.flow
    for name, count in {"paths": paths, "batch": batch, "calls": calls}.items():
        check_whole(name, count, 1, MOST_COUNT)
    weight = float(model.form == "images") if match is None else check_real("match", match)
    if weight is None or not 0 <= weight <= MOST_MATCH:
        raise UserError(f"match={match}: expected a number from 0, for the paths alone, to {MOST_MATCH:g}")
    if paths < batch:
        raise UserError(f"paths={paths}: expected at least a batch of {batch} paths")
    settings = Settings(
        data={"name": "paths", "paths": paths, **_sampling(teacher)},
        network={"name": type(first.network).__name__}, flow={"name": flow.kind},
        head={"name": type(first.head).__name__},
        weighting={"name": "distance" if flow.has_range else "cross-entropy", "match": weight},
        steps=steps, batch=batch, lr=lr, seed=seed,
        warmup=100, eval_every=500, sample_every=0, sample_nfe=1, checkpoint_every=0,
        tensorboard=False, calibration=0.0,
    )  # fmt: skip
    made: list[Distillation] = []

    def call_again(rate: float | None) -> str:
        return f"distill(..., {'' if rate is None else f'lr={rate:.3g}, '}run={str(run)!r}, resume=True)"

    resume_hint = again or call_again

    def make(*parts: Any) -> Trainer:
        made.append(Distillation(model, first, resume_hint, *parts))
        return made[0].trainer

    def tell(line: str) -> None:  # standard output is for the result
        if run is not None:
            say(line, progress, sys.stderr)

    with tempfile.TemporaryDirectory() if run is None else nullcontext(run) as folder:
        result = train_with(
            make, settings, folder, resume=resume, progress=progress, cpu=model.device.type == "cpu",
            again=lambda: resume_hint(None), tell=tell,
        )  # fmt: skip
        if result.stopped_by is not None:
            raise KeyboardInterrupt(result.stopped_by)
        distilled = made[0].finish(calls)
        if run is not None:
            made[0].save(distilled, Path(run))
    return distilled.eval()


def _first_student(model: Model, student: BFN | None) -> BFN:
    """The model to start from, after a look at what cannot be distilled."""
    if student is None and not isinstance(model, BFN):
        raise UserError(
            f"{type(model).__name__}: an exact model has no network to start from; give student=bfn.BFN(...)"
        )
    if student is not None and not isinstance(student, BFN):
        raise UserError(f"student of type {type(student).__name__}: expected bfn.BFN, a network that can learn")
    first = model if student is None else student
    if len(model.flow.parts) > 1:
        raise UserError(f"joint data ({', '.join(model.flow.parts)}): only models of one kind of data can be distilled")
    if first.flow != model.flow or tuple(first.data_shape) != tuple(model.data_shape):
        raise UserError(f"student of {first.flow}, {first.data_shape}: expected {model.flow}, {model.data_shape}")
    if not isinstance(first, BFN) or not first.starts_at_zero:
        raise UserError("a network that predicts noise says nothing at t = 0, where one call is made; give a student")
    return first


def _sampling(teacher: Mapping[str, Any] | None) -> dict[str, Any]:
    """How paths are drawn."""
    if teacher is not None and not isinstance(teacher, Mapping):
        raise UserError(f"teacher of type {type(teacher).__name__}: expected settings of a sample by name")
    sampling = {"solver": "fast-ode", "nfe": 16, **(teacher or {})}
    foreign = next((key for key in sampling if key not in SAMPLING), None)
    if foreign is not None:
        hint = did_you_mean(foreign, SAMPLING)
        raise UserError(f"teacher {foreign!r}: expected settings of a sample, {', '.join(SAMPLING)}{hint}")
    return sampling
