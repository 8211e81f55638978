"""Records in the form that a model takes: packed data with conditions, and what a model of them knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bfn import data
from bfn._utils.progress import Shown
from bfn.core.codec import Scaling
from bfn.core.conditions import Classes, Condition, Lengths, rows_of
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Shape
from bfn.core.info import ModelInfo, Spread
from bfn.data.images import Images
from bfn.data.loading import Part, from_card
from bfn.data.records import Categories, Column, Columns, Numbers, Records, Sequences
from bfn.data.sources import SOURCES
from bfn.data.text import Text

if TYPE_CHECKING:
    from bfn.core.model import Model


COLUMN_OPTIONS = tuple(field.name for field in fields(Columns))
"""The options of a run's data that say what its columns are for."""


def columns_of(options: Mapping[str, Any]) -> Columns | None:
    """What the columns of a file are for, by the options of a run's data; None where they say nothing of it.

    Options that name a standard set and nothing else mean the columns that the set has.
    """
    named = {name: options[name] for name in COLUMN_OPTIONS if options.get(name)}
    own = SOURCES.get(str(options.get("name")))
    return Columns(**named) if named else None if own is None else own.columns


def record_lengths(records: Records) -> tuple[Tensor, tuple[str, ...]] | None:
    """The lengths of the records, (n,), and the parts that have them; None where all are as long as the longest."""
    found: dict[str, Tensor] = {}
    longest = 0
    for name, column in records.samples.items():
        if isinstance(column, Sequences):
            found[name], longest = column.lengths, max(longest, column.longest)
        elif records.present is not None and column.values.ndim > 1:
            found[name], longest = records.present.sum(1), max(longest, records.present.shape[1])
            if not torch.equal(records.present, torch.arange(longest) < found[name][:, None]):
                raise UserError(f"{records.source}: present has gaps: expected what is there first, then padding")
    if not found:
        return None
    (first, lengths), *others = found.items()
    for name, own in others:
        if not torch.equal(own, lengths):
            raise UserError(
                f"{records.source}: the lengths of {first} and {name} differ: expected one length a record; "
                "make one of them a model of its own"
            )
    return (lengths, tuple(found)) if bool((lengths < longest).any()) else None


def shape_of_records(records: Records) -> Shape | dict[str, Shape]:
    """The shape of a sample, of several columns a mapping of shapes. A sample of one number is a vector of it."""
    shapes = {name: _shape(column) for name, column in records.samples.items()}
    return shapes if len(shapes) > 1 else next(iter(shapes.values())) or (1,)


def _shape(column: Column) -> Shape:
    return (column.longest,) if isinstance(column, Sequences) else tuple(column.values.shape[1:])


def n_values_of(records: Records) -> dict[str, int | None]:
    """How many values a variable of each part can take; None for numbers."""
    return {name: None if isinstance(own, Numbers) else own.n_classes for name, own in records.samples.items()}


def info_of_records(records: Records) -> ModelInfo:
    """What a model of these records knows of them: tokens, classes, conditions, lengths, scale and range."""
    samples, lengths = records.samples, record_lengths(records)
    joint = len(samples) > 1
    texts = {name: own.tokenizer for name, own in samples.items() if isinstance(own, Sequences)}
    info = ModelInfo() if joint or not texts else ModelInfo(text_tokenizer=next(iter(texts.values())))
    info.part_tokenizers = texts if joint else {}
    named = {name: own.names for name, own in samples.items() if isinstance(own, Categories) and _has_names(own)}
    info.part_classes = named if joint else dict.fromkeys(("",) if named else (), next(iter(named.values()), ()))
    if records.label is not None:
        info.classes = Classes(records.label.names, records.label.shares())
    info.conditions = {
        name: Condition.of(own.values, own.names if isinstance(own, Categories) else ())
        for name, own in records.conditions.items()
    }
    if lengths is not None:
        info.lengths = Lengths.of(lengths[0], lengths[1] if joint else ("",))
    _, present = records.padded()
    there = {name: None if bool(mask.all()) else mask for name, mask in present.items()}
    info.scaling = {
        name if joint else "": Scaling.of(own.values, there[name])
        for name, own in samples.items()
        if isinstance(own, Numbers)
    }
    label = None if records.label is None else records.label.values
    spreads: dict[str, Spread] = {}
    for name, own in samples.items():
        part = name if joint else ""
        if isinstance(own, Numbers):
            values = info.scaling[part].to_model(own.values)
            spread = Spread.of(values, label) if there[name] is None else None
            spreads |= {} if spread is None else {part: spread}
            low, high = (values if there[name] is None else values[there[name]]).aminmax()
            info.value_range = (float(low), float(high)) if low < high and not joint else None
    info.spread, info.part_spreads = spreads.pop("", None), spreads
    return info


def _has_names(column: Categories) -> bool:
    return column.names != tuple(map(str, range(column.n_classes)))


