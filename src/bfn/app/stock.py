"""What the page has to offer: models by name, and pictures that samples can be grown around. Read once, then fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bfn import data, storage
from bfn.app import figures, work
from bfn.app.requests import KEEPS, Draw, Facts
from bfn.errors import UserError
from bfn.loaded import Loaded, load
from bfn.viz.pictures import sheet

PICTURES = 20


@dataclass(frozen=True)
class Stock:
    """Models by the names the page knows them by; known pictures, (n, *data_shape), of those that have some."""

    models: Mapping[str, Loaded]
    pictures: Mapping[str, Tensor]

    @cached_property
    def facts(self) -> dict[str, Facts]:
        """What requests are checked against."""
        return {name: self._facts(name, loaded) for name, loaded in self.models.items()}

    def _facts(self, name: str, loaded: Loaded) -> Facts:
        length = loaded.model.data_shape[0] if loaded.form == "text" else 0
        fitting = work.fitting(loaded.model)
        return Facts(loaded.kind, loaded.form, fitting, loaded.n_labels, length, len(self.pictures.get(name, ())))

    def strip(self, name: str) -> str:
        """The known pictures of a model in a row."""
        if name not in self.pictures:
            return ""
        return figures.image(
            sheet(self.pictures[name], self.models[name].levels, PICTURES // 2), "pictures to start from"
        )

    def conditions(self, request: Draw) -> dict[str, Any]:
        """Arguments of ``bfn.sample`` for what is known of the samples."""
        loaded = self.models[request.model]
        result: dict[str, Any] = {}
        if loaded.n_labels:
            result["label"] = labels(loaded.n_labels, request.label, request.n)
            if request.guidance != 1:
                result["guidance"] = request.guidance
        if loaded.alphabet is not None and request.prompt:
            known, where = data.Alphabet(loaded.alphabet).encode_prompt(request.prompt, loaded.model.data_shape[0])
            result |= {"known": known, "mask": where}
        if request.keep != KEEPS[0]:
            known = self.pictures[request.model][request.picture]
            result |= {"known": known, "mask": mask(request.keep, known)}
        return result


def labels(n_labels: int, label: int | None, n: int) -> Tensor:
    """(n,) classes: the one given, -1 for none, all in turn for None."""
    return torch.arange(n) % n_labels if label is None else torch.full((n,), label)


def mask(keep: str, picture: Tensor) -> Tensor:
    """True where that part of a picture (channel, height, width) is known."""
    _, height, width = picture.shape
    known = torch.zeros(picture.shape, dtype=torch.bool)
    if keep == "top half":
        known[:, : height // 2] = True
    elif keep == "bottom half":
        known[:, height // 2 :] = True
    elif keep == "left half":
        known[:, :, : width // 2] = True
    elif keep == "right half":
        known[:, :, width // 2 :] = True
    elif keep == "all but the middle":
        known[:] = True
        known[:, height // 4 : -(height // 4), width // 4 : -(width // 4)] = False
    return known


def take(directories: Sequence[str] = ()) -> Stock:
    """The bundled models and those in the given directories, which go by the directories' own names."""
    models = {name: load(name) for name in storage.bundled()}
    for directory in directories:
        name = Path(directory).resolve().name
        if name in models:
            raise UserError(f"--model {directory}: there is a model {name!r} already; give the directory another name")
        models[name] = load(directory)
    if not models:
        raise UserError("no models: none are bundled with this installation; name one with --model DIR")
    found = {name: _pictures(loaded) for name, loaded in models.items() if loaded.form == "images"}
    return Stock(models, {name: pictures for name, pictures in found.items() if pictures is not None})


def _pictures(loaded: Loaded) -> Tensor | None:
    """Test pictures of the standard set that a model was trained on, if this machine has it: nothing is fetched."""
    options = loaded.config.get("card", {}).get("settings", {}).get("data", {})
    name = options.get("name")
    if name is None or not data.is_at_hand(name):
        return None
    try:
        images = data.load(name, "test", progress=False)
    except (ImportError, OSError, ValueError):
        return None
    if not isinstance(images, data.Images) or images.data_shape != tuple(loaded.model.data_shape):
        return None
    images = images[:PICTURES].prepared(options)
    if loaded.kind == "continuous":
        return images.to_float()
    return images.to_classes() if images.levels == loaded.levels else None
