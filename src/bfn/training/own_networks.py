"""The network of a model from its config, with the sizes that follow from the data; a user's own by module:Class."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bfn import networks
from bfn.core.conditions import Condition
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Flow
from bfn.core.heads import Head
from bfn.core.info import ModelInfo
from bfn.core.joint import JointHead
from bfn.core.model import BFN, load
from bfn.storage import models as storage

LEAST_LENGTH = 256
"""Of the sequences that a transformer is made for: longer ones may come later."""


def build_network(
    config: Mapping[str, Any], flow: Flow, head: Head, data_shape: Any, info: ModelInfo
) -> torch.nn.Module:
    """The network of a config, {"name": one of ``bfn.networks`` or "module:Class", arguments}.

    It is made with those of these sizes that it takes and the config leaves out: data_shape, n_labels, conditions,
    n_classes, in_features, out_features, in_channels, max_length.
    """
    name = config["name"]
    make = _imported(name) if ":" in name else networks.NETWORKS.get(name)
    if make is None:
        known = networks.NETWORKS
        hint = did_you_mean(name, known)
        raise UserError(f"network {name!r}: expected one of {', '.join(known)}, or module:Class of your own{hint}")
    taken = inspect.signature(make).parameters
    sizes = _sizes(flow, head, data_shape, info)
    for given, what in (("n_labels", "labels"), ("conditions", "conditions")):
        if sizes[given] and given not in taken and name in networks.NETWORKS:
            wish = "data.labels=false" if what == "labels" else "data.conditions=[]"
            n = len((info.classes if what == "labels" else info.conditions) or ())
            raise UserError(f"network {name}: takes no {what}, and the data have {n}; set {wish}")
    if name == "transformer" and flow.n_values is not None:
        sizes = {key: size for key, size in sizes.items() if key not in ("in_features", "out_features")}
    arguments = {key: size for key, size in sizes.items() if key in taken and size is not None}
    arguments |= {key: value for key, value in config.items() if key != "name"}
    if name in networks.NETWORKS:
        return networks.build({"name": name, **arguments})
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        raise UserError(f"network {name}: {error}; its arguments are {', '.join(taken)}") from None
    network = make(**arguments)
    if not isinstance(network, torch.nn.Module):
        raise UserError(f"network {name}: made a {type(network).__name__}: expected a torch.nn.Module")
    return network


def load_with_network(name: str, network: str) -> BFN:
    """A stored model whose network is the user's own, "module:Class", made as training made it."""
    from bfn.core.plain import from_plain

    stored, info = storage.read_config(name), storage.read_info(name)
    settings = info.card.get("settings")
    known = settings.get("network") if isinstance(settings, Mapping) else None
    arguments = {key: value for key, value in known.items() if key != "name"} if isinstance(known, Mapping) else {}
    shape = stored["data_shape"]
    data_shape = {part: tuple(own) for part, own in shape.items()} if isinstance(shape, dict) else tuple(shape)
    flow = from_plain(Flow, stored["flow"], "flow").for_shape(data_shape)
    head = from_plain(Head, stored["head"], "head")
    return load(name, build_network({**arguments, "name": network}, flow, head, data_shape, info))


def _sizes(flow: Flow, head: Head, data_shape: Any, info: ModelInfo) -> dict[str, Any]:
    """All that follows from the data, by the names that networks have for it; None where it does not apply."""
    declared = {name: _declaration(one) for name, one in info.conditions.items()}
    sizes: dict[str, Any] = {
        "data_shape": data_shape,
        "n_labels": len(info.classes or ()),
        "conditions": declared or None,
        "n_classes": flow.n_values or 0,
    }
    if isinstance(data_shape, Mapping):
        if isinstance(head, JointHead) and head.flat:
            state = {name: own.state_shape(data_shape[name]) for name, own in flow.parts.items()}
            outputs = (math.prod(head.parts[name].raw_shape(shape)) for name, shape in state.items())
            sizes |= {"in_features": sum(map(math.prod, state.values())), "out_features": sum(outputs)}
        return sizes
    sizes |= {"in_channels": data_shape[0], "in_features": data_shape[-1]}
    return sizes | {"max_length": max(LEAST_LENGTH, data_shape[0])}


def _declaration(condition: Condition) -> dict[str, Any]:
    """A condition as networks are told of it: its shape, and its classes or its mean and spread in the data."""
    shape = list(condition.shape)
    if condition.n_classes:
        return {"shape": shape, "n_classes": condition.n_classes}
    values = torch.tensor(condition.examples, dtype=torch.float64).reshape(-1, *condition.shape)
    values = values[values.isfinite().flatten(1).all(1)] if values.ndim > 1 else values[values.isfinite()]
    if not len(values):
        return {"shape": shape}
    mean, std = values.mean(0), values.std(0, correction=0)
    std = torch.where(std > 1e-6 * mean.abs(), std, 1.0)
    return {"shape": shape, "mean": mean.tolist(), "std": std.tolist()}


def _imported(name: str) -> Callable[..., Any]:
    """The class of "module:Class"; the module is a file, or a name in the current directory or installed."""
    module, _, attribute = name.rpartition(":")
    path = Path(module).expanduser()
    try:
        if path.suffix == ".py":
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise UserError(f"network {name!r}: {path}: no such file; expected module:Class or file.py:Class")
            loaded = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(path.stem, loaded)
            spec.loader.exec_module(loaded)
        else:
            here = str(Path.cwd())
            sys.path.insert(0, here)
            try:
                loaded = importlib.import_module(module)
            finally:
                sys.path.remove(here)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise UserError(
            f"network {name!r}: no module {module!r} here or installed; expected module:Class or file.py:Class"
        ) from None
    found = getattr(loaded, attribute, None)
    if not callable(found):
        known = [key for key, value in vars(loaded).items() if inspect.isclass(value)]
        raise UserError(f"network {name!r}: {module} has no class {attribute!r}{did_you_mean(attribute, known)}")
    return found  # type: ignore[no-any-return]