def encode_records(
    records: Records, info: ModelInfo, shape: Any, crop: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Records packed as the model of that info and data shape takes them, and their conditions, ``present`` among them.

    crop: length of the sequences, where data are of one kind; that of the model's longest if None.
    """
    joint = isinstance(shape, Mapping)
    columns = records.samples
    if set(columns) != set(shape) if joint else len(columns) != 1:
        expected = f"the parts {', '.join(shape)}" if joint else f"one column, of shape {shape}"
        raise UserError(f"{records.source}: samples of {', '.join(columns)}: expected {expected}")
    x, present = {}, {}
    for name in shape if joint else columns:
        part = name if joint else ""
        side = tuple(shape[name] if joint else shape)
        x[part], present[part] = _encoded(records, name, info, part, side, crop)
    conditions = _conditions(records, info)
    if info.lengths is not None:
        conditions["present"] = _packed(present) if joint else present[""]
    elif not all(bool(mask.all()) for mask in present.values()):
        raise UserError(f"{records.source}: records of different lengths: the model's are all of shape {shape}")
    return (_packed(x) if joint else x[""]), conditions


def _encoded(
    records: Records, name: str, info: ModelInfo, part: str, shape: Shape, crop: int | None
) -> tuple[Tensor, Tensor]:
    """One part: values in the model's units and where they are present, both (n, *shape)."""
    column = records.samples[name]
    known = info.part_tokenizers.get(part, info.text_tokenizer)
    if isinstance(column, Sequences):
        if known is not None and known.pieces != column.tokenizer.pieces:
            raise UserError(f"{records.source}: {name}: other tokens than the model's: give its own tokenizer")
        if len(column) and int(column.lengths.max()) > shape[0]:
            number = int(column.lengths.argmax())
            (text,) = column[number : number + 1].texts()
            raise UserError(
                f"{records.source}: {name} {text[:60]!r} has {int(column.lengths[number])} "
                f"{column.tokenizer.unit}: the model's longest is {shape[0]}"
            )
        return column.padded(shape[0] if crop is None else crop)
    single = column.values.ndim == 1 and math.prod(shape) == 1
    values = column.values.reshape(len(column), *shape) if single else column.values
    if tuple(values.shape[1:]) != shape:
        raise UserError(f"{records.source}: {name} of shape {tuple(values.shape[1:])}: the model's data are {shape}")
    there = torch.ones(values.shape, dtype=torch.bool)
    if records.present is not None and values.ndim > 1:
        there = records.present.reshape(*records.present.shape, *[1] * (values.ndim - 2)).expand(values.shape)
    if part in info.scaling:
        values = info.scaling[part].to_model(values)
    elif isinstance(column, Categories) and part in info.part_classes:
        values = _renumbered(values, column.names, info.part_classes[part], name)
    values = values.masked_fill(~there, 0)
    return (values, there) if crop is None else (values[:, :crop], there[:, :crop])


def _conditions(records: Records, info: ModelInfo) -> dict[str, Tensor]:
    """Label and conditions, as far as the model knows them and the records have them."""
    found = {}
    if records.label is not None and info.classes is not None:
        found["label"] = _renumbered(records.label.values, records.label.names, info.classes.names, "label")
    for name, own in records.conditions.items():
        known = info.conditions.get(name)
        if known is None:
            continue
        if isinstance(own, Categories):
            found[name] = _renumbered(own.values, own.names, known.names or own.names, name)
        else:
            found[name] = own.values
    return found


def _renumbered(values: Tensor, names: tuple[str, ...], known: tuple[str, ...], what: str) -> Tensor:
    """Classes by the numbers that the model has them under."""
    if names == known[: len(names)]:
        return values
    foreign = next((name for name in names if name not in known), None)
    if foreign is not None:
        raise UserError(f"{what} {foreign!r}: the model knows {', '.join(known[:12])}{did_you_mean(foreign, known)}")
    return torch.tensor([known.index(name) for name in names])[values]


def _packed(parts: Mapping[str, Tensor]) -> Tensor:
    """Parts side by side, (n, numbers of a sample)."""
    flat = [part.reshape(len(part), -1) for part in parts.values()]
    return torch.cat([one if one.dtype is torch.bool else one.to(torch.get_default_dtype()) for one in flat], 1)


ImagePart = Literal["top", "bottom", "left", "right", "border"]
"""A part of an image that may be known: a half of it, or all but its middle."""


@dataclass(frozen=True, eq=False)
class ModelData:
    """Data as a model takes them, (n, *data_shape), parts packed, and where they come from.

    label: (n,), the classes of the data where the model knows classes and the data say them.
    condition: the others by name, in the same way. present: where there is data, of different lengths.
    """

    x: Tensor
    label: Tensor | None
    source: str
    part: Part
    condition: Mapping[str, Tensor] = field(default_factory=dict)
    present: Tensor | None = None

    def split(self, n: int) -> tuple[ModelData, ModelData]:
        """The first n samples, and the others."""
        return self._rows(slice(n)), self._rows(slice(n, None))

    def _rows(self, rows: slice) -> ModelData:
        label, present = (None if one is None else one[rows] for one in (self.label, self.present))
        return replace(self, x=self.x[rows], label=label, condition=rows_of(self.condition, rows), present=present)

    def given(self, model: Model) -> dict[str, Any]:
        """The arguments ``label``, ``condition`` and ``present`` of likelihoods and losses."""
        there = None if self.present is None else model.flow.unpack(self.present)
        return {"label": self.label, "condition": self.condition, "present": there}


def read_model_data(
    model: Model,
    source: str | Path | None = None,
    part: Part = "test",
    n: int | None = None,
    *,
    seed: int | None = 0,
    progress: Shown = False,
) -> ModelData:
    """A part of a standard set or of a file, in the form that a model takes.

    source: as ``bfn.data.loading.load`` takes it; the set that the model was trained on, which is not downloaded unasked, if
    None. n: how many samples, at most; images are chosen at random by the seed, without one evenly as pieces of a text.
    """
    name = _own_source(model) if source is None else str(source)
    tokenizers = [own for own in (model.info.text_tokenizer, *model.info.part_tokenizers.values()) if own is not None]
    everything = data.load(
        name, part, tokenizer=tokenizers[0] if len(tokenizers) == 1 else None,
        columns=columns_of(model.info.trained_on), progress=progress,
    )  # fmt: skip
    if isinstance(everything, Text):
        if model.form != "text":
            raise UserError(f"{name}: is text, and the model is one of {model.form}")
        length = model.data_shape[0]
        count = len(everything) // length
        return ModelData(everything.tiles(length, count if n is None else min(n, count)), None, name, part)
    if isinstance(everything, Records):
        return _of_records(model, everything[: len(everything) if n is None else n], name, part)
    if model.form != "images" or everything.data_shape != model.data_shape:
        raise UserError(f"{name}: images of shape {everything.data_shape}, and the model's data are {model.data_shape}")
    count = len(everything) if n is None else min(n, len(everything))
    rows = torch.arange(count) * len(everything) // count
    if seed is not None:
        rows = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))[:count]
    some = everything[rows]
    return ModelData(as_model_data(model, some), some.labels if model.info.classes else None, name, part)


