"""The moving parts of a run, and what is done with them at a step: train, measure, sample, store."""

import math
import os
import shlex
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from bfn.conditions import dropped, rows_of
from bfn.data.own_paths import remember_path
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError
from bfn.likelihood import held_out_bits
from bfn.losses import errors_and_values
from bfn.model import BFN
from bfn.partly_known import KnownInTraining, PartlyKnown, known_in_training
from bfn.progress import Shown, say
from bfn.seeds import derived_generator, derived_seed
from bfn.training import checkpoints, sharding
from bfn.training.batches import open_source
from bfn.training.building import begin_with, build_model, learning_rate, make_optimiser, make_weighting, warm_average
from bfn.training.reports import LOG, read_log
from bfn.training.settings import Settings
from bfn.viz import write_samples
from bfn.weightings import LossByTime, Weighting

__all__ = ["Trainer", "TrainingError", "TrainingErrors"]

REFRESH = 100
"""Steps after which importance-sampled times follow the measured loss anew."""
AGREE = 10
"""Steps after which several processes agree on whether one of them was told to stop."""


class TrainingError(UserError):
    """Training cannot go on; the message is one clear line."""


class TrainingErrors(nn.Module):
    """A model as the module that is wrapped for several processes: its forward pass is what training measures."""

    def __init__(self, model: BFN, weighting: Weighting) -> None:
        super().__init__()
        self.model, self.weighting = model, weighting

    def forward(
        self, x: Tensor, t: Tensor, eps: Tensor, factor: Tensor, conditions: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The squared error of x noised by eps at times t, and the weighted loss: (batch,) each, float32.

        conditions: "known", a mask like x, is what of the data is known.
        """
        known = conditions.pop("known", None)
        model = self.model if known is None else PartlyKnown(self.model, x, known)
        return errors_and_values(model, x, t, self.weighting.values, conditions=conditions, eps=eps, factor=factor)


def _nothing_known(known: Tensor | None, rows: slice) -> Any:
    """The rows that the error curve is measured on: those of which all is predicted, if there are any."""
    free = slice(None) if known is None else ~known[rows].flatten(1).any(1)
    return slice(None) if isinstance(free, Tensor) and not bool(free.any()) else free


class Trainer:
    """The moving parts of a run: model, optimiser, averaged weights, measured loss."""

    def __init__(self, settings: Settings, run: Path, accelerator: Accelerator, progress: Shown) -> None:
        self.settings, self.run, self.accelerator, self.progress = settings, run, accelerator, progress
        self.main, self.device = accelerator.is_main_process, accelerator.device
        n, batch = accelerator.num_processes, settings.batch
        if batch % (n * settings.accumulate):
            raise UserError(f"batch={batch}: not a multiple of processes x accumulate = {n} x {settings.accumulate}")
        with accelerator.main_process_first():
            self.open_data()
        self.model = self.make_model().to(self.device)
        if settings.compile:
            for network in self.model.children():
                network.compile()
        names = self.model.info.in_turn(1)
        self.dropout = {name: settings.condition_dropout.get(name, settings.label_dropout) for name in names}
        self.weighting = self.make_weighting()
        self.known: KnownInTraining = settings.known
        self.record = LossByTime(device=self.device)
        self.ema = AveragedModel(self.model, multi_avg_fn=warm_average(settings.ema_decay))
        self.ema.requires_grad_(False).eval()
        self.sharded = sharding.is_sharded(accelerator)
        if self.sharded and settings.optimiser == "muon":
            raise UserError("optimiser='muon': it needs whole matrices, which FSDP cuts up; use adamw, or DDP")
        optimiser = make_optimiser(settings, self.model)
        self.module, self.optimiser = accelerator.prepare(self.make_errors(), optimiser)
        if self.sharded:
            for network in self.averaged().children():
                sharding.shard(network)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.share = batch // n
        self.step = 0
        self.total = torch.zeros((), device=self.device)
        self.counted = 0
        self.seconds = 0.0
        self.clock = time.monotonic()

    def open_data(self) -> None:
        """What the run learns from, and what it is measured on."""
        name, source = self.settings.flow["name"], str(self.settings.data["name"])
        if Path(source).is_absolute() and not Path(source).exists():
            raise UserError(f"{source}: the run's data are not there: {self.resumed_by()} data.path=WHERE_THEY_ARE")
        remember_path(source)
        batch = self.settings.batch
        self.data = open_source(self.settings.data, name, "train", self.progress and self.main, batch)
        self.held_out = open_source(self.settings.data, name, "validation", False, batch, self.data)

    def make_model(self) -> BFN:
        """The model as it is before the first step."""
        model = build_model(self.settings, self.data)
        if self.settings.start is not None and checkpoints.latest(self.run) is None:
            begin_with(model, self.settings.start)
        return model

    def make_weighting(self) -> Weighting:
        """What is trained at which times."""
        return make_weighting(self.settings, self.data)

    def make_errors(self) -> TrainingErrors:
        """What is measured of a batch."""
        return TrainingErrors(self.model, self.weighting)

    def more_state(self) -> dict[str, Any]:
        """What else a checkpoint holds, beside the model and its optimiser."""
        return {}

    def restore_more(self, state: Mapping[str, Any]) -> None:
        """Go on with it."""

    def train_step(self) -> None:
        """One step of the optimiser on one batch."""
        settings, accelerator = self.settings, self.accelerator
        torch.manual_seed(derived_seed(settings.seed, "dropout", self.step, accelerator.process_index))
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        x, conditions, t, factor, eps = self.batch(self.step)
        flow = self.model.flow
        leading = flow.times_of(t)[flow.leading_part]
        slope = flow.schedule.slope(leading)
        size = self.share // settings.accumulate
        for first in range(0, self.share, size):
            rows = slice(first, first + size)
            last = first + size == self.share
            with nullcontext() if last else accelerator.no_sync(self.module):
                error, values = self.module(x[rows], t[rows], eps[rows], factor[rows], rows_of(conditions, rows))
                loss = values.mean() / settings.accumulate
                accelerator.backward(loss)
            free = _nothing_known(conditions.get("known"), rows)
            self.record.add(leading[rows][free], error[free], slope[rows][free])
            self.total += loss.detach()
        if settings.grad_clip:
            accelerator.clip_grad_norm_(self.parameters, settings.grad_clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.ema.update_parameters(self.model)
        self.step += 1
        self.counted += 1
        if self.step % REFRESH == 0:
            self.record.fold(accelerator.reduce(self.record.recent, "sum"))
            self.weighting = self.weighting.fitted(self.record.second_moment())

    def batch(self, step: int) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor, Tensor]:
        """Data, conditions, times, factors and noise of this process's rows of a step's batch.

        Times and noise are drawn for the whole batch, the same on every process: a number of rows then sees the same
        noise however many processes share the batch.
        """
        settings, flow = self.settings, self.model.flow
        generator = derived_generator(settings.seed, "times", step)
        t, factor = self.weighting.draw(flow, settings.batch, generator)
        # Stratified times come in order: shuffled, they have nothing to do with the rows' place in the batch.
        shuffle = torch.randperm(settings.batch, generator=generator)
        lost = torch.rand(settings.batch, max(1, len(self.dropout)), generator=generator)
        noise = derived_generator(settings.seed, "noise", step, device=self.device)
        first = self.accelerator.process_index * self.share
        rows = slice(first, first + self.share)
        x, conditions = self.data.take(settings.seed, step * settings.batch + first, self.share)
        conditions = dropped(conditions, self.dropout, lost[rows])
        drawn = derived_generator(settings.seed, "known", step, self.accelerator.process_index)
        known = known_in_training(self.model, x, self.known, drawn, conditions.get("present"))
        conditions |= {} if known is None else {"known": known}
        shape = (settings.batch, *flow.state_shape(tuple(x.shape[1:])))
        eps = torch.randn(shape, generator=noise, dtype=self.model.dtype, device=self.device)
        own = shuffle[rows]
        there = {name: value.to(self.device, non_blocking=True) for name, value in conditions.items()}
        return x.to(self.device, non_blocking=True), there, t[own], factor[own], eps[rows]

    def measured(self) -> dict[str, float]:
        """Mean training loss since the last look, speed, learning rate. The one place that waits for the device."""
        loss = float(self.accelerator.reduce(self.total, "mean")) / max(self.counted, 1)
        if not math.isfinite(loss):
            raise self.diverged(f"loss {loss}")
        now = time.monotonic()
        elapsed, count = now - self.clock, self.counted
        self.seconds, self.clock = self.seconds + elapsed, now
        self.total.zero_()
        self.counted = 0
        return {
            "loss": loss,
            "lr": learning_rate(self.settings, self.step - 1),
            "samples_per_second": count * self.settings.batch / elapsed if elapsed > 0 else 0.0,
            "minutes": self.seconds / 60,
        }

    def diverged(self, what: str) -> TrainingError:
        """The line that says what to do where the state is good no more; the last good one has been kept."""
        kept, settings = checkpoints.existing(self.run), self.settings
        last = f"the last good state, {kept[-1].name}, is kept" if kept else "nothing was stored yet"
        advice = self.resumed_by(lr=settings.lr / 10, clip=not settings.grad_clip)
        return TrainingError(f"{what} at step {self.step}: {last}; go on with a lower learning rate: {advice}")

    def resumed_by(self, lr: float | None = None, clip: bool = False) -> str:
        """The command to go on with; with another learning rate, and with clipping."""
        changes = ("" if lr is None else f" lr={lr:.3g}") + (" grad_clip=1" if clip else "")
        n = self.accelerator.num_processes
        start = "bfn" if n == 1 else f"torchrun --nproc_per_node {os.environ.get('LOCAL_WORLD_SIZE', n)} -m bfn"
        return f"{start} train --out {shlex.quote(str(self.run))} --resume{changes}"

    @torch.no_grad()
    def is_good(self, *stored: object) -> bool:
        """Whether what is to be stored is finite, and what the next batch costs too; all processes agree."""
        x, conditions, t, factor, eps = self.batch(self.step)
        rows = slice(0, self.share // self.settings.accumulate)
        _, values = self.module(x[rows], t[rows], eps[rows], factor[rows], rows_of(conditions, rows))
        good = checkpoints.is_finite([values, self.total, *stored])
        return not self.accelerator.reduce(torch.tensor(float(not good), device=self.device), "sum")

    def evaluate(self) -> dict[str, float]:
        """Bits a dimension of held-out data under the averaged weights, with their intervals."""
        process = self.accelerator.process_index
        x, conditions = self.held_out.first(self.settings.eval_count)
        share = max(2, len(x) // self.accelerator.num_processes)
        rows = (torch.arange(share) + share * process) % len(x)
        its_own = rows_of(conditions, rows)
        present = None if "present" not in its_own else self.model.flow.unpack(its_own.pop("present"))
        bits = held_out_bits(
            self.averaged(), x[rows], condition=its_own, present=present, batch=self.share,
            generator=derived_generator(self.settings.seed, "eval", process, device=self.device),
            gather=self.accelerator.gather,
        )  # fmt: skip
        ends = {"": "value", "_low": "low", "_high": "high"}
        return {f"{name}_bits{end}": getattr(bits[name], field) for name in bits for end, field in ends.items()}

    def sample(self) -> None:
        """Write a sheet of samples under the averaged weights."""
        settings, model = self.settings, self.averaged()
        condition = model.info.in_turn(settings.sample_count)
        generator = derived_generator(settings.seed, "sample", device=self.device)
        out = model.sample(settings.sample_count, nfe=settings.sample_nfe, condition=condition, generator=generator)
        if self.main:
            write_samples(self.run / "samples" / f"step-{self.step:08d}", model, out.x, present=out.present)

    def averaged(self) -> BFN:
        """The model with the averaged weights."""
        return self.ema.module  # type: ignore[return-value]

    def agree(self, stop: bool, late: bool) -> tuple[bool, bool]:
        """(stop, late) on all processes if on any; asked for every few steps only."""
        if self.accelerator.num_processes == 1:
            return stop, late
        if self.step % AGREE and self.step < self.settings.steps:
            return False, False
        flags = self.accelerator.reduce(torch.tensor([stop, late], dtype=torch.float32, device=self.device), "sum")
        return bool(flags[0] > 0), bool(flags[1] > 0)

    def exported(self) -> BFN:
        """The averaged model with whole weights, to be stored by the first process. All processes take part."""
        if not self.sharded:
            return self.averaged()
        weights = sharding.whole_weights(self.averaged(), self.sharded)
        model = self.make_model()
        if self.main:
            model.load_state_dict(weights)
        return model

    def save(self, model: BFN, folder: Path) -> BFN:
        """Store the averaged model with what is known of it by now, its error curve and its card; as it is stored."""
        card = {"settings": self.settings.to_dict(), "step": self.step, "minutes": self.seconds / 60}
        log = read_log(self.run) if (self.run / LOG).exists() else []
        changes = [line for line in log if line["kind"] == "settings"]
        card |= {"changed settings": changes} if changes else {}
        info = replace(model.info, error_curve=ErrorCurve.from_bins(self.record.summary()), card=card)
        stored = BFN(model.network, model.flow, model.head, model.data_shape, info)
        stored.save(folder)
        return stored

    def checkpoint(self) -> None:
        """Write a checkpoint, of a good state only; all processes take part."""
        recent = self.accelerator.reduce(self.record.recent.clone(), "sum")
        total = self.accelerator.reduce(self.total.clone(), "mean")
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        scaler = self.accelerator.scaler
        state = {
            "step": self.step,
            "optimiser": sharding.whole_optimiser(self.module, self.optimiser.optimizer, self.sharded),
            "n_averaged": int(self.ema.n_averaged),
            "record": {**self.record.state_dict(), "recent": recent.cpu()},
            "density": list(getattr(self.weighting, "density", ())),
            "total": float(total),
            "counted": self.counted,
            "seconds": self.seconds,
            "scaler": None if scaler is None else scaler.state_dict(),
            "more": self.more_state(),
        }
        weights = sharding.whole_weights(self.model, self.sharded)
        model = self.exported()
        if not self.is_good(weights, state["optimiser"], state["more"], model.state_dict()):
            raise self.diverged("NaN or infinite numbers")
        if self.main:
            checkpoints.write(self.run, self.step, weights, state, lambda folder: self.save(model, folder))
        self.accelerator.wait_for_everyone()

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        weights, averaged, state = checkpoints.read(folder)
        sharding.load_weights(self.model, weights, self.sharded)
        averaged = {f"network.{name}": value for name, value in averaged.items()}
        sharding.load_weights(self.averaged(), averaged, self.sharded)
        self.ema.n_averaged.fill_(state["n_averaged"])
        sharding.load_optimiser(self.module, self.optimiser.optimizer, state["optimiser"], self.sharded)
        self.record.load_state_dict(state["record"])
        if not self.main:
            self.record.recent.zero_()
        self.weighting = self.weighting.restored(state["density"])
        self.total.fill_(state["total"])
        self.step, self.counted, self.seconds = state["step"], state["counted"], state["seconds"]
        self.restore_more(state.get("more", {}))
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def say(self, line: str) -> None:
        """One line to the user, from one process."""
        if self.main:
            say(line, self.progress)
