"""Batches whose order is a function of (seed, step) alone: a run can go on anywhere, on any number of processes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bfn import data
from bfn.data import Images, Records, Text
from bfn.errors import UserError, did_you_mean
from bfn.flows import FLOWS, Flow
from bfn.info import Classes, ModelInfo
from bfn.spread import Spread

__all__ = [
    "ImageSource", "Source", "TextSource", "derived_generator", "derived_seed", "flow_type", "open_source", "order",
]  # fmt: skip


SPREAD_IMAGES = 1000
"""Images that tell the spread of the data."""


def derived_seed(*parts: int | str) -> int:
    """A 64-bit seed from a few numbers and words; nearby ones give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def derived_generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by :func:`derived_seed`."""
    return torch.Generator(device).manual_seed(derived_seed(*parts))


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, n: int) -> Tensor:
    return torch.randperm(n, generator=derived_generator(seed, "order", epoch))


def order(seed: int, start: int, count: int, n: int) -> list[tuple[int, Tensor]]:
    """Items number start .. start + count of an endless run through n items, newly shuffled each time round.

    As (epoch, item numbers): more than one pair where the stretch crosses the end of an epoch.
    """
    pieces = []
    while count > 0:
        epoch, first = divmod(start, n)
        piece = _permutation(seed, epoch, n)[first : first + count]
        pieces.append((epoch, piece))
        start, count = start + len(piece), count - len(piece)
    return pieces


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


Source = ImageSource | TextSource


def flow_type(name: str) -> type[Flow]:
    """The flow of that name."""
    if name not in FLOWS:
        raise UserError(f"flow {name!r}: expected one of {', '.join(FLOWS)}{did_you_mean(name, FLOWS)}")
    return FLOWS[name]


def open_source(config: Mapping[str, Any], flow: str, part: data.Part, progress: bool = True) -> Source:
    """The data of a run: {"name": a standard set or a path, and options of a text or of images}. flow: its name."""
    floats = flow_type(flow).has_range
    options = {key: value for key, value in config.items() if key != "name"}
    loaded = data.load(config["name"], part, progress=progress)
    if isinstance(loaded, Records):
        raise UserError(f"data {config['name']!r} holds records: runs are trained on images or on a text")
    known = ("length",) if isinstance(loaded, Text) else ("levels", "centres", "binarise", "labels")
    foreign = [key for key in options if key not in known]
    if foreign:
        what = "text" if isinstance(loaded, Text) else "images"
        raise UserError(f"data.{foreign[0]}: {config['name']} is {what}, which take {', '.join(known)}")
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
