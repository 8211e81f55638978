"""Pictures as whole numbers.

A picture set is kept as it is stored, ``uint8`` in ``0 .. levels - 1``, and turned into floats or classes a batch at a
time, so a set takes a quarter of the memory of its floats and an array on disk can stay there behind a memory map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.errors import UserError

__all__ = ["Images", "concatenate", "from_array"]

_MOST_CLASSES = 1_000_000  # labels are counted: one of 10^12 would ask for as many counters


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures of one size, with or without classes.

    Args:
        x: Pixels, ``uint8`` in ``0 .. levels - 1``, shape (n, channel, height, width).
        labels: Class of each picture, ``int64``, shape (n,), or None.
        levels: How many values a pixel can take: 256 as stored in files, 2 when binarised, 17 for the 8x8 digits.
        class_names: Names of the classes in the order of their numbers, or None where the source has no names.
        centres: Whether a level stands, as a float, for the centre of its bin, the levels being equal bins of [-1, 1];
            else they reach from -1 to 1.
        note: What a user should know of this version of the set, such as a division that is not the usual one.
    """

    x: Tensor
    labels: Tensor | None = None
    levels: int = 256
    class_names: tuple[str, ...] | None = None
    centres: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.x.dtype != torch.uint8 or self.x.ndim != 4:
            raise UserError(
                f"images of dtype {self.x.dtype} and shape {tuple(self.x.shape)}: "
                "expected torch.uint8 of shape (n, channel, height, width)"
            )
        if not 2 <= self.levels <= 256:
            raise UserError(f"levels={self.levels}: a pixel has 2 to 256 levels")
        if self.labels is not None and (self.labels.dtype != torch.int64 or self.labels.shape != self.x.shape[:1]):
            raise UserError(
                f"labels of dtype {self.labels.dtype} and shape {tuple(self.labels.shape)}: "
                f"expected torch.int64 of shape ({len(self.x)},), one for each image"
            )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: slice | Tensor) -> Images:
        """The pictures at ``index`` (a slice, or int64 positions), with their labels."""
        return replace(self, x=self.x[index], labels=None if self.labels is None else self.labels[index])

    @property
    def data_shape(self) -> tuple[int, int, int]:
        """Shape of one picture: (channel, height, width)."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    @property
    def n_classes(self) -> int:
        """How many classes the labels name; 0 without labels."""
        if self.labels is None or not len(self):
            return 0
        return max(len(self.class_names or ()), int(self.labels.max()) + 1)

    def class_shares(self) -> tuple[float, ...]:
        """The share of the pictures that each class has, in the order of their numbers; empty without labels."""
        if self.labels is None or not len(self):
            return ()
        counts = torch.bincount(self.labels, minlength=self.n_classes)
        return tuple((counts.double() / len(self)).tolist())

    def to_float(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Pixels in [-1, 1]: ``2 x / (levels - 1) - 1``, at centres ``(2 x + 1) / levels - 1``, shaped like x."""
        x = self.x.to(dtype)
        return x.mul_(2).add_(1).div_(self.levels).sub_(1) if self.centres else x.mul_(2 / (self.levels - 1)).sub_(1)

    def to_classes(self) -> Tensor:
        """Pixels as int64 classes ``0 .. levels - 1``, shape (n, channel, height, width)."""
        return self.x.long()

    def binarise(self, seed: int | None = None) -> Images:
        """The same pictures in black and white (``levels = 2``).

        Without a seed a pixel becomes 1 in the upper half of its levels. With one, it becomes 1 with probability
        ``x / (levels - 1)``, drawn once and for all: the static binarisation of Salakhutdinov & Murray (2008).
        """
        if seed is None:
            return self._pixelwise(lambda x: x >= (self.levels + 1) // 2, 2)
        generator = torch.Generator().manual_seed(seed)
        return self._pixelwise(lambda x: torch.rand(x.shape, generator=generator) * (self.levels - 1) < x, 2)

    def binarise_by(self, uniform: Tensor) -> Images:
        """Black and white by given numbers, uniform in [0, 1), shaped like x: 1 where ``uniform (levels - 1) < x``."""
        if uniform.shape != self.x.shape:
            raise UserError(f"uniform of shape {tuple(uniform.shape)}: expected that of x, {tuple(self.x.shape)}")
        return replace(self, x=(uniform * (self.levels - 1) < self.x).to(torch.uint8), levels=2)

    def rebin(self, levels: int) -> Images:
        """Fewer levels: ``x levels // self.levels``, so 256 levels in 16 are cut into 16 runs of 16."""
        if not 2 <= levels <= self.levels:
            raise UserError(f"levels={levels}: expected 2 to {self.levels}, which the images have")
        return self if levels == self.levels else self._pixelwise(lambda x: x.int() * levels // self.levels, levels)

    def prepared(self, options: Mapping[str, Any]) -> Images:
        """The pictures with the ``levels``, ``binarise`` and ``centres`` of a training run's data settings.

        ``binarise: dynamic``, which is for drawing anew at each use, is the static binarisation of seed 0 here.
        """
        levels, binarise = options.get("levels"), options.get("binarise", False)
        images = self if levels is None else self.rebin(int(levels))
        if isinstance(binarise, str):
            if binarise != "dynamic":
                raise UserError(f"binarise={binarise!r}: expected true, false, a seed, or 'dynamic'")
            binarise = 0
        if binarise is not False:
            images = images.binarise(None if binarise is True else int(binarise))
        return replace(images, centres=bool(options.get("centres", False)))

    def for_model(self, n_classes: int | None, settings: Mapping[str, Any]) -> Images:
        """The pictures as a model takes them.

        They have the ``levels``, ``binarise`` and ``centres`` of the data settings that the model was trained with.
        Where these say nothing and the model knows two values a pixel, pictures of more are binarised at the middle.

        Args:
            n_classes: How many values a pixel takes in the model; None where its pixels are continuous.
            settings: The data settings of the model's training; empty where they are not known.
        """
        binary = n_classes == 2 and self.levels > 2
        return self.prepared({"binarise": True, **settings} if binary else settings)

    def _pixelwise(self, change: Callable[[Tensor], Tensor], levels: int) -> Images:
        """Other pixels of that many levels; in pieces, for a change takes several times the memory of its pixels."""
        x = torch.empty_like(self.x)
        for some, changed in zip(torch.split(self.x, 4096), torch.split(x, 4096), strict=True):
            changed.copy_(change(some))
        return replace(self, x=x, levels=levels)

    def split(self, held_out: float | int = 0.05, seed: int = 0) -> tuple[Images, Images]:
        """A fixed random division into (the rest, held out); ``held_out`` is a share or a number of pictures."""
        n = round(held_out * len(self)) if isinstance(held_out, float) else held_out
        if not 0 < n < len(self):
            raise UserError(f"held_out={held_out}: of {len(self)} images at least 1 must be on each side")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self[order[n:].sort().values], self[order[:n].sort().values]


def concatenate(first: Images, second: Images) -> Images:
    """Two sets of one kind as one: the same size, levels and classes."""
    kinds = [(i.data_shape, i.levels, i.class_names, i.labels is None) for i in (first, second)]
    if kinds[0] != kinds[1]:
        raise UserError(f"{kinds[0]} and {kinds[1]} (shape, levels, classes, no labels): images of two kinds")
    labels = [images.labels for images in (first, second) if images.labels is not None]
    return replace(first, x=torch.cat([first.x, second.x]), labels=torch.cat(labels) if labels else None)


def from_array(array: NDArray[Any], labels: NDArray[Any] | None = None, name: str = "array") -> Images:
    """Images from whole numbers in 0..255 (or booleans, as 2 levels).

    Shapes: (n, height, width), (n, channel, height, width) or (n, height, width, channel), with 1 or 3 channels.
    labels: numbers of classes, or their names.
    """
    levels = 2 if array.dtype == np.bool_ else 256
    wide = array.dtype.itemsize > 1 or array.dtype == np.int8
    if array.dtype.kind not in "biu" or (wide and array.size and (array.min() < 0 or array.max() > 255)):
        raise UserError(
            f"{name}: pixels of type {array.dtype} are not whole numbers in 0..255: "
            "save them as uint8, for example (255 * x).round().astype('uint8') for x in [0, 1]"
        )
    array = array.astype(np.uint8, copy=False)
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise UserError(
            f"{name}: shape {array.shape} is not one of images: expected (n, height, width), "
            "(n, channel, height, width) or (n, height, width, channel) with 1 or 3 channels"
        )
    names = None
    if labels is not None and labels.dtype.kind == "U" and labels.ndim == 1:
        found, labels = np.unique(labels, return_inverse=True)
        names = tuple(map(str, found))
    if labels is not None and (
        labels.shape != array.shape[:1]
        or labels.dtype.kind not in "iu"
        or labels.min() < 0
        or labels.max() >= _MOST_CLASSES
    ):
        raise UserError(
            f"{name}: labels of type {labels.dtype} and shape {labels.shape}: "
            f"expected {len(array)} names, or whole numbers from 0 up, below {_MOST_CLASSES:,}, one for each image"
        )
    x = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return Images(x, None if labels is None else torch.from_numpy(labels.astype(np.int64)), levels, names)
