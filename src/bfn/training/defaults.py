"""Settings for data that come without any: flow, head, weighting and network by what the data are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bfn import data
from bfn.data import Images, Numbers, Records, Text
from bfn.flows import REST
from bfn.record_data import columns_of, record_lengths
from bfn.training.settings import Settings

__all__ = ["default_settings"]

NUMBERS = {
    "flow": {"name": "continuous", "sigma_1": REST},
    "head": {"name": "preconditioned", "data_std": 1.0},
    "weighting": {"name": "edm", "data_std": 1.0},
}
"""Of numbers that are brought to mean 0 and standard deviation 1, as those of records are."""
CLASSES = {"flow": {"name": "discrete"}, "head": {"name": "logits"}, "weighting": {"name": "cross-entropy"}}
PERCEPTRON = {"name": "mlp", "width": 256, "n_blocks": 4}
TRANSFORMER = {"name": "transformer", "width": 128, "n_blocks": 4, "n_heads": 4}
LONGEST = 256
"""Characters of a text that are learned together."""


def default_settings(config: Mapping[str, Any], network: str | None = None) -> Settings:
    """Settings for the data of a run, {"name": a standard set or a path, and options}.

    network: one of ``bfn.networks``, or "module:Class", instead of the one that suits the data.
    """
    loaded = data.load(config["name"], "train", tokenizer=config.get("tokenizer"), columns=columns_of(config))
    chosen = (
        _for_images(loaded) if isinstance(loaded, Images)
        else _for_text(loaded, config) if isinstance(loaded, Text)
        else _for_records(loaded, network)
    )  # fmt: skip
    if network is not None:
        chosen["network"] = {"name": network}
    return Settings.from_dict({"data": dict(config), "warmup": 100, **chosen}, str(config["name"]))


def _for_images(images: Images) -> dict[str, Any]:
    _, height, width = images.data_shape
    levels = 1
    while levels < 3 and min(height, width) >= 8 * 2**levels and not (height % 2**levels or width % 2**levels):
        levels += 1
    network = {
        "name": "unet",
        "channels": 32 if max(height, width) <= 16 else 64,
        "multipliers": [1, 2, 2][:levels],
        "attention_levels": [levels - 1],
        "n_blocks": 1,
    }
    flow = {"flow": {"name": "continuous", "sigma_1": 0.001}, "head": {"name": "preconditioned"}}
    return {**flow, "weighting": {"name": "edm"}, "network": network, "batch": 64, "lr": 1e-3, "steps": 5000}


def _for_text(text: Text, config: Mapping[str, Any]) -> dict[str, Any]:
    # Parts of 5 % are held out, and each must hold some pieces.
    length = int(config.get("length", min(LONGEST, max(8, len(text) // 100))))
    run = {"batch": 64, "lr": 1e-3, "steps": 10_000}
    return {**CLASSES, **run, "network": TRANSFORMER, "data": {**config, "length": length}}


def _for_records(records: Records, network: str | None) -> dict[str, Any]:
    parts = {name: NUMBERS if isinstance(own, Numbers) else CLASSES for name, own in records.samples.items()}
    record_lengths(records)  # refuses what cannot be trained on before anything is made
    if len(parts) > 1:
        kinds = ("flow", "head", "weighting")
        joint: dict[str, dict[str, Any]] = {
            kind: {"name": "joint", "parts": {name: own[kind] for name, own in parts.items()}} for kind in kinds
        }
        joint["head"]["flat"] = network in (None, "mlp")
        return {**joint, "network": PERCEPTRON, "batch": 256, "lr": 1e-3, "steps": 10_000}
    ((name, own),) = parts.items()
    column = records.samples[name]
    vectors = isinstance(column, Numbers) and column.values.ndim < 3
    if vectors:
        return {**own, "network": PERCEPTRON, "batch": 256, "lr": 1e-3, "steps": 10_000}
    return {**own, "network": TRANSFORMER, "batch": 64, "lr": 1e-3, "steps": 10_000}
