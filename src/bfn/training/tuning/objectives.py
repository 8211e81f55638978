"""Objectives of tuning: a summary of each sample, and a loss of the summaries of all samples.

``EndPoint`` compares samples with the ends of a many-step solver from the same starts, for tables without noise.
Trained networks do better with noise, which leads to no fixed end: ``FeatureDistance``, ``NGramDivergence``
and ``EnergyDistance`` compare the distribution of the samples with that of data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bfn.core.conditions import ConditionTensors, conditions_in_turn, rows_of
from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.model import Model
from bfn.core.sampling import sample
from bfn.core.solver import Solver
from bfn.data.loading import read_model_data
from bfn.data.tokenizers import Tokenizer
from bfn.quality.frechet import Gaussian
from bfn.quality.judge import without_padding
from bfn.quality.judge_choice import features_for, metric_for
from bfn.quality.metrics import class_ngram_counts, divergence
from bfn.quality.molecules import Molecules, is_of_molecules
from bfn.solvers import get
from bfn.solvers.multistep import Multistep

Method = Literal["gradients", "search", "grid"]
"""Method of fitting a table: by gradients through the sampler, by a search, or by moving its times alone."""

DIALS = (0.0, 1.0, 2.0, 4.0, 10.0)
"""Values of g that tuning may start from."""

PSEUDO_COUNT = 0.01
"""Added to the counts of the n-grams of the data."""

SMOOTHING = 0.01
"""Share of the data's distribution that is mixed into that of the samples."""

MOST_DATA = {"text": 40_000, "images": 20_000}
"""Maximum number of data that samples are compared with."""

BATCH = 500
"""Number of data whose features are computed together."""

MOST_POINTS = 2000
"""Maximum number of data for an energy distance."""

