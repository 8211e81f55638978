"""Real data as a judge takes them: what to compare with, and what to hold beside it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bfn.data import Images, Records, Text, concatenate, load
from bfn.errors import UserError
from bfn.model import Model
from bfn.model_data import ModelData, read_model_data
from bfn.record_data import columns_of

__all__ = ["ReferenceData", "read_images", "read_texts", "read_values", "without_padding"]

ENOUGH = 10
"""Held-out samples a feature that make a reference; of smaller sets every other sample, held out or not, is taken."""
MOST_CHARACTERS = 2_000_000
"""Of real text, to compare with."""


@dataclass(frozen=True, eq=False)
class ReferenceData:
    """Real data, as the judge's parts take them.

    reference: to compare with. held_out: what stands beside the samples.
    train, unseen: training data, and data that are not among them; empty where that is not known.
    """

    reference: Tensor
    held_out: Tensor
    reference_labels: Tensor | None = None
    held_out_labels: Tensor | None = None
    train: Tensor = field(default_factory=lambda: torch.empty(0))
    unseen: Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def halves(cls, x: Tensor) -> Self:
        """Of one tensor: every other one is the reference."""
        return cls(x[::2], x[1::2])


def read_images(model: Model, source: str | Path, n_features: int | None) -> ReferenceData:
    """The parts of an image set: held-out images are the reference, where there are enough for so many features.

    None: the training images are the reference, by custom of the FID.
    """
    shape, parts = tuple(model.data_shape), []
    for name in ("train", "validation", "test"):
        images = load(source, name)
        if not isinstance(images, Images):
            raise UserError(f"{source}: not images, and the model's data are images of shape {shape}")
        if images.data_shape != shape:
            raise UserError(f"{source}: images of shape {images.data_shape}, and the model's data are {shape}")
        parts.append(images.for_model(model.flow.n_values, model.info.trained_on))
    train, validation, test = parts
    seen = concatenate(train, validation)
    if n_features is None:
        reference, held_out, unseen = seen, test, test
    elif len(test) >= ENOUGH * n_features:
        reference, held_out, unseen = test, validation, validation
    else:
        every = concatenate(seen, test)
        reference, held_out, unseen = every[::2], every[1::2], concatenate(validation, test)
    x, beside, copied, new = (some.to_float() for some in (reference, held_out, train, unseen))
    return ReferenceData(x, beside, reference.labels, held_out.labels, copied, new)


def read_texts(model: Model, source: str | Path) -> ReferenceData:
    """Pieces of a text as classes, (n, length): the test part is the reference, the validation part is held out."""
    tokenizer, length = model.info.text_tokenizer, model.data_shape[0]
    columns = columns_of(model.info.trained_on)
    test, validation = (load(source, part, tokenizer=tokenizer, columns=columns) for part in ("test", "validation"))
    if isinstance(test, Records):
        held_out, reference = (read_model_data(model, source, part) for part in ("test", "train"))
        return ReferenceData(*(without_padding(read) for read in (reference, held_out)))
    if not isinstance(test, Text) or not isinstance(validation, Text):
        raise UserError(f"{source}: images, and the model is one of text")
    most = max(1, min(len(test), MOST_CHARACTERS) // length)
    return ReferenceData(test.tiles(length, most), validation.tiles(length))


def without_padding(read: ModelData) -> Tensor:
    """Classes, -1 where there are none."""
    return read.x if read.present is None else read.x.masked_fill(~read.present, -1)


def read_values(path: Path) -> Tensor:
    """Vectors of an .npy file."""
    if path.suffix != ".npy":
        raise UserError(f"{path}: expected an .npy file with real data, (n, ...), to compare with")
    array = np.load(path, allow_pickle=False)
    if array.ndim < 2 or len(array) < 4 or array.dtype.kind not in "fiub":
        raise UserError(f"{path}: an array of {array.dtype} and shape {array.shape}: expected numbers (n >= 4, ...)")
    return torch.from_numpy(array)
