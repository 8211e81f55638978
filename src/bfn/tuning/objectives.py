"""What samples of a few calls are judged by while a solver is tuned: a summary of each, a loss of all together.

With :class:`EndPoint` a table without noise is drawn towards where a many-step teacher ends from the same start.
Trained networks do better with noise, for which no path can be prescribed: :class:`FeatureDistance` and
:class:`NGramDivergence` compare the distribution of the samples with that of data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bfn import quality as metrics
from bfn.data import Alphabet, Text
from bfn.data import load as load_data
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.model import Model
from bfn.sampling import sample
from bfn.solvers import Solver, get
from bfn.solvers.multistep import Multistep

Method = Literal["gradients", "search", "grid"]
"""How a table is fitted: by gradients through the sampler, by trying, or by moving its times alone."""

DIALS = (0.0, 1.0, 2.0, 4.0, 10.0)
"""Values of the dial that tuning may start from."""

PSEUDO_COUNT, SMOOTHING = 0.01, 0.01
"""Added to the data's counts of n-grams; the share of the data's distribution that is mixed into the samples'."""

MOST_IMAGES, MOST_TEXTS = 20_000, 40_000
"""Data that samples are compared with, at most."""


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


class Objective(ABC):
    """What samples are judged by: a summary of each, and a loss of all summaries together.

    noisy: whether the table's noise is fitted too. method: what it is fitted by; samples of classes are read by argmax,
    where gradients lead nowhere and the numbers are searched. start: the solver that the table has to beat. least:
    samples that it can judge at least. teacher_nfe: calls of the teacher, where there is one.
    """

    noisy: bool = True
    method: Method = "gradients"
    start: str | Solver = "untuned"
    least: int = 1
    teacher_nfe: int = 100

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
            raise UserError("target=None: the teacher's end points are needed")
        return (summaries - target).square().mean()

    def target(self, model: Model, draws: Draws, clip: tuple[float, float] | None) -> Tensor | None:
        unit = draws.u / math.sqrt(model.flow.kappa)
        ended = sample(model, len(unit), self.teacher, self.teacher_nfe, initial=unit, label=draws.label, clip=clip)
        return ended.x if model.flow.kind == "continuous" else ended.prediction

    def describe(self) -> dict[str, Any]:
        return {"objective": "endpoint", "teacher_nfe": self.teacher_nfe}


@dataclass(frozen=True)
class SearchedGrid(EndPoint):
    """The same distance, with the times alone moved: the start on the grid of :func:`search_grid`."""

    method: Method = field(default="grid", init=False)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "objective": "grid"}


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
        if len(data) < 2:
            raise UserError(f"{len(data)} data: expected at least 2 to compare with")
        self.features, self.n_classes = features, n_classes
        self.method = "gradients" if n_classes is None else "search"
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

    method: Method = "search"

    def __init__(self, data: Tensor, n_classes: int, n: int = 4) -> None:
        while n > 1 and n_classes**n > 1_000_000:
            n -= 1
        if len(data) == 0 or data.shape[1] < n:
            raise UserError(f"data of shape {tuple(data.shape)}: expected texts of at least n={n} symbols")
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


def objective_for(model: Model, config: Mapping[str, Any], data: str | Path | None = None) -> Objective:
    """The objective that compares a stored model's samples with the data it was trained on, or with other data.

    config: what ``bfn.storage.read_config`` gives. Text: n-grams. Images: the features that the Frechet distance is
    measured on, those of the bundled classifier for mnist, else pixels pooled to at most 8 x 8. The training part is
    used, so that held-out data remain to judge by.
    """
    trained_on = ((config.get("card") or {}).get("settings") or {}).get("data") or {}
    source = data or trained_on.get("name")
    if source is None:
        raise UserError("the model's card does not say what it was trained on: give data, a standard set or a path")
    alphabet = Alphabet(config["alphabet"]) if config.get("alphabet") else None
    real = load_data(source, "train", alphabet=alphabet)
    shape, n_classes = tuple(model.data_shape), getattr(model.flow, "n_classes", None)
    if isinstance(real, Text):
        if alphabet is None or n_classes is None:
            raise UserError(f"{source}: text, and the model's data are {model.flow.kind} of shape {shape}")
        return NGramDivergence(real.tiles(shape[0], min(MOST_TEXTS, len(real) // shape[0])), n_classes)
    if real.data_shape != shape:
        raise UserError(f"{source}: images of shape {real.data_shape}, and the model's data are {shape}")
    some = real[torch.arange(min(MOST_IMAGES, len(real))) * len(real) // min(MOST_IMAGES, len(real))]
    images = some.for_model(n_classes, trained_on).to_float()
    if source == "mnist":
        return FeatureDistance(metrics.load_classifier().to(model.device).features, images.to(model.device), n_classes)
    return FeatureDistance(_pooled, images.to(model.device), n_classes)


def _pooled(images: Tensor) -> Tensor:
    """Pixels of images pooled to at most 8 x 8."""
    height, width = (min(8, side) for side in images.shape[-2:])
    return torch.nn.functional.adaptive_avg_pool2d(images, (height, width)).flatten(1)
