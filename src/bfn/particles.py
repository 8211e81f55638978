"""Particles: conditions that hold exactly, by twisted sequential Monte Carlo under every solver with noise.

Steering and known parts move the prediction by an approximation to p(condition | u). Here that only leads: each sample
is drawn from a group of particles that are weighed against the model's own process, so that the approximation costs
particles, not exactness (the idea of Wu et al. 2023, "Practical and asymptotically exact conditional sampling in
diffusion models"). A noisy row draws u_next = mean(u) + c xi from the predictions without the condition. A particle
draws from the predictions with it,

    xi + z instead of xi,          z = (c s_next / kappa) (w_hat with the condition - w_hat)

which for the reverse SDE (g = 1) is that SDE given the condition, and changes the density by exp(-z xi - z^2 / 2). With
any positive twist psi_i(u), the nearer to p(condition | u_i) the better, a particle weighs

    psi_i(u_i) times the product over its rows of exp(-z xi - z^2 / 2)

at call i, and at the end by the condition itself in psi's place. Weights that have become unequal are made equal again
by drawing particles in proportion to them. Whatever leads and twists, the final weights are exact: as particles grow,
samples follow the distribution of the solver's own samples given the condition. That holds because the predictions that
later rows use again, and the draws of samplers that draw classes, are those of the process without the condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from bfn.arguments import check_whole
from bfn.conditioning import Steering
from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel
from bfn.heads import Output
from bfn.known import Known, Predict
from bfn.loop import End
from bfn.sde import data_from_message
from bfn.solvers.base import Solver
from bfn.solvers.table import BoundTable, Table

__all__ = ["Particles", "Population", "solver_with_noise"]

LOG_LEAST = -1e30
"""Stands for the log of a twist of 0, which must stay positive: only the end may rule a particle out."""


@dataclass(frozen=True)
class Particles:
    """How many particles each sample is drawn from, and what must hold for it.

    count: particles a sample; the batch is that many times as large.
    must: function of samples as ``Samples.x`` has them, (batch, ...) -> bool (batch,), True for all that are returned.
    draws: how often a call draws the data from its prediction to estimate how likely ``must`` is to hold; 0 for not
        at all, where only the end decides. Of numbers a draw is most often the prediction itself: then 1 is enough.
    resample_below: share of the count below which the effective sample size makes a group be drawn anew; 0 for never.
    """

    count: int
    must: Callable[[Any], Tensor] | None = None
    draws: int = 8
    resample_below: float = 0.5

    def __post_init__(self) -> None:
        check_whole("particles", self.count, 2, 10**6)
        check_whole("draws", self.draws, 0, 10**6)
        if not 0 <= self.resample_below <= 1:
            raise UserError(f"resample_below={self.resample_below}: expected a share from 0 to 1")

    def check(self, table: Table, conditioned: bool, noise: str) -> None:
        """Refuse a sample that particles can do nothing for."""
        if not conditioned and self.must is None:
            raise UserError(
                f"particles={self.count} without a condition: give steer, known, or bfn.Particles(must=...)"
            )
        if not table.stochastic:
            raise UserError(
                f"particles={self.count} with a solver without noise: they would never part; take one with noise, "
                "such as 'fast-sde' with more calls"
            )
        if noise == "fixed":
            raise UserError("particles with noise='fixed': they need noise of their own; leave one of them out")


def solver_with_noise(solver: str | Solver | Table, g: float | None) -> tuple[str | Solver | Table, float | None]:
    """The solver and dial that particles take: for "auto" the reverse SDE, whose end a prediction looks ahead to."""
    return ("fast-sde", 1.0 if g is None else g) if isinstance(solver, str) and solver == "auto" else (solver, g)


class Population:
    """The particles of n samples on their way: what the loop calls, takes its noise from and selects by.

    base: the prediction without the condition, lead: with it; None where nothing leads.
    finish: from a prediction to the packed data that it stands for, whatever is known of them put in.
    """

    effective_sample_size: list[Tensor]
    """At each call so far, (n,), before any drawing anew."""

    def __init__(
        self,
        particles: Particles,
        n: int,
        flow: Flow,
        table: BoundTable,
        base: Predict,
        lead: Predict | None,
        finish: Callable[[Tensor], Tensor],
        *,
        steering: Steering | None = None,
        known: Known | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.particles, self.flow, self.table, self.finish = particles, flow, table, finish
        self.base, self.lead, self.steering, self.known = base, lead, steering, known
        self.generator, self.effective_sample_size = generator, []
        self._call = -1
        self._log_weight = torch.zeros(n, particles.count, dtype=torch.float64)  # without the twist of the last call
        self._log_normaliser = torch.zeros(n, dtype=torch.float64)

    def __call__(self, u: Tensor, level: NoiseLevel, **conditions: Tensor) -> Output:
        """The prediction without the condition; how far the one with it is from it is kept for the noise."""
        self._call += 1
        output = self.base(u, level, **conditions)
        last = self._call == self.table.nfe - 1
        leads = self.lead is not None and not last
        self._push = self.lead(u, level, **conditions).mean - output.mean if leads and self.lead else None
        self._like, self._known_twist = u, self._log_known(output)
        self._twist = self._known_twist if last else self._log_twist(output)
        return output

    def noise(self) -> Tensor:
        """Noise of the row, moved towards the condition; its density in the weights."""
        like, row = self._like, self.table.rows[self._call]
        xi = torch.randn(like.shape, generator=self.generator, dtype=like.dtype, device=like.device)
        if self._push is None:
            return xi
        scale, _ = self.flow.message_map
        z = self._push.to(like) * torch.as_tensor(scale / self.flow.kappa).to(like) * row.c
        z = z * self.table.levels[self._call + 1].s
        change = (z * (xi + z / 2)).flatten(1).sum(1, dtype=torch.float64)
        self._log_weight -= self._grouped(change)
        return xi + z

    def select(self) -> Tensor | None:
        """The particles that go on, (batch,): in groups of unequal weights drawn anew; None if there is no such."""
        log_weight = self._log_weight + self._twist
        size = self._record(log_weight)
        low = size < self.particles.resample_below * self.particles.count
        if not bool(low.any()):
            return None
        count, rows = self.particles.count, low.nonzero().squeeze(1)
        weights = log_weight[rows].softmax(1)
        # Systematic: one uniform number a group, then equal steps through the weights.
        start = self._uniform(len(rows)).unsqueeze(1)
        chosen = _invert(weights, (start + torch.arange(count)) / count)
        members = torch.arange(len(low)).unsqueeze(1) * count + torch.arange(count)
        members[rows] = rows.unsqueeze(1) * count + chosen
        self._log_normaliser[rows] += log_weight[rows].logsumexp(1) - log(count)
        self._log_weight[rows] = -self._twist[rows].gather(1, chosen)
        index = members.flatten().to(self._like.device)
        self._push = None if self._push is None else self._push[index]
        return index

    def choose(self, end: End, x: Tensor) -> tuple[End, Tensor, dict[str, Tensor]]:
        """One particle of each group by the final weights, with the figures of ``Samples`` on all of them.

        x: the packed data of all particles. The normaliser is the expectation of the condition: the probability that
        ``must`` holds, the likelihood of what is known, the mean of exp of the steering function.
        """
        log_weight = self._log_weight + self._known_twist
        if self.steering is not None:
            data = data_from_message(self.flow.message(x, self._like.dtype), self.flow)
            log_weight = log_weight + self._grouped(self.steering.scale * self.steering.function(data).double())
        if self.particles.must is not None:
            log_weight = log_weight.masked_fill(~self._grouped(self._holds(x)), -torch.inf)
        none = int((log_weight.amax(1) == -torch.inf).sum())
        if none:
            raise UserError(
                f"the condition holds for none of the {self.particles.count} particles of {none} of {len(log_weight)} "
                "samples: take more particles, more calls, or a steer that leads there"
            )
        self._record(log_weight)
        chosen = _invert(log_weight.softmax(1), self._uniform(len(log_weight)).unsqueeze(1)).squeeze(1)
        index = (torch.arange(len(log_weight)) * self.particles.count + chosen).to(x.device)
        final = end.final
        if self.known is not None:
            final = torch.where(self.known.state_mask, self.known.prediction, final.to(self.known.prediction))
        report = {
            "effective_sample_size": torch.stack(self.effective_sample_size, 1),
            "log_normaliser": self._log_normaliser + log_weight.logsumexp(1) - log(self.particles.count),
        }
        return End(final[index], end.prediction[index], end.u[index]), x[index], report

    def _log_twist(self, output: Output) -> Tensor:
        twist = self._known_twist
        if self.steering is not None:
            mean = output.mean
            if self.known is not None:
                mean = torch.where(self.known.state_mask, self.known.prediction, mean.to(self.known.prediction))
            value = self._grouped(self.steering.scale * self.steering.function(mean).double())
            twist = twist + value.clamp(min=LOG_LEAST)
        if self.particles.must is not None and self.particles.draws:
            drawn = (self.finish(output.draw(self.generator)) for _ in range(self.particles.draws))
            held = torch.stack([self._holds(x) for x in drawn]).sum(0)
            # Half of one draw more that holds and half that does not: the estimate is never 0.
            twist = twist + self._grouped(((held + 0.5) / (self.particles.draws + 1)).log())
        return twist

    def _log_known(self, output: Output) -> Tensor:
        if self.known is None:
            return torch.zeros_like(self._log_weight)
        log_prob = torch.where(self.known.mask, output.log_prob(self.known.x), 0.0)
        return self._grouped(log_prob.flatten(1).sum(1, dtype=torch.float64)).clamp(min=LOG_LEAST)

    def _holds(self, x: Tensor) -> Tensor:
        assert self.particles.must is not None
        holds = self.particles.must(self.flow.unpack(x))
        if not isinstance(holds, Tensor) or holds.dtype is not torch.bool or tuple(holds.shape) != (len(x),):
            found = f"{holds.dtype} {tuple(holds.shape)}" if isinstance(holds, Tensor) else type(holds).__name__
            raise UserError(f"must gives {found}: expected a bool tensor, one a sample, ({len(x)},)")
        return holds

    def _record(self, log_weight: Tensor) -> Tensor:
        if bool(log_weight.isnan().any()):
            raise UserError(f"weights of particles are NaN at call {self._call}: does steer give NaN?")
        size = 1 / log_weight.softmax(1).square().sum(1)
        self.effective_sample_size.append(size)
        return size

    def _grouped(self, values: Tensor) -> Tensor:
        return values.detach().cpu().view(-1, self.particles.count)

    def _uniform(self, n: int) -> Tensor:
        device = self._like.device
        return torch.rand(n, generator=self.generator, dtype=torch.float64, device=device).cpu()


def _invert(weights: Tensor, points: Tensor) -> Tensor:
    """The entries of the weights, each row summing to 1, that increasing points in [0, 1) fall on."""
    cumulative = weights.cumsum(1)
    found = torch.searchsorted(cumulative / cumulative[:, -1:], points.contiguous(), right=True)
    return found.clamp(max=weights.shape[1] - 1)
