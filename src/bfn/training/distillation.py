"""Distillation: train a model to predict where the paths of a teacher end.

Ordinary training shows a model data x with fresh noise, u = s w(x) + sqrt(kappa) eps, and it learns the mean of all x
that u may come from. A path of the probability-flow ODE has one end. Trained on states of such paths, the same network
learns the end that each state leads to, so that it samples in one call. Only the objective differs from ordinary
training.

With matching, samples of one call are also made as likely as the teacher's. A second model, the critic, learns the
distribution of the student's samples; where it and the teacher disagree about a noised sample, the sample is moved
towards the teacher.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from bfn._utils.arguments import MOST_COUNT, check_real, check_whole
from bfn._utils.estimate import mean_estimate
from bfn._utils.pieces import derived_generator, evaluating
from bfn._utils.progress import Progress, Shown, say
from bfn.controls.guidance import Guidance
from bfn.core.conditions import ConditionTensors, conditions_for, dropped, rows_of
from bfn.core.control import Batch as SamplingBatch
from bfn.core.control import Predict, compose, controls_from_options
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Flow
from bfn.core.heads import FlowMapHead, Output
from bfn.core.info import CARD
from bfn.core.losses import EDM, Bound, CrossEntropy, Weighting, errors_and_values, mean_over_present
from bfn.core.model import BFN, Model
from bfn.core.plain import to_plain
from bfn.core.sampling import Step, sample
from bfn.core.solver import plan
from bfn.solvers.few_step import RENOISING
from bfn.storage.models import read_weights, write_weights
from bfn.training.checkpoints import is_sharded
from bfn.training.fitting import advice_on_divergence, sample_sheet, stored_with, train, trainer_for
from bfn.training.objective import Batch, DenoisingLoss, DenoisingObjective, seed_dropout
from bfn.training.settings import Settings
from bfn.training.source import TensorSource, batch_rows
from bfn.training.trainer import Checkpointing, Every, Trainer
from bfn.training.tuning.calibration import choose_tables

# --- paths of the teacher ---------------------------------------------------------------------------------------------

CHUNK = 1000
"""Number of paths in a file."""

BATCH = 100
"""Number of paths that go through the network together."""


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths from n starts through the same times.

    Attributes:
        times: times of the network calls, (calls,) float64.
        u: states at these times, (n, calls, *state_shape), in half precision: the rounding is small beside the noise.
        x: ends of the paths, (n, *data_shape).
        conditions: conditions by name, each (n, ...).
    """

    times: Tensor
    u: Tensor
    x: Tensor
    conditions: ConditionTensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice) -> Paths:
        """Return some of the paths."""
        return Paths(self.times, self.u[rows], self.x[rows], rows_of(self.conditions, rows))

    def batch(self, flow: Flow, node: Tensor, index: Tensor, device: torch.device) -> Batch:
        """Return some paths at some of their nodes, with the noise for which the state is s w(x) + sqrt(kappa) eps."""
        t, x, u = self.times[node], self.x[index], self.u[index, node].float()
        s = flow.noise_level(t, len(u), u.ndim - 1, like=u).s
        eps = ((u - flow.noised(x, s, torch.zeros_like(u))) / flow.noise_scale(u)).to(device)
        moved = {name: value.to(device) for name, value in rows_of(self.conditions, index).items()}
        return Batch(x.to(device), t.to(device), eps, torch.ones_like(t).to(device), moved)


