"""Records in the form that a model takes: packed data with conditions, and what a model of them knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from bfn.conditions import Condition
from bfn.data import SOURCES, Categories, Column, Columns, Numbers, Records, Sequences
from bfn.errors import UserError, did_you_mean
from bfn.flows import Shape
from bfn.info import Classes, ModelInfo, Scaling
from bfn.presence import Lengths
from bfn.spread import Spread

__all__ = [
    "COLUMN_OPTIONS", "columns_of", "encode_records", "info_of_records", "n_values_of", "record_lengths",
    "shape_of_records",
]  # fmt: skip

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
