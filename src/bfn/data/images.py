"""Images as integers, and the files that they are read from.

A set of images is kept as it is stored, ``uint8`` in ``0 .. levels - 1``, and turned into floats or classes for each
batch. So it takes a quarter of the memory of its floats, and an array may stay on disk behind a memory map.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable, Mapping
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

Array = NDArray[Any]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA")
"""Formats of images that are read, whatever the names of the files. Others would start programs (EPS: Ghostscript)."""

_MOST_CLASSES = 1_000_000  # one counter is allocated for each possible label
_GRAY_MODES = frozenset({"1", "L", "LA"})
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
_CIFAR_RECORD = 1 + 3 * 32 * 32
_NOT_PLAIN = "not a plain numpy file (pickled objects are never loaded)"


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size, with or without classes.

    Args:
        x: pixels, ``uint8`` in ``0 .. levels - 1``, (n, channel, height, width).
        labels: class of each image, ``int64``, (n,), or None.
        levels: number of values of a pixel: 256 in files, 2 if binarised, 17 for the 8x8 digits.
        class_names: names of the classes, or None if the source has no names.
        centres: if True, the levels are equal bins of [-1, 1] and become floats at the centres of the bins; if False,
            the first level becomes -1 and the last one 1.
        note: remark on the version of a standard set, such as an unusual division into parts.
    """

    x: Tensor
    labels: Tensor | None = None
    levels: int = 256
    class_names: tuple[str, ...] | None = None
    centres: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.x.dtype != torch.uint8 or self.x.ndim != 4:
            found = f"images of dtype {self.x.dtype} and shape {tuple(self.x.shape)}"
            raise UserError(f"{found}: expected torch.uint8 of shape (n, channel, height, width)")
        if not 2 <= self.levels <= 256:
            raise UserError(f"levels={self.levels}: a pixel has 2 to 256 levels")
        if self.labels is not None and (self.labels.dtype != torch.int64 or self.labels.shape != self.x.shape[:1]):
            found = f"labels of dtype {self.labels.dtype} and shape {tuple(self.labels.shape)}"
            raise UserError(f"{found}: expected torch.int64 of shape ({len(self.x)},), one for each image")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: slice | Tensor) -> Images:
        """Return the images at ``index``, a slice or int64 positions, with their labels."""
        return replace(self, x=self.x[index], labels=None if self.labels is None else self.labels[index])

    @property
    def data_shape(self) -> tuple[int, int, int]:
        """Shape of an image: (channel, height, width)."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    @property
    def n_classes(self) -> int:
        """Number of classes of the labels; 0 without labels."""
        if self.labels is None or not len(self):
            return 0
        return max(len(self.class_names or ()), int(self.labels.max()) + 1)

    def class_shares(self) -> tuple[float, ...]:
        """Return the frequency of each class, in the order of their numbers; empty without labels."""
        if self.labels is None or not len(self):
            return ()
        counts = torch.bincount(self.labels, minlength=self.n_classes)
        return tuple((counts.double() / len(self)).tolist())

    def to_float(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return pixels in [-1, 1]: ``2 x / (levels - 1) - 1``, or ``(2 x + 1) / levels - 1`` at centres."""
        x = self.x.to(dtype)
        return x.mul_(2).add_(1).div_(self.levels).sub_(1) if self.centres else x.mul_(2 / (self.levels - 1)).sub_(1)

    def to_classes(self) -> Tensor:
        """Return pixels as classes ``0 .. levels - 1``, int64, (n, channel, height, width)."""
        return self.x.long()

    def binarise(self, seed: int | None = None) -> Images:
        """Return the images with two levels.

        Without a seed, pixels in the upper half of their levels become 1. With one, a pixel becomes 1 with probability
        ``x / (levels - 1)``, drawn once: the static binarisation of Salakhutdinov & Murray (2008).
        """
        if seed is None:
            return self._pixelwise(lambda x: x >= (self.levels + 1) // 2, 2)
        generator = torch.Generator().manual_seed(seed)
        return self._pixelwise(lambda x: torch.rand(x.shape, generator=generator) * (self.levels - 1) < x, 2)

    def binarise_by(self, uniform: Tensor) -> Images:
        """Return the images with two levels: 1 where ``uniform (levels - 1) < x``, for numbers in [0, 1) like x."""
        if uniform.shape != self.x.shape:
            raise UserError(f"uniform of shape {tuple(uniform.shape)}: expected that of x, {tuple(self.x.shape)}")
        return replace(self, x=(uniform * (self.levels - 1) < self.x).to(torch.uint8), levels=2)

    def rebin(self, levels: int) -> Images:
        """Return the images with fewer levels, ``x levels // self.levels``: equal bins of the old levels."""
        if not 2 <= levels <= self.levels:
            raise UserError(f"levels={levels}: expected 2 to {self.levels}, the number of levels of the images")
        return self if levels == self.levels else self._pixelwise(lambda x: x.int() * levels // self.levels, levels)

    def prepared(self, options: Mapping[str, Any]) -> Images:
        """Return the images with the ``levels``, ``binarise`` and ``centres`` of the data settings of a training run.

        ``binarise: dynamic``, new draws for each batch in training, is the static binarisation with seed 0 here.
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
        """Return the images as a model takes them: with the data settings that the model was trained with.

        If these do not say it, images for a model of two values are binarised at the middle level.

        Args:
            n_classes: number of values of a pixel in the model; None if its pixels are continuous.
            settings: data settings of the model's training; empty if they are not known.
        """
        binary = n_classes == 2 and self.levels > 2
        return self.prepared({"binarise": True, **settings} if binary else settings)

    def _pixelwise(self, change: Callable[[Tensor], Tensor], levels: int) -> Images:
        """Return the images with changed pixels. Works in pieces, since a change takes several times their memory."""
        x = torch.empty_like(self.x)
        for old, new in zip(torch.split(self.x, 4096), torch.split(x, 4096), strict=True):
            new.copy_(change(old))
        return replace(self, x=x, levels=levels)

    def split(self, held_out: float | int = 0.05, seed: int = 0) -> tuple[Images, Images]:
        """Return (the rest, held-out images), chosen at random by the seed.

        Args:
            held_out: share (a float) or number (an int) of held-out images.
            seed: seed of the choice.
        """
        rest, held = random_split(len(self), held_out, seed, "images")
        return self[rest], self[held]


def check_held_out(held_out: float | int, n: int, unit: str) -> int:
    """Return the number of held-out items of n, given as a share (a float) or a number (an int)."""
    count = round(held_out * n) if isinstance(held_out, float) else held_out
    if not 0 < count < n:
        raise UserError(f"held_out={held_out}: of {n} {unit} at least 1 must be on each side")
    return count


def random_split(n: int, held_out: float | int, seed: int, unit: str) -> tuple[Tensor, Tensor]:
    """Return the positions of (the rest, held-out items) among n, both increasing; see ``Images.split``."""
    count = check_held_out(held_out, n, unit)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[count:].sort().values, order[:count].sort().values


def concatenate(first: Images, second: Images) -> Images:
    """Join two sets of images that have the same size, levels and classes."""
    kinds = [(i.data_shape, i.levels, i.class_names, i.labels is None) for i in (first, second)]
    if kinds[0] != kinds[1]:
        raise UserError(f"images of two kinds, {kinds[0]} and {kinds[1]}: expected the same shape, levels and classes")
    labels = [images.labels for images in (first, second) if images.labels is not None]
    return replace(first, x=torch.cat([first.x, second.x]), labels=torch.cat(labels) if labels else None)


def from_array(array: Array, labels: Array | None = None, name: str = "array") -> Images:
    """Make images of integers in 0..255, or of booleans (2 levels).

    Args:
        array: pixels, (n, height, width), (n, channel, height, width) or (n, height, width, channel), with 1 or 3
            channels.
        labels: numbers or names of classes, (n,).
        name: name of the array, for messages.
    """
    levels = 2 if array.dtype == np.bool_ else 256
    wide = array.dtype.itemsize > 1 or array.dtype == np.int8
    if array.dtype.kind not in "biu" or (wide and array.size and (array.min() < 0 or array.max() > 255)):
        expected = "save them as uint8, for example (255 * x).round().astype('uint8') for x in [0, 1]"
        raise UserError(f"{name}: pixels of type {array.dtype} are not whole numbers in 0..255: {expected}")
    array = _channels_first(array.astype(np.uint8, copy=False), name)
    x = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if labels is None:
        return Images(x, None, levels)
    names = None
    if labels.dtype.kind == "U" and labels.ndim == 1:
        found, labels = np.unique(labels, return_inverse=True)
        names = tuple(map(str, found))
    fits = labels.shape == array.shape[:1] and labels.dtype.kind in "iu"
    if not fits or labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        wrong = f"labels of type {labels.dtype} and shape {labels.shape}"
        expected = f"{len(array)} names, or whole numbers from 0 up, below {_MOST_CLASSES:,}"
        raise UserError(f"{name}: {wrong}: expected {expected}, one for each image")
    return Images(x, torch.from_numpy(labels.astype(np.int64)), levels, names)


def _channels_first(array: Array, name: str) -> Array:
    """Return images of any order of axes as (n, channel, height, width)."""
    shape = array.shape
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in shape:
        expected = "(n, height, width), (n, channel, height, width) or (n, height, width, channel) with 1 or 3 channels"
        raise UserError(f"{name}: shape {array.shape} is not one of images: expected {expected}")
    return array


# --- files ------------------------------------------------------------------------------------------------------------


def read_npy(path: Path, labels: Path | None = None) -> Images:
    """Read images from an ``.npy`` file through a memory map, with labels from another one."""
    return from_array(load_npy(path), None if labels is None else load_npy(labels), name=str(path))


def read_npz(path: Path) -> Images:
    """Read images from an ``.npz`` file: its only array of 3 or 4 axes, and as labels its only array of one axis."""
    arrays = load_npz(path)
    images = [array for array in arrays.values() if array.ndim in (3, 4)]
    labels = [array for array in arrays.values() if array.ndim == 1]
    if len(images) != 1 or len(labels) > 1:
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "nothing"
        raise UserError(f"{path}: expected one array of images and at most one of labels, found {shapes}")
    return from_array(images[0], labels[0] if labels else None, name=str(path))


def read_idx(file: BinaryIO, name: str = "file") -> Array:
    """Read an array of bytes in the idx format of MNIST: the magic number 0x000008NN, NN big-endian sizes, the data."""
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
    return np.frombuffer(bytearray(data), dtype=np.uint8).reshape(sizes)


def read_idx_images(path: Path) -> Images:
    """Read images from an idx file (also ``.gz``), with labels from ``...-labels-idx1-...`` in the same folder."""
    labels_path = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = _open_idx(labels_path) if labels_path != path and labels_path.exists() else None
    return from_array(_open_idx(path), labels, name=str(path))


def _open_idx(path: Path) -> Array:
    with open_file(path) as file:
        return read_idx(file, str(path))


def read_cifar_binary(data: bytes, name: str = "file") -> tuple[Array, Array]:
    """Return images (n, 3, 32, 32) and labels (n,) of the binary version of CIFAR-10, 1 + 3072 bytes for each image."""
    if not data or len(data) % _CIFAR_RECORD:
        raise UserError(f"{name}: {len(data)} bytes are not a whole number of CIFAR-10 records of {_CIFAR_RECORD}")
    records = np.frombuffer(bytearray(data), dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_cifar_folder(folder: Path) -> Images:
    """Read the training images of CIFAR-10 from the unpacked binary version, ``data_batch_1.bin`` and so on."""
    batches = []
    for path in sorted(folder.glob("data_batch_*.bin")):
        with open_file(path) as file:
            batches.append(read_cifar_binary(file.read(), str(path)))
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    return replace(from_array(images, labels, name=str(folder)), class_names=CIFAR10_CLASSES)


def read_row_png(file: BinaryIO, size: int = 32) -> Array:
    """Read images (n, 3, size, size) from one RGB image, each row of which has the pixels of an image."""
    with require("PIL.Image", "to read images").open(file, formats=FORMATS) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    if pixels.shape[1] != size * size:
        raise UserError(f"a sheet {pixels.shape[1]} pixels wide: expected {size * size}, an image in each row")
    return np.ascontiguousarray(pixels.reshape(-1, size, size, 3).transpose(0, 3, 1, 2))


def read_folder(folder: Path, progress: Shown = True) -> Images:
    """Read all images under a folder. If all are in sub-folders, these are the classes, in the order of their names.

    Images are gray if all files are gray, and RGB otherwise. Hidden files are skipped. All other files must be images
    of one size, which is checked from their headers before the first one is decoded.
    """
    paths, labels, class_names = _find_images(folder)
    with _open_image(paths[0]) as image:
        width, height = image.size
    gray, stored = True, 0
    for path in over(paths, "looking at images", "image", progress):
        with _open_image(path) as image:
            if image.size != (width, height):
                found = f"{image.width}x{image.height} pixels, but {paths[0]} has {width}x{height}"
                raise UserError(f"{path}: {found}: bring all images to one size")
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


def _find_images(folder: Path) -> tuple[list[Path], Tensor | None, tuple[str, ...] | None]:
    """Return all files under a folder, their classes and the names of these; without sub-folders both are None."""
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
    """Open an image and read its header, but not its pixels."""
    image_module = require("PIL.Image", "to read images")
    try:
        image = image_module.open(path, formats=FORMATS)
    except Exception as error:  # decoders of damaged files raise whatever they meet
        kinds = ", ".join(FORMATS)
        raise UserError(f"{path}: not an image of {kinds}: remove it, or convert it to PNG") from error
    if image.mode in _DEEP_MODES:
        image.close()
        raise UserError(f"{path}: pixels of more than 8 bits (mode {image.mode}): convert it to 8 bits a channel")
    return image


def load_npy(path: Path) -> NDArray[Any]:
    """Open an array behind a copy-on-write memory map, since torch wants writable memory. The file is never changed."""
    size = regular_size(path)
    with telling_damage(path, _NOT_PLAIN):
        with path.open("rb") as file:
            _checked_shape(file, size)
        return np.lib.format.open_memmap(path, mode="c")


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file, by name."""
    numpy_shapes(path)
    with telling_damage(path, _NOT_PLAIN), np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def numpy_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a file from their headers. The array of an ``.npy`` file is called x."""
    if path.suffix.lower() == ".npy":
        return {"x": load_npy(path).shape}
    stored, shapes = regular_size(path), {}
    with telling_damage(path, _NOT_PLAIN), zipfile.ZipFile(path) as archive:
        check_decoded(path, sum(entry.file_size for entry in archive.infolist()), stored)
        for entry in archive.infolist():
            with archive.open(entry) as file:
                shapes[entry.filename.removesuffix(".npy")] = _checked_shape(file, entry.file_size)
    return shapes


def _checked_shape(file: IO[bytes], size: int) -> tuple[int, ...]:
    """Return the shape of an array after comparing it with the size of its file, before memory is allocated for it."""
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