MOST_NGRAMS = 1_000_000
"""Maximum number of different n-grams that are counted."""


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch of samples.

    Attributes:
        u: first states, (batch, *state_shape).
        noise: standard normal noise of each step, like u.
        conditions: conditions by name, each (batch, ...).
    """

    u: Tensor
    noise: tuple[Tensor, ...]
    conditions: ConditionTensors

    @classmethod
    def make(cls, model: Model, n: int, nfe: int, generator: torch.Generator) -> Draws:
        """Draw in the order in which ``bfn.sample`` does, with conditions in turn."""
        shape = (n, *model.flow.state_shape(model.data_shape))

        def normal() -> Tensor:
            return torch.randn(shape, generator=generator, dtype=model.dtype, device=model.device)

        u = normal()
        u = u * model.flow.noise_scale(u)
        conditions = {name: value.to(model.device) for name, value in conditions_in_turn(model.info, n).items()}
        return cls(u, tuple(normal() for _ in range(nfe - 1)), conditions)

    def split(self, size: int) -> Iterator[Draws]:
        """Yield parts of at most that size."""
        for first in range(0, len(self.u), size):
            part = slice(first, first + size)
            yield Draws(self.u[part], tuple(noise[part] for noise in self.noise), rows_of(self.conditions, part))


class Objective(ABC):
    """A loss of samples. Subclasses define the summary of each sample and the loss of all summaries.

    Attributes:
        noisy: whether the noise of the table is fitted too.
        method: how the table is fitted. Classes are read from samples by argmax, which has no gradient, so tables for
            classes are searched.
        start: solver that tuning starts from.
        least: smallest number of samples that the loss is defined for.
        teacher_nfe: number of network calls of the many-step solver, if there is one.
        name: what is stored with the table.
    """

    noisy: bool = True
    method: Method = "gradients"
    start: str | Solver = "fast-sde"
    least: int = 1
    teacher_nfe: int = 100
    name: str = ""

    @abstractmethod
    def summary(self, prediction: Tensor) -> Tensor:
        """Return the summary of each sample, (batch, ...), from the predictions that samples are read from."""

    def without_padding(self, summaries: Tensor, present: Tensor | None) -> Tensor:
        """Return the summaries without padding; ``present`` is a mask of the data of each sample."""
        return summaries

    @abstractmethod
    def loss(self, summaries: Tensor, target: Tensor | None) -> Tensor:
        """Return the number to be minimised, from the summaries of all samples."""

    def target(self, model: Model, draws: Draws) -> Tensor | None:
        """Return what the summaries of these draws should be; None if that is not known."""
        return None

    def check(self, nfe: int) -> None:
        """Raise a UserError for a number of calls for which there is nothing to tune."""
        if nfe < (1 if self.noisy and self.method == "search" else 2):
            raise UserError(f"nfe={nfe}: a table of one call has no step to tune; expected at least 2 calls")

    def others(self, flow: Flow, nfe: int) -> list[Solver]:
        """Return solvers that tuning may start from instead: the start with other values of g."""
        if len(flow.parts) > 1:
            return []
        base = get(self.start, flow.leading.kind).resolve(flow.leading, nfe)
        return [replace(base, g=g, quiet=0) for g in DIALS] if isinstance(base, Multistep) else []

    def describe(self) -> dict[str, Any]:
        """Return the objective as plain values, which are stored with the table."""
        return {"objective": self.name or type(self).__name__}


@dataclass(frozen=True)
class EndPoint(Objective):
    """Mean squared distance to the ends of a many-step solver from the same starts, for tables without noise."""

    teacher_nfe: int = 100
    noisy: bool = field(default=False, init=False)
    name: str = field(default="endpoint", init=False)
    start: str | Solver = "fast-ode"

    def others(self, flow: Flow, nfe: int) -> list[Solver]:
        return []

    def summary(self, prediction: Tensor) -> Tensor:
        return prediction

    def loss(self, summaries: Tensor, target: Tensor | None) -> Tensor:
        if target is None:
            raise UserError("target=None: expected the ends of the many-step solver")
        return (summaries - target).square().mean()

    def target(self, model: Model, draws: Draws) -> Tensor | None:
        unit = draws.u / model.flow.noise_scale(draws.u)
        return sample(model, len(unit), "fast-ode", self.teacher_nfe, initial=unit, condition=draws.conditions).final

    def check(self, nfe: int) -> None:
        super().check(nfe)
        if self.teacher_nfe <= nfe:
            raise UserError(f"teacher_nfe={self.teacher_nfe}: expected more calls than the {nfe} of the table")

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "teacher_nfe": self.teacher_nfe}


@dataclass(frozen=True)
class SearchedGrid(EndPoint):
    """The same distance, but only the times are moved, by ``bfn.training.tuning.calibration.search_grid``."""

    method: Method = field(default="grid", init=False)
    name: str = field(default="grid", init=False)


class FeatureDistance(Objective):
    """Frechet distance between the features of samples and of data.

    Args:
        features: differentiable function of floats, (batch, *data_shape) -> (batch, d).
        data: data as floats; for classes the values of ``flow.values``.
        flow: flow of the model.
    """

    name = "features"

    def __init__(self, features: Callable[[Tensor], Tensor], data: Tensor, flow: Flow) -> None:
        if len(data) < 2:
            raise UserError(f"{len(data)} data: expected at least 2 to compare with")
        self.features, self.flow = features, flow
        self.method = "gradients" if flow.leading.has_range else "search"
        with torch.no_grad():
            self.data = Gaussian.of(torch.cat([features(part) for part in torch.split(data, BATCH)]))
        # With fewer samples the covariance is singular.
        self.least = len(self.data.mean) + 1

    def summary(self, prediction: Tensor) -> Tensor:
        return self.features(self.flow.values(self.flow.decode(prediction)))

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        return self.data.distance(Gaussian.of(summaries))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "n_features": len(self.data.mean)}


class NGramDivergence(Objective):
    """Jensen-Shannon divergence, in bits, between the n-grams of samples and of data that are sequences of classes.

    Args:
        data: classes, (m, length), -1 for padding.
        flow: flow of the model.
        n: length of the n-grams; shorter if there are more than a million different ones.
    """

    method: Method = "search"

    def __init__(self, data: Tensor, flow: Flow, n: int = 4) -> None:
        n_classes = flow.leading.n_values
        if n_classes is None:
            raise UserError(f"n-grams of {flow.leading.kind} data: expected data of classes")
        self.flow, self.n_classes = flow, n_classes
        while n > 1 and self.n_classes**n > MOST_NGRAMS:
            n -= 1
        if len(data) == 0 or data.shape[1] < n:
            raise UserError(f"data of shape {tuple(data.shape)}: expected texts of at least n={n} symbols")
        self.n, self.name = n, f"{n}-grams"
        counts = class_ngram_counts(data, n, self.n_classes) + PSEUDO_COUNT
        self._real = counts / counts.sum()

    def summary(self, prediction: Tensor) -> Tensor:
        return self.flow.decode(prediction)

    def without_padding(self, summaries: Tensor, present: Tensor | None) -> Tensor:
        return summaries if present is None else summaries.masked_fill(~present, -1)

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        counts = class_ngram_counts(summaries, self.n, self.n_classes)
        real = self._real.to(counts.device)
        return divergence(torch.lerp(counts / counts.sum(), real, SMOOTHING), real)


class MoleculeDivergence(NGramDivergence):
    """The share of strings that are not valid molecules, plus the n-gram divergence of the valid ones (RDKit).

    The n-gram divergence alone would favour strings with correct parts and unclosed rings.
    """

    def __init__(self, data: Tensor, flow: Flow, tokenizer: Tokenizer) -> None:
        super().__init__(data, flow)
        self.tokenizer, self.name = tokenizer, f"invalid strings and {self.name}"

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        texts = self.tokenizer.decode(summaries.clamp(min=0), summaries >= 0)
        found = Molecules.read(texts, self.tokenizer.notation or "smiles").canonical
        valid = torch.tensor([one is not None for one in found])
        others = super().loss(summaries[valid]) if valid.any() else torch.ones((), dtype=torch.float64)
        return 1 - valid.double().mean() + others


def mean_distance(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean distance between two samples, (n, d) and (m, d), or between the points of one sample."""
    return torch.cdist(x, y).sum() / (len(x) * len(y) - (len(x) if x is y else 0))


