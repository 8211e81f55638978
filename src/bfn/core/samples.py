"""Samples: the result of drawing, with the conditions, the predictions and the number of network calls."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bfn.core.codec import SHOWN, Codec

MOST_PARTS = 4
"""Maximum number of parts whose shapes the text of samples lists."""

_SHARED = ("nfe", "times", "codec", "solver")
"""Fields that all batches of a request share."""


@dataclass(frozen=True, repr=False)
class Samples:
    """Samples and how they were made. Notebooks show images as a picture, strings as text, and tables as a table.

    Attributes:
        x: samples, floats or int64 classes, (n, *data_shape); a mapping of parts for joint data.
        final: the prediction that x was read from, x_hat or class probabilities. Some solvers mix the last predictions.
        prediction: the prediction of the last network call.
        u: the last state.
        nfe: number of network calls.
        times: the time of each network call.
        conditions: conditions that were given or drawn, by name, each (n, ...).
        effective_sample_size: of the particles of each sample at each call, (n, nfe).
        log_normaliser: estimate of the log-likelihood of the condition from the particles, (n,).
        codec: returns the codec of the model.
        solver: name of the solver that was asked for.
    """

    x: Any
    final: Tensor
    prediction: Tensor
    u: Tensor
    nfe: int
    times: tuple[float, ...]
    conditions: Mapping[str, Tensor] = field(default_factory=dict)
    effective_sample_size: Tensor | None = None
    log_normaliser: Tensor | None = None
    codec: Callable[[], Codec] | None = None
    solver: str = ""

    @property
    def label(self) -> Tensor | None:
        """Classes of the samples, (n,), if there are any."""
        return self.conditions.get("label")

    @property
    def present(self) -> Any:
        """Bool, like x, True where a sample has data; None if nothing is padded."""
        packed = self.conditions.get("present")
        if packed is None or not isinstance(self.x, Mapping):
            return packed
        pieces = torch.split(packed, [math.prod(own.shape[1:]) for own in self.x.values()], 1)
        return {name: piece.reshape(own.shape) for (name, own), piece in zip(self.x.items(), pieces, strict=True)}

    @property
    def decoded(self) -> Any:
        """The samples as people look at them: strings, images as uint8, numbers in units, a DataFrame."""
        return self.x if self.codec is None else self.codec().decode(self.x, self.present)

    def __len__(self) -> int:
        return len(self.u)

    def __repr__(self) -> str:
        parts = self.x if isinstance(self.x, Mapping) else {"": self.x}
        shapes = [f"{name} {' x '.join(map(str, own.shape[1:]))}".strip() for name, own in parts.items()]
        shape = ", ".join(shapes) if len(shapes) <= MOST_PARTS else f"{len(shapes)} parts"
        form = "samples" if self.codec is None else self.codec().noun
        return f"Samples({len(self)} {form} of {shape}, {self.solver or 'a table'}, {self.nfe} calls)"

    def _repr_html_(self) -> str:
        title = f"<p>{html.escape(repr(self))}</p>"
        if self.codec is None:
            return title
        x, present = (_first(values, SHOWN) for values in (self.x, self.present))
        return title + self.codec().html(x, present)

    @classmethod
    def joined(cls, batches: Sequence[Samples]) -> Samples:
        """Join batches of the same request, on the CPU."""
        names = [each.name for each in dataclasses.fields(cls) if each.name not in _SHARED]
        values = {name: _joined([getattr(samples, name) for samples in batches]) for name in names}
        return cls(**values, **{name: getattr(batches[0], name) for name in _SHARED})


def _joined(values: Sequence[Any]) -> Any:
    """Concatenate tensors or mappings of tensors."""
    if values[0] is None:
        return None
    if isinstance(values[0], Mapping):
        return {name: torch.cat([each[name].cpu() for each in values]) for name in values[0]}
    return torch.cat([each.cpu() for each in values])


def _first(values: Any, n: int) -> Any:
    """Return the first n rows of a tensor or of a mapping of tensors."""
    if isinstance(values, Mapping):
        return {name: own[:n] for name, own in values.items()}
    return None if values is None else values[:n]
