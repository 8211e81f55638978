"""Pictures as whole numbers: one frozen value, and readers for the formats they come in.

A picture set is kept as it is stored, ``uint8`` in ``0 .. levels - 1``, and turned into floats or classes a batch at a
time, so a set takes a quarter of the memory of its floats and an array on disk can stay there behind a memory map.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from bfn.data.extras import require
from bfn.errors import UserError

Array = NDArray[Any]

_GRAY_MODES = frozenset({"1", "L", "LA"})
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
_CIFAR_RECORD = 1 + 3 * 32 * 32


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures of one size, with or without classes.

    Args:
        x: Pixels, ``uint8`` in ``0 .. levels - 1``, shape (n, channel, height, width).
        labels: Class of each picture, ``int64``, shape (n,), or None.
        levels: How many values a pixel can take: 256 as stored in files, 2 when binarised, 17 for the 8x8 digits.
        class_names: Names of the classes where the source has them, in the order of their numbers.
        centres: Whether a level stands, as a float, for the centre of its bin, the levels being equal bins of [-1, 1];
            else they reach from -1 to 1.
    """

    x: Tensor
    labels: Tensor | None = None
    levels: int = 256
    class_names: tuple[str, ...] = ()
    centres: bool = False

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
        labels = None if self.labels is None else self.labels[index]
        return replace(self, x=self.x[index], labels=labels)

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
        return max(len(self.class_names), int(self.labels.max()) + 1)

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
            return replace(self, x=(self.x >= (self.levels + 1) // 2).to(torch.uint8), levels=2)
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
    labels = None
    if first.labels is not None and second.labels is not None:
        labels = torch.cat([first.labels, second.labels])
    return replace(first, x=torch.cat([first.x, second.x]), labels=labels)


def from_array(array: Array, labels: Array | None = None, name: str = "array") -> Images:
    """Images from whole numbers in 0..255 (or booleans, as 2 levels).

    Shapes: (n, height, width), (n, channel, height, width) or (n, height, width, channel), with 1 or 3 channels.
    """
    if array.dtype != np.uint8:
        if array.dtype.kind not in "biu" or (array.size and (array.min() < 0 or array.max() > 255)):
            raise UserError(
                f"{name}: pixels of type {array.dtype} are not whole numbers in 0..255: "
                "save them as uint8, for example (255 * x).round().astype('uint8') for x in [0, 1]"
            )
        levels = 2 if array.dtype == np.bool_ else 256
        array = array.astype(np.uint8)
    else:
        levels = 256
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise UserError(
            f"{name}: shape {array.shape} is not one of images: expected (n, height, width), "
            "(n, channel, height, width) or (n, height, width, channel) with 1 or 3 channels"
        )
    if labels is not None and (labels.shape != array.shape[:1] or labels.dtype.kind not in "iu" or labels.min() < 0):
        raise UserError(
            f"{name}: labels of type {labels.dtype} and shape {labels.shape}: "
            f"expected {len(array)} whole numbers from 0 up, one for each image"
        )
    x = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return Images(x, None if labels is None else torch.from_numpy(labels.astype(np.int64)), levels)


def read_npy(path: Path, labels: Path | None = None) -> Images:
    """Images of an ``.npy`` array through a memory map, with the labels of another."""
    return from_array(_load_npy(path), None if labels is None else _load_npy(labels), name=str(path))


def read_npz(path: Path) -> Images:
    """Images of an ``.npz`` file: its one array of 3 or 4 axes, with its one array of a single axis as labels."""
    with path.open("rb") as file, _plain_numpy(path), np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    pictures = [key for key, array in arrays.items() if array.ndim in (3, 4)]
    labels = [key for key, array in arrays.items() if array.ndim == 1]
    if len(pictures) != 1 or len(labels) > 1:
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "nothing"
        raise UserError(f"{path}: expected one array of images and at most one of labels, found {shapes}")
    return from_array(arrays[pictures[0]], arrays[labels[0]] if labels else None, name=str(path))


def _load_npy(path: Path) -> Array:
    """The array, mapped copy-on-write: torch wants memory that it may write to, the file stays as it is."""
    with _plain_numpy(path):
        return np.lib.format.open_memmap(path, mode="c")


@contextmanager
def _plain_numpy(path: Path) -> Iterator[None]:
    """Say of a file that numpy cannot read without unpickling which one it is."""
    try:
        yield
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a plain numpy file (pickled objects are never loaded): {reason}") from error


def read_idx(file: BinaryIO, name: str = "file") -> Array:
    """An array of unsigned bytes in the idx format of the MNIST files: magic 0x000008NN, NN big-endian sizes, data."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
        raise UserError(f"{name}: starts with {magic!r}, which is not an idx file of unsigned bytes (00 00 08 0N)")
    sizes_raw = file.read(4 * magic[3])
    if len(sizes_raw) < 4 * magic[3]:
        raise UserError(f"{name}: the idx file ends within its header: get it again")
    sizes = struct.unpack(f">{magic[3]}I", sizes_raw)
    expected = math.prod(sizes)
    data = file.read(expected + 1)
    if len(data) != expected:
        more = "more than " if len(data) > expected else ""
        raise UserError(f"{name}: the idx header says {expected} bytes, found {more}{min(len(data), expected)}")
    array: Array = np.frombuffer(bytearray(data), dtype=np.uint8).reshape(sizes)
    return array


def read_idx_images(path: Path) -> Images:
    """MNIST-like images from an idx file (``.gz`` too); ``...-labels-idx1-...`` beside it gives the labels."""
    labels_path = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    images = _open_idx(path)
    labels = _open_idx(labels_path) if labels_path != path and labels_path.exists() else None
    return from_array(images, labels, name=str(path))


def _open_idx(path: Path) -> Array:
    if path.suffix != ".gz":
        with path.open("rb") as file:
            return read_idx(file, str(path))
    try:
        with gzip.open(path, "rb") as packed:
            return read_idx(packed, str(path))  # type: ignore[arg-type]  # GzipFile reads like a BinaryIO
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: a damaged .gz file ({error}): get it again") from error


def read_cifar_binary(data: bytes, name: str = "file") -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels (n,) of one batch of CIFAR-10's binary version: 1 + 3072 bytes an image."""
    if not data or len(data) % _CIFAR_RECORD:
        raise UserError(f"{name}: {len(data)} bytes are no whole number of CIFAR-10 records of {_CIFAR_RECORD}")
    records = np.frombuffer(bytearray(data), dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_cifar_folder(folder: Path) -> Images:
    """CIFAR-10's training images from the unpacked binary version: ``data_batch_1.bin`` and so on."""
    batches = [read_cifar_binary(path.read_bytes(), str(path)) for path in sorted(folder.glob("data_batch_*.bin"))]
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    return from_array(images, labels, name=str(folder))


def read_row_png(file: BinaryIO, size: int = 32) -> Array:
    """Images (n, 3, size, size) from one RGB picture whose every row is an image, its pixels in reading order."""
    image_module = require("PIL.Image", "to read images")
    with image_module.open(file) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    if pixels.shape[1] != size * size:
        raise UserError(f"a sheet {pixels.shape[1]} pixels wide: expected {size * size}, a {size}x{size} image a row")
    array: Array = np.ascontiguousarray(pixels.reshape(-1, size, size, 3).transpose(0, 3, 1, 2))
    return array


class _Picture(NamedTuple):
    path: Path
    label: int


def read_folder(folder: Path, progress: bool = True) -> Images:
    """All images under a folder; where all are in sub-folders, these are the classes, in order of their names.

    Gray if every file is gray, RGB otherwise. Hidden files are passed over; every other file must be an image, all of
    one size: this is checked from their headers before the first is decoded.
    """
    pictures, class_names = _find_pictures(folder)
    first = pictures[0].path
    gray = True
    for path, _ in tqdm(pictures, "looking at images", leave=False, disable=not progress):
        with _open_image(path) as image:
            if path == first:
                width, height = image.size
            if image.size != (width, height):
                raise UserError(
                    f"{path}: {image.width}x{image.height} pixels, but {first} has {width}x{height}: "
                    "bring all images to one size"
                )
            gray = gray and image.mode in _GRAY_MODES
    x = torch.empty(len(pictures), 1 if gray else 3, height, width, dtype=torch.uint8)
    for number, (path, _) in enumerate(tqdm(pictures, "reading images", leave=False, disable=not progress)):
        with _open_image(path) as image:
            try:
                pixels = np.array(image.convert("L" if gray else "RGB"))
            except (OSError, SyntaxError, ValueError) as error:
                raise UserError(f"{path}: a damaged image ({error}): get it again or remove it") from error
        x[number] = torch.from_numpy(pixels.reshape(height, width, -1)).permute(2, 0, 1)
    labels = torch.tensor([picture.label for picture in pictures]) if class_names else None
    return Images(x, labels, class_names=class_names)


def _find_pictures(folder: Path) -> tuple[list[_Picture], tuple[str, ...]]:
    """Every file under ``folder`` with its class, and the names of the classes."""
    parts = sorted(path.relative_to(folder).parts for path in folder.rglob("*") if path.is_file())
    visible = [names for names in parts if not any(name.startswith(".") for name in names)]
    if not visible:
        raise UserError(f"{folder}: no files in this folder: expected images, such as .png or .jpg")
    nested = all(len(names) > 1 for names in visible)
    class_names = tuple(sorted({names[0] for names in visible})) if nested else ()
    return [
        _Picture(folder.joinpath(*names), class_names.index(names[0]) if nested else 0) for names in visible
    ], class_names


def _open_image(path: Path) -> Any:
    """The image with its header read and its pixels not yet."""
    image_module = require("PIL.Image", "to read images")
    try:
        image = image_module.open(path)
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        raise UserError(f"{path}: not an image that can be read: remove it, or convert it to PNG") from error
    if image.mode in _DEEP_MODES:
        image.close()
        raise UserError(f"{path}: pixels of more than 8 bits (mode {image.mode}): convert it to 8 bits a channel")
    return image
