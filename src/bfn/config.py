"""Formats of the config of a stored model, and how older ones are read."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from bfn.conditions import Classes
from bfn.core.flows import Flow
from bfn.core.info import ModelInfo
from bfn.core.plain import StorageError, from_plain, to_plain
from bfn.error_curve import ErrorCurve

__all__ = ["FORMAT", "StorageError", "check_config"]

FORMAT = 3

DEEPEST = 50
"""Lists and objects within each other, that a config has at most."""
MOST_VALUES = 2**27
"""Numbers in one sample, that a config may ask for."""
MOST_CLASSES = 1_000_000
KEYS = ("format", "flow", "head", "data_shape", "network", "info")
KEYS_OF_FORMAT_1 = (*KEYS[:-1], "n_labels", "alphabet", "card", "tables")


def check_config(config: Any) -> dict[str, Any]:
    """The config of a stored model in the present format; one of format 1 is brought up to date."""
    if not isinstance(config, dict):
        raise StorageError(f"{reprlib.repr(config)}: expected an object, the config of a stored model")
    missing = next((key for key in KEYS[:-1] if key not in config), None)
    if missing is not None:
        raise StorageError(f"has no {missing!r}: it is not the config of a stored model")
    if config["format"] not in range(1, FORMAT + 1):
        raise StorageError(f"format {config['format']!r}: this version reads formats 1 to {FORMAT}; upgrade bfn")
    known = KEYS_OF_FORMAT_1 if config["format"] == 1 else KEYS
    foreign = next((key for key in config if key not in known), None)
    if foreign is not None:
        raise StorageError(f"{foreign!r}: a config of format {config['format']} has {', '.join(known)}")
    _check_depth(config)
    stored = config["data_shape"]
    for name, shape in (stored if isinstance(stored, dict) else {"": stored}).items():
        sides = from_plain(tuple[int, ...], shape, f"data_shape{name and '.' + name}")
        if not all(side > 0 for side in sides) or math.prod(sides) > MOST_VALUES:
            raise StorageError(
                f"data_shape {reprlib.repr(stored)}: expected whole numbers above 0, of product below 2^31"
            )
    if config["network"] is not None and not isinstance(config["network"], dict):
        raise StorageError(f"network {reprlib.repr(config['network'])}: expected an object or null")
    # Format 2 has other names of facts, which are read as views (bfn.core.old_facts).
    return _from_format_1(config) if config["format"] == 1 else {**config, "format": FORMAT}


def _check_depth(value: Any) -> None:
    layer, depth = [value], 0
    while layer:
        layer = [item for one in layer for item in (one.values() if isinstance(one, dict) else one)]
        layer, depth = [item for item in layer if isinstance(item, dict | list)], depth + 1
        if depth > DEEPEST:
            raise StorageError(f"lists and objects within each other, more than {DEEPEST} deep")


def _from_format_1(config: dict[str, Any]) -> dict[str, Any]:
    """Format 1 had the facts beside the parts: n_labels, alphabet, tables, and the error curve within the card."""
    n_labels = from_plain(int | None, config.get("n_labels"), "n_labels") or 0
    if n_labels > MOST_CLASSES:
        raise StorageError(f"n_labels {n_labels}: expected at most {MOST_CLASSES:,}")
    card = dict(from_plain(Mapping[str, Any] | None, config.get("card"), "card") or {})
    flow = from_plain(Flow, config["flow"], "flow")
    info = ModelInfo(
        classes=Classes.equal(n_labels) if n_labels > 0 else None,
        alphabet=from_plain(str | None, config.get("alphabet"), "alphabet"),
        # Images were always scaled so, and commands clipped to it.
        value_range=(-1.0, 1.0) if flow.has_range and len(config["data_shape"]) == 3 else None,
        error_curve=ErrorCurve.from_bins(card.pop("loss_by_t", None)),
        card=card,
    )
    parts = {key: config[key] for key in ("flow", "head", "data_shape", "network")}
    tables = config.get("tables")
    return {"format": FORMAT, **parts, "info": {**to_plain(info), **({"tables": tables} if tables else {})}}
