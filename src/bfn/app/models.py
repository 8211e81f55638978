"""The models that the page offers, and pictures that samples can be grown around. Read once, then fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bfn
from bfn import data, storage
from bfn.app import drawing, html_pictures
from bfn.app.requests import KEEPS, DrawRequest, Limits
from bfn.errors import UserError
from bfn.model import BFN
from bfn.model_data import ImagePart, as_model_data, known_part, known_text
from bfn.viz import sheet

__all__ = ["PARTS", "Models", "load_models"]

PICTURES = 20
PARTS: dict[str, ImagePart] = dict(zip(KEEPS[1:], ("top", "bottom", "left", "right", "border"), strict=True))
"""The library's names of the parts that the page offers to keep."""


@dataclass(frozen=True)
class Models:
    """Models by the names the page knows them by; known pictures, (n, *data_shape), of those that have some.

    tables: models of tables, whose rows have a tab of their own.
    """

    by_name: Mapping[str, BFN]
    pictures: Mapping[str, Tensor]
    tables: Mapping[str, BFN] = field(default_factory=dict)

    @cached_property
    def limits(self) -> dict[str, Limits]:
        """What requests are checked against."""
        return {name: self._limits(name, model) for name, model in self.by_name.items()}

    def _limits(self, name: str, model: BFN) -> Limits:
        return Limits(
            model.form,
            drawing.usable_solvers(model),
            model.info.classes.names if model.info.classes else (),
            _longest_prompt(model),
            len(self.pictures.get(name, ())),
            _number_condition(model),
        )

    def strip(self, name: str) -> str:
        """The known pictures of a model in a row."""
        if name not in self.pictures:
            return ""
        values = self.by_name[name].flow.values(self.pictures[name])
        return html_pictures.image(sheet(values, PICTURES // 2), "pictures to start from")

    def conditions(self, request: DrawRequest) -> dict[str, Any]:
        """Arguments of ``bfn.sample`` for what is known of the samples."""
        model = self.by_name[request.model]
        result: dict[str, Any] = {}
        own = _number_condition(model)
        if model.info.classes is not None:
            result["label"] = model.info.classes.in_turn(request.n) if request.label is None else request.label
        if own is not None and request.condition is not None:
            result["condition"] = {own[0]: request.condition}
        if request.guidance != 1 and (model.info.classes is not None or own is not None):
            result["guidance"] = request.guidance
        if model.info.lengths is not None and model.form == "text":
            # Drawn before the samples are, so that they can be shown without padding while they form.
            generator = torch.Generator().manual_seed(request.seed)
            result["lengths"] = model.info.lengths.draw(request.n, generator)
        if model.form == "text" and request.prompt:
            result |= known_text(model, request.prompt)
        if request.keep in PARTS:
            result |= known_part(model, self.pictures[request.model][request.picture], PARTS[request.keep])
        return result


def load_models(directories: Sequence[str] = ()) -> Models:
    """The bundled models and those in the given directories, which go by the directories' own names."""
    models = {name: bfn.load(name) for name in storage.bundled()}
    for directory in directories:
        name = Path(directory).resolve().name
        if name in models:
            raise UserError(f"--model {directory}: there is a model {name!r} already; give the directory another name")
        models[name] = bfn.load(directory)
    if not models:
        raise UserError("no models: none are bundled with this installation; name one with --model DIR")
    tables = {name: model for name, model in models.items() if model.info.columns is not None}
    models = {name: model for name, model in models.items() if name not in tables}
    found = {name: _pictures(model) for name, model in models.items() if model.form == "images"}
    return Models(models, {name: pictures for name, pictures in found.items() if pictures is not None}, tables)


def _number_condition(model: BFN) -> tuple[str, float, float] | None:
    """The name and range of the one number that samples may be asked for by; None where there is none, or several."""
    found = [
        (name, own.low, own.high)
        for name, own in model.info.conditions.items()
        if not own.shape and own.low is not None and own.high is not None
    ]
    return found[0] if len(found) == 1 else None


def _longest_prompt(model: BFN) -> int:
    """How many characters a text of the model may have; 0 where it is not one of text."""
    tokenizer = model.info.text_tokenizer
    return 0 if tokenizer is None else model.data_shape[0] * max(map(len, tokenizer.pieces))


def _pictures(model: BFN) -> Tensor | None:
    """Test pictures of the standard set that a model was trained on, if this machine has it: nothing is fetched."""
    name = model.info.trained_on.get("name")
    if name not in data.names() or not data.is_at_hand(name):
        return None
    try:
        images = data.load(name, "test", progress=False)
        if not isinstance(images, data.Images) or images.data_shape != model.data_shape:
            return None
        return model.as_data(as_model_data(model, images[:PICTURES]))
    except (ImportError, OSError, UserError):
        return None
