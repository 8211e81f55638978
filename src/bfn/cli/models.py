"""``bfn models``."""

from collections.abc import Mapping
from typing import Any

from bfn.cli.common import AsJson, print_json, table


def models(json: AsJson = False) -> None:
    """List the models that come with the package, with their measured quality.

    Example: bfn models
    """
    from bfn import storage

    found = {name: storage.read_config(name) for name in storage.bundled()}
    if json:
        return print_json([{"name": name, **summary(config)} for name, config in found.items()])
    if not found:
        print("no models are bundled with this installation; bfn train --recipe NAME makes one")
        return None
    rows = [(name, describe_data(config), quality_line(config)) for name, config in found.items()]
    print(table(("model", "data", "measured"), rows))
    print("\nbfn info MODEL tells more; bfn sample MODEL draws from one")
    return None


def summary(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a program may want to know of a stored model."""
    keys = ("flow", "head", "data_shape", "network", "n_labels", "alphabet", "card")
    return {key: config.get(key) for key in keys}


def describe_data(config: Mapping[str, Any]) -> str:
    """The data of a stored model in a few words."""
    flow, shape = config["flow"], "x".join(map(str, config["data_shape"]))
    classes = f", {flow['n_classes']} classes" if "n_classes" in flow else ""
    labels = f", {config['n_labels']} labels" if config.get("n_labels") else ""
    return f"{shape} {flow['name']}{classes}{labels}"


def quality_line(config: Mapping[str, Any]) -> str:
    """The card's measured figures on one line."""
    quality = (config.get("card") or {}).get("quality") or {}
    return ", ".join(f"{name} {figure(value)}" for name, value in quality.items()) or "not measured"


def figure(value: object) -> str:
    """A number to read."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
