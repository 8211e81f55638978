"""Records of a user's own data: named columns of sequences, numbers and classes, and which of them is what.

A column is one of three: :class:`Sequences` (texts of different lengths, as tokens), :class:`Numbers` (floats, one a
record or an array each) and :class:`Categories` (classes, one a record or an array of tokens each). :class:`Columns`
says what they are for: the sample itself, its label, its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bfn.data.tokenizers import Tokenizer
from bfn.errors import UserError

__all__ = ["Categories", "Column", "Columns", "Numbers", "Records", "Sequences"]


@dataclass(frozen=True, eq=False)
class Sequences:
    """Texts of different lengths as classes of their tokens; stretches of one long row of codes, nothing is copied.

    codes: all tokens, one text after the other, shape (total,). starts, lengths: where each text is in them, (n,).
    longest: length of the longest text of the whole column, which parts of it keep.
    """

    codes: Tensor
    starts: Tensor
    lengths: Tensor
    tokenizer: Tokenizer
    longest: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: slice | Tensor) -> Sequences:
        return replace(self, starts=self.starts[index], lengths=self.lengths[index])

    @property
    def n_classes(self) -> int:
        """How many tokens there are to choose from."""
        return len(self.tokenizer)

    def padded(self, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Classes, int64, with 0 after the end of a text, and where they are present, bool: both (n, length).

        length: of the longest text if None.
        """
        longest = int(self.lengths.max()) if len(self) else 0
        length = longest if length is None else length
        if length < longest:
            raise UserError(f"length={length}: the longest text has {longest} {self.tokenizer.unit}; expected as many")
        place = torch.arange(length)
        present = place < self.lengths[:, None]
        index = (self.starts[:, None] + place).clamp(max=max(len(self.codes) - 1, 0))
        return self.codes[index].long().where(present, 0), present

    def texts(self) -> list[str]:
        """The texts that the tokens stand for."""
        return self.tokenizer.decode(*self.padded()) if len(self) else []


@dataclass(frozen=True, eq=False)
class Numbers:
    """Floats, (n, ...): a number or an array of numbers each record."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice | Tensor) -> Numbers:
        return Numbers(self.values[index])


@dataclass(frozen=True, eq=False)
class Categories:
    """Classes, int64, (n, ...): one or an array of them each record. names: of the classes, in their order."""

    values: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice | Tensor) -> Categories:
        return replace(self, values=self.values[index])

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.names)

    def shares(self) -> tuple[float, ...]:
        """The share of the values that each class has."""
        counts = torch.bincount(self.values.flatten(), minlength=self.n_classes)
        return tuple((counts.double() / max(1, self.values.numel())).tolist())


Column = Sequences | Numbers | Categories
"""The values of one name, one a record."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a file are for. Those that are not named are not read.

    sequence: texts that are the sample, or a part of it. parts: further columns that belong to the sample: numbers,
        classes, arrays. Where sequence and parts name one column, a sample is that; of several it is a mapping.
    label: the class of each record. conditions: what samples may be asked for by: numbers or classes.
    classes: columns among these whose values are classes although they look like numbers.
    Each but the label may be one name or several; they are kept as tuples.
    """

    sequence: str | Sequence[str] = ()
    parts: str | Sequence[str] = ()
    label: str | None = None
    conditions: str | Sequence[str] = ()
    classes: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("sequence", "parts", "conditions", "classes"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        label = () if self.label is None else (self.label,)
        roles = (*self.samples, *self.conditions, *label)
        twice = next((name for name in roles if roles.count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"column {twice!r} is named for several things: expected one of sample, condition and label"
            )

    @property
    def samples(self) -> tuple[str, ...]:
        """The columns that make up a sample."""
        return tuple(dict.fromkeys((*self.sequence, *self.parts)))

    @property
    def named(self) -> tuple[str, ...]:
        """Every column that is for something."""
        label = () if self.label is None else (self.label,)
        return tuple(dict.fromkeys((*self.samples, *self.conditions, *label, *self.classes)))


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one file: see :class:`Columns` for what its columns are for.

    present: where the arrays of the records are data and not padding, bool, (n, length); None if they are all data.
    source: the absolute path of the file. note: what a user should know of them.
    """

    columns: Mapping[str, Column]
    roles: Columns
    present: Tensor | None = None
    source: str = ""
    note: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: slice | Tensor) -> Records:
        """The records at ``index`` (a slice, or int64 positions)."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, columns=columns, present=None if self.present is None else self.present[index])

    def split(self, held_out: float | int = 0.05, seed: int = 0) -> tuple[Records, Records]:
        """A fixed random division into (the rest, held out); ``held_out`` is a share or a number of records."""
        n = round(held_out * len(self)) if isinstance(held_out, float) else held_out
        if not 0 < n < len(self):
            raise UserError(f"held_out={held_out}: of {len(self)} records at least 1 must be on each side")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self[order[n:].sort().values], self[order[:n].sort().values]

    @property
    def samples(self) -> dict[str, Column]:
        """The columns that make up a sample, by name."""
        return {name: self.columns[name] for name in self.roles.samples}

    def padded(self, length: int | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parts of the samples, and where they are present: bool tensors of the same shapes.

        length: that sequences are padded to; each to the longest of its column if None.
        """
        x, present = {}, {}
        for name, column in self.samples.items():
            if isinstance(column, Sequences):
                x[name], present[name] = column.padded(length)
            else:
                x[name], present[name] = column.values, self._present(column.values)
        return x, present

    def _present(self, values: Tensor) -> Tensor:
        if self.present is None or values.ndim < 2:
            return torch.ones(values.shape, dtype=torch.bool)
        return self.present.reshape(*self.present.shape, *[1] * (values.ndim - 2)).expand(values.shape)

    @property
    def label(self) -> Categories | None:
        """The class of each record, where they have one."""
        column = None if self.roles.label is None else self.columns[self.roles.label]
        return column if isinstance(column, Categories) else None

    @property
    def conditions(self) -> dict[str, Numbers | Categories]:
        """What samples may be asked for by; the label is not among them."""
        found = {name: self.columns[name] for name in self.roles.conditions}
        return {name: column for name, column in found.items() if not isinstance(column, Sequences)}
