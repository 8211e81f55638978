"""What is known of a model beside its weights: classes, alphabet, range of the data, error curve, tuned tables, card.

A model owns these facts (``model.info``): sampling reads them, commands show them, storage keeps them. A new fact is a
new field here, of a type that storage can write: numbers, strings, tuples, mappings, and dataclasses of these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bfn.arguments import as_tensor
from bfn.conditions import NO_CLASS, Condition
from bfn.data.table_columns import TableColumns
from bfn.data.tokenizers import Alphabet, Tokenizer
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError, did_you_mean
from bfn.presence import Lengths
from bfn.schedules import stratified_times
from bfn.solvers.few_step import Calibration
from bfn.solvers.table import Table
from bfn.spread import Spread

__all__ = ["NO_CLASS", "Classes", "Label", "ModelInfo", "Scaling"]

Label = int | str | Sequence[int | str] | Tensor
"""Classes as a user gives them: one for all samples or one each, numbers or names; arrays will do too."""


LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Classes:
    """The classes of a class-conditional model: their names, and their shares in the data it was trained on."""

    names: tuple[str, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(values, list | tuple) for values in (self.names, self.shares)):
            kinds = f"{type(self.names).__name__} of names, {type(self.shares).__name__} of shares"
            raise UserError(f"classes from a {kinds}: expected tuples")
        if not self.names or len(self.names) != len(self.shares):
            raise UserError(f"{len(self.names)} class names, {len(self.shares)} shares: expected as many, at least one")
        if len(set(self.names)) != len(self.names):
            raise UserError(f"class names {', '.join(self.names)}: expected each name once")
        if not all(share >= 0 for share in self.shares) or not 0.999 < sum(self.shares) < 1.001:
            raise UserError(f"class shares {self.shares}: expected numbers from 0 up that sum to 1")

    @classmethod
    def equal(cls, n: int) -> "Classes":
        """n classes named by their numbers, all equally frequent."""
        return cls(tuple(map(str, range(n))), (1 / n,) * n)

    def __len__(self) -> int:
        return len(self.names)

    def draw(self, n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
        """n classes in proportion to their shares, in random order: (n,) int64.

        Each is drawn by the shares; together they are spread evenly, so that a class is drawn n times its share, up to
        less than one, and a few samples already stand for the whole.
        """
        ends = torch.tensor(self.shares, dtype=torch.float64, device=device).cumsum(0)
        places = stratified_times(n, generator, device) * ends[-1]
        order = torch.randperm(n, generator=generator, device=device)
        return torch.searchsorted(ends, places, right=True).clamp(max=len(self) - 1)[order]

    def in_turn(self, n: int) -> Tensor:
        """n classes, each in its turn: what measurements ask for, so that every class counts alike."""
        return torch.arange(n) % len(self)

    def index(self, label: int | str) -> int:
        """The number of a class that is given by its name or its number; -1 for none."""
        if isinstance(label, str) and label in self.names:
            return self.names.index(label)
        try:
            number = int(label)
        except ValueError:
            number = len(self)
        if not NO_CLASS <= number < len(self):
            known = ", ".join(self.names[:12]) + (", ..." if len(self) > 12 else "")
            raise UserError(
                f"label={label!r}: expected one of the {len(self)} classes {known}, its number, or -1 for none"
                f"{did_you_mean(label, self.names)}"
            )
        return number

    def name(self, number: int) -> str:
        """The name of a class; "none" for -1."""
        return "none" if number == NO_CLASS else self.names[number]


@dataclass(frozen=True)
class Scaling:
    """The map from a model's numbers to the data's own units, shift + scale x: one pair, or one a place of a vector."""

    shift: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.scale or len(self.shift) != len(self.scale) or not all(one > 0 for one in self.scale):
            raise UserError(f"{len(self.shift)} shifts, {len(self.scale)} scales: expected as many, scales above 0")

    @classmethod
    def of(cls, x: Tensor, present: Tensor | None = None) -> "Scaling":
        """The one that brings numbers to mean 0 and standard deviation 1.

        Of vectors, (n,) or (n, d), each place by itself; of other arrays all numbers alike, so that the directions of
        space stay what they are. present: bool, like x, True where there is data.
        """
        x = x.double()
        rows = x.reshape(len(x), -1) if x.ndim < 3 and present is None else x.reshape(-1, 1)
        if present is not None:
            rows = x[present].reshape(-1, 1)
        mean, std = rows.mean(0), rows.std(0, correction=0)
        # What is the same in all the data, up to the float32 that it is kept in, stays as it is.
        std = torch.where(std > 1e-6 * mean.abs(), std, 1.0)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def to_model(self, x: Tensor) -> Tensor:
        """Numbers as the model has them, from those in the data's own units."""
        shift, scale = self._pair(x)
        return ((x.double() - shift) / scale).to(x.dtype)

    def to_data(self, x: Tensor) -> Tensor:
        """Numbers in the data's own units, from those that the model has."""
        shift, scale = self._pair(x)
        return (x.double() * scale + shift).to(x.dtype)

    def _pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pair = torch.tensor((self.shift, self.scale), dtype=torch.float64, device=x.device)
        return (pair[0], pair[1]) if len(self.scale) > 1 else (pair[0, 0], pair[1, 0])