def draw_paths(
    model: Model, n: int, sampling: Mapping[str, Any], *, seed: int = 0, dropout: float = 0.0,
    folder: Path | None = None, progress: Shown = False,
) -> Paths:  # fmt: skip
    """Draw n paths of a model.

    Args:
        model: the model.
        n: number of paths.
        sampling: options of ``model.sample``, with a solver without noise.
        seed: seed of all random numbers. Each chunk of paths has its own, derived from it.
        dropout: share of the paths that are drawn without a condition.
        folder: folder in which chunks are stored and looked for.
        progress: whether to show progress.
    """
    options = {key: sampling[key] for key in ("solver", "nfe", "grid", "t_start", "g") if key in sampling}
    planned = plan(model, **options)
    if planned.table.stochastic:
        raise UserError(f"a teacher with noise ({planned}): expected a solver without noise, such as fast-ode")
    if not all(row.commit for row in planned.table.rows):
        raise UserError(f"a teacher with Runge-Kutta stages ({planned}): expected a multistep solver, such as fast-ode")
    chunks = []
    with Progress(n, "paths", "path", progress) as bar:
        for first in range(0, n, CHUNK):
            count, number = min(CHUNK, n - first), first // CHUNK
            file = None if folder is None else folder / f"paths-{number:04d}.safetensors"
            chunk = read_weights(file) if file is not None and file.is_file() else {}
            if len(chunk.get("states", ())) != count:
                chunk = _draw_chunk(model, count, sampling, derived_generator(seed, "paths", number), dropout, bar)
                if file is not None:
                    write_weights(file, chunk)
            bar.update(first + count - bar.n)
            chunks.append(chunk)
    joined = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return Paths(torch.tensor(planned.table.times).double(), joined.pop("states"), joined.pop("x"), joined)


def _draw_chunk(
    model: Model, n: int, sampling: Mapping[str, Any], generator: torch.Generator, dropout: float, bar: Progress
) -> dict[str, Tensor]:
    """Return n paths as named tensors."""
    conditions = conditions_for(model, n, generator=generator)
    conditions = dropped(conditions, dropout, torch.rand(n, max(1, len(conditions)), generator=generator))
    found: dict[str, list[Tensor]] = {}
    for rows in torch.split(torch.arange(n), BATCH):
        passed: list[Tensor] = []

        def keep(step: Step, passed: list[Tensor] = passed) -> None:
            passed.append(step.u.half().cpu())

        seed = int(torch.randint(2**62, (), generator=generator))
        out = sample(model, len(rows), condition=rows_of(conditions, rows), seed=seed, on_step=keep, **sampling)
        x = out.x.float() if out.x.is_floating_point() else out.x
        drawn = {"states": torch.stack(passed, 1), "x": x, "present": out.present}
        for name, value in drawn.items():
            if value is not None:
                found.setdefault(name, []).append(value.cpu())
        bar.update(len(rows))
    return {**conditions, **{name: torch.cat(values) for name, values in found.items()}}


# --- the loss of the predicted ends -----------------------------------------------------------------------------------

LARGEST_FACTOR = 30.0
"""Maximum weight of the squared error, relative to noise of 1/s. The distance has the root of the weight."""

SMALL = 0.05
"""Distance, in standard deviations of the data, below which the loss is quadratic."""

AT_START = 2
"""Every second row of a batch is at the start of its path, which is all that one call sees."""

LEAST_VISIBLE = 0.5
"""Noise added to the first state that the network sees, in units of one step between data."""

N_HELD_OUT = 500
"""Number of held-out paths, which measure the student and choose the times of its tables."""


