"""The training loop, the same for one process, several GPUs and several machines (Hugging Face accelerate).

All that is drawn at random is a function of (seed, step): the order of the data, times, noise, dropped labels and the
network's own dropout. So a run that was stopped goes on to the same weights, and a batch may be cut over processes.
"""

import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm.auto import tqdm

from bfn import losses, networks, optim, render, storage
from bfn.files import atomic_write
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow
from bfn.metrics.bits import bits_report
from bfn.model import BFN
from bfn.training import checkpoints, sharding
from bfn.training.batches import Source, derived_generator, derived_seed, open_source
from bfn.training.reports import Log
from bfn.training.settings import HARMLESS, Settings, differences, read_settings
from bfn.weightings import LossByTime, make_weighting

SETTINGS = "settings.json"
REFRESH = 100
"""Steps after which importance-sampled times follow the measured loss anew."""
AGREE = 10
"""Steps after which several processes agree on whether one of them was told to stop."""

EVAL_BATCHES = 8
"""Batches that the held-out data are cut into, at least: a standard error comes from their means."""

PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


class TrainingError(RuntimeError):
    """Training cannot go on; the message is one clear line."""


@dataclass(frozen=True)
class Result:
    """run: its directory. step: steps done. stopped_by: "SIGTERM" or "SIGINT" if it was told to stop, else None."""

    run: Path
    step: int
    stopped_by: str | None = None


class Objective(nn.Module):
    """A model as the module that is wrapped for several processes: its forward pass is the squared error."""

    def __init__(self, model: BFN) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, t: Tensor, eps: Tensor, label: Tensor | None) -> Tensor:
        """||w(x) - w_hat||^2 / kappa a dimension, of x noised by eps at times t: (batch,), float32."""
        return losses.squared_error(self.model, x, t, label=label, eps=eps)


def train(
    settings: Settings | None, run: Path | str, *, resume: bool = False, progress: bool = True, cpu: bool = False
) -> Result:
    """Train a model; checkpoints, log and samples go to the directory ``run``, and in the end the model itself.

    settings: may be None on resuming: the run's own are used then. Those given may differ in what does not change the
        result (and in ``steps``).
    resume: go on from the newest whole checkpoint; start from nothing if there is none yet.
    SIGTERM and Ctrl-C write a checkpoint and end the run in order; a second one ends it at once.
    """
    run = Path(run)
    settings = _agreed_settings(settings, run, resume)
    with _surroundings(settings):
        accelerator = Accelerator(mixed_precision=PRECISIONS[settings.precision], cpu=cpu)
        trainer = Trainer(settings, run, accelerator, progress)
        if accelerator.is_main_process:
            atomic_write(run / SETTINGS, json.dumps(settings.to_dict(), indent=2) + "\n")
        folder = checkpoints.latest(run) if resume else None
        if folder is not None:
            trainer.restore(folder)
            trainer.say(f"resuming from {folder} at step {trainer.step}")
        result = _loop(trainer)
        if accelerator.num_processes > 1:
            accelerator.wait_for_everyone()
        return result


def _loop(trainer: "Trainer") -> Result:
    settings, run = trainer.settings, trainer.run
    with Log(run, trainer.step, settings.tensorboard) if trainer.main else nullcontext() as log, _Signals() as signals:
        bar = tqdm(
            total=settings.steps, initial=trainer.step, desc="training", unit="step", smoothing=0.05,
            disable=None if trainer.progress and trainer.main else True,
        )  # fmt: skip
        saved = trainer.step
        clock = trainer.clock = time.monotonic()
        while trainer.step < settings.steps:
            trainer.train_step()
            step, done = trainer.step, trainer.step == settings.steps
            bar.update()
            if step % settings.log_every == 0 or done:
                values = trainer.measured()
                bar.set_postfix(loss=f"{values['loss']:.4f}")
                _write(log, "train", step, values)
            if done or (settings.eval_every and step % settings.eval_every == 0):
                _write(log, "eval", step, trainer.evaluate())
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
                trainer.say(f"stopped by {name} at step {step} of {settings.steps}; checkpoint written: resume {run}")
                return Result(run, step, name)
        bar.close()
    model = trainer.exported()
    if trainer.main:
        trainer.save(model, run)
    trainer.say(f"done: {settings.steps} steps, the model is in {run}")
    return Result(run, trainer.step)


