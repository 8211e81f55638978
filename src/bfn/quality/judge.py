"""Judges of samples. A judge has parts, which see the same samples and return a few measures each.

Real data go through the same code, so that each figure can be read beside that of a real sample of the same size.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from bfn._utils.estimate import Estimate
from bfn._utils.pieces import digest
from bfn.core.errors import UserError
from bfn.core.model import Model
from bfn.data.images import Images, concatenate
from bfn.data.loading import ModelData, columns_of, from_card, load, read_model_data
from bfn.data.records import Records
from bfn.data.text import Text
from bfn.data.tokenizers import Tokenizer

Better = Literal["low", "high", "real"]
"""Figures that are better: low ones, high ones, or those near the figure of real data."""

# --- measures, parts and judges ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A kind of figure and how it is written.

    Attributes:
        key: name for programs.
        label: name for people.
        better: which figures are better.
        unit, scale, digits: "%", 100 and 1 write 0.5 as "50.0 %".
        headline: whether samplers can be ranked by it.
        highest: largest possible value; the smallest one is 0.
    """

    key: str
    label: str
    better: Better
    unit: str = ""
    scale: float = 1.0
    digits: int = 2
    headline: bool = True
    highest: float = math.inf

    @classmethod
    def share(cls, key: str, label: str, better: Better, *, digits: int = 1, headline: bool = True) -> Measure:
        """Make a measure of shares, which are written in percent."""
        return cls(key, label, better, "%", 100, digits, headline, highest=1.0)

    def number(self, value: float) -> str:
        """Write a value without its unit. Small values have more digits."""
        scaled = abs(self.scale * value)
        small = math.isfinite(scaled) and 0 < scaled < 10 ** (1 - self.digits)
        digits = self.digits - 1 - math.floor(math.log10(scaled)) if small else self.digits
        return f"{self.scale * value:.{min(digits, 6)}f}"

    def show(self, figure: Estimate) -> str:
        """Write a figure with its interval and unit."""
        interval = "" if math.isnan(figure.low) else f" [{self.number(figure.low)}, {self.number(figure.high)}]"
        return f"{self.number(figure.value)}{interval}{self.unit and ' ' + self.unit}"

    def loss(self, value: float, real: float = math.nan) -> float:
        """Return the value on a scale where lower is better."""
        return {"low": value, "high": -value, "real": abs(value - real)}[self.better]


class JudgePart(ABC):
    """Measures that are taken together.

    Attributes:
        least: minimum number of samples.
    """

    least: ClassVar[int] = 1

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]] | None:
        """Name and figures of the other end of the scales, if there is one."""
        return None

    @property
    @abstractmethod
    def measures(self) -> tuple[Measure, ...]:
        """The measures of the part."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Name of the part, its constants and its reference: equal keys give equal figures on equal samples."""

    def problem(self, n: int) -> str | None:
        """Return why n samples cannot be judged, in one line, or None if they can."""
        return None if n >= self.least else f"n={n}: expected at least {self.least} samples to judge"

    def figures_of_real(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        """Return the figures of held-out real data."""
        return self(x, labels)

    @abstractmethod
    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Estimate]:
        """Return the figures of samples.

        Args:
            x: samples, as ``Judge.prepare`` returns them.
            labels: classes that were asked for, (n,).
        """


