r"""Solvers tuned to one model: a grid and coefficients, some dozen numbers, fitted by gradients through the sampler.

A row u_next = a u + sum_j b_j w_hat[-1-j] + c xi from s_0 to s_1 keeps what any good solver keeps,

    a s_0 + sum_j b_j = s_1          a constant w_hat is integrated exactly
    a^2 + c^2 / kappa = 1            the noise in the state stays that of its level

and what is left is free: the grid; the angle phi of each row, a = cos phi and c = sqrt(kappa) sin phi, which is the
stochasticity dial (0 the ODE, a right angle full re-noising); the shares of the older predictions in each step and in
the sample. :class:`Knobs` are these numbers, and every value of them is a valid solver.

They are fitted to lower an :class:`Objective` on samples from fresh noise, by gradients through the sampler (by random
search where samples are classes, read by argmax), and judged on held-out starts. With
:class:`EndPoint` a table without noise is drawn towards where a many-step teacher ends from the same start. Trained
networks do better with noise, for which no path can be prescribed: :class:`FeatureDistance` and
:class:`NGramDivergence` compare the distribution of the samples with that of data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn import metrics
from bfn.data import Alphabet, Text
from bfn.data import load as load_data
from bfn.flows import Flow, Level
from bfn.model import Model
from bfn.sampling import make_table, sample
from bfn.solvers import Row, Solver, Table, get
from bfn.solvers.multistep import Multistep

DEPTH = 3
"""Predictions that a row may mix at least; more where the table that tuning starts from does."""

LEAST_ANGLE = 0.3
"""Where the noise of a row is fitted by gradients it starts from here at least: at 0 that is 0, by symmetry."""

DIALS = (0.0, 1.0, 2.0, 4.0, 10.0)
"""Values of the dial that tuning may start from."""

PSEUDO_COUNT, SMOOTHING = 0.01, 0.01
"""Added to the data's counts of n-grams; the share of the data's distribution that is mixed into the samples'."""

MOST_IMAGES, MOST_TEXTS = 20_000, 40_000
"""Data that samples are compared with, at most."""


@dataclass(frozen=True)
class Coefficients:
    """A table as float64 tensors that gradients flow through.

    s: (nfe,) the grid. a, c: (nfe - 1,). b: (nfe - 1, depth), newest first. final: (depth,).
    """

    s: Tensor
    a: Tensor
    b: Tensor
    c: Tensor
    final: Tensor


class Knobs:
    """The free numbers of a table with ``nfe`` calls, each a float64 tensor with gradients.

    steps: logits of the shares of [s_0, s(1)] that the grid's intervals take, the last one what is left out at its end
        (absent where the grid ends at s(1)). angles: phi of each row. older: shares of the older predictions in each
        row. mix: shares of the older predictions in the sample.
    """

    def __init__(self, flow: Flow, table: Table, *, noisy: bool = True, least_angle: float = 0.0) -> None:
        """Those of a table whose rows keep the two sums above, such as any multistep solver's.

        noisy: whether the angles may be fitted. least_angle: where those start at least.
        """
        if table.draws or not all(row.commit for row in table.rows):
            raise ValueError("the table draws classes or has Runge-Kutta stages: tune from a multistep solver")
        self.flow = flow
        s = torch.tensor(flow.schedule.s_of(table.times), dtype=torch.float64)
        self.start, self.end = s[0], flow.schedule.s(1.0)
        left = 1 - (s[-1] - s[0]) / (self.end - s[0])
        shares = torch.cat([s.diff() / (self.end - s[0]), left[None]])
        self.ends_early = bool(left > 1e-9)
        self.steps = (shares if self.ends_early else shares[:-1]).log().requires_grad_()
        rows = table.rows[:-1]
        a = torch.tensor([row.a for row in rows], dtype=torch.float64)
        angles = a.clamp(-1, 1).acos()
        self.angles = angles.clamp(min=least_angle).requires_grad_(noisy)
        width = max(DEPTH, table.depth) - 1
        self.older = _padded([[b / sum(row.b) for b in row.b[1:]] for row in rows], width).requires_grad_()
        self.mix = _padded([table.final[1:]], width)[0].requires_grad_()
        # A prediction that has not been made yet has no share.
        self._made = torch.ones(table.nfe, width, dtype=torch.float64).tril(-1)

    @property
    def parameters(self) -> list[Tensor]:
        """All that may be fitted."""
        return [knob for knob in (self.steps, self.angles, self.older, self.mix) if knob.requires_grad]

    def coefficients(self) -> Coefficients:
        """The table they stand for."""
        shares = torch.softmax(self.steps, 0).cumsum(0)
        inner = self.start + (self.end - self.start) * shares[:-1]
        s = torch.cat([self.start[None], inner, *(() if self.ends_early else (self.end[None],))])
        a = self.angles.cos()
        mass = s[1:] - a * s[:-1]
        older, mix = self.older * self._made[:-1], self.mix * self._made[-1]
        b = mass[:, None] * torch.cat([1 - older.sum(1, keepdim=True), older], 1)
        c = math.sqrt(self.flow.kappa) * self.angles.sin()
        return Coefficients(s, a, b, c, torch.cat([1 - mix.sum()[None], mix]))

    @torch.no_grad()
    def table(self) -> Table:
        """The table as plain numbers."""
        of = self.coefficients()
        times = self.flow.schedule.time_of_s(of.s).clamp(max=1).tolist()
        steps = zip(times, of.a.tolist(), of.b.tolist(), of.c.abs().tolist(), strict=False)
        rows = [Row(t, a, tuple(b[: i + 1]), c) for i, (t, a, b, c) in enumerate(steps)]
        return Table((*rows, Row(times[-1])), tuple(of.final[: len(times)].tolist()))


