"""What samples of a few calls are judged by while a solver is tuned: a summary of each, a loss of all together.

With :class:`EndPoint` a table without noise is drawn towards where a many-step teacher ends from the same start.
Trained networks do better with noise, for which no path can be prescribed: :class:`FeatureDistance` and
:class:`NGramDivergence` compare the distribution of the samples with that of data.
"""

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
from bfn.core.multistep import Multistep
from bfn.core.sampling import sample
from bfn.core.solver import Solver
from bfn.data.loading import read_model_data
from bfn.data.tokenizers import Tokenizer
from bfn.quality.frechet import Gaussian
from bfn.quality.judge import without_padding
from bfn.quality.judge_choice import features_for, metric_for
from bfn.quality.molecules import is_of_molecules
from bfn.quality.molecules import Molecules
from bfn.quality.metrics import class_ngram_counts, divergence
from bfn.solvers.named import get

Method = Literal["gradients", "search", "grid"]
"""How a table is fitted: by gradients through the sampler, by trying, or by moving its times alone."""

DIALS = (0.0, 1.0, 2.0, 4.0, 10.0)
"""Values of the dial that tuning may start from."""

PSEUDO_COUNT, SMOOTHING = 0.01, 0.01
"""Added to the data's counts of n-grams; the share of the data's distribution that is mixed into the samples'."""

MOST_IMAGES, MOST_TEXTS = 20_000, 40_000
"""Data that samples are compared with, at most."""

MOST_POINTS = 2000
"""Data that an energy distance is taken from, at most."""

MOST_NGRAMS = 1_000_000
"""Different n-grams that are counted, at most."""


@dataclass(frozen=True)
class Draws:
    """All that is random in a batch of samples: u at the start, a noise for each step, and the conditions asked for."""

    u: Tensor
    noise: tuple[Tensor, ...]
    conditions: ConditionTensors

    @classmethod
    def make(cls, model: Model, n: int, nfe: int, generator: torch.Generator) -> "Draws":
        """In the order in which :func:`bfn.sample` draws from the generator, conditions in turn."""
        shape = (n, *model.flow.state_shape(model.data_shape))

        def normal() -> Tensor:
            return torch.randn(shape, generator=generator, dtype=model.dtype, device=model.device)

        u = normal()
        u = u * model.flow.noise_scale(u)
        conditions = {name: value.to(model.device) for name, value in conditions_in_turn(model.info, n).items()}
        return cls(u, tuple(normal() for _ in range(nfe - 1)), conditions)

    def split(self, size: int) -> Iterator["Draws"]:
        """Parts of at most that size."""
        for first in range(0, len(self.u), size):
            part = slice(first, first + size)
            yield Draws(self.u[part], tuple(noise[part] for noise in self.noise), rows_of(self.conditions, part))


class Objective(ABC):
    """What samples are judged by: a summary of each, and a loss of all summaries together.

    noisy: whether the table's noise is fitted too. method: what it is fitted by; samples of classes are read by argmax,
    where gradients lead nowhere and the numbers are searched. start: the solver that the table has to beat. least:
    samples that it can judge at least. teacher_nfe: calls of the teacher, where there is one.
    """

    noisy: bool = True
    method: Method = "gradients"
    start: str | Solver = "fast-sde"
    least: int = 1
    teacher_nfe: int = 100

    @abstractmethod
    def summary(self, prediction: Tensor) -> Tensor:
        """(batch, ...) of the predictions that the samples are read from."""

    def without_padding(self, summaries: Tensor, present: Tensor | None) -> Tensor:
        """Summaries of samples of different lengths, (batch, ...), where present says what is there of them."""
        return summaries

    @abstractmethod
    def loss(self, summaries: Tensor, target: Tensor | None) -> Tensor:
        """A number to be lowered, from the summaries of all samples."""

    def target(self, model: Model, draws: Draws) -> Tensor | None:
        """What the summaries of these draws should be, if that is known."""
        return None

    def check(self, nfe: int) -> None:
        """Refuse a number of calls for which there is nothing to tune."""
        if nfe < (1 if self.noisy and self.method == "search" else 2):
            raise UserError(f"nfe={nfe}: a table of one call has no step to tune; expected at least 2 calls")

    def others(self, flow: Flow, nfe: int) -> list[Solver]:
        """Solvers that tuning may start from if one of them is better: the start with its dial elsewhere."""
        if len(flow.parts) > 1:
            return []
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
            raise UserError("target=None: the teacher's end points are needed")
        return (summaries - target).square().mean()

    def target(self, model: Model, draws: Draws) -> Tensor | None:
        unit = draws.u / model.flow.noise_scale(draws.u)
        return sample(model, len(unit), self.teacher, self.teacher_nfe, initial=unit, condition=draws.conditions).final

    def check(self, nfe: int) -> None:
        super().check(nfe)
        if self.teacher_nfe <= nfe:
            raise UserError(f"teacher_nfe={self.teacher_nfe}: a teacher makes more calls than the table's {nfe}")

    def describe(self) -> dict[str, Any]:
        return {"objective": "endpoint", "teacher_nfe": self.teacher_nfe}


@dataclass(frozen=True)
class SearchedGrid(EndPoint):
    """The same distance, with the times alone moved: the start on the grid of :func:`search_grid`."""

    method: Method = field(default="grid", init=False)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "objective": "grid"}