@dataclass(frozen=True)
class Distance(Bound):
    """The distance between the predicted and the true end of a path, rounded at 0 (pseudo-Huber loss).

    One call cannot tell all paths apart. The squared error is lowest at the mean of the possible ends, which is like
    none of them; the distance is lowest at their median.
    """

    small: float = 0.0

    def weight(self, flow: Flow, t: Tensor) -> Tensor:
        return (1 + flow.schedule.beta(t)).clamp(max=LARGEST_FACTOR).sqrt()

    def values(self, flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
        return (errors + self.small**2).sqrt() - self.small


def _weightings(flow: Flow, std: float) -> tuple[Weighting, Weighting]:
    """Return the weightings of the student and of the critic, for data of that standard deviation."""
    return (Distance(SMALL * std), EDM(data_std=std)) if flow.leading.has_range else (CrossEntropy(), CrossEntropy())


class PathObjective(DenoisingObjective):
    """The error of the predicted end of a path, at states of the path; with matching, see ``MatchingErrors``.

    Args:
        student: the model that is trained.
        paths: paths of the teacher.
        weighting: loss of the predicted ends.
        settings: settings of the run.
        devices: see ``bfn.training.objective.Objective``.
    """

    critic: Critic | None = None

    def __init__(self, student: BFN, paths: Paths, weighting: Weighting, settings: Settings, devices: Any) -> None:
        source = TensorSource(paths.x, {}, student.info)
        super().__init__(student, source, weighting, settings.batch, devices, seed=settings.seed)
        self.paths, self.settings = paths, settings

    def match(self, critic: Critic) -> None:
        """Add the matching loss."""
        self.critic = critic
        self.module = self.matching = MatchingErrors(self.model, self.weighting, critic)

    def batch(self, step: int, rows: slice) -> Batch:
        seed, flow, process = self.seed, self.model.flow, self.devices.process_index
        seed_dropout(seed, step, process)
        if self.critic is not None:
            self.matching.generator = derived_generator(seed, "matching", step, process)
            self.matching.weight = self.settings.weighting["match"] * min(1.0, step / max(1, self.settings.warmup))
        index = batch_rows(self.source, seed, step, self.batch_size)
        generator = derived_generator(seed, "nodes", step)
        node = torch.randint(1, max(2, len(self.paths.times)), index.shape, generator=generator)
        node = node.clamp(max=len(self.paths.times) - 1)
        node[::AT_START] = 0
        batch = self.paths.batch(flow, node[rows], index[rows], self.devices.device)
        return replace(batch, factor=self.weighting.weight(flow, batch.t))

    def end_step(self, step: int) -> None:
        super().end_step(step)
        if self.critic is not None and self.matching.drawn is not None:
            self.critic.learn(*self.matching.drawn, self.matching.generator)

    def state_dict(self) -> dict[str, Any]:
        more = {} if self.critic is None else {"critic": self.critic.state_dict()}
        return {**super().state_dict(), "more": more}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.critic is not None:
            self.critic.load_state_dict(state["more"]["critic"])


# --- matching ---------------------------------------------------------------------------------------------------------

LEAST_ERROR = 1e-3
"""Smallest error of the teacher on a sample, as root mean square, by which the direction is divided."""


class Critic:
    """A model of the distribution of the student's samples.

    Args:
        teacher: the teacher.
        own: model that the critic starts from: the teacher, or the first student of an exact teacher.
        sampling: options that the teacher's paths are drawn with, of which guidance and temperature count.
        weighting: times at which critic and teacher are compared, and the loss of the critic.
        devices: see ``bfn.training.objective.Objective``.
        lr, grad_clip: learning rate of the critic, and the largest norm of its gradient.
    """

    def __init__(
        self, teacher: Model, own: BFN, sampling: Mapping[str, Any], weighting: Weighting, devices: Any, lr: float,
        grad_clip: float,
    ) -> None:  # fmt: skip
        self.teacher, self.sampling, self.weighting = teacher, sampling, weighting
        self.devices, self.grad_clip = devices, grad_clip
        self.model = copy.deepcopy(own).to(devices.device).train().requires_grad_()
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
        self.module, self.optimiser = devices.prepare(DenoisingLoss(self.model, weighting), optimiser)

    def direction(
        self, prediction: Tensor, x: Tensor, conditions: ConditionTensors, generator: torch.Generator
    ) -> Tensor:
        """Return the direction in which predictions become less likely under the teacher, like the predictions.

        Args:
            prediction: predictions of the student, (batch, *state_shape).
            x: the data that are read from them.
            conditions: their conditions.
            generator: source of times and noise.
        """
        flow = self.model.flow
        t, _, eps = self._noise(prediction, generator)
        level = flow.noise_level(t, len(x), prediction.ndim - 1, like=eps)
        u = flow.noised(x, level.s, eps)
        predict = self._teacher(conditions)
        with torch.no_grad(), evaluating(self.teacher), evaluating(self.model):
            theirs = predict(u.to(self.teacher.dtype), level, **conditions).mean.to(prediction)
            ours = self.model.output(u, level, **conditions).mean.to(prediction)
        error = mean_over_present(flow.errors(x, theirs), conditions.get("present")).sqrt().clamp(min=LEAST_ERROR)
        return (ours - theirs) / error.view(-1, *[1] * (prediction.ndim - 1))

    def _teacher(self, conditions: ConditionTensors) -> Predict:
        """Return the teacher's output under the guidance and temperature of its samples."""
        options = {name: self.sampling[name] for name in ("guidance", "temperature") if name in self.sampling}
        controls = controls_from_options(options)
        # Guidance without conditions, or of scale 1, changes nothing.
        controls = tuple(each for each in controls if not isinstance(each, Guidance) or each.groups(conditions))
        # These controls read nothing of the batch but its model.
        batch = SamplingBatch(self.teacher, cast(Any, None), conditions, torch.empty(0), None)
        return compose(self.teacher.output, controls, batch)

    def learn(self, prediction: Tensor, x: Tensor, conditions: ConditionTensors, generator: torch.Generator) -> None:
        """Train the critic by one step on samples of the student; see ``direction``."""
        t, factor, eps = self._noise(prediction, generator)
        _, values = self.module(x, t, eps, factor.to(self.devices.device), dict(conditions))
        self.devices.backward(values.mean())
        if self.grad_clip:
            self.devices.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _noise(self, like: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return times, factors and noise for a batch of predictions."""
        t, factor = self.weighting.draw(self.model.flow, len(like), generator)
        shuffle = torch.randperm(len(like), generator=generator)
        eps = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
        return t[shuffle].to(like.device), factor[shuffle], eps

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the state of the optimiser."""
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])