def _of_records(model: Model, records: Records, name: str, part: Part) -> ModelData:
    x, conditions = encode_records(records, model.info, model.data_shape)
    given = {key: conditions.pop(key, None) for key in ("label", "present")}
    return ModelData(x, given["label"], name, part, conditions, given["present"])


def as_model_data(model: Model, images: Images) -> Tensor:
    """Images with the levels that the model was trained on, as floats or as classes of pixels."""
    n_values = model.flow.n_values
    images = images.for_model(n_values, model.info.trained_on)
    return images.to_float() if n_values is None else images.to_classes()


def known_text(model: Model, prompt: str, unknown: str = "_") -> dict[str, Tensor]:
    """The arguments ``known`` and ``known_mask`` of ``bfn.sample`` for texts with these tokens.

    The prompt stands at the beginning of the text; ``unknown`` is the sign for a token to fill in.
    """
    tokenizer = model.info.text_tokenizer
    if tokenizer is None:
        raise UserError(f"prompt {prompt!r}: the model is one of {model.form}, not of text; leave it out")
    known, mask = tokenizer.encode_prompt(prompt, model.data_shape[0], unknown)
    return {"known": known, "known_mask": mask}


def known_part(model: Model, images: Tensor, part: ImagePart) -> dict[str, Tensor]:
    """The arguments ``known`` and ``known_mask`` of ``bfn.sample`` for samples that share a part with images."""
    if model.form != "images":
        raise UserError(f"a known part of images: the model is one of {model.form}, not of images; leave it out")
    return {"known": images, "known_mask": _image_mask(part, model.data_shape)}


def _own_source(model: Model) -> str:
    """The name of the set that the model was trained on, which must be here."""
    name = from_card(model.info.trained_on.get("name"))
    if name in data.names() and not data.is_at_hand(name):
        raise UserError(f"{name} is not in the cache: run bfn data fetch {name}, or give other data")
    return name


def _image_mask(part: ImagePart, data_shape: Shape) -> Tensor:
    """The ``known_mask`` for which that part of an image (channel, height, width) is known."""
    _, height, width = data_shape
    known = torch.zeros(data_shape, dtype=torch.bool)
    parts = {
        "top": known[:, : height // 2],
        "bottom": known[:, height // 2 :],
        "left": known[:, :, : width // 2],
        "right": known[:, :, width // 2 :],
        "border": known,
    }
    if part not in parts:
        raise UserError(f"part={part!r}: expected one of {', '.join(parts)}")
    parts[part].fill_(True)
    if part == "border":
        known[:, height // 4 : height - height // 4, width // 4 : width - width // 4] = False
    return known
