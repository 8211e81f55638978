"""``bfn.fit``: a model that is there already, trained on data in any form, in one call."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]

from bfn.data import Columns, Tokenizer
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError
from bfn.files import locked
from bfn.info import ModelInfo
from bfn.model import BFN
from bfn.partly_known import KnownInTraining
from bfn.progress import Progress, Shown
from bfn.training import checkpoints
from bfn.training.building import count_chains
from bfn.training.given_data import Given, Wishes, is_placeholder, open_given
from bfn.training.loop import LOCK, agreed_settings, write_settings
from bfn.training.process import Signals, surroundings
from bfn.training.settings import Settings
from bfn.training.trainer import Trainer, TrainingError
from bfn.weightings import FOR_SAMPLES, Weighting, weighting_of

__all__ = ["fit"]

FEW = 64
"""Numbers in a sample up to which batches are large."""
LOOKS = 10
"""How often in a run the loss is looked at."""


class Fitter(Trainer):
    """The moving parts of a run on a model and batches that are given."""

    def __init__(
        self, model: BFN, source: Given, weighting: Weighting, settings: Settings, run: Path, accelerator: Accelerator
    ) -> None:
        self.given, self.source, self.chosen = model, source, weighting
        super().__init__(settings, run, accelerator, progress=False)

    def open_data(self) -> None:
        self.data = self.source  # type: ignore[assignment]

    def make_model(self) -> BFN:
        return self.given.train()

    def make_weighting(self) -> Weighting:
        return self.chosen

    def diverged(self, what: str) -> TrainingError:
        clip = "" if self.settings.grad_clip else ", or with grad_clip=1"
        return TrainingError(f"{what} at step {self.step}: try again with lr={self.settings.lr / 10:.3g}{clip}")


def fit(
    model: BFN,
    data: Any,
    steps: int = 2000,
    *,
    batch: int | None = None,
    lr: float = 1e-3,
    optimiser: Literal["adamw", "muon"] = "adamw",
    weighting: str | Weighting | dict[str, Any] | None = None,
    label: Any = None,
    condition: Any = None,
    present: Any = None,
    columns: Columns | None = None,
    tokenizer: Tokenizer | str | None = None,
    dropout: float = 0.1,
    known: KnownInTraining = 0.0,
    ema: float = 0.999,
    warmup: int = 100,
    grad_clip: float = 1.0,
    weight_decay: float = 0.0,
    seed: int = 0,
    run: Path | str | None = None,
    progress: Shown = True,
) -> BFN:
    """Train a model on data, and return it with averaged weights, in evaluation mode.

    data: a tensor or array (n, *data_shape), a mapping of parts, a torch Dataset (of tensors, of (x, label) pairs, or
        of mappings with "x" or the parts, "label", "present" and conditions), a pandas DataFrame, or a path as
        ``bfn.data.load`` takes it, of which the training part is taken. Tensors are taken as they are; numbers of
        tables and files are scaled, which ``model.info.scaling`` keeps and ``model.decode`` undoes.
    batch: samples a step; 256 of a few numbers each, 64 of larger ones, if None. lr: rises over ``warmup`` steps, then
        falls along a cosine to 0. optimiser: "muon" steps matrices along their orthogonalised momentum, which
        often learns in fewer steps (docs/training.md).
    weighting: what is trained at which times, as in ``model.loss``; edm for numbers and cross-entropy for classes, of
        joint data each for its parts, if None.
    label, condition, present: of each sample, as in ``model.loss``; label may be names. Of a table the name of the
        label's column and those of the conditions, or all of them in ``columns``. tokenizer: of its texts.
    dropout: share of the samples that are trained without their class, and without each condition.
    known: share of the samples that are trained with a random share of their data known, for a model that is to fill in
        the rest; or a function (x, generator) -> mask, True where data are known, like those that will be given.
    ema: decay of the averaged weights; it rises to this value over the first steps.
    run: a directory for checkpoints, every few minutes and on an interrupt; the same call goes on from the newest.

    What the data say is kept in ``model.info`` where it says nothing yet: classes, conditions, lengths, range, scale;
    the error curve is measured. An interrupt (Ctrl-C) ends training with the averaged weights so far. Like all
    training it needs accelerate: ``pip install 'bayesian-flow[train]'``.
    """
    if not isinstance(model, BFN) or not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"{type(model).__name__}: has no weights to train: expected bfn.BFN with a torch.nn.Module")
    n_numbers = sum(torch.Size(own).numel() for own in _shapes(model))
    batch = (256 if n_numbers <= FEW // 2 else 64) if batch is None else batch
    settings = Settings(
        data={"name": type(data).__name__}, network={"name": type(model.network).__name__},
        flow={"name": model.flow.kind}, head={"name": type(model.head).__name__}, steps=steps, batch=batch, lr=lr,
        optimiser=optimiser,
        ema_decay=ema, warmup=warmup, label_dropout=dropout, grad_clip=grad_clip,
        weight_decay=weight_decay, seed=seed,
    )  # fmt: skip
    settings = replace(settings, warmup=min(settings.warmup, settings.steps // 2))
    source = open_given(model, data, Wishes(settings.batch, label, condition, present, columns, tokenizer))
    model.info = _completed(model.info, source.info())
    count_chains(model, source)
    chosen = _weighting(model, source) if weighting is None else weighting_of(model, weighting)
    with surroundings(settings), _directory(run) as directory:
        accelerator = Accelerator(cpu=model.device.type == "cpu")
        trainer = Fitter(model, source, chosen, settings, directory, accelerator)
        trainer.known = known
        if run is not None:
            agreed_settings(settings, directory, resume=True)
            write_settings(settings, directory)
        newest = checkpoints.latest(directory)
        if newest is not None:
            trainer.restore(newest)
            trainer.say(f"going on from {newest}")
        stopped_by = _loop(trainer, progress, stores=run is not None)
    model.load_state_dict(trainer.averaged().state_dict())
    model.requires_grad_(True).eval()
    curve = ErrorCurve.from_bins(trainer.record.summary())
    model.info = replace(model.info, error_curve=curve, card={**model.info.card, "steps": trainer.step})
    if stopped_by == "SIGTERM":
        signal.raise_signal(signal.SIGTERM)
    return model


@contextmanager
def _directory(run: Path | str | None) -> Iterator[Path]:
    """Where a run is kept, by one process at a time; without a name for it, nowhere."""
    if run is None:
        with tempfile.TemporaryDirectory() as nowhere:
            yield Path(nowhere)
        return
    with locked(Path(run) / LOCK, f"{run}: another process is training there: wait for it, or name another", wait=0):
        yield Path(run)


def _loop(trainer: Fitter, progress: Shown, stores: bool) -> str | None:
    """All steps, or those until a signal; its name. stores: checkpoints are written."""
    steps = trainer.settings.steps
    every = max(1, steps // LOOKS)
    shown = progress if trainer.main else False
    clock = time.monotonic()
    with Signals() as signals, Progress(steps, "fitting", "step", shown, start=trainer.step) as bar:
        while trainer.step < steps and signals.received is None:
            trainer.train_step()
            bar.update()
            if trainer.step % every == 0 or trainer.step == steps:
                values = trainer.measured()
                bar.note(loss=f"{values['loss']:.4f}")
            ends = trainer.step == steps or signals.received is not None
            if stores and (ends or time.monotonic() - clock > 60 * trainer.settings.checkpoint_minutes):
                trainer.checkpoint()
                clock = time.monotonic()
        if signals.received is not None:
            trainer.say(f"stopped at step {trainer.step} of {steps}: the model has the averaged weights so far")
        return signals.received


def _shapes(model: BFN) -> list[tuple[int, ...]]:
    shape = model.data_shape
    return [*shape.values()] if isinstance(shape, dict) else [shape]


def _completed(info: ModelInfo, found: ModelInfo) -> ModelInfo:
    """What is known, and of what is not, what the data say."""
    same = is_placeholder(info.classes)
    return replace(
        info,
        classes=found.classes if same and found.classes is not None else info.classes,
        alphabet=info.alphabet if info.text_tokenizer is not None else found.alphabet,
        tokenizer=info.tokenizer if info.text_tokenizer is not None else found.tokenizer,
        part_tokenizers=info.part_tokenizers or found.part_tokenizers,
        part_classes=info.part_classes or found.part_classes,
        scaling=info.scaling or found.scaling,
        conditions=info.conditions or found.conditions,
        lengths=info.lengths or found.lengths,
        value_range=info.value_range or found.value_range,
        spread=info.spread or found.spread,
        part_spreads=info.part_spreads or found.part_spreads,
    )


def _weighting(model: BFN, source: Given) -> Weighting:
    """The one that gives good samples, by the kind of each part."""
    x, conditions = source.take(0, 0, 256)
    there = model.flow.split(conditions.get("present", torch.ones_like(x, dtype=torch.bool)))
    parts = model.flow.split(x).items()
    stds = {name: float(own[there[name]].float().std(correction=0)) or 1.0 for name, own in parts}
    joint = {name: FOR_SAMPLES[not flow.has_range] for name, flow in model.flow.parts.items()}
    return weighting_of(model, joint.get("", joint), stds)