@dataclass(frozen=True, eq=False)
class Judge:
    """Parts that see the same samples.

    Attributes:
        name: name of the metric.
        parts: the parts, the main one first.
        held_out: real data that are in no reference, prepared.
        labels: classes of the held-out data, if any.
        prepare: function from samples of the model to what the parts take. It refuses samples that do not fit.
    """

    name: str
    parts: tuple[JudgePart, ...]
    held_out: Tensor
    labels: Tensor | None = None
    prepare: Callable[[Any], Tensor] = lambda x: x

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All measures, the main one first."""
        return tuple(measure for part in self.parts for measure in part.measures)

    @property
    def key(self) -> str:
        """Name of the judge and its references."""
        return f"{self.name}-{digest(*(part.key for part in self.parts))}"

    @property
    def baseline(self) -> tuple[str, Mapping[str, Estimate]] | None:
        """The other end of the scales, of the first part that has one."""
        return next((part.baseline for part in self.parts if part.baseline is not None), None)

    def __call__(self, x: Any, labels: Tensor | None = None) -> dict[str, Estimate]:
        """Return the figures of samples.

        Args:
            x: samples of the model.
            labels: classes that were asked for, (n,).
        """
        prepared = self.prepare(x).cpu()
        if len(prepared) == 0:
            raise UserError("no samples: expected at least 1")
        asked = None if labels is None else labels.cpu()
        return {key: value for part in self.parts for key, value in part(prepared, asked).items()}

    def real(self, n: int) -> dict[str, Estimate]:
        """Return the figures of n real samples, or of all held-out ones if there are fewer."""
        index = torch.arange(self.n_real(n)) * len(self.held_out) // self.n_real(n)
        x, labels = self.held_out[index], None if self.labels is None else self.labels[index]
        return {key: value for part in self.parts for key, value in part.figures_of_real(x, labels).items()}

    def n_real(self, n: int) -> int:
        """Return the number of real samples that ``real(n)`` judges."""
        return min(n, len(self.held_out))

    def check(self, n: int) -> None:
        """Raise a UserError if n samples are too few for a part."""
        for problem in self._problems(n):
            raise UserError(problem)

    def suited(self, n: int) -> tuple[Self, list[str]]:
        """Return the judge without the parts that need more than n samples, and why they do.

        Raises:
            UserError: no part is left that can rank samplers.
        """
        problems = self._problems(n)
        kept = tuple(part for part in self.parts if part.problem(n) is None)
        if not any(measure.headline for part in kept for measure in part.measures):
            raise UserError(problems[0])
        return replace(self, parts=kept), problems

    def _problems(self, n: int) -> list[str]:
        return [problem for part in self.parts if (problem := part.problem(n))]


# --- real data --------------------------------------------------------------------------------------------------------

ENOUGH = 10
"""Held-out samples for each feature that make a reference. Of smaller sets, every other sample of all is taken."""

MOST_CHARACTERS = 2_000_000
"""Maximum number of characters of real text in a reference."""


@dataclass(frozen=True, eq=False)
class ReferenceData:
    """Real data, as the parts of a judge take them.

    Attributes:
        reference: data to compare with.
        held_out: data that are judged beside the samples.
        reference_labels, held_out_labels: their classes, if any.
        train: training data; empty if they are not known.
        unseen: data that are not among the training data; empty if none are known.
    """

    reference: Tensor
    held_out: Tensor
    reference_labels: Tensor | None = None
    held_out_labels: Tensor | None = None
    train: Tensor = field(default_factory=lambda: torch.empty(0))
    unseen: Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def halves(cls, x: Tensor) -> Self:
        """Take every other sample of one tensor as the reference."""
        return cls(x[::2], x[1::2])


def data_of(model: Model, data: Any) -> Any:
    """Return the data to compare with: those that are given, or those that the model's card names; None for neither."""
    own = model.info.trained_on.get("name")
    return data if data is not None or own is None else from_card(own)


def read_images(model: Model, source: str | Path, n_features: int | None) -> ReferenceData:
    """Read the parts of a set of images.

    The test images are the reference if there are enough of them for the number of features.

    Args:
        model: the model.
        source: name or path of the set.
        n_features: number of features; None for training images as the reference, as is customary for the FID.
    """
    shape, parts = tuple(model.data_shape), []
    for name in ("train", "validation", "test"):
        images = load(source, name)
        if not isinstance(images, Images):
            raise UserError(f"{source}: not images, and the model's data are images of shape {shape}")
        if images.data_shape != shape:
            raise UserError(f"{source}: images of shape {images.data_shape}, and the model's data are {shape}")
        parts.append(images.for_model(model.flow.leading.n_values, model.info.trained_on))
    train, validation, test = parts
    seen = concatenate(train, validation)
    if n_features is None:
        reference, held_out, unseen = seen, test, test
    elif len(test) >= ENOUGH * n_features:
        reference, held_out, unseen = test, validation, validation
    else:
        every = concatenate(seen, test)
        reference, held_out, unseen = every[::2], every[1::2], concatenate(validation, test)
    x, beside, copied, new = (some.to_float() for some in (reference, held_out, train, unseen))
    return ReferenceData(x, beside, reference.labels, held_out.labels, copied, new)


def read_texts(model: Model, source: str | Path) -> ReferenceData:
    """Read pieces of a text as classes, (n, length). The test part is the reference, the validation part held out."""
    tokenizer, length = tokenizer_of(model), model.data_shape[0]
    columns = columns_of(model.info.trained_on)
    test, validation = (load(source, part, tokenizer=tokenizer, columns=columns) for part in ("test", "validation"))
    if isinstance(test, Records):
        held_out, reference = (read_model_data(model, source, part) for part in ("test", "train"))
        return ReferenceData(*(without_padding(read) for read in (reference, held_out)))
    if not isinstance(test, Text) or not isinstance(validation, Text):
        raise UserError(f"{source}: images, and the model is one of text")
    most = max(1, min(len(test), MOST_CHARACTERS) // length)
    return ReferenceData(test.tiles(length, most), validation.tiles(length))


def tokenizer_of(model: Model) -> Tokenizer:
    """Return the tokenizer of a model of text. Raises UserError if it has none."""
    tokenizer: Tokenizer | None = model.info.text_tokenizer
    if tokenizer is None:
        raise UserError("a model without a tokenizer: its samples are no text; take another metric")
    return tokenizer


def without_padding(read: ModelData) -> Tensor:
    """Return classes, with -1 for padding."""
    return read.x if read.present is None else read.x.masked_fill(~read.present, -1)


def read_values(path: Path) -> Tensor:
    """Read arrays of numbers from an .npy file, (n, ...)."""
    array = np.load(path, allow_pickle=False)
    if array.ndim < 2 or len(array) < 4 or array.dtype.kind not in "fiub":
        raise UserError(f"{path}: an array of {array.dtype} and shape {array.shape}: expected numbers (n >= 4, ...)")
    return torch.from_numpy(array)


def generator() -> torch.Generator:
    """Return the generator of resamples, always the same one, so that equal samples get equal intervals."""
    return torch.Generator().manual_seed(0)
