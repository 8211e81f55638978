"""The training loop, the same for one process, several GPUs and several machines (Hugging Face accelerate).

All that is drawn at random is a function of (seed, step): the order of the data, times, noise, dropped labels and the
network's own dropout. So a run that was stopped goes on to the same weights, and a batch may be cut over processes.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped]

from bfn import storage, tuning
from bfn.errors import UserError
from bfn.files import atomic_write, locked, sweep
from bfn.model import BFN
from bfn.progress import Progress, Shown
from bfn.training import checkpoints
from bfn.training.process import Signals, surroundings
from bfn.training.reports import LOG, Log
from bfn.training.settings import HARMLESS, RECORDED, Settings, differences, moved, read_settings
from bfn.training.trainer import Trainer

__all__ = ["LOCK", "Result", "agreed_settings", "train", "write_settings"]

SETTINGS = "settings.json"
LOCK = ".run.lock"
LEAST_SECONDS = 60
"""Of a training whose model gets a default solver of its own: what took less is a trial."""
PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Result:
    """run: its directory. step: steps done. stopped_by: "SIGTERM" or "SIGINT" if it was told to stop, else None."""

    run: Path
    step: int
    stopped_by: str | None = None


def train(
    settings: Settings | None,
    run: Path | str,
    *,
    resume: bool = False,
    progress: Shown = True,
    cpu: bool = False,
    trainer_type: Callable[[Settings, Path, Accelerator, Shown], Trainer] = Trainer,
) -> Result:
    """Train a model; checkpoints, log and samples go to the directory ``run``, and in the end the model itself.

    settings: may be None on resuming: the run's own are used then. Those given may differ in what does not change the
        result, in ``steps``, and in the learning rate and clipping, which is recorded in the log and the card.
    resume: go on from the newest whole checkpoint; start from nothing if there is none yet.
    progress: whether to show it, and how (:data:`bfn.progress.Shown`); "json" prints the lines of the log.
    trainer_type: what makes the moving parts of the run; distillation has its own.
    SIGTERM and Ctrl-C write a checkpoint and end the run in order; a second one ends it at once.
    """
    run = Path(run)
    first, _ = agreed_settings(settings, run, resume)
    with surroundings(first):
        accelerator = Accelerator(mixed_precision=PRECISIONS[first.precision], cpu=cpu)
        trainer = trainer_type(first, run, accelerator, progress)
        busy = f"{run}: another process is training there: wait until it is done, or choose another directory"
        with locked(run / LOCK, busy, wait=0) if accelerator.is_main_process else nullcontext():
            # Once more, now that nobody else writes there.
            settings, changes = agreed_settings(first, run, resume)
            if accelerator.is_main_process:
                sweep(run / SETTINGS, run / LOG)
                write_settings(settings, run)
            folder = checkpoints.latest(run) if resume else None
            if folder is not None:
                trainer.restore(folder)
                trainer.say(f"resuming from {folder} at step {trainer.step}")
            result = _loop(trainer, changes)
            accelerator.wait_for_everyone()
            return result


def _loop(trainer: Trainer, changes: Mapping[str, Any]) -> Result:
    settings, run = trainer.settings, trainer.run
    opened = closing(Log(run, trainer.step, settings.tensorboard)) if trainer.main else nullcontext()
    with opened as log, Signals() as signals:
        if changes:
            _write(log, "settings", trainer, changes)
        shown = trainer.main and trainer.progress != "json" and trainer.progress  # JSON lines are those of the log
        bar = Progress(settings.steps, "training", "step", shown, start=trainer.step, stays=True)
        saved = trainer.step
        clock = trainer.clock = time.monotonic()
        while trainer.step < settings.steps:
            trainer.train_step()
            step, done = trainer.step, trainer.step == settings.steps
            bar.update()
            if step % settings.log_every == 0 or done:
                values = trainer.measured()
                bar.note(loss=f"{values['loss']:.4f}")
                _write(log, "train", trainer, values)
            if done or (settings.eval_every and step % settings.eval_every == 0):
                _write(log, "eval", trainer, trainer.evaluate())
            if done or (settings.sample_every and step % settings.sample_every == 0):
                trainer.sample()
            late = settings.checkpoint_minutes and time.monotonic() - clock > 60 * settings.checkpoint_minutes
            stop, due = trainer.agree(signals.received is not None, bool(late))
            due = due or bool(settings.checkpoint_every and step % settings.checkpoint_every == 0)
            if (due or stop or done) and saved < step:
                trainer.checkpoint()
                saved, clock = step, time.monotonic()
            if stop and not done:
                bar.close()
                name = signals.received or "SIGTERM"
                stopped = f"stopped by {name} at step {step} of {settings.steps}; checkpoint written"
                trainer.say(f"{stopped}; to go on: {trainer.resumed_by()}")
                return Result(run, step, name)
        bar.close()
    model = trainer.exported()
    if trainer.main:
        _calibrate(trainer, trainer.save(model, run))
    trainer.say(f"done: {settings.steps} steps, the model is in {run}")
    return Result(run, trainer.step)


def _calibrate(trainer: Trainer, model: BFN) -> None:
    """Fit the default solver to the stored model, in a share of the time that it took to train."""
    seconds = trainer.settings.calibration * trainer.seconds
    if not seconds or trainer.seconds < LEAST_SECONDS or len(model.flow.parts) > 1:
        return
    trainer.say(f"finding the settings of auto for this model, in {seconds / 60:.1f} minutes at most (Ctrl-C skips it)")
    try:
        found = tuning.calibrate(model, tuning.objective_for(model), seconds=seconds)
    except KeyboardInterrupt:
        trainer.say(f"skipped: bfn tune {trainer.run} --calibrate makes up for it")
        return
    storage.store_tables(trainer.run, {}, calibration=found)


def agreed_settings(settings: Settings | None, run: Path, resume: bool) -> tuple[Settings, dict[str, Any]]:
    """The settings to train with, after a look at what the run's directory holds, and changes to be recorded."""
    stored = run / SETTINGS
    own = read_settings(stored).with_whole_path() if resume and stored.exists() else None
    chosen = own if settings is None else settings.with_whole_path()
    if chosen is None and resume:
        raise UserError(f"{run}: no run to resume there: {SETTINGS} is missing")
    if chosen is None:
        raise UserError("settings=None: say what to train; only a run that is resumed has settings of its own")
    if not resume and checkpoints.existing(run):
        raise UserError(f"{run}: holds a run already: resume it, or choose another directory")
    if not checkpoints.existing(run) and any((run / name).exists() for name in (storage.CONFIG, storage.WEIGHTS)):
        raise UserError(f"{run}: holds a model and no checkpoints: training would write over it, choose another place")
    changed = differences(own or chosen, chosen)
    if own is not None and "data" in changed and moved(own.data, chosen.data):
        changed = {"data.name": (own.data["name"], chosen.data["name"]), **changed}
        del changed["data"]
    for name, (theirs, ours) in changed.items():
        if name not in HARMLESS | RECORDED:
            raise UserError(f"{name}={ours!r}: the run in {run} has {theirs!r}; resume with that, or run anew")
    return chosen, {name: {"before": old, "now": new} for name, (old, new) in changed.items() if name in RECORDED}


def write_settings(settings: Settings, run: Path) -> None:
    """Keep them with the run."""
    atomic_write(run / SETTINGS, json.dumps(settings.to_dict(), indent=2) + "\n")


def _write(log: Log | None, kind: str, trainer: Trainer, values: Mapping[str, Any]) -> None:
    if log is not None:
        log.write(kind, trainer.step, values)
        if trainer.progress == "json":
            print(json.dumps({"kind": kind, "step": trainer.step, **values}), flush=True)
