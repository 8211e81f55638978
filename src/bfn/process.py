"""What data of one kind answer where joint data have several parts, and the noise level of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["NoiseLevel", "OneKind", "Shape"]

Shape = tuple[int, ...]
"""Of one sample, without the batch."""


@dataclass(frozen=True)
class NoiseLevel:
    """A noise level of a batch, worked out once, before any loop.

    t: (batch,), what the network is told; (batch, parts) where each part of joint data has a time of its own.
    s: sqrt(beta(t)); one number for the whole batch, or a tensor (batch, ...) that broadcasts against the state: one
        number a sample, or one a variable where parts of the data are known better than others.
    """

    t: Tensor
    s: float | Tensor


class OneKind:
    """A single part without a name, which is all of the data; ``bfn.joint`` answers otherwise."""

    @property
    def leading_part(self) -> str:
        """The part by whose schedule grids are laid."""
        return ""

    def shape_of(self, x: Tensor, data_shape: Any) -> Any:
        """The data shape of packed data: sequences may be shorter than the longest that a model is made for."""
        return tuple(x.shape[1:])

    def unpack(self, x: Tensor) -> Any:
        """The inverse of :meth:`pack`."""
        return x

    def split(self, values: Tensor) -> dict[str, Tensor]:
        """Values like packed data, such as losses of each variable, by part."""
        return {"": values}

    def over_state(self, rows: Sequence[Sequence[float]], like: Tensor) -> Sequence[float | Tensor]:
        """Rows of a number a part, to multiply states by: numbers, or vectors where parts lie side by side."""
        return [number for (number,) in rows]

    def over_data(self, values: Mapping[str, Tensor]) -> Tensor:
        """A part's numbers, (batch,) or (), on all of its variables: (batch, N) where parts lie side by side."""
        return values[""]

    def over_variables(self, values: Tensor, state: Tensor) -> Tensor:
        """Values like packed data, such as a mask, so that they broadcast against the state."""
        return values.reshape(*values.shape, *(1,) * (state.ndim - values.ndim))

    @property
    def time_shape(self) -> Shape:
        """Shape of a sample's time: () for one, (parts,) where each part has its own."""
        return ()

    def times_of(self, t: Tensor) -> Mapping[str, Tensor]:
        """Times, (batch,) or (batch, *time_shape), by part: (batch,) each."""
        return {"": t}

    def told(self, t: Tensor, known: Tensor) -> Tensor:
        """The times that the network is told where data, with a mask like them, are shown at the data end."""
        return t