class FeatureDistance(Objective):
    """Frechet distance of the samples' features from those of data.

    features: floats (batch, *data_shape) -> (batch, d), differentiable. data: such floats; of classes what
    ``flow.values`` gives.
    """

    def __init__(self, features: Callable[[Tensor], Tensor], data: Tensor, flow: Flow, batch: int = 500) -> None:
        if len(data) < 2:
            raise UserError(f"{len(data)} data: expected at least 2 to compare with")
        self.features, self.flow = features, flow
        # Samples that are classes, read by argmax, have no gradient.
        self.method = "gradients" if flow.has_range else "search"
        with torch.no_grad():
            self.data = Gaussian.of(torch.cat([features(part) for part in torch.split(data, batch)]))
        # With fewer the covariance is singular, and the distance mostly bias.
        self.least = len(self.data.mean) + 1

    def summary(self, prediction: Tensor) -> Tensor:
        return self.features(self.flow.values(self.flow.decode(prediction)))

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        return self.data.distance(Gaussian.of(summaries))

    def describe(self) -> dict[str, Any]:
        return {"objective": "features", "n_features": len(self.data.mean)}


class NGramDivergence(Objective):
    """Jensen-Shannon divergence, in bits, of the n-grams of sequences of classes from those of data.

    data: (m, length) classes, -1 for none. n: 4, or fewer where there are more than a million n-grams.
    """

    method: Method = "search"

    def __init__(self, data: Tensor, flow: Flow, n: int = 4) -> None:
        if flow.n_values is None:
            raise UserError(f"n-grams of {flow.kind} data: expected data of classes")
        self.flow, self.n_classes = flow, flow.n_values
        while n > 1 and self.n_classes**n > MOST_NGRAMS:
            n -= 1
        if len(data) == 0 or data.shape[1] < n:
            raise UserError(f"data of shape {tuple(data.shape)}: expected texts of at least n={n} symbols")
        self.n = n
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

    def describe(self) -> dict[str, Any]:
        return {"objective": f"{self.n}-grams"}


class MoleculeDivergence(NGramDivergence):
    """The share of strings that are no molecules, and the divergence of the n-grams of those that are (RDKit).

    By n-grams alone strings would be chosen whose parts are right and whose rings stay open.
    """

    def __init__(self, data: Tensor, flow: Flow, tokenizer: Tokenizer) -> None:
        super().__init__(data, flow)
        self.tokenizer = tokenizer

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        texts = self.tokenizer.decode(summaries.clamp(min=0), summaries >= 0)
        found = Molecules.read(texts, self.tokenizer.notation or "smiles").canonical
        valid = torch.tensor([one is not None for one in found])
        others = super().loss(summaries[valid]) if valid.any() else torch.ones((), dtype=torch.float64)
        return 1 - valid.double().mean() + others

    def describe(self) -> dict[str, Any]:
        return {"objective": f"invalid strings and {self.n}-grams"}


class EnergyDistance(Objective):
    """Energy distance of samples from data, 2 E|x - y| - E|x - x'| - E|y - y'|: 0 where both have one distribution.

    data: (m, ...) as the model takes them. Each variable counts in units of its own standard deviation.
    """

    method: Method = "search"

    def __init__(self, data: Tensor, flow: Flow) -> None:
        if len(data) < 2:
            raise UserError(f"{len(data)} data: expected at least 2 to compare with")
        rows = torch.arange(min(MOST_POINTS, len(data))) * len(data) // min(MOST_POINTS, len(data))
        self.flow, values = flow, flow.values(data[rows]).flatten(1).double()
        self._scale = values.std(0).clamp(min=1e-9)
        self._data = values / self._scale
        self._within = self._mean_distance(self._data, self._data)
        self.least = 20

    @staticmethod
    def _mean_distance(a: Tensor, b: Tensor) -> Tensor:
        own = len(a) if a is b else 0
        return torch.cdist(a, b).sum() / (len(a) * len(b) - own)

    def summary(self, prediction: Tensor) -> Tensor:
        return self.flow.values(self.flow.decode(prediction)).flatten(1).double() / self._scale

    def loss(self, summaries: Tensor, target: Tensor | None = None) -> Tensor:
        between = self._mean_distance(summaries, self._data)
        return (2 * between - self._mean_distance(summaries, summaries) - self._within).clamp(min=1e-4)

    def describe(self) -> dict[str, Any]:
        return {"objective": "energy distance"}


def objective_for(model: Model, data: str | Path | Tensor | None = None) -> Objective:
    """The objective that compares a model's samples with the data it was trained on, as its info says, or with others.

    A tensor of data, as the model takes them: the energy distance, or n-grams of text.
    Text: n-grams; of strings that stand for molecules, where RDKit is installed, also how many do not. Images: the
    features that the Frechet distance is measured on, those of the bundled classifier for mnist, else pixels pooled to
    at most 8 x 8. The training part is used, so that held-out data remain to judge by.
    Of joint data only the grid is fitted, to a many-step teacher's ends, and no data are needed.
    """
    if len(model.flow.parts) > 1:
        return SearchedGrid()
    if isinstance(data, Tensor):
        return _of_texts(model, data) if model.form == "text" else EnergyDistance(data, model.flow)
    most = MOST_TEXTS if model.form == "text" else MOST_IMAGES
    real = read_model_data(model, data, "train", most, seed=None)
    if model.form == "text":
        return _of_texts(model, without_padding(real))
    metric = metric_for(model, None, real.source)
    images = model.flow.values(real.x).to(model.device)
    return FeatureDistance(features_for(metric, model.device), images, model.flow)


def _of_texts(model: Model, data: Tensor) -> Objective:
    tokenizer = model.info.text_tokenizer
    if tokenizer is not None and is_of_molecules(model) and find_spec("rdkit") is not None:
        return MoleculeDivergence(data, model.flow, tokenizer)
    return NGramDivergence(data, model.flow)