class MatchingErrors(DenoisingLoss):
    """The errors of a distillation, with the direction of the critic for samples of one call.

    Attributes:
        weight: factor of the matching loss, set before each step.
        generator: source of the critic's times and noise, set before each step.
        drawn: the last samples of one call, for the critic to learn: predictions, data, conditions.
    """

    def __init__(self, model: BFN, weighting: Weighting, critic: Critic) -> None:
        super().__init__(model, weighting)
        self.critic = critic
        self.weight = 0.0
        self.generator = torch.Generator()
        self.drawn: tuple[Tensor, Tensor, dict[str, Tensor]] | None = None

    def forward(
        self, x: Tensor, t: Tensor, eps: Tensor, factor: Tensor, conditions: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        self._starts, self._conditions = (t == 0).nonzero().squeeze(1), conditions
        return super().forward(x, t, eps, factor, conditions)

    def values(self, flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
        own, rows = super().values(flow, output, x, errors), self._starts
        if not len(rows):
            return own
        prediction, conditions = output.mean[rows], rows_of(self._conditions, rows)
        drawn = flow.decode(prediction.detach())
        self.drawn = prediction.detach(), drawn, conditions
        away = self.critic.direction(prediction.detach(), drawn, conditions, self.generator)
        moved = (prediction * away).reshape(*drawn.shape, -1).sum(-1)
        return own.index_add(0, rows, self.weight * moved)  # the factor at t = 0 is 1


# --- runs -------------------------------------------------------------------------------------------------------------


class Distillation:
    """A distillation run: the teacher's paths, the student, and the trainer.

    Args:
        teacher: model whose paths are learned.
        first: model that the student starts from.
        again: function that returns how to resume the run, with another learning rate or the same one.
        settings, run, devices, progress: see ``bfn.training.fitting.train``.
    """

    def __init__(
        self, teacher: Model, first: BFN, again: Callable[[float | None], str], settings: Settings, run: Path,
        devices: Any, progress: Shown,
    ) -> None:  # fmt: skip
        self.teacher, self.settings = teacher, settings
        self.progress = progress and devices.is_main_process
        n, sampling = settings.data["paths"], {key: settings.data[key] for key in SAMPLING if key in settings.data}
        with devices.main_process_first():
            self.paths = draw_paths(
                teacher, n + N_HELD_OUT, sampling, seed=settings.seed, dropout=settings.label_dropout,
                folder=run / "paths", progress=self.progress,
            )  # fmt: skip
        self.held_out = self.paths[n:]
        student = _student(teacher, first, settings).to(devices.device)
        std = float(self.paths.x.std()) if self.paths.x.is_floating_point() else 1.0
        weighting, critic_weighting = _weightings(student.flow, std)
        self.objective = PathObjective(student, self.paths[:n], weighting, settings, devices)
        if settings.weighting["match"]:
            if is_sharded(devices):
                raise UserError("match with FSDP: the critic cannot be sharded; use DDP, or match=0 for paths alone")
            # An exact teacher has no network; the critic then starts as the student does.
            own, lr = teacher if isinstance(teacher, BFN) else first, settings.lr
            self.objective.match(Critic(teacher, own, sampling, critic_weighting, devices, lr, settings.grad_clip))
        self.trainer = trainer_for(
            self.objective, settings, advice=lambda trainer: advice_on_divergence(run, again(settings.lr / 10)),
            events=[
                Every(settings.log_every, Trainer.report, "train"),
                Every(settings.eval_every, self.end_error, "eval"),
                Every(settings.sample_every, partial(sample_sheet, settings, run)),
            ],
            checkpointing=Checkpointing(run, self.save, settings.checkpoint_every, settings.checkpoint_minutes),
        )  # fmt: skip

    @torch.no_grad()
    def end_error(self, trainer: Trainer) -> dict[str, float]:
        """Return the error of one call from the start on held-out paths, squared or in nats, with its interval."""
        model, paths, values = trainer.average.model, self.held_out, []
        weighting = self.objective.weighting
        with evaluating(model):
            for index in torch.split(torch.arange(len(paths)), trainer.share):
                batch = paths.batch(model.flow, torch.zeros_like(index), index, trainer.devices.device)
                t = batch.t.cpu()
                found = errors_and_values(model, batch.x, t, weighting.values, None, batch.conditions, batch.eps)
                values.append(found[0 if isinstance(weighting, Distance) else 1])
        error = mean_estimate(torch.cat(values))
        return {"end_error": error.value, "end_error_low": error.low, "end_error_high": error.high}

    def finish(self, calls: int) -> BFN:
        """Return the student with tables of up to that many calls."""
        model, paths, times = self.trainer.average.model, self.held_out, self.paths.times[1:].tolist()
        tables = choose_tables(
            model, self.teacher, paths.x, paths.conditions, times, calls, seed=self.settings.seed,
            progress=self.progress,
        )  # fmt: skip
        model.info = model.info.replace(tables=tables)
        return model

    def save(self, model: BFN, folder: Path) -> BFN:
        """Store the student, with the length of the run in its card."""
        card, trainer = model.info[CARD], self.trainer
        return stored_with(model, folder, card={**card, "step": trainer.step, "minutes": trainer.seconds / 60})


def _student(teacher: Model, first: BFN, settings: Settings) -> BFN:
    """Make the student from the model that it starts from."""
    flow, head = first.flow.leading, first.head
    if not head.shows_start:
        head = FlowMapHead(head, LEAST_VISIBLE / flow.kappa**0.5)
    # What was measured on the teacher does not hold for the student.
    card = {key: value for key, value in teacher.info[CARD].items() if key == "settings"}
    card["distilled"] = settings.to_dict()
    tables = {1: RENOISING.table(flow, [0.0])}
    info = teacher.info.replace(error_curve=None, maps_to_end=True, tables=tables, card=card)
    student = BFN(copy.deepcopy(first.network), first.flow, head, first.data_shape, info)
    return student.train().requires_grad_()


SAMPLING = ("solver", "nfe", "grid", "t_start", "g", "guidance", "temperature", "clip")
"""Options of ``model.sample`` that the teacher's paths can be drawn with."""

MOST_MATCH = 1e6
"""Maximum weight of matching; beyond it the paths would count for nothing."""


def distill(
    model: Model, steps: int = 2000, *, paths: int = 16_000, teacher: Mapping[str, Any] | None = None,
    student: BFN | None = None, calls: int = 4, match: float | None = None, batch: int = 128, lr: float = 1e-3,
    seed: int = 0, run: Path | str | None = None, resume: bool = False,
    again: Callable[[float | None], str] | None = None, progress: Shown = False,
) -> BFN:  # fmt: skip
    """Train a student that maps a state to the end of its path in one call, on paths of a model.

    Args:
        model: the teacher.
        steps: number of training steps.
        paths: number of paths.
        teacher: options of ``model.sample`` that paths are drawn with, without noise; {"solver": "fast-ode", "nfe": 16}
            if None. Guidance in them is learned too: the student then needs none, and is as good as the guided teacher.
        student: model to start from, of the same data; a copy of the teacher if None. An exact model has no network,
            and needs one.
        calls: the student gets tables of 1 to this many calls, which the solver "auto" uses.
        match: weight of the matching loss, which makes samples of one call as likely under noise as the teacher's. It
            doubles the time of a step. 0: only the paths. If None, 1 for images, whose fine detail one call would lose,
            and 0 for other data, for which it was not found to help.
        batch: number of paths in a step.
        lr: largest learning rate. It rises over 100 steps, then falls along a cosine to 0. Weights are averaged.
        seed: seed of all random numbers.
        run: folder for checkpoints, log and paths, and in the end for the model. An interrupt writes a checkpoint.
        resume: whether to continue the run in the folder.
        again: function that returns what the user is told to do to continue, with another learning rate or the same
            one; this call with resume=True if None.
        progress: whether and how to show progress.

    Returns:
        The student, in evaluation mode.
    """
    first = _first_student(model, student)
    for name, count in {"paths": paths, "batch": batch, "calls": calls}.items():
        check_whole(name, count, 1, MOST_COUNT)
    weight = float(model.form == "images") if match is None else check_real("match", match)
    if weight is None or not 0 <= weight <= MOST_MATCH:
        raise UserError(f"match={match}: expected a number from 0, for the paths alone, to {MOST_MATCH:g}")
    if paths < batch:
        raise UserError(f"paths={paths}: expected at least a batch of {batch} paths")
    loss = "distance" if isinstance(_weightings(first.flow, 1.0)[0], Distance) else "cross-entropy"
    settings = Settings(
        data={"name": "paths", "paths": paths, **_sampling(teacher)},
        network={"name": type(first.network).__name__}, flow={"name": to_plain(first.flow)["name"]},
        head={"name": type(first.head).__name__}, weighting={"name": loss, "match": weight},
        steps=steps, batch=batch, lr=lr, seed=seed,
        warmup=100, eval_every=500, sample_every=0, sample_nfe=1, checkpoint_every=0,
        tensorboard=False, calibration=0.0,
    )  # fmt: skip
    made: list[Distillation] = []

    def call_again(rate: float | None) -> str:
        return f"distill(..., {'' if rate is None else f'lr={rate:.3g}, '}run={str(run)!r}, resume=True)"

    def make(*parts: Any) -> Trainer:
        made.append(Distillation(model, first, again or call_again, *parts))
        return made[0].trainer

    def tell(line: str) -> None:  # standard output is for the result
        if run is not None:
            say(line, progress, sys.stderr)

    with tempfile.TemporaryDirectory() if run is None else nullcontext(run) as folder:
        result = train(
            settings, folder, resume=resume, progress=progress, cpu=model.device.type == "cpu", make=make,
            again=lambda: (again or call_again)(None), tell=tell,
        )  # fmt: skip
        if result.stopped_by is not None:
            raise KeyboardInterrupt(result.stopped_by)
        distilled = made[0].finish(calls)
        if run is not None:
            made[0].save(distilled, Path(run))
    return distilled.eval()


def _first_student(model: Model, student: object) -> BFN:
    """Return the model to start from. Raises a UserError if the teacher cannot be distilled."""
    first = model if student is None else student
    if first is model and not isinstance(model, BFN):
        raise UserError(f"{type(model).__name__}: an exact model has no network; give student=bfn.BFN(...)")
    if not isinstance(first, BFN):
        raise UserError(f"student of type {type(first).__name__}: expected bfn.BFN, a network that can learn")
    if len(model.flow.parts) > 1:
        raise UserError(f"joint data ({', '.join(model.flow.parts)}): only models of one kind of data can be distilled")
    if first.flow != model.flow or tuple(first.data_shape) != tuple(model.data_shape):
        raise UserError(f"student of {first.flow}, {first.data_shape}: expected {model.flow}, {model.data_shape}")
    if not first.starts_at_zero:
        raise UserError("a network that predicts noise is not defined at t = 0, where one call is made; give a student")
    return first


def _sampling(teacher: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that paths are drawn with."""
    if teacher is not None and not isinstance(teacher, Mapping):
        raise UserError(f"teacher of type {type(teacher).__name__}: expected settings of a sample by name")
    sampling = {"solver": "fast-ode", "nfe": 16, **(teacher or {})}
    foreign = next((key for key in sampling if key not in SAMPLING), None)
    if foreign is not None:
        hint = did_you_mean(foreign, SAMPLING)
        raise UserError(f"teacher {foreign!r}: expected settings of a sample, {', '.join(SAMPLING)}{hint}")
    return sampling