@dataclass
class ModelInfo:
    """The facts of a model. All are optional, and plain attributes that may be set.

    classes: of a class-conditional model. conditions: others, by name. lengths: of samples that differ in it.
    alphabet: symbols of a text model, one a class of its data. tokenizer: the same for text of any other tokens.
    part_tokenizers: tokenizers of the parts of joint data that are text, by their names. part_classes: names of the
        classes of parts, where they have any.
    scaling: of the numbers that the model was trained on, by part, "" where data are of one kind; samples are in the
        model's units, :meth:`bfn.Model.decode` brings them back.
    columns: of a table, by which the parts of joint data become its rows.
    value_range: lowest and highest value of continuous data; predictions are clipped to it while sampling.
    error_curve: how wrong the prediction is at each time (``bfn.losses.error_curve``).
    maps_to_end: whether the model was distilled (``bfn.distill``): it predicts where the path from a state ends, and
        not the mean of what the state may come from. Further calls by "auto" noise its prediction again.
    spread: how far apart data of numbers lie; part_spreads: the same of the parts of joint data.
    exact: whether the model's predictions are without error.
    calibration: the settings of the solver "auto" over the number of calls, found for this model (``bfn.tuning``).
    tables: solvers tuned to this model, by their number of calls (``bfn.tuning``); the solver "auto" takes them.
    card: where the model comes from and how good it is, free plain values; training stores its settings there.
    """

    classes: Classes | None = None
    alphabet: str | None = None
    tokenizer: Tokenizer | None = None
    part_tokenizers: Mapping[str, Tokenizer] = field(default_factory=dict)
    value_range: tuple[float, float] | None = None
    error_curve: ErrorCurve | None = None
    maps_to_end: bool = False
    spread: Spread | None = None
    part_spreads: Mapping[str, Spread] = field(default_factory=dict)
    exact: bool = False
    calibration: Calibration | None = None
    tables: Mapping[int, Table] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    lengths: Lengths | None = None
    columns: TableColumns | None = None
    part_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scaling: Mapping[str, Scaling] = field(default_factory=dict)

    shares_times: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse facts that cannot be: called when a model is stored or loaded."""
        if self.value_range is not None and not -LARGEST < self.value_range[0] < self.value_range[1] < LARGEST:
            raise UserError(f"value_range {self.value_range}: expected (lowest, highest), such as (-1, 1)")
        if self.alphabet is not None and len(set(self.alphabet)) != len(self.alphabet):
            raise UserError(f"alphabet {self.alphabet!r}: expected each symbol once")
        if self.alphabet is not None and self.tokenizer is not None:
            raise UserError(f"alphabet {self.alphabet!r} beside a tokenizer: a text is cut in one way; leave one out")
        for nfe, table in self.tables.items():
            try:
                table.check()
                if nfe != table.nfe:
                    raise UserError(f"has {table.nfe} rows: expected one a call")
            except UserError as error:
                raise UserError(f"the table for {nfe} calls: {error}") from None

    @property
    def text_tokenizer(self) -> Tokenizer | None:
        """How a text model's classes become text: by its tokenizer or its alphabet; None for any other model."""
        return self.tokenizer if self.alphabet is None else Alphabet(self.alphabet)

    @classmethod
    def of_text(cls, tokenizer: Tokenizer) -> "ModelInfo":
        """The facts of a model of text that is cut so."""
        return cls(alphabet=tokenizer.symbols) if isinstance(tokenizer, Alphabet) else cls(tokenizer=tokenizer)

    def of_part(self, name: str, alone: bool = False) -> "ModelInfo":
        """What a solver may know of one part of joint data, which may be its only one; of data of one kind all."""
        if not name:
            return self
        kind = ModelInfo if alone else PartInfo
        spread = self.part_spreads.get(name)
        return kind(error_curve=self.error_curve, spread=spread, exact=self.exact, columns=self.columns)

    def decode_part(self, name: str, x: Tensor, present: Tensor | None = None) -> Any:
        """A part of samples, "" where they are of one kind: texts, names of classes, or numbers in the data's units."""
        if name in self.part_tokenizers:
            return self.part_tokenizers[name].decode(x, present)
        if name in self.part_classes:
            return np.array(self.part_classes[name])[x.cpu().numpy()]
        return (self.scaling[name].to_data(x) if name in self.scaling else x).cpu().numpy()

    @property
    def trained_on(self) -> Mapping[str, Any]:
        """The data that the model was trained on, as the settings of its training have them: name and options."""
        settings = self.card.get("settings")
        data = settings.get("data") if isinstance(settings, Mapping) else None
        return data if isinstance(data, Mapping) else {}

    def in_turn(self, n: int) -> dict[str, Tensor]:
        """Conditions of n samples as measurements ask for them: classes in turn, others spread over the data's."""
        found = {} if self.classes is None else {"label": self.classes.in_turn(n)}
        for name, one in self.conditions.items():
            k = one.n_examples
            found[name] = one.rows(torch.arange(n) % k if n >= k else torch.arange(n) * k // n) if k else one.null(n)
        return found

    def labels(
        self, label: Label | None, n: int, generator: torch.Generator | None = None, device: torch.device | None = None
    ) -> Tensor | None:
        """The classes of n samples, (n,) int64: those asked for, or drawn by their shares in the data if None.

        None for a model without classes that is asked for none.
        """
        if label is None:
            return None if self.classes is None else self.classes.draw(n, generator, device)
        given: Any = label.tolist() if isinstance(label, Tensor | np.ndarray | np.generic) else label
        values = [given] * n if isinstance(given, int | str) else given
        if not isinstance(values, Sequence) or len(values) != n:
            raise UserError(f"label={_brief(label)}: expected one class for all samples, or one for each of the {n}")
        wrong = next((value for value in values if isinstance(value, bool) or not isinstance(value, int | str)), None)
        if wrong is not None:
            raise UserError(f"label={wrong!r}: expected whole numbers, -1 for none, or names of classes")
        if self.classes is None:
            named = next((value for value in values if isinstance(value, str)), None)
            if named is not None:
                raise UserError(f"label={named!r}: this model has no names of classes; give their numbers")
            return as_tensor("label", values, dtype=torch.int64, device=device)
        return torch.tensor([self.classes.index(value) for value in values], dtype=torch.int64, device=device)


def _brief(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]


class PartInfo(ModelInfo):
    """What a solver may know of one part of joint data, which shares its times with the others."""

    shares_times: ClassVar[bool] = True
