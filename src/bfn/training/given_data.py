"""Data that are given to ``bfn.fit`` in any form: what batches are taken from, and what they say of themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from bfn import data
from bfn.conditions import Condition, as_values, rows_of
from bfn.data import Columns, Images, RawTable, Records, Text, make_records
from bfn.errors import UserError
from bfn.info import Classes, ModelInfo
from bfn.model import BFN, takes
from bfn.presence import Lengths, pack_present
from bfn.record_data import info_of_records
from bfn.spread import Spread
from bfn.training.batches import ImageSource, RecordSource, TextSource
from bfn.training.order import grouped_batch, order

__all__ = ["GivenSource", "Wishes", "is_placeholder", "open_given"]

LOOKED_AT = 1000
"""Samples of a Dataset that its facts are taken from."""
BESIDE = ("label", "present")
"""What a sample of a Dataset may have beside its parts and conditions."""


@dataclass(frozen=True)
class Wishes:
    """What is given beside the data. batch: samples of a step's batch.

    label, condition, present: values beside tensors; of a table label and condition name its columns.
    """

    batch: int
    label: Any = None
    condition: Any = None
    present: Any = None
    columns: Columns | None = None
    tokenizer: Any = None


@dataclass(frozen=True, eq=False)
class GivenSource:
    """Samples of which the rows of any numbers can be had, packed, with their conditions.

    lengths: of the samples, (n,), where they differ; crops: whether batches are cut to their longest.
    """

    n: int
    rows: Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]
    batch: int
    facts: ModelInfo = field(default_factory=ModelInfo)
    lengths: Tensor | None = None
    crops: bool = False

    def info(self) -> ModelInfo:
        """What the data say of themselves."""
        return self.facts

    def take(self, seed: int, start: int, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Samples number start .. start + count of the run with that seed, and their conditions."""
        if self.lengths is None:
            return self.rows(torch.cat([index for _, index in order(seed, start, count, self.n)]))
        step, first = divmod(start, self.batch)
        whole = grouped_batch(seed, step, self.batch, self.lengths)
        x, conditions = self.rows(whole[first : first + count])
        if not self.crops:
            return x, conditions
        longest = int(self.lengths[whole].max())
        return x[:, :longest], {**conditions, "present": conditions["present"][:, :longest]}

    def first(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The same samples always."""
        return self.rows(torch.arange(min(count, self.n)))


Given = GivenSource | ImageSource | TextSource | RecordSource


def open_given(model: BFN, given: Any, wishes: Wishes) -> Given:
    """Batches of what is given: a tensor, array, mapping of parts, Dataset, DataFrame, records or a path."""
    if isinstance(given, str | Path):
        columns = wishes.columns or _columns(model, wishes)
        tokenizer = wishes.tokenizer or model.info.text_tokenizer
        given = data.load(given, "train", tokenizer=tokenizer, columns=columns)
    if isinstance(given, Images):
        n_values = model.flow.n_values
        labelled = given.labels is not None and takes(model.network, "label")
        return ImageSource(given.for_model(n_values, model.info.trained_on), n_values is None, labelled)
    if isinstance(given, Text):
        return TextSource(given, model.data_shape[0])
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(given, pandas.DataFrame):
        given = _frame(model, given, wishes)
    if isinstance(given, Records):
        facts = info_of_records(given)
        facts = replace(facts, scaling=model.info.scaling) if model.info.scaling else facts
        source = RecordSource(given, wishes.batch, facts, model.data_shape)
        source.first(1)  # records that do not fit the model are refused before anything is learned of them
        return source
    if isinstance(given, Dataset):
        return _dataset(model, given, wishes)
    return _tensors(model, given, wishes)


def is_placeholder(classes: Classes | None) -> bool:
    """Whether classes are none, or what a network alone says of them: that there are some, equally frequent."""
    return classes is None or classes == Classes.equal(len(classes))


def _names(what: str, given: Any) -> tuple[str, ...]:
    """The columns of a table that are named for something."""
    names = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{what} of type {type(given).__name__}: of a table expected the names of its columns")
    return names


def _columns(model: BFN, wishes: Wishes) -> Columns | None:
    """What the columns of a table are for, where the model or the wishes say it."""
    if wishes.label is not None and not isinstance(wishes.label, str):
        raise UserError(f"label of type {type(wishes.label).__name__}: of a table expected the name of its column")
    if not isinstance(model.data_shape, Mapping):
        return None
    texts = tuple(model.info.part_tokenizers)
    parts = tuple(name for name in model.data_shape if name not in texts)
    return Columns(texts, parts, wishes.label, _names("condition", wishes.condition))


def _frame(model: BFN, frame: Any, wishes: Wishes) -> Records:
    table = RawTable.from_frame(frame)
    columns = wishes.columns or _columns(model, wishes)
    if columns is None:
        beside = (*_names("label", wishes.label), *_names("condition", wishes.condition))
        samples = [name for name in table.columns if name not in beside]
        arrays = [np.asarray(table.columns[name]) for name in samples]
        if len(samples) > 1 and all(array.ndim == 1 and array.dtype.kind == "f" for array in arrays):
            # Columns of numbers are one vector to a model of vectors.
            kept = {name: values for name, values in table.columns.items() if name in beside}
            table = replace(table, columns={"x": np.stack(arrays, 1), **kept})
            samples = ["x"]
        text = len(samples) == 1 and model.form == "text"
        role = {"sequence" if text else "parts": tuple(samples)}
        columns = Columns(**role, label=wishes.label, conditions=_names("condition", wishes.condition))
    return make_records(table, columns, wishes.tokenizer or model.info.text_tokenizer)


def _tensors(model: BFN, given: Any, wishes: Wishes) -> GivenSource:
    x = model.as_data(given).detach().cpu()
    if not len(x):
        raise UserError("no data: expected at least 1 sample")
    conditions, facts = _conditions(model, wishes.label, wishes.condition, len(x))
    crops, lengths = False, None
    if wishes.present is not None:
        shape = model.flow.shape_of(x, model.data_shape)
        conditions["present"] = there = pack_present(model.flow, wishes.present, shape, len(x), torch.device("cpu"))
        facts.lengths = _lengths(model, there)
        if facts.lengths is not None and not isinstance(model.data_shape, Mapping):
            crops, lengths = True, there.reshape(len(x), x.shape[1], -1).any(2).sum(1)
    facts.value_range = _range(model, x, conditions.get("present"))
    if "present" not in conditions:
        label = conditions.get("label")
        numbers = {name: own for name, own in model.flow.split(x).items() if model.flow.parts[name].has_range}
        spreads = {name: found for name, own in numbers.items() if (found := Spread.of(own, label)) is not None}
        facts.spread, facts.part_spreads = spreads.pop("", None), spreads
    rows = lambda index: (x[index], rows_of(conditions, index))  # noqa: E731
    return GivenSource(len(x), rows, wishes.batch, facts, lengths, crops)


def _conditions(model: BFN, label: Any, condition: Any, n: int) -> tuple[dict[str, Tensor], ModelInfo]:
    """Values beside tensors, and what they say."""
    found, facts = {}, ModelInfo()
    if label is not None:
        values = label.tolist() if isinstance(label, Tensor | np.ndarray) else list(label)
        if any(isinstance(value, str) for value in values):
            known = None if is_placeholder(model.info.classes) else model.info.classes
            names = tuple(sorted(set(map(str, values)))) if known is None else known.names
            facts.classes = Classes(names, (1 / len(names),) * len(names))
            values = [facts.classes.index(value) for value in values]
        found["label"] = torch.as_tensor(values)
        if found["label"].is_floating_point() or tuple(found["label"].shape) != (n,):
            raise UserError(f"label of shape {tuple(found['label'].shape)}: expected a class each of the {n} samples")
        facts.classes = _classes(model, found["label"], facts.classes)
    if condition is not None and not isinstance(condition, Mapping):
        raise UserError(f"condition of type {type(condition).__name__}: expected values by name, " + '{"gap": tensor}')
    for name, value in (condition or {}).items():
        found[name] = as_values(name, value, n).cpu()
        facts.conditions = {**facts.conditions, name: Condition.of(found[name])}
    return found, facts


def _classes(model: BFN, label: Tensor, named: Classes | None) -> Classes:
    """The classes by their shares in the data; those that a network knows beyond them have none."""
    known = label[label >= 0]
    if not len(known):
        raise UserError("label: all are -1, no class: expected classes from 0; leave label out")
    own = named or model.info.classes
    n = max(int(known.max()) + 1, len(own or ()))
    counts = torch.bincount(known, minlength=n).double()
    names = own.names if own is not None and len(own) == n else tuple(map(str, range(n)))
    return Classes(names, tuple((counts / counts.sum()).tolist()))


def _lengths(model: BFN, present: Tensor) -> Lengths | None:
    """The lengths of samples, where what is present of each comes first and then padding."""
    masks = {name: own for name, own in model.flow.split(present).items() if not bool(own.all())}
    counts: dict[str, Tensor] = {}
    for name, mask in masks.items():
        along = mask.reshape(len(mask), mask.shape[1], -1).any(2)
        counts[name] = along.sum(1)
        if not torch.equal(along, torch.arange(along.shape[1]) < counts[name][:, None]):
            return None
    if not counts or any(not torch.equal(own, next(iter(counts.values()))) for own in counts.values()):
        return None
    return Lengths.of(next(iter(counts.values())), tuple(counts))


def _range(model: BFN, x: Tensor, present: Tensor | None) -> tuple[float, float] | None:
    if not model.flow.has_range:
        return None
    values = x if present is None else x[present]
    low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else None


def _dataset(model: BFN, given: Dataset[Any], wishes: Wishes) -> GivenSource:
    """A Dataset of tensors, of (x, label) pairs or of mappings; samples are read when they are taken."""
    try:
        n = len(given)  # type: ignore[arg-type]
    except TypeError:
        raise UserError("a Dataset without a length: expected one whose samples can be numbered") from None
    if any(value is not None for value in (wishes.label, wishes.condition, wishes.present)):
        raise UserError("label, condition or present beside a Dataset: expected them in its samples")

    def batch(index: Sequence[int]) -> tuple[Any, Any, dict[str, Any], Any]:
        return _sorted_out(model, default_collate([given[i] for i in index]))

    def rows(index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x, label, condition, present = batch(index.tolist())
        return model.as_batch(x, label, condition, present)

    seen = [i * n // min(n, LOOKED_AT) for i in range(min(n, LOOKED_AT))]
    if not seen:
        raise UserError("no data: expected at least 1 sample")
    x, label, condition, present = batch(seen)
    facts = _tensors(model, x, replace(wishes, label=label, condition=condition or None, present=present)).facts
    return GivenSource(n, rows, wishes.batch, facts)


def _sorted_out(model: BFN, item: Any) -> tuple[Any, Any, dict[str, Any], Any]:
    """x, label, conditions and present of a batch of a Dataset's samples."""
    if isinstance(item, list | tuple):
        if not 1 <= len(item) <= 2:
            raise UserError(f"a Dataset of {len(item)} things a sample: expected x, (x, label) or a mapping with names")
        return item[0], item[1] if len(item) > 1 else None, {}, None
    if not isinstance(item, Mapping):
        return item, None, {}, None
    parts = tuple(model.data_shape) if isinstance(model.data_shape, Mapping) else ("x",)
    missing = next((name for name in parts if name not in item), None)
    if missing is not None:
        raise UserError(f"samples of {', '.join(item)}: expected {missing!r} among them")
    x = {name: item[name] for name in parts} if isinstance(model.data_shape, Mapping) else item["x"]
    condition = {name: value for name, value in item.items() if name not in (*parts, *BESIDE)}
    return x, item.get("label"), condition, item.get("present")
