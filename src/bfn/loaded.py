"""A stored model with all that is known of it: what commands and pages ask before they show a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from bfn.model import BFN


@dataclass(frozen=True)
class Loaded:
    """A model and what is stored beside its weights."""

    model: BFN
    config: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of data: "continuous" or "discrete"."""
        return self.model.flow.kind

    @property
    def alphabet(self) -> str | None:
        """Symbols of a text model."""
        return self.config.get("alphabet")

    @property
    def n_labels(self) -> int:
        """Classes that a class-conditional model knows."""
        return int(self.config.get("n_labels") or 0)

    @property
    def trained_on(self) -> Mapping[str, Any]:
        """The data of the training's settings, as the card has them."""
        return ((self.config.get("card") or {}).get("settings") or {}).get("data") or {}

    @property
    def levels(self) -> int | None:
        """Values a pixel takes, for discrete data."""
        return getattr(self.model.flow, "n_classes", None)

    @property
    def form(self) -> str:
        """What a sample is: "text", "images" or "numbers"."""
        if self.alphabet is not None:
            return "text"
        shape = self.model.data_shape
        return "images" if len(shape) == 3 and shape[0] in (1, 3) else "numbers"


def load(name: str, device: torch.device | str = "cpu") -> Loaded:
    """A stored or bundled model on a device, with its config."""
    import bfn
    from bfn import storage

    return Loaded(bfn.load(name).to(device), storage.read_config(name))
