"""``bfn models``."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bfn.cli.common import AsJson, table, tell

if TYPE_CHECKING:
    from bfn.info import ModelInfo

__all__ = ["describe_data", "figure", "models", "quality", "summary"]


def models(json: AsJson = False) -> None:
    """List the models that come with the package, with their measured quality.

    Example: bfn models
    """
    from bfn import storage

    found = {name: (storage.read_config(name), storage.read_info(name)) for name in storage.bundled()}
    rows = [(name, describe_data(*parts), (quality(parts[1]) or ["not measured"])[0]) for name, parts in found.items()]
    lines = [table(("model", "data", "measured"), rows), "\nbfn info MODEL tells more; bfn sample MODEL draws from one"]
    if not found:
        lines = ["no models are bundled with this installation; bfn train --recipe NAME makes one"]
    tell([{"name": name, **summary(*parts)} for name, parts in found.items()], lines, json)


def summary(config: Mapping[str, Any], info: "ModelInfo") -> dict[str, Any]:
    """What a program may want to know of a stored model."""
    return {
        **{key: config[key] for key in ("flow", "head", "data_shape", "network")},
        "classes": info.classes and dict(zip(info.classes.names, info.classes.shares, strict=True)),
        "alphabet": info.alphabet,
        "tokens": info.tokenizer and info.tokenizer.pieces,
        "value_range": info.value_range,
        "conditions": {name: one.names or [one.low, one.high] for name, one in info.conditions.items()},
        "longest": info.lengths and info.lengths.longest,
        "tables": sorted(info.tables),
        "card": dict(info.card),
    }


def describe_data(config: Mapping[str, Any], info: "ModelInfo") -> str:
    """The data of a stored model in a few words."""
    flow, shape = config["flow"], config["data_shape"]
    if info.columns is not None:
        return f"a table of {len(info.columns.columns)} columns"
    classes = f", {len(info.classes)} classes" if info.classes else ""
    if "flows" in flow:
        return "; ".join(f"{name}: {_kind(own, shape[name])}" for name, own in flow["flows"].items()) + classes
    return _kind(flow, shape) + classes


def _kind(flow: Mapping[str, Any], shape: Sequence[int]) -> str:
    values = f", {flow['n_classes']} values" if "n_classes" in flow else ""
    return f"{'x'.join(map(str, shape))} {flow['name']}{values}".strip()


def quality(info: "ModelInfo") -> list[str]:
    """The card's measured figures, the most important first."""
    return [f"{name} {figure(value)}" for name, value in (info.card.get("quality") or {}).items()]


def figure(value: object) -> str:
    """A number to read, or the first few of a long list."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return reprlib.repr(value) if isinstance(value, list) else str(value)
