"""The data that a command measures a model on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from bfn.cli.common import Loaded, on_terminal
from bfn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Part = Literal["train", "validation", "test", "all"]


def own_data(loaded: Loaded) -> str:
    """The name of the set that the model was trained on, which needs no download."""
    from bfn.data import is_at_hand, names

    name: str | None = loaded.trained_on.get("name")
    if name is None:
        raise UserError("--data: the model's card does not say what it was trained on; give a standard set or a path")
    if name in names() and not is_at_hand(name):
        raise UserError(f"{name} is not in the cache: run bfn data fetch {name}, or give --data")
    return name


def held_out(loaded: Loaded, source: str, part: Part, n: int, seed: int) -> tuple[Tensor, Tensor | None]:
    """Data as the model takes them, and their labels where it knows the classes."""
    import torch

    from bfn.data import Alphabet, Text, load

    flow, shape = loaded.model.flow, loaded.model.data_shape
    alphabet = Alphabet(loaded.alphabet) if loaded.alphabet else None
    everything = load(source, part, alphabet=alphabet, progress=on_terminal())
    if isinstance(everything, Text):
        if loaded.form != "text":
            raise UserError(f"--data {source}: is text, and the model is one of {loaded.form}")
        return everything.tiles(shape[0], min(n, len(everything) // shape[0])), None
    if loaded.form != "images" or everything.data_shape != shape:
        raise UserError(f"--data {source}: images of shape {everything.data_shape}, and the model's data are {shape}")
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
    some = everything[order[:n]]
    labels = some.labels if loaded.n_labels else None
    some = some.for_model(loaded.levels, loaded.trained_on)
    return some.to_float() if flow.kind == "continuous" else some.to_classes(), labels


def measured_on(
    model: str, loaded: Loaded, source: str, part: Part, x: Tensor, labels: Tensor | None, seed: int
) -> dict[str, Any]:
    """What a report says of the data, and the unit of its figures."""
    return {
        "model": model,
        "data": source,
        "part": part,
        "n": len(x),
        "with_labels": labels is not None,
        "seed": seed,
        "unit": "bits per character" if loaded.form == "text" else "bits per dimension",
    }


def headline(measured: Mapping[str, Any]) -> str:
    """The same in words, but for the unit."""
    conditional = ", each with its class" if measured["with_labels"] else ""
    return "{model} on {n} samples of {data} ({part})".format_map(measured) + conditional