def energy_distance(x: Tensor, y: Tensor) -> float:
    """Return 2 E||x - y|| - E||x - x'|| - E||y - y'|| of two samples, (n, ...) and (m, ...).

    It is 0 for equal distributions.
    """
    x, y = x.flatten(1).double(), y.flatten(1).double()
    return float(2 * mean_distance(x, y) - mean_distance(x, x) - mean_distance(y, y))


class EnergyDistance(Objective):
    """Energy distance between samples and data, with each variable in units of its standard deviation.

    Args:
        data: data as the model takes them, (m, ...).
        flow: flow of the model.
    """

    method: Method = "search"
    name = "energy distance"
    least = 20

    def __init__(self, data: Tensor, flow: Flow) -> None:
        if len(data) < 2:
            raise UserError(f"{len(data)} data: expected at least 2 to compare with")
        rows = torch.arange(min(MOST_POINTS, len(data))) * len(data) // min(MOST_POINTS, len(data))
        self.flow, values = flow, flow.values(data[rows]).flatten(1).double()
        self._scale = values.std(0).clamp(min=1e-9)
        self._data = values / self._scale
        self._within = mean_distance(self._data, self._data)

    def summary(self, prediction: Tensor) -> Tensor:
        return self.flow.values(self.flow.decode(prediction)).flatten(1).double() / self._scale

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        between = mean_distance(summaries, self._data)
        return (2 * between - mean_distance(summaries, summaries) - self._within).clamp(min=1e-4)


def objective_for(model: Model, data: str | Path | Tensor | None = None) -> Objective:
    """Return the objective that compares the samples of a model with data.

    For text this is the divergence of n-grams, and for molecules also the share of invalid strings if RDKit is
    installed. For images it is the Frechet distance of the features that images are judged by: those of the bundled
    classifier for mnist, otherwise pixels pooled to at most 8 x 8. For joint data only the grid is fitted, to the ends
    of a many-step solver, which needs no data.

    Args:
        model: the model.
        data: a tensor of data as the model takes them, which are compared by the energy distance or by n-grams; or a
            data set, of which the training part is used, so that held-out data remain for judging. If None, the data
            that the model was trained on.
    """
    if len(model.flow.parts) > 1:
        return SearchedGrid()
    form = model.codec.form
    if isinstance(data, Tensor):
        return _of_texts(model, data) if form == "text" else EnergyDistance(data, model.flow)
    real = read_model_data(model, data, "train", MOST_DATA.get(form, MOST_DATA["images"]), seed=None)
    if form == "text":
        return _of_texts(model, without_padding(real))
    metric = metric_for(model, None, real.source)
    images = model.flow.values(real.x).to(model.device)
    return FeatureDistance(features_for(metric, model.device), images, model.flow)


def _of_texts(model: Model, data: Tensor) -> Objective:
    tokenizer = model.info.text_tokenizer
    if tokenizer is not None and is_of_molecules(model) and find_spec("rdkit") is not None:
        return MoleculeDivergence(data, model.flow, tokenizer)
    return NGramDivergence(data, model.flow)
