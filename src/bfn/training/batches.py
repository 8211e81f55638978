"""Batches whose order is a function of (seed, step) alone: a run can go on anywhere, on any number of processes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bfn import data
from bfn.data import Images, Records, Text
from bfn.errors import UserError, did_you_mean
from bfn.flows import FLOWS, Flow
from bfn.info import Classes, ModelInfo
from bfn.record_data import (
    COLUMN_OPTIONS,
    columns_of,
    encode_records,
    info_of_records,
    n_values_of,
    record_lengths,
    shape_of_records,
)
from bfn.seeds import derived_generator, derived_seed
from bfn.spread import Spread
from bfn.training.order import grouped_batch, order

__all__ = ["ImageSource", "RecordSource", "Source", "TextSource", "flow_type", "open_source"]

SPREAD_IMAGES = 1000
"""Images that tell the spread of the data."""


@dataclass(frozen=True)
class ImageSource:
    """Images as floats in [-1, 1], or as classes of pixels. labelled: whether the classes of the images go along.

    redrawn: whether pixels are binarised anew each time an image is taken, 1 with probability x / (levels - 1).
    """

    images: Images
    floats: bool
    labelled: bool
    redrawn: bool = False

    @property
    def data_shape(self) -> tuple[int, ...]:
        return self.images.data_shape

    @property
    def n_values(self) -> int:
        """How many values a pixel takes."""
        return 2 if self.redrawn else self.images.levels

    def info(self) -> ModelInfo:
        """What a model of these images knows of them: their classes, the range of their values and their spread."""
        shares, names = self.images.class_shares() if self.labelled else (), self.images.class_names or ()
        if len(names) != len(shares):
            names = tuple(map(str, range(len(shares))))
        classes = Classes(names, shares) if shares else None
        if not self.floats:
            return ModelInfo(classes)
        count = min(SPREAD_IMAGES, len(self.images))
        some = self.images[torch.arange(count) * len(self.images) // max(1, count)]
        spread = Spread.of(some.to_float(), some.labels if self.labelled else None)
        return ModelInfo(classes, value_range=(-1.0, 1.0), spread=spread)

    def take(self, seed: int, start: int, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Samples number start .. start + count of the run with that seed, and their conditions."""
        some = self.images[torch.cat([index for _, index in order(seed, start, count, len(self.images))])]
        if self.redrawn:
            # A generator for each image: what it becomes does not depend on how a batch is cut over processes.
            generators = (derived_generator(seed, "binarise", number) for number in range(start, start + count))
            some = some.binarise_by(torch.stack([torch.rand(self.data_shape, generator=one) for one in generators]))
        return self._encoded(some)

    def first(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The same samples always, for evaluation."""
        some = self.images[: min(count, len(self.images))]
        return self._encoded(some.binarise(0) if self.redrawn else some)

    def _encoded(self, some: Images) -> tuple[Tensor, dict[str, Tensor]]:
        x = some.to_float() if self.floats else some.to_classes()
        return x, {"label": some.labels} if self.labelled and some.labels is not None else {}


@dataclass(frozen=True)
class TextSource:
    """Windows of a text as classes; side by side, from another offset at each time round."""

    text: Text
    length: int

    @property
    def data_shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def n_values(self) -> int:
        """How many symbols there are."""
        return self.text.n_classes

    def info(self) -> ModelInfo:
        """What a model of this text knows of it: the symbols or tokens, in the order of their classes."""
        return ModelInfo.of_text(self.text.tokenizer)

    def take(self, seed: int, start: int, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Samples number start .. start + count of the run with that seed."""
        n = (len(self.text) - self.length) // self.length + 1
        room = len(self.text) - n * self.length
        rows = []
        for epoch, index in order(seed, start, count, max(n - 1, 1)):
            shift = derived_seed(seed, "shift", epoch) % ((self.length if n > 1 else 0) + room + 1)
            rows.append(index * self.length + shift)
        windows = self.text.codes.unfold(0, self.length, 1)[torch.cat(rows)]
        return self.text.classes[windows.long()], {}

    def first(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The same samples always, for evaluation."""
        return self.text.tiles(self.length, min(count, len(self.text) // self.length)), {}


@dataclass(frozen=True, eq=False)
class RecordSource:
    """Records of any columns, numbers scaled; of different lengths, those of a batch are about as long.

    batch: samples of a step's batch. facts: what a model of them knows. shape: of the model's data; that of the records
    if None.
    """

    records: Records
    batch: int
    facts: ModelInfo
    shape: Any = None

    @cached_property
    def data_shape(self) -> Any:
        """Shape of a sample, or of each of its parts."""
        return shape_of_records(self.records) if self.shape is None else self.shape

    @property
    def n_values(self) -> Any:
        """How many values a variable takes, None for numbers; of several parts a mapping."""
        found = n_values_of(self.records)
        return found if isinstance(self.data_shape, Mapping) else next(iter(found.values()))

    @cached_property
    def _lengths(self) -> Tensor | None:
        found = record_lengths(self.records)
        return None if found is None else found[0]

    def info(self) -> ModelInfo:
        """What a model of these records knows of them."""
        return replace(self.facts)

    def take(self, seed: int, start: int, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Samples number start .. start + count of the run with that seed, and their conditions.

        Sequences are as long as the longest of the whole batch that they are of.
        """
        if self._lengths is None:
            index = torch.cat([index for _, index in order(seed, start, count, len(self.records))])
            return encode_records(self.records[index], self.facts, self.data_shape)
        step, first = divmod(start, self.batch)
        whole = grouped_batch(seed, step, self.batch, self._lengths)
        crop = None if isinstance(self.data_shape, Mapping) else int(self._lengths[whole].max())
        return encode_records(self.records[whole[first : first + count]], self.facts, self.data_shape, crop)

    def first(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The same samples always, for evaluation."""
        return encode_records(self.records[: min(count, len(self.records))], self.facts, self.data_shape)


Source = ImageSource | TextSource | RecordSource

OPTIONS: Mapping[type, tuple[str, ...]] = {
    Images: ("levels", "centres", "binarise", "labels"),
    Text: ("length", "tokenizer"),
    Records: (*COLUMN_OPTIONS, "tokenizer"),
}
"""What may be said of data beside their name, by what they are."""


def flow_type(name: str) -> type[Flow]:
    """The flow of that name, of one kind of data."""
    if name not in FLOWS:
        raise UserError(f"flow {name!r}: expected one of {', '.join(FLOWS)}{did_you_mean(name, FLOWS)}")
    return FLOWS[name]


def open_source(
    config: Mapping[str, Any],
    flow: str,
    part: data.Part,
    progress: bool = True,
    batch: int = 64,
    like: Source | None = None,
) -> Source:
    """The data of a run: {"name": a standard set or a path, and options}. flow: its name.

    batch: samples of a step's batch. like: another part of the same data, whose scale records are brought to.
    """
    options = {key: value for key, value in config.items() if key != "name"}
    columns = columns_of(options)
    loaded = data.load(config["name"], part, tokenizer=options.get("tokenizer"), columns=columns, progress=progress)
    known = OPTIONS[type(loaded)]
    foreign = [key for key in options if key not in known]
    if foreign:
        what = type(loaded).__name__.lower()
        raise UserError(f"data.{foreign[0]}: {config['name']} is {what}, which take {', '.join(known)}")
    if isinstance(loaded, Records):
        facts = like.facts if isinstance(like, RecordSource) else info_of_records(loaded)
        source = RecordSource(loaded, batch, facts)
        fitting = (
            "joint" if isinstance(source.data_shape, Mapping)
            else "continuous" if source.n_values is None else "discrete"
        )  # fmt: skip
        if flow != fitting:
            names = ", ".join(loaded.samples)
            raise UserError(f"data {config['name']!r} has samples of {names}: give flow {fitting}, not {flow}")
        return source
    floats = flow_type(flow).has_range
    if isinstance(loaded, Text):
        if floats:
            raise UserError(f"data {config['name']!r} is text: give flow discrete, not {flow}")
        length = int(options.get("length", 256))
        if not 1 <= length <= len(loaded):
            raise UserError(f"data.length={length}: the text's {part} part has {len(loaded)} characters")
        return TextSource(loaded, length)
    labelled = bool(options.get("labels", True)) and loaded.labels is not None
    redrawn = options.get("binarise") == "dynamic"
    images = loaded.prepared({**options, "binarise": False} if redrawn else options)
    return ImageSource(images, floats, labelled, redrawn)
