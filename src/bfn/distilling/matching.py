r"""Matching: under noise, what the student draws is to be as likely as what the teacher draws.

Paths tell where each start goes. What one call cannot tell apart it rounds to something in between, which is on no
path. A second copy of the teacher, the critic, learns the student's own samples, as any model learns its data. Where
critic and teacher predict different data from one noised sample, the samples lie otherwise than the teacher's, and

    grad_x KL( student || teacher ) = E_t,eps  c(t) ( w_critic(u) - w_teacher(u) ),      u = s w(x) + sqrt(kappa) eps

says where each must go, since a score is (beta w_hat - y) / (kappa beta). This is the distribution matching of Luo et
al. (2023) and Yin et al. (2024), in a state that is continuous, so that it serves classes as well: what moves is their
probabilities. c(t) brings all noise levels to the same size: one over the teacher's own error on the sample.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from bfn.conditions import ConditionTensors, rows_of
from bfn.controls.classes import Temperature
from bfn.controls.guidance import Guidance
from bfn.core.control import Batch as SamplingBatch
from bfn.core.control import Predict, compose
from bfn.eval_mode import evaluating
from bfn.flows import Flow
from bfn.heads import Output
from bfn.losses import errors_and_values
from bfn.model import BFN, Model
from bfn.presence import mean_over_present
from bfn.training.objective import DenoisingLoss
from bfn.weightings import Weighting

__all__ = ["Critic", "MatchingErrors"]

LEAST_ERROR = 1e-3
"""Of the teacher on a sample, a root mean square, below which the size of a direction grows no more."""


class Critic:
    """A model of the student's samples, beside the teacher.

    own: the model to begin with, the teacher itself where it is a network. sampling: how the teacher's paths are drawn;
    guidance and temperature count. weighting: at which times both are asked, and what the critic is trained by.
    """

    def __init__(
        self,
        teacher: Model,
        own: BFN,
        sampling: Mapping[str, Any],
        weighting: Weighting,
        accelerator: Any,
        lr: float,
        grad_clip: float,
    ) -> None:
        self.teacher, self.sampling, self.weighting = teacher, sampling, weighting
        self.accelerator, self.grad_clip = accelerator, grad_clip
        self.model = copy.deepcopy(own).to(accelerator.device).train().requires_grad_()
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
        self.module, self.optimiser = accelerator.prepare(DenoisingLoss(self.model, weighting), optimiser)

    def direction(self, prediction: Tensor, x: Tensor, conditions: ConditionTensors, generator: torch.Generator) -> Tensor:
        """Where predictions go to be less likely under the teacher, like them; x: the data that they stand for."""
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
        guidance, temperature = self.sampling.get("guidance"), self.sampling.get("temperature")
        guide = None if guidance is None else Guidance.from_options(guidance)
        asked = [name for name in conditions if name != "present"]
        controls = (
            guide if guide is not None and guide.groups(asked) else None,
            None if temperature is None else Temperature.from_options(temperature),
        )
        batch = SamplingBatch(self.teacher, cast(Any, None), conditions, torch.empty(0), None)  # they need the model alone
        return compose(self.teacher.output, [control for control in controls if control is not None], batch)

    def learn(self, prediction: Tensor, x: Tensor, conditions: ConditionTensors, generator: torch.Generator) -> None:
        """One step on the student's samples."""
        t, factor, eps = self._noise(prediction, generator)
        _, values = self.module(x, t, eps, factor.to(self.accelerator.device), dict(conditions))
        self.accelerator.backward(values.mean())
        if self.grad_clip:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _noise(self, like: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Times, factors and noise for a batch of predictions."""
        t, factor = self.weighting.draw(self.model.flow, len(like), generator)
        shuffle = torch.randperm(len(like), generator=generator)
        eps = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
        return t[shuffle].to(like.device), factor[shuffle], eps

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser."""
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])


class MatchingErrors(DenoisingLoss):
    """The errors of a distillation, with the direction of the critic for samples of one call.

    weight: how much it counts beside the paths; set, with the generator, before each step. The samples are kept for the
    critic to learn.
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
        rows = (t == 0).nonzero().squeeze(1)

        def values(flow: Flow, output: Output, x: Tensor, errors: Tensor) -> Tensor:
            own = self.weighting.values(flow, output, x, errors)
            if not len(rows):
                return own
            prediction, there = output.mean[rows], rows_of(conditions, rows)
            drawn = flow.decode(prediction.detach())
            self.drawn = prediction.detach(), drawn, there
            away = self.critic.direction(prediction.detach(), drawn, there, self.generator)
            moved = (prediction * away).reshape(*drawn.shape, -1).sum(-1)
            return own.index_add(0, rows, self.weight * moved)  # the factor of what is at t = 0 is 1

        return errors_and_values(self.model, x, t, values, conditions=conditions, eps=eps, factor=factor)
