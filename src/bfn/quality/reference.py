"""Real data as a judge takes them: what to compare with, and what to hold beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bfn.data import Images, concatenate, load
from bfn.errors import UserError
from bfn.quality.classifier import check_finite
from bfn.quality.parts import POOLED

ENOUGH = 10
"""Held-out samples a feature that make a reference; of smaller sets every other sample, held out or not, is taken."""


@dataclass(frozen=True, eq=False)
class Real:
    """Real data as floats.

    train, unseen: training data, and data that are not among them; empty where that is not known.
    """

    reference: Tensor
    held_out: Tensor
    reference_labels: Tensor | None = None
    held_out_labels: Tensor | None = None
    train: Tensor = field(default_factory=lambda: torch.empty(0))
    unseen: Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def halves(cls, x: Tensor) -> Real:
        """Of one tensor: every other one is the reference."""
        return cls(x[::2], x[1::2])


@dataclass(frozen=True)
class View:
    """Samples as floats in [-1, 1], (n, *shape): classes are spread evenly over it."""

    shape: tuple[int, ...]
    n_classes: int | None

    def __call__(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(f"samples of shape {tuple(x.shape)}: expected (n, {', '.join(map(str, self.shape))})")
        floats = x.float() if self.n_classes is None else x.float() * (2 / (self.n_classes - 1)) - 1
        check_finite(floats)
        return floats


def read_images(metric: str, source: str | Path, view: View, trained_on: Mapping[str, Any]) -> Real:
    """The parts of an image set: held-out images are the reference, where there are enough of them a feature.

    The FID is by custom a distance from the training images.
    """
    loaded = {part: load(source, part) for part in ("train", "validation", "test")}
    if not all(isinstance(part, Images) for part in loaded.values()):
        raise UserError(f"{source}: text, and the model's data are of shape {view.shape}")
    parts = {name: cast(Images, part) for name, part in loaded.items()}
    if parts["train"].data_shape != view.shape:
        raise UserError(f"{source}: images of shape {parts['train'].data_shape}, and the model's data are {view.shape}")
    train, validation, test = (
        parts[name].for_model(view.n_classes, trained_on) for name in ("train", "validation", "test")
    )
    seen = concatenate(train, validation)
    n_features = 64 if metric == "mnist" else min(math.prod(view.shape), view.shape[0] * POOLED**2)
    if metric == "inception":
        reference, held_out, unseen = seen, test, test
    elif len(test) >= ENOUGH * n_features:
        reference, held_out, unseen = test, validation, validation
    else:
        every = concatenate(seen, test)
        reference, held_out = every[::2], every[1::2]
        unseen = concatenate(validation, test)
    return Real(
        reference.to_float(), held_out.to_float(), reference.labels, held_out.labels,
        train.to_float(), unseen.to_float(),
    )  # fmt: skip


def read_values(path: Path) -> Tensor:
    """Vectors of an .npy file."""
    if path.suffix != ".npy":
        raise UserError(f"{path}: expected an .npy file with real data, (n, ...), to compare with")
    array = np.load(path, allow_pickle=False)
    if array.ndim < 2 or len(array) < 4 or array.dtype.kind not in "fiub":
        raise UserError(f"{path}: an array of {array.dtype} and shape {array.shape}: expected numbers (n >= 4, ...)")
    return torch.from_numpy(array)
