"""Distillation: training on noise that leads to the data, instead of any.

Training shows a model data x with fresh noise, u = s w(x) + sqrt(kappa) eps, and it learns the mean of all x that u may
come from. A path of the probability-flow ODE has one end: shown states of paths with the end that each leads to, the
same network learns the map from any state to its end, one call from the start included. So this is a run as any other;
only its batches differ, and for numbers the loss; and samples of one call are to be as likely as the teacher's
(:mod:`bfn.distilling.matching`).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor

from bfn.distilling.matching import Critic, MatchingErrors
from bfn.distilling.paths import coupled_noise, draw_paths
from bfn.distilling.tables import choose_tables, renoising_table
from bfn.errors import UserError
from bfn.estimate import mean_estimate
from bfn.eval_mode import evaluating
from bfn.flows import Flow
from bfn.heads import FlowMapHead, Output
from bfn.losses import errors_and_values
from bfn.model import BFN, Model
from bfn.progress import Shown, say
from bfn.seeds import derived_generator
from bfn.training.order import order
from bfn.training.settings import Settings
from bfn.training.trainer import Trainer, TrainingErrors
from bfn.weightings import EDM, Bound, CrossEntropy, Weighting

__all__ = ["Distiller"]

LARGEST_FACTOR = 30.0
"""Of the squared error, which counts 1 + s^2 times as where the data are seen under noise of 1/s; of the distance, its
root."""
SMALL = 0.05
"""Distance, in standard deviations of the data, below which the squared error is as good as the distance."""
AT_START = 2
"""One of so many rows of a batch is at the start of its path, where one call has all of the way to go."""
LEAST_VISIBLE = 0.5
"""Standard deviation of the noise, in units of one step between data, with which the first state is shown."""
N_HELD_OUT = 500
"""Paths that are kept back: they measure the map, and choose where to noise again."""


@dataclass(frozen=True)
class Distance(Bound):
    """How far a number is from where its path ends: the root of its squared error, rounded at 0 (pseudo-Huber).

    One call cannot tell all paths apart. Where ends differ, the least squared error is at their mean, which is like
    none of them; the least distance is at their median.
    """

    small: float = 0.0

    def values(self, flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
        return (errors + self.small**2).sqrt() - self.small


class Distiller(Trainer):
    """The moving parts of a distillation.

    teacher: whose paths are learned. first: the student at the first step. quiet: nothing is said.
    again: what the user does to go on with the run, with another learning rate or the same.
    """

    def __init__(
        self,
        teacher: Model,
        first: BFN,
        quiet: bool,
        again: Callable[[float | None], str],
        settings: Settings,
        run: Path,
        accelerator: Accelerator,
        progress: Shown,
    ) -> None:
        self.teacher, self.first, self.quiet, self.again = teacher, first, quiet, again
        super().__init__(settings, run, accelerator, progress)

    def open_data(self) -> None:
        settings = self.settings
        n, self.sampling = settings.data["paths"], {**settings.data}
        del self.sampling["paths"], self.sampling["name"]
        self.paths = draw_paths(
            self.teacher, n + N_HELD_OUT, self.sampling, seed=settings.seed, dropout=settings.label_dropout,
            folder=self.run / "paths", progress=self.progress and self.main,
        )  # fmt: skip
        self.learned, self.kept_back = self.paths[:n], self.paths[n:]

    def make_model(self) -> BFN:
        first, info = self.first, self.teacher.info
        flow, head = first.flow, first.head
        if not head.shows_start:
            head = FlowMapHead(head, LEAST_VISIBLE / flow.kappa**0.5)
        # What was measured of the teacher is not true of the student.
        card = {key: value for key, value in info.card.items() if key == "settings"}
        card["distilled"] = self.settings.to_dict()
        tables = {1: renoising_table(flow, [0.0])}
        info = replace(info, error_curve=None, maps_to_end=True, tables=tables, card=card)
        student = BFN(copy.deepcopy(first.network), flow, head, first.data_shape, info)
        return student.train().requires_grad_()

    def make_weighting(self) -> Weighting:
        if self.settings.weighting["name"] == "cross-entropy":
            return CrossEntropy()
        return Distance(SMALL * float(self.paths.x.std()))

    def make_errors(self) -> TrainingErrors:
        self.critic: Critic | None = None
        if not self.settings.weighting["match"]:
            return super().make_errors()
        if self.sharded:
            raise UserError("match with FSDP: the critic is not cut up; use DDP, or match=0 for the paths alone")
        # A teacher that is exact has no network: then the critic is one like the student, and learns from nothing.
        own = self.teacher if isinstance(self.teacher, BFN) else self.first
        weighting = EDM(data_std=float(self.paths.x.std())) if self.model.flow.has_range else CrossEntropy()
        lr, clip = self.settings.lr, self.settings.grad_clip
        self.critic = Critic(self.teacher, own, self.sampling, weighting, self.accelerator, lr, clip)
        self.matching = MatchingErrors(self.model, self.weighting, self.critic)
        return self.matching

    def train_step(self) -> None:
        if self.critic is not None:
            settings, process = self.settings, self.accelerator.process_index
            self.matching.generator = derived_generator(settings.seed, "matching", self.step, process)
            self.matching.weight = settings.weighting["match"] * min(1.0, self.step / max(1, settings.warmup))
        super().train_step()
        if self.critic is not None and self.matching.drawn is not None:
            self.critic.learn(*self.matching.drawn, self.matching.generator)

    def more_state(self) -> dict[str, Any]:
        return {} if self.critic is None else {"critic": self.critic.state_dict()}

    def restore_more(self, state: Mapping[str, Any]) -> None:
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])

    def batch(self, step: int) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor, Tensor]:
        settings, flow = self.settings, self.model.flow
        pieces = order(settings.seed, step * settings.batch, settings.batch, len(self.learned))
        index = torch.cat([piece for _, piece in pieces])
        generator = derived_generator(settings.seed, "nodes", step)
        node = torch.randint(1, max(2, len(self.paths.times)), index.shape, generator=generator)
        node = node.clamp(max=len(self.paths.times) - 1)
        node[::AT_START] = 0
        first = self.accelerator.process_index * self.share
        rows = slice(first, first + self.share)
        t, u, x, conditions = self.learned.at(node[rows], index[rows])
        factor = (1 + flow.schedule.beta(t)).clamp(max=LARGEST_FACTOR).sqrt() if flow.has_range else torch.ones_like(t)
        eps = coupled_noise(flow, u, x, t).to(self.device)
        there = {name: value.to(self.device) for name, value in conditions.items()}
        return x.to(self.device), there, t.to(self.device), factor.to(self.device), eps

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """How far one call from the start ends from where the teacher does, on paths kept back: squared, or in nats."""
        model, paths = self.averaged(), self.kept_back
        flow, values = model.flow, []
        with evaluating(model):
            for index in torch.split(torch.arange(len(paths)), self.share):
                t, u, x, conditions = paths.at(torch.zeros_like(index), index)
                eps = coupled_noise(flow, u, x, t).to(self.device)
                there = {name: value.to(self.device) for name, value in conditions.items()}
                measured = errors_and_values(model, x.to(self.device), t, self.weighting.values, None, there, eps)
                values.append(measured[0 if flow.has_range else 1])
        error = mean_estimate(torch.cat(values))
        return {"end_error": error.value, "end_error_low": error.low, "end_error_high": error.high}

    def finish(self, calls: int) -> BFN:
        """The student with tables of up to that many calls."""
        model, paths = self.averaged(), self.kept_back
        times = self.paths.times[1:].tolist()
        tables = choose_tables(
            model, self.teacher, paths.x, paths.conditions, times, calls, seed=self.settings.seed,
            progress=self.progress and self.main,
        )  # fmt: skip
        model.info = replace(model.info, tables=tables)
        return model

    def save(self, model: BFN, folder: Path) -> BFN:
        card = {**model.info.card, "step": self.step, "minutes": self.seconds / 60}
        stored = BFN(model.network, model.flow, model.head, model.data_shape, replace(model.info, card=card))
        stored.save(folder)
        return stored

    def resumed_by(self, lr: float | None = None, clip: bool = False) -> str:
        """What to go on with; clipping is none of its settings."""
        return self.again(lr)

    def say(self, line: str) -> None:
        """One line to the user; standard output is for the result."""
        if self.main and not self.quiet:
            say(line, self.progress, sys.stderr)
