"""Readers for the files that pictures come in: numpy arrays, idx files, CIFAR-10's batches, folders of images."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bfn.data.bounds import check_decoded, open_file
from bfn.data.images import Images, from_array
from bfn.data.numpy_files import load_npy, load_npz
from bfn.data.optional_packages import require
from bfn.errors import UserError
from bfn.progress import Shown, over

__all__ = ["CIFAR10_CLASSES", "read_cifar_folder", "read_folder", "read_idx_images", "read_npy", "read_npz"]

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
