"""A judge: parts that see the same samples."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.quality.measure import Measure, Measured


class Part(ABC):
    """Some measures that are taken together."""

    @property
    @abstractmethod
    def measures(self) -> tuple[Measure, ...]:
        """What it gives."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the part, its constants and its reference: equal keys give equal figures on equal samples."""

    @property
    def by_construction(self) -> Mapping[str, Measured]:
        """Figures that real data have by the way the measure is made."""
        return {}

    def problem(self, n: int) -> str | None:
        """Why n samples cannot be judged, in one line."""
        return None

    @abstractmethod
    def __call__(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        """Figures of samples, as ``Judge.view`` makes them; labels: classes that were asked for."""


@dataclass(frozen=True, eq=False)
class Judge:
    """Parts that see the same samples.

    view: makes of samples, as a model gives them, what the parts take, and refuses what they cannot.
    held_out: real data, viewed, that are in no reference; labels: their classes, where there are any.
    """

    name: str
    parts: tuple[Part, ...]
    view: Callable[[Tensor], Tensor]
    held_out: Tensor
    labels: Tensor | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All measures, the main one first."""
        return tuple(measure for part in self.parts for measure in part.measures)

    @property
    def key(self) -> str:
        """Names the judge and its references."""
        return f"{self.name}-{digest(*(part.key for part in self.parts))}"

    def __call__(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Measured]:
        """Figures of samples x, (n, *data_shape), as a model gives them; labels: (n,), the classes asked for."""
        if len(x) == 0:
            raise UserError("no samples: expected at least 1")
        return self._judge(self.view(x.cpu()), None if labels is None else labels.cpu())

    def real(self, n: int) -> dict[str, Measured]:
        """Figures of n real samples, or of as many as are held out."""
        index = torch.arange(self.n_real(n)) * len(self.held_out) // self.n_real(n)
        figures = self._judge(self.held_out[index], None if self.labels is None else self.labels[index])
        return {**figures, **{key: value for part in self.parts for key, value in part.by_construction.items()}}

    def n_real(self, n: int) -> int:
        """How many real samples ``real(n)`` judges."""
        return min(n, len(self.held_out))

    def check(self, n: int) -> None:
        """Refuse a number of samples that is too small for a part."""
        for part in self.parts:
            if (problem := part.problem(n)) is not None:
                raise UserError(problem)

    def suited(self, n: int) -> tuple[Judge, list[str]]:
        """The judge without the parts that n samples are too few for, and why; an error if none ranks samplers."""
        problems = [problem for part in self.parts if (problem := part.problem(n)) is not None]
        kept = tuple(part for part in self.parts if part.problem(n) is None)
        if not any(measure.headline for part in kept for measure in part.measures):
            raise UserError(problems[0])
        return replace(self, parts=kept), problems

    def _judge(self, x: Tensor, labels: Tensor | None) -> dict[str, Measured]:
        return {key: value for part in self.parts for key, value in part(x, labels).items()}


def digest(*parts: str | Tensor) -> str:
    """A short name of strings and tensors: equal ones have equal names."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part.contiguous().numpy().tobytes())
        sha.update(b"\0")
    return sha.hexdigest()[:16]
