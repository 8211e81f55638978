"""``bfn models``."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bfn.cli.common import AsJson, print_json, table

if TYPE_CHECKING:
    from bfn.info import ModelInfo

__all__ = ["describe_data", "figure", "models", "quality_lines", "summary"]


def models(json: AsJson = False) -> None:
    """List the models that come with the package, with their measured quality.

    Example: bfn models
    """
    from bfn import storage

    found = {name: (storage.read_config(name), storage.read_info(name)) for name in storage.bundled()}
    if json:
        return print_json([{"name": name, **summary(*parts)} for name, parts in found.items()])
    if not found:
        print("no models are bundled with this installation; bfn train --recipe NAME makes one")
        return None
    rows = [
        (name, describe_data(config, info), next(quality_lines(info), "not measured"))
        for name, (config, info) in found.items()
    ]
    print(table(("model", "data", "measured"), rows))
    print("\nbfn info MODEL tells more; bfn sample MODEL draws from one")
    return None


def summary(config: Mapping[str, Any], info: "ModelInfo") -> dict[str, Any]:
    """What a program may want to know of a stored model."""
    return {
        **{key: config[key] for key in ("flow", "head", "data_shape", "network")},
        "classes": info.classes and dict(zip(info.classes.names, info.classes.shares, strict=True)),
        "alphabet": info.alphabet,
        "value_range": info.value_range,
        "tables": sorted(info.tables),
        "card": dict(info.card),
    }


def describe_data(config: Mapping[str, Any], info: "ModelInfo") -> str:
    """The data of a stored model in a few words."""
    flow, shape = config["flow"], "x".join(map(str, config["data_shape"]))
    values = f", {flow['n_classes']} values" if "n_classes" in flow else ""
    classes = f", {len(info.classes)} classes" if info.classes else ""
    return f"{shape} {flow['name']}{values}{classes}"


def quality_lines(info: "ModelInfo") -> Iterator[str]:
    """The card's measured figures, the most important first."""
    for name, value in (info.card.get("quality") or {}).items():
        yield f"{name} {figure(value)}"


def figure(value: object) -> str:
    """A number to read."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