class Trainer:
    """The moving parts of a run: model, optimiser, averaged weights, measured loss."""

    def __init__(self, settings: Settings, run: Path, accelerator: Accelerator, progress: bool) -> None:
        self.settings, self.run, self.accelerator, self.progress = settings, run, accelerator, progress
        self.main, self.device = accelerator.is_main_process, accelerator.device
        n, batch = accelerator.num_processes, settings.batch
        if batch % (n * settings.accumulate):
            raise ValueError(f"batch={batch}: not a multiple of processes x accumulate = {n} x {settings.accumulate}")
        with accelerator.main_process_first():
            self.data = open_source(settings.data, settings.flow["name"], "train", progress and self.main)
            self.held_out = open_source(settings.data, settings.flow["name"], "validation", False)
        self.model = build_model(settings, self.data).to(self.device)
        if settings.compile:
            for network in self.model.children():
                network.compile()
        self.weighting = make_weighting(_with_data_std(settings.weighting, "edm", self.data))
        self.record = LossByTime(device=self.device)
        self.ema = AveragedModel(self.model, multi_avg_fn=_warm_average(settings.ema_decay))
        self.ema.requires_grad_(False)
        self.ema.eval()
        self.sharded = sharding.is_sharded(accelerator)
        if self.sharded and settings.optimiser == "muon":
            raise ValueError("optimiser='muon': it needs whole matrices, which FSDP cuts up; use adamw, or DDP")
        self.module, self.optimiser = accelerator.prepare(Objective(self.model), make_optimiser(settings, self.model))
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

    def train_step(self) -> None:
        """One step of the optimiser on one batch."""
        settings, accelerator = self.settings, self.accelerator
        torch.manual_seed(derived_seed(settings.seed, "dropout", self.step, accelerator.process_index))
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(settings, self.step)
        x, label, t, factor, eps = self.batch(self.step)
        slope = self.model.flow.schedule.slope(t)
        size = self.share // settings.accumulate
        for first in range(0, self.share, size):
            rows = slice(first, first + size)
            last = first + size == self.share
            with nullcontext() if last else accelerator.no_sync(self.module):
                error = self.module(x[rows], t[rows], eps[rows], None if label is None else label[rows])
                loss = (error * factor[rows].to(error)).mean() / settings.accumulate
                accelerator.backward(loss)
            self.record.add(t[rows], error, slope[rows])
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

    def batch(self, step: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """Data, labels, times, factors and noise of this process's rows of a step's batch.

        Times and noise are drawn for the whole batch, the same on every process: a number of rows then sees the same
        noise however many processes share the batch.
        """
        settings, flow = self.settings, self.model.flow
        generator = derived_generator(settings.seed, "times", step)
        t, factor = self.weighting.draw(flow, settings.batch, generator)
        # Stratified times come in order: shuffled, they have nothing to do with the rows' place in the batch.
        shuffle = torch.randperm(settings.batch, generator=generator)
        dropped = torch.rand(settings.batch, generator=generator) < settings.label_dropout
        noise = derived_generator(settings.seed, "noise", step, device=self.device)
        shape = (settings.batch, *flow.state_shape(self.model.data_shape))
        eps = torch.randn(shape, generator=noise, dtype=self.model.dtype, device=self.device)
        first = self.accelerator.process_index * self.share
        rows = slice(first, first + self.share)
        x, label = self.data.take(settings.seed, step * settings.batch + first, self.share)
        if label is not None:
            label = label.masked_fill(dropped[rows], -1).to(self.device, non_blocking=True)
        own = shuffle[rows]
        return x.to(self.device, non_blocking=True), label, t[own], factor[own], eps[rows]

    def measured(self) -> dict[str, float]:
        """Mean training loss since the last look, speed, learning rate. The one place that waits for the device."""
        loss = float(self.accelerator.reduce(self.total, "mean")) / max(self.counted, 1)
        if not math.isfinite(loss):
            raise TrainingError(
                f"loss {loss} at step {self.step}: lower lr={self.settings.lr} or grad_clip, and resume"
            )
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

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Bits a dimension of held-out data under the averaged weights, with standard errors.

        The errors come from the means of several small batches: within each the times are stratified, so the samples
        themselves are not independent.
        """
        model, process = self.averaged(), self.accelerator.process_index
        x, label = self.held_out.first(self.settings.eval_count)
        share = max(2, len(x) // self.accelerator.num_processes)
        rows = (torch.arange(share) + share * process) % len(x)
        generator = derived_generator(self.settings.seed, "eval", process, device=self.device)
        nats: list[Tensor] = []
        for some in rows.split(max(1, min(self.share, share // EVAL_BATCHES))):
            given = x[some].to(self.device), None if label is None else label[some].to(self.device)
            bound = model.loss(given[0], generator=generator, label=given[1]).mean()
            reconstruction = model.reconstruction_loss(given[0], generator=generator, label=given[1]).mean()
            nats.append(torch.stack((bound, reconstruction)))
        report = bits_report(*self.accelerator.gather(torch.stack(nats)).cpu().unbind(1))
        values: dict[str, float] = {}
        for name in ("bound", "reconstruction", "total"):
            estimate = getattr(report, name)
            values |= {f"{name}_bits": estimate.mean, f"{name}_bits_error": estimate.standard_error}
        return values

    def sample(self) -> None:
        """Write a sheet of samples under the averaged weights."""
        settings, n = self.settings, self.settings.sample_count
        label = torch.arange(n, device=self.device) % self.data.n_labels if self.data.n_labels else None
        generator = derived_generator(settings.seed, "sample", device=self.device)
        x = self.averaged().sample(n, nfe=settings.sample_nfe, label=label, generator=generator).x
        if self.main:
            levels = self.data.n_classes if isinstance(self.model.flow, DiscreteFlow) else None
            render.write_sheet(self.run / "samples" / f"step-{self.step:08d}", x, self.data.alphabet, levels)

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
        model = build_model(self.settings, self.data)
        if self.main:
            model.load_state_dict(weights)
        return model

    def save(self, model: BFN, folder: Path) -> None:
        """Store the averaged model."""
        card = {
            "settings": self.settings.to_dict(),
            "step": self.step,
            "minutes": self.seconds / 60,
            "loss_by_t": self.record.summary(),
        }
        extras = {"n_labels": self.data.n_labels, "alphabet": self.data.alphabet, "card": card}
        storage.save(model, folder, extras)

    def checkpoint(self) -> None:
        """Write a checkpoint; all processes take part."""
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
        }
        weights = sharding.whole_weights(self.model, self.sharded)
        model = self.exported()
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
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def say(self, line: str) -> None:
        """One line to the user, from one process."""
        if self.main:
            tqdm.write(line)


def build_model(settings: Settings, source: Source) -> BFN:
    """The model of the settings, with the sizes that follow from the data; its weights follow from the seed."""
    flow = make_flow(settings, source)
    head = storage.make_head(_with_data_std(settings.head, "preconditioned", source), flow)
    name = settings.network["name"]
    sizes = {"in_channels": source.data_shape[0], "n_labels": source.n_labels}
    if isinstance(flow, DiscreteFlow):
        sizes["n_classes"] = flow.n_classes
    if source.n_labels and name in networks.NETWORKS and not networks.accepts(name, "n_labels"):
        raise ValueError(f"network {name}: takes no labels, and the data have {source.n_labels}; set data.labels=false")
    config = {**{key: size for key, size in sizes.items() if networks.accepts(name, key)}, **settings.network}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derived_seed(settings.seed, "weights"))
        network = networks.build(config)
    return BFN(network, flow, head, source.data_shape)


def make_flow(settings: Settings, source: Source) -> Flow:
    """The flow of the settings."""
    options = {key: value for key, value in settings.flow.items() if key != "name"}
    kinds: dict[str, tuple[str, ...]] = {"continuous": ("sigma_1",), "discrete": ("beta_1", "n_classes")}
    name = settings.flow["name"]
    if name not in kinds:
        raise ValueError(f"flow {name!r}: expected one of {', '.join(kinds)}")
    foreign = [key for key in options if key not in kinds[name]]
    if foreign:
        raise ValueError(f"flow.{foreign[0]}: a {name} flow has {', '.join(kinds[name])}")
    if name == "continuous":
        return ContinuousFlow(**options)
    return DiscreteFlow(**{"n_classes": source.n_classes, **options})


def make_optimiser(settings: Settings, model: BFN) -> torch.optim.Optimizer:
    """The optimiser of the settings. Weight decay is for matrices and kernels: biases and norms get none."""
    if settings.optimiser == "muon":
        matrices, rest = optim.split(model)
        return optim.Muon(matrices, rest, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": settings.weight_decay}]
    if settings.weight_decay:
        groups = [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ]
    fused = model.device.type in ("cpu", "cuda")
    return torch.optim.AdamW([group for group in groups if group["params"]], settings.lr, settings.betas, fused=fused)


def learning_rate(settings: Settings, step: int) -> float:
    """Linear warm-up, a flat stretch up to decay_from, then a cosine down to final_lr times the peak."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    start = max(settings.warmup, round(settings.decay_from * settings.steps))
    progress = min(1.0, max(0.0, (step - start) / max(1, settings.steps - start)))
    return settings.lr * (settings.final_lr + (1 - settings.final_lr) * (1 + math.cos(math.pi * progress)) / 2)


def _warm_average(decay: float) -> Any:
    """torch's average whose decay starts low, so that early steps are soon forgotten."""

    def average(averaged: list[Tensor], current: list[Tensor], n: Tensor | int) -> None:
        get_ema_multi_avg_fn(min(decay, (1 + int(n)) / (10 + int(n))))(averaged, current, n)  # type: ignore[no-untyped-call]

    return average


def _with_data_std(config: Mapping[str, Any], name: str, source: Source) -> dict[str, Any]:
    """The part with data_std measured on the data, where it is the named one and leaves it out."""
    if config["name"] != name or "data_std" in config:
        return dict(config)
    x, _ = source.first(1024)
    return {**config, "data_std": round(float(x.float().std()), 4)}


def _agreed_settings(settings: Settings | None, run: Path, resume: bool) -> Settings:
    """The settings to train with, after a look at what the run's directory holds."""
    stored = run / SETTINGS
    if not resume:
        if settings is None:
            raise ValueError("settings=None: say what to train; only a run that is resumed has settings of its own")
        if checkpoints.existing(run):
            raise ValueError(f"{run}: holds a run already: resume it, or choose another directory")
        return settings
    if not stored.exists():
        if settings is None:
            raise ValueError(f"{run}: no run to resume there: {SETTINGS} is missing")
        return settings
    own = read_settings(stored)
    changed = differences(own, settings) if settings is not None else {}
    for name, (theirs, ours) in changed.items():
        if name not in HARMLESS:
            raise ValueError(f"{name}={ours!r}: the run in {run} has {theirs!r}; resume with that, or run anew")
    return settings or own


@contextmanager
def _surroundings(settings: Settings) -> Iterator[None]:
    """The process's thread count and random state, as they were before, afterwards."""
    threads = torch.get_num_threads()
    try:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)


class _Signals:
    """Remembers SIGTERM and SIGINT instead of dying of them; a second one does what it always did."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, _: object) -> None:
        self.received = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def _write(log: Log | None, kind: str, step: int, values: Mapping[str, Any]) -> None:
    if log is not None:
        log.write(kind, step, values)