def _padded(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """(len(rows), width) float64, zeros where a row has fewer."""
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


@dataclass(frozen=True)
class Draws:
    """All that is random in a batch of samples: u at the start, a noise for each step, and the classes asked for."""

    u: Tensor
    noise: tuple[Tensor, ...]
    label: Tensor | None

    @classmethod
    def make(cls, model: Model, n: int, nfe: int, n_labels: int, generator: torch.Generator) -> "Draws":
        """In the order in which :func:`bfn.sample` draws from the generator, classes in turn."""
        shape = (n, *model.flow.state_shape(model.data_shape))

        def normal() -> Tensor:
            return torch.randn(shape, generator=generator, dtype=model.dtype, device=model.device)

        u = normal() * math.sqrt(model.flow.kappa)
        label = torch.arange(n, device=model.device) % n_labels if n_labels else None
        return cls(u, tuple(normal() for _ in range(nfe - 1)), label)

    def split(self, size: int) -> Iterator["Draws"]:
        """Parts of at most that size."""
        for first in range(0, len(self.u), size):
            part = slice(first, first + size)
            label = None if self.label is None else self.label[part]
            yield Draws(self.u[part], tuple(noise[part] for noise in self.noise), label)


def predict(model: Model, of: Coefficients, draws: Draws, clip: tuple[float, float] | None = None) -> Tensor:
    """What :func:`bfn.sample` ends with under the table, before it is decoded: gradients flow to the coefficients."""
    flow, u = model.flow, draws.u
    times, (scale, shift) = flow.schedule.time_of_s(of.s), flow.message_map
    s, t, a, b, c, final = (x.to(u) for x in (of.s, times, of.a, of.b, of.c, of.final))
    predictions: list[Tensor] = []
    for i in range(len(s)):
        level = Level(t[i].expand(len(u)), s[i].view(1, *(1,) * (u.ndim - 1)))
        output = model.output(u, level) if draws.label is None else model.output(u, level, draws.label)
        predictions.insert(0, output.mean if clip is None else output.mean.clamp(*clip))
        if i < len(a):
            u = a[i] * u + c[i] * draws.noise[i]
            for weight, prediction in zip(b[i], predictions, strict=False):
                u = u + weight * (scale * prediction + shift)
    mix = torch.stack([weight * p for weight, p in zip(final, predictions, strict=False)]).sum(0)
    return mix if clip is None else mix.clamp(*clip)


class Objective(ABC):
    """What samples are judged by: a summary of each, and a loss of all summaries together.

    noisy: whether the table's noise is fitted too. smooth: whether gradients lead anywhere; samples of classes are read
    by argmax, and there the knobs are searched. start: the solver that the table has to beat. least: samples that it
    can judge at least.
    """

    noisy: bool = True
    smooth: bool = True
    start: str | Solver = "untuned"
    least: int = 1

    @abstractmethod
    def summary(self, prediction: Tensor) -> Tensor:
        """(batch, ...) of the predictions that the samples are read from."""

    @abstractmethod
    def loss(self, summaries: Tensor, target: Tensor | None) -> Tensor:
        """A number to be lowered, from the summaries of all samples."""

    def target(self, model: Model, draws: Draws, clip: tuple[float, float] | None) -> Tensor | None:
        """What the summaries of these draws should be, if that is known."""
        return None

    def others(self, flow: Flow, nfe: int) -> list[Solver]:
        """Solvers that tuning may start from if one of them is better: ``fast-sde`` with the dial elsewhere."""
        base = get(self.start, flow.kind).resolve(flow, nfe)
        return [replace(base, g=g, quiet=0) for g in DIALS] if isinstance(base, Multistep) else []

    def describe(self) -> dict[str, Any]:
        """Plain values for the record."""
        return {"objective": type(self).__name__}


@dataclass(frozen=True)
class EndPoint(Objective):
    """Mean squared distance to where a many-step teacher ends from the same start, for tables without noise."""

    teacher_nfe: int = 100
    teacher: str | Solver = "fast-ode"
    noisy: bool = field(default=False, init=False)
    start: str | Solver = "fast-ode"

    def others(self, flow: Flow, nfe: int) -> list[Solver]:
        return []

    def summary(self, prediction: Tensor) -> Tensor:
        return prediction

    def loss(self, summaries: Tensor, target: Tensor | None) -> Tensor:
        if target is None:
            raise ValueError("target=None: the teacher's end points are needed")
        return (summaries - target).square().mean()

    def target(self, model: Model, draws: Draws, clip: tuple[float, float] | None) -> Tensor | None:
        unit = draws.u / math.sqrt(model.flow.kappa)
        ended = sample(model, len(unit), self.teacher, self.teacher_nfe, initial=unit, label=draws.label, clip=clip)
        return ended.x if model.flow.kind == "continuous" else ended.prediction

    def describe(self) -> dict[str, Any]:
        return {"objective": "endpoint", "teacher_nfe": self.teacher_nfe}


def likeliest(probs: Tensor) -> Tensor:
    """The likeliest class one-hot, (..., K), as samples are read."""
    return torch.zeros_like(probs).scatter_(-1, probs.argmax(-1, keepdim=True), 1.0)


class FeatureDistance(Objective):
    """Frechet distance of the samples' features from those of data.

    features: images, (batch, *data_shape) in [-1, 1] -> (batch, d), differentiable. data: in the same form.
    n_classes: of discrete data, whose class k is shown as the value 2 k / (K - 1) - 1.
    """

    def __init__(
        self, features: Callable[[Tensor], Tensor], data: Tensor, n_classes: int | None = None, batch: int = 500
    ) -> None:
        self.features, self.n_classes, self.smooth = features, n_classes, n_classes is None
        with torch.no_grad():
            parts = [features(part) for part in torch.split(data, batch)]
        self.mean, self.covariance = _moments(torch.cat(parts))
        # With fewer the covariance is singular, and the distance mostly bias.
        self.least = len(self.mean) + 1
        values, vectors = torch.linalg.eigh(self.covariance)
        self._root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T

    def summary(self, prediction: Tensor) -> Tensor:
        if self.n_classes is None:
            return self.features(prediction)
        values = torch.linspace(-1, 1, self.n_classes, dtype=prediction.dtype, device=prediction.device)
        return self.features(likeliest(prediction) @ values)

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        mean, covariance = _moments(summaries)
        overlap = torch.linalg.eigvalsh(self._root @ covariance @ self._root)
        # Directions in which the data do not vary have an infinite slope here, and nothing to say.
        overlap = overlap[overlap > 1e-12 * overlap[-1]].sqrt().sum()
        spread = covariance.trace() + self.covariance.trace() - 2 * overlap
        return torch.add((mean - self.mean).square().sum(), spread)

    def describe(self) -> dict[str, Any]:
        return {"objective": "features", "n_features": len(self.mean)}


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (d,) and covariance (d, d) in float64."""
    return features.double().mean(0), features.double().T.cov()


class NGramDivergence(Objective):
    """Jensen-Shannon divergence, in bits, of the n-grams of sequences of classes from those of data.

    data: (m, length) classes. n: 4, or fewer where there are more than a million n-grams.
    """

    smooth = False

    def __init__(self, data: Tensor, n_classes: int, n: int = 4) -> None:
        while n > 1 and n_classes**n > 1_000_000:
            n -= 1
        self.n, self.n_classes = n, n_classes
        index = sum(part * n_classes ** (n - 1 - j) for j, part in enumerate(self._shifted(data)))
        counts = torch.bincount(torch.as_tensor(index).flatten(), minlength=n_classes**n).double() + PSEUDO_COUNT
        self._real = counts / counts.sum()

    def _shifted(self, x: Tensor) -> list[Tensor]:
        """The n views of x, (batch, length, ...), whose equal positions form an n-gram."""
        length = x.shape[1] - self.n + 1
        return [x[:, j : j + length] for j in range(self.n)]

    def summary(self, prediction: Tensor) -> Tensor:
        return likeliest(prediction)

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        shifted = self._shifted(summaries)
        half = (self.n + 1) // 2
        first, second = (_joint(part, like=shifted[0]) for part in (shifted[:half], shifted[half:]))
        counts = (first.T @ second).flatten().double()
        q = self._real.to(counts.device)
        # What the samples do not hold at all would have an infinite slope; a little of the data keeps it finite.
        p = torch.lerp(counts / counts.sum(), q, SMOOTHING)
        entropies = [torch.special.entr(x).sum() for x in ((p + q) / 2, p, q)]
        return torch.sub(entropies[0], (entropies[1] + entropies[2]) / 2) / math.log(2)

    def describe(self) -> dict[str, Any]:
        return {"objective": f"{self.n}-grams"}


def _joint(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """(positions, K^len(parts)): the products of the weights of the classes, (batch, length, K) each."""
    joint = like.new_ones(*like.shape[:2], 1)
    for part in parts:
        joint = (joint.unsqueeze(-1) * part.unsqueeze(-2)).flatten(-2)
    return joint.flatten(0, 1)


@dataclass(frozen=True)
class Tuned:
    """A table fitted to a model.

    before, after: the objective on held-out starts, of the solver that tuning began with and of the table.
    curve: (step, objective on held-out starts). interrupted: whether the user stopped it; the table is the best so far.
    """

    table: Table
    before: float
    after: float
    curve: tuple[tuple[int, float], ...]
    interrupted: bool = False


def tune(
    model: Model,
    nfe: int,
    objective: Objective,
    *,
    steps: int = 40,
    batch: int = 300,
    starts: int | None = None,
    held_out: int = 500,
    rate: float = 0.04,
    patience: int = 3,
    seed: int = 0,
    clip: tuple[float, float] | None = None,
    n_labels: int = 0,
    part: int = 50,
    on_step: Callable[[int, float | None], None] | None = None,
) -> Tuned:
    """Fit a table of ``nfe`` calls to a model: the :class:`Knobs` are turned, the best on held-out starts is kept.

    By Adam where the objective is smooth, by random turns that are kept if they help where it is not.
    steps: at most, on ``batch`` samples each. starts: how many different starts are used; None for fresh ones at each
    step (a search has always the same). held_out: starts that decide, looked at eight times; after ``patience`` looks
    that are worse than the best it ends. rate: of Adam, falling linearly to zero, or the size of the first random turn.
    part: samples that go through the network with gradients at a time.
    on_step: told (step, objective on held-out starts or None where there was no look) after each step. An interrupt
    (Ctrl-C) ends it with the best so far.
    """
    if nfe < 2:
        raise ValueError(f"nfe={nfe}: a table of one call has no step to tune; expected at least 2 calls")
    least = objective.least
    wanted = {"steps": (steps, 1), "batch": (batch, least), "held_out": (held_out, least)}
    for name, (value, at_least) in {**wanted, "starts": (batch if starts is None else starts, batch)}.items():
        if value < at_least:
            raise ValueError(f"{name}={value}: expected at least {at_least}")
    solvers = [objective.start, *objective.others(model.flow, nfe)]
    start, *others = (make_table(model.flow, solver, nfe, starts_at_zero=model.starts_at_zero) for solver in solvers)
    if not objective.noisy and any(row.c for row in start.rows):
        raise ValueError("a start with noise: end points are only matched by tables without; take one such as fast-ode")
    run = _Run(model, objective, nfe, n_labels, seed, clip, part)
    n_batches = steps if starts is None else starts // batch
    look_every = max(1, steps // 8)
    table, interrupted = start, False
    curve: list[tuple[int, float]] = []
    seen: dict[Table, float] = {}

    def look(step: int, now: Table) -> None:
        nonlocal table
        if now not in seen:
            seen[now] = run.value(run.coefficients(now), held_out)
        curve.append((step, seen[now]))
        table = min(seen, key=seen.__getitem__)
        if on_step is not None:
            on_step(*curve[-1])

    try:
        look(0, start)
        knobs = run.knobs(min((start, *others), key=lambda other: run.value(run.coefficients(other), batch, 0)))
        advance = (_Descent if objective.smooth else _Search)(run, knobs, batch, rate)
        for step in range(1, steps + 1):
            advance((step - 1) / steps, (step - 1) % n_batches)
            if step % look_every == 0 or step == steps:
                look(step, knobs.table())
                if all(value > seen[table] for _, value in curve[-patience:]):
                    break
            elif on_step is not None:
                on_step(step, None)
    except KeyboardInterrupt:
        if not curve:
            raise
        interrupted = True
    before, after = curve[0][1], seen[table]
    record = {
        **objective.describe(),
        "start": objective.start if isinstance(objective.start, str) else objective.start.name,
        "steps": curve[-1][0],
        "batch": batch,
        "held_out": held_out,
        "seed": seed,
        "clip": clip,
        "before": before,
        "after": after,
    }
    return Tuned(replace(table, record=record), before, after, tuple(curve), interrupted)


@dataclass(frozen=True)
class _Run:
    """What stays the same from step to step."""

    model: Model
    objective: Objective
    nfe: int
    n_labels: int
    seed: int
    clip: tuple[float, float] | None
    part: int
    targets: dict[int, Tensor | None] = field(default_factory=dict)

    def draws(self, n: int, index: int) -> Draws:
        """The index-th batch: index -1 are the held-out starts."""
        generator = torch.Generator(self.model.device).manual_seed(self.seed * 1_000_003 + index + 1)
        return Draws.make(self.model, n, self.nfe, self.n_labels, generator)

    def target(self, draws: Draws, index: int) -> Tensor | None:
        """What the objective wants of that batch, asked for once."""
        if index not in self.targets:
            parts = [self.objective.target(self.model, part, self.clip) for part in draws.split(self.part)]
            known = [part for part in parts if part is not None]
            self.targets[index] = torch.cat(known) if known else None
        return self.targets[index]

    def coefficients(self, table: Table) -> Coefficients:
        """Those of a table as it is."""
        return Knobs(self.model.flow, table, noisy=False).coefficients()

    def knobs(self, table: Table) -> Knobs:
        """The knobs that are turned, as the table has them."""
        least_angle = LEAST_ANGLE if self.objective.noisy and self.objective.smooth else 0.0
        return Knobs(self.model.flow, table, noisy=self.objective.noisy, least_angle=least_angle)

    def predictions(self, of: Coefficients, draws: Draws) -> Tensor:
        """What samples are read from, without gradients."""
        with torch.no_grad():
            return torch.cat([predict(self.model, of, part, self.clip) for part in draws.split(self.part)])

    def value(self, of: Coefficients, n: int, index: int = -1) -> float:
        """The objective on a batch, the held-out one if none is named."""
        draws = self.draws(n, index)
        with torch.no_grad():
            summaries = self.objective.summary(self.predictions(of, draws))
            return float(self.objective.loss(summaries, self.target(draws, index)))


class _Descent:
    """Adam on the knobs, by gradients through the sampler; its rate falls linearly to zero."""

    def __init__(self, run: _Run, knobs: Knobs, batch: int, rate: float) -> None:
        self.run, self.knobs, self.batch, self.rate = run, knobs, batch, rate
        self.optimiser = torch.optim.Adam(knobs.parameters, lr=rate, betas=(0.8, 0.95))

    def __call__(self, share: float, index: int) -> None:
        """One step on the index-th batch, after that share of all steps.

        The loss is of all samples together, so they are made first without gradients, and the loss's gradient is sent
        back through one part of them at a time: memory does not grow with the batch.
        """
        run, knobs = self.run, self.knobs
        draws = run.draws(self.batch, index)
        predictions = run.predictions(knobs.coefficients(), draws).requires_grad_()
        loss = run.objective.loss(run.objective.summary(predictions), run.target(draws, index))
        (slopes,) = torch.autograd.grad(loss, predictions)
        self.optimiser.zero_grad()
        for part, slope in zip(draws.split(run.part), torch.split(slopes, run.part), strict=True):
            predicted = predict(run.model, knobs.coefficients(), part, run.clip)
            # Only the knobs are asked for: no gradient of the network's weights is ever made.
            gradients = torch.autograd.grad(predicted, knobs.parameters, slope)
            for knob, gradient in zip(knobs.parameters, gradients, strict=True):
                knob.grad = gradient if knob.grad is None else knob.grad + gradient
        self.optimiser.param_groups[0]["lr"] = self.rate * (1 - share)
        self.optimiser.step()


class _Search:
    """Random turns of all knobs at once, kept where one batch, always the same, gets better.

    A turn's size grows with each that is kept and shrinks with each that is not, so that about one in five is
    (Rechenberg's rule); shares far above 1 turn in proportion.
    """

    def __init__(self, run: _Run, knobs: Knobs, batch: int, rate: float) -> None:
        self.run, self.knobs, self.batch, self.size = run, knobs, batch, rate
        self.generator = torch.Generator().manual_seed(run.seed)
        self.best: float | None = None

    @torch.no_grad()
    def __call__(self, share: float, index: int) -> None:
        """One turn."""
        if self.best is None:
            self.best = self.run.value(self.knobs.coefficients(), self.batch, 0)
        knobs = self.knobs.parameters
        before = [knob.clone() for knob in knobs]
        for knob in knobs:
            turn = torch.randn(knob.shape, generator=self.generator, dtype=knob.dtype)
            knob.add_(self.size * turn * knob.abs().clamp(min=1))
        value = self.run.value(self.knobs.coefficients(), self.batch, 0)
        if value < self.best:
            self.best, self.size = value, 1.5 * self.size
        else:
            self.size *= 1.5**-0.25
            for knob, old in zip(knobs, before, strict=True):
                knob.copy_(old)


def objective_for(model: Model, config: Mapping[str, Any], data: str | Path | None = None) -> Objective:
    """The objective that compares a stored model's samples with the data it was trained on, or with other data.

    config: what ``bfn.storage.read_config`` gives. Text: n-grams. Images: the features that the Frechet distance is
    measured on, those of the bundled classifier for mnist, else pixels pooled to at most 8 x 8. The training part is
    used, so that held-out data remain to judge by.
    """
    trained_on = ((config.get("card") or {}).get("settings") or {}).get("data") or {}
    source = data or trained_on.get("name")
    if source is None:
        raise ValueError("the model's card does not say what it was trained on: give data, a standard set or a path")
    alphabet = Alphabet(config["alphabet"]) if config.get("alphabet") else None
    real = load_data(source, "train", alphabet=alphabet)
    shape, n_classes = tuple(model.data_shape), getattr(model.flow, "n_classes", None)
    if isinstance(real, Text):
        if alphabet is None or n_classes is None:
            raise ValueError(f"{source}: text, and the model's data are {model.flow.kind} of shape {shape}")
        return NGramDivergence(real.tiles(shape[0], min(MOST_TEXTS, len(real) // shape[0])), n_classes)
    if real.data_shape != shape:
        raise ValueError(f"{source}: images of shape {real.data_shape}, and the model's data are {shape}")
    some = real[torch.arange(min(MOST_IMAGES, len(real))) * len(real) // min(MOST_IMAGES, len(real))]
    binary = n_classes == 2 and real.levels > 2
    images = some.prepared({"binarise": True, **trained_on} if binary else trained_on).to_float()
    if source == "mnist":
        return FeatureDistance(metrics.load_classifier().to(model.device).features, images.to(model.device), n_classes)
    return FeatureDistance(_pooled, images.to(model.device), n_classes)


def _pooled(images: Tensor) -> Tensor:
    """Pixels of images pooled to at most 8 x 8."""
    height, width = (min(8, side) for side in images.shape[-2:])
    return torch.nn.functional.adaptive_avg_pool2d(images, (height, width)).flatten(1)
