"""Data from a set or a file in the form that a model takes: what it is measured on, tuned to, or asked to complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bfn import data
from bfn.conditions import rows_of
from bfn.data import Images, Part, Records, Text
from bfn.data.own_paths import from_card
from bfn.errors import UserError
from bfn.flows import Shape
from bfn.progress import Shown
from bfn.record_data import columns_of, encode_records

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["ImagePart", "ModelData", "as_model_data", "known_part", "known_text", "read_model_data"]

ImagePart = Literal["top", "bottom", "left", "right", "border"]
"""A part of an image that may be known: a half of it, or all but its middle."""


@dataclass(frozen=True, eq=False)
class ModelData:
    """Data as a model takes them, (n, *data_shape), parts packed, and where they come from.

    label: (n,), the classes of the data where the model knows classes and the data say them.
    condition: the others by name, in the same way. present: where there is data, of different lengths.
    """

    x: Tensor
    label: Tensor | None
    source: str
    part: Part
    condition: Mapping[str, Tensor] = field(default_factory=dict)
    present: Tensor | None = None

    def split(self, n: int) -> tuple[ModelData, ModelData]:
        """The first n samples, and the others."""
        return self._rows(slice(n)), self._rows(slice(n, None))

    def _rows(self, rows: slice) -> ModelData:
        label, present = (None if one is None else one[rows] for one in (self.label, self.present))
        return replace(self, x=self.x[rows], label=label, condition=rows_of(self.condition, rows), present=present)

    def given(self, model: Model) -> dict[str, Any]:
        """The arguments ``label``, ``condition`` and ``present`` of likelihoods and losses."""
        there = None if self.present is None else model.flow.unpack(self.present)
        return {"label": self.label, "condition": self.condition, "present": there}


def read_model_data(
    model: Model,
    source: str | Path | None = None,
    part: Part = "test",
    n: int | None = None,
    *,
    seed: int | None = 0,
    progress: Shown = False,
) -> ModelData:
    """A part of a standard set or of a file, in the form that a model takes.

    source: as ``bfn.data.load`` takes it; the set that the model was trained on, which is not downloaded unasked, if
    None. n: how many samples, at most; images are chosen at random by the seed, without one evenly as pieces of a text.
    """
    name = _own_source(model) if source is None else str(source)
    tokenizers = [own for own in (model.info.text_tokenizer, *model.info.part_tokenizers.values()) if own is not None]
    everything = data.load(
        name, part, tokenizer=tokenizers[0] if len(tokenizers) == 1 else None,
        columns=columns_of(model.info.trained_on), progress=progress,
    )  # fmt: skip
    if isinstance(everything, Text):
        if model.form != "text":
            raise UserError(f"{name}: is text, and the model is one of {model.form}")
        length = model.data_shape[0]
        count = len(everything) // length
        return ModelData(everything.tiles(length, count if n is None else min(n, count)), None, name, part)
    if isinstance(everything, Records):
        return _of_records(model, everything[: len(everything) if n is None else n], name, part)
    if model.form != "images" or everything.data_shape != model.data_shape:
        raise UserError(f"{name}: images of shape {everything.data_shape}, and the model's data are {model.data_shape}")
    count = len(everything) if n is None else min(n, len(everything))
    rows = torch.arange(count) * len(everything) // count
    if seed is not None:
        rows = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))[:count]
    some = everything[rows]
    return ModelData(as_model_data(model, some), some.labels if model.info.classes else None, name, part)


def _of_records(model: Model, records: Records, name: str, part: Part) -> ModelData:
    x, conditions = encode_records(records, model.info, model.data_shape)
    given = {key: conditions.pop(key, None) for key in ("label", "present")}
    return ModelData(x, given["label"], name, part, conditions, given["present"])


def as_model_data(model: Model, images: Images) -> Tensor:
    """Images with the levels that the model was trained on, as floats or as classes of pixels."""
    n_values = model.flow.n_values
    images = images.for_model(n_values, model.info.trained_on)
    return images.to_float() if n_values is None else images.to_classes()


def known_text(model: Model, prompt: str, unknown: str = "_") -> dict[str, Tensor]:
    """The arguments ``known`` and ``known_mask`` of ``bfn.sample`` for texts with these tokens.

    The prompt stands at the beginning of the text; ``unknown`` is the sign for a token to fill in.
    """
    tokenizer = model.info.text_tokenizer
    if tokenizer is None:
        raise UserError(f"prompt {prompt!r}: the model is one of {model.form}, not of text; leave it out")
    known, mask = tokenizer.encode_prompt(prompt, model.data_shape[0], unknown)
    return {"known": known, "known_mask": mask}


def known_part(model: Model, images: Tensor, part: ImagePart) -> dict[str, Tensor]:
    """The arguments ``known`` and ``known_mask`` of ``bfn.sample`` for samples that share a part with images."""
    if model.form != "images":
        raise UserError(f"a known part of images: the model is one of {model.form}, not of images; leave it out")
    return {"known": images, "known_mask": _image_mask(part, model.data_shape)}


def _own_source(model: Model) -> str:
    """The name of the set that the model was trained on, which must be here."""
    name = from_card(model.info.trained_on.get("name"))
    if name in data.names() and not data.is_at_hand(name):
        raise UserError(f"{name} is not in the cache: run bfn data fetch {name}, or give other data")
    return name


def _image_mask(part: ImagePart, data_shape: Shape) -> Tensor:
    """The ``known_mask`` for which that part of an image (channel, height, width) is known."""
    _, height, width = data_shape
    known = torch.zeros(data_shape, dtype=torch.bool)
    parts = {
        "top": known[:, : height // 2],
        "bottom": known[:, height // 2 :],
        "left": known[:, :, : width // 2],
        "right": known[:, :, width // 2 :],
        "border": known,
    }
    if part not in parts:
        raise UserError(f"part={part!r}: expected one of {', '.join(parts)}")
    parts[part].fill_(True)
    if part == "border":
        known[:, height // 4 : height - height // 4, width // 4 : width - width // 4] = False
    return known
