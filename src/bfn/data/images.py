"""Pictures as whole numbers.

A picture set is kept as it is stored, ``uint8`` in ``0 .. levels - 1``, and turned into floats or classes a batch at a
time, so a set takes a quarter of the memory of its floats and an array on disk can stay there behind a memory map.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn._utils.arguments import require
from bfn._utils.files import check_decoded, open_file, regular_size, telling_damage
from bfn._utils.progress import Shown, over
from bfn.core.errors import UserError

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


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_GRAY_MODES = frozenset({"1", "L", "LA"})
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
_CIFAR_RECORD = 1 + 3 * 32 * 32
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA")
"""The kinds of pictures that are read, whatever their names end in. Others would start programs (EPS: Ghostscript)."""

_Array = NDArray[Any]


def read_npy(path: Path, labels: Path | None = None) -> Images:
    """Images of an ``.npy`` array through a memory map, with the labels of another."""
    return from_array(load_npy(path), None if labels is None else load_npy(labels), name=str(path))


def read_npz(path: Path) -> Images:
    """Images of an ``.npz`` file: its one array of 3 or 4 axes, with its one array of a single axis as labels."""
    arrays = load_npz(path)
    pictures = [key for key, array in arrays.items() if array.ndim in (3, 4)]
    labels = [key for key, array in arrays.items() if array.ndim == 1]
    if len(pictures) != 1 or len(labels) > 1:
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "nothing"
        raise UserError(f"{path}: expected one array of images and at most one of labels, found {shapes}")
    return from_array(arrays[pictures[0]], arrays[labels[0]] if labels else None, name=str(path))


def read_idx(file: BinaryIO, name: str = "file") -> _Array:
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
    array: _Array = np.frombuffer(bytearray(data), dtype=np.uint8).reshape(sizes)
    return array


def read_idx_images(path: Path) -> Images:
    """MNIST-like images from an idx file (``.gz`` too); ``...-labels-idx1-...`` beside it gives the labels."""
    labels_path = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = _open_idx(labels_path) if labels_path != path and labels_path.exists() else None
    return from_array(_open_idx(path), labels, name=str(path))


def _open_idx(path: Path) -> _Array:
    with open_file(path) as file:
        return read_idx(file, str(path))


def read_cifar_binary(data: bytes, name: str = "file") -> tuple[_Array, _Array]:
    """Images (n, 3, 32, 32) and labels (n,) of one batch of CIFAR-10's binary version: 1 + 3072 bytes an image."""
    if not data or len(data) % _CIFAR_RECORD:
        raise UserError(f"{name}: {len(data)} bytes are no whole number of CIFAR-10 records of {_CIFAR_RECORD}")
    records = np.frombuffer(bytearray(data), dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_cifar_folder(folder: Path) -> Images:
    """CIFAR-10's training images from the unpacked binary version: ``data_batch_1.bin`` and so on."""
    batches = []
    for path in sorted(folder.glob("data_batch_*.bin")):
        with open_file(path) as file:
            batches.append(read_cifar_binary(file.read(), str(path)))
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    return replace(from_array(images, labels, name=str(folder)), class_names=CIFAR10_CLASSES)


def read_row_png(file: BinaryIO, size: int = 32) -> _Array:
    """Images (n, 3, size, size) from one RGB picture whose every row is an image, its pixels in reading order."""
    image_module = require("PIL.Image", "to read images")
    with image_module.open(file, formats=_FORMATS) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    if pixels.shape[1] != size * size:
        raise UserError(f"a sheet {pixels.shape[1]} pixels wide: expected {size * size}, a {size}x{size} image a row")
    array: _Array = np.ascontiguousarray(pixels.reshape(-1, size, size, 3).transpose(0, 3, 1, 2))
    return array


def read_folder(folder: Path, progress: Shown = True) -> Images:
    """All images under a folder; where all are in sub-folders, these are the classes, in order of their names.

    Gray if every file is gray, RGB otherwise. Hidden files are passed over; every other file must be an image, all of
    one size: this is checked from their headers before the first is decoded.
    """
    paths, labels, class_names = _find_pictures(folder)
    with _open_image(paths[0]) as image:
        width, height = image.size
    gray, stored = True, 0
    for path in over(paths, "looking at images", "image", progress):
        with _open_image(path) as image:
            if image.size != (width, height):
                raise UserError(
                    f"{path}: {image.width}x{image.height} pixels, but {paths[0]} has {width}x{height}: "
                    "bring all images to one size"
                )
            gray, stored = gray and image.mode in _GRAY_MODES, stored + path.stat().st_size
    check_decoded(folder, len(paths) * height * width * (1 if gray else 3), stored)
    x = torch.empty(len(paths), 1 if gray else 3, height, width, dtype=torch.uint8)
    for number, path in enumerate(over(paths, "reading images", "image", progress)):
        with _open_image(path) as image:
            try:
                pixels = np.array(image.convert("L" if gray else "RGB"))
            except Exception as error:  # decoders of damaged files raise whatever they meet
                raise UserError(f"{path}: a damaged image ({error}): get it again or remove it") from error
        x[number] = torch.from_numpy(pixels.reshape(height, width, -1)).permute(2, 0, 1)
    return Images(x, labels, class_names=class_names)


def _find_pictures(folder: Path) -> tuple[list[Path], Tensor | None, tuple[str, ...] | None]:
    """Every file under ``folder``, their classes and the classes' names, both None where there are no sub-folders."""
    parts = sorted(path.relative_to(folder).parts for path in folder.rglob("*") if path.is_file())
    visible = [names for names in parts if not any(name.startswith(".") for name in names)]
    if not visible:
        raise UserError(f"{folder}: no files in this folder: expected images, such as .png or .jpg")
    paths = [folder.joinpath(*names) for names in visible]
    if any(len(names) == 1 for names in visible):
        return paths, None, None
    classes = sorted({names[0] for names in visible})
    return paths, torch.tensor([classes.index(names[0]) for names in visible]), tuple(classes)


def _open_image(path: Path) -> Any:
    """The image with its header read and its pixels not yet."""
    image_module = require("PIL.Image", "to read images")
    try:
        image = image_module.open(path, formats=_FORMATS)
    except Exception as error:  # decoders of damaged files raise whatever they meet
        kinds = ", ".join(_FORMATS)
        raise UserError(f"{path}: not an image of {kinds}: remove it, or convert it to PNG") from error
    if image.mode in _DEEP_MODES:
        image.close()
        raise UserError(f"{path}: pixels of more than 8 bits (mode {image.mode}): convert it to 8 bits a channel")
    return image


_NOT_PLAIN = "not a plain numpy file (pickled objects are never loaded)"


def load_npy(path: Path) -> NDArray[Any]:
    """The array, mapped copy-on-write: torch wants memory that it may write to, the file stays as it is."""
    size = regular_size(path)
    with telling_damage(path, _NOT_PLAIN):
        with path.open("rb") as file:
            _checked_shape(file, size)
        return np.lib.format.open_memmap(path, mode="c")


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an archive, by name."""
    arrays = {}
    with _open_npz(path) as (archive, members):
        for key, entry in members.items():
            with archive.open(entry) as file:
                _checked_shape(file, entry.file_size)
            with archive.open(entry) as file:
                arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def numpy_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a file, from their headers alone; that of an ``.npy`` file is called x."""
    if path.suffix.lower() == ".npy":
        return {"x": load_npy(path).shape}
    shapes = {}
    with _open_npz(path) as (archive, members):
        for key, entry in members.items():
            with archive.open(entry) as file:
                shapes[key] = _checked_shape(file, entry.file_size)
    return shapes


@contextmanager
def _open_npz(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    stored = regular_size(path)
    with telling_damage(path, _NOT_PLAIN), zipfile.ZipFile(path) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        check_decoded(path, sum(entry.file_size for entry in members.values()), stored)
        yield archive, members


def _checked_shape(file: IO[bytes], size: int) -> tuple[int, ...]:
    """The shape of an array. One of another size than its file has is refused, before numpy makes room for it."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format: expected 1.0 or 2.0")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("objects in the array")
    expected, found = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or expected != found:
        raise ValueError(f"the header says an array of shape {shape}, {expected:,} bytes; the file has {found:,}")
    return shape
