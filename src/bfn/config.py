"""A model's config: its parts and its info as plain values, and back.

A part (flow, schedule, head, network) is stored under the name that its registry has it by, with its fields beside:
``{"name": "exponential", "sigma_1": 0.001}``. Everything else is read by the types that its dataclass declares, so
that a new field of :class:`bfn.info.ModelInfo` needs no line here. What does not fit is told with its place.
"""

import dataclasses
import inspect
import math
import reprlib
import sys
import types
from collections import ChainMap
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from bfn.data import TOKENIZERS, Tokenizer
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError, did_you_mean
from bfn.flows import FLOWS, Flow
from bfn.heads import HEADS, FlowMapHead, Head
from bfn.info import Classes, ModelInfo
from bfn.joint import JointFlow
from bfn.joint_head import JointHead
from bfn.schedules import SCHEDULES, Schedule
from bfn.weightings import WEIGHTINGS, JointWeighting, Weighting

__all__ = ["FORMAT", "REGISTRIES", "StorageError", "check", "decode", "encode"]

FORMAT = 2

REGISTRIES: dict[type, tuple[str, Mapping[str, type]]] = {
    Flow: ("flow", ChainMap({"joint": JointFlow}, FLOWS)),
    Schedule: ("schedule", SCHEDULES),
    Head: ("head", ChainMap({"joint": JointHead, "flow-map": FlowMapHead}, HEADS)),
    Weighting: ("weighting", ChainMap({"joint": JointWeighting}, WEIGHTINGS)),
    Tokenizer: ("tokenizer", TOKENIZERS),
}
"""The parts that a config names, each with the registry that knows them; networks have ``bfn.networks.NETWORKS``."""

LARGEST = sys.float_info.max
DEEPEST = 50
"""Lists and objects within each other, that a config has at most."""
MOST_VALUES = 2**27
"""Numbers in one sample, that a config may ask for."""
MOST_CLASSES = 1_000_000
KEYS = ("format", "flow", "head", "data_shape", "network", "info")
KEYS_OF_FORMAT_1 = (*KEYS[:-1], "n_labels", "alphabet", "card", "tables")
PLAIN = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
    Mapping: "an object",
    tuple: "a list",
}


class StorageError(UserError):
    """A stored model that cannot be read or does not fit; the message is one clear line."""


def encode(value: Any) -> Any:
    """Plain values that JSON can write."""
    for base, (what, known) in REGISTRIES.items():
        if isinstance(value, base):
            name = next((name for name, kind in known.items() if type(value) is kind), None)
            if name is None:
                raise UserError(
                    f"{what} {type(value).__name__}: only {', '.join(known)} can be stored; add it to the registry "
                    f"bfn.{base.__module__.split('.')[1]}.{what.upper()}S under a name"
                )
            return {"name": name, **_fields(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}


def decode(hint: Any, value: Any, place: str) -> Any:  # noqa: PLR0911
    """A value of the declared type from plain values; a StorageError that names the place where they do not fit."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return decode(next(argument for argument in arguments if argument is not type(None)), value, place)
    if inspect.isclass(origin) and (origin in REGISTRIES or dataclasses.is_dataclass(origin)):
        return _decode_dataclass(origin, value, place)
    if not _fits(origin, value):
        raise StorageError(f"{place} {reprlib.repr(value)}: expected {PLAIN[origin]}")
    if origin is tuple:
        hints = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        if len(hints) != len(value):
            raise StorageError(f"{place} {reprlib.repr(value)}: expected {len(hints)} values")
        pairs = enumerate(zip(hints, value, strict=True))
        return tuple(decode(hint, item, f"{place}[{i}]") for i, (hint, item) in pairs)
    if origin is Mapping:
        of_key, of_item = arguments
        return {_key(of_key, key, place): decode(of_item, item, f"{place}.{key}") for key, item in value.items()}
    return float(value) if origin is float else value


def _fits(origin: Any, value: Any) -> bool:
    if origin is tuple:
        return isinstance(value, list | tuple)
    if origin in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole if origin is int else (whole or isinstance(value, float)) and abs(value) <= LARGEST
    return isinstance(value, origin)


def _key(hint: Any, key: str, place: str) -> Any:
    if hint is not int:
        return key
    if not key.isdecimal() or str(int(key)) != key:
        raise StorageError(f"{place} {key!r}: expected a whole number as the name")
    return int(key)


def _decode_dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise StorageError(f"{place} {reprlib.repr(value)}: expected an object")
    values = dict(value)
    if kind in REGISTRIES:
        _, known = REGISTRIES[kind]
        name = values.pop("name", None)
        if name not in known:
            raise StorageError(f"{place} {name!r}: expected one of {', '.join(known)}{did_you_mean(name, known)}")
        kind, place = known[name], f"{place} {name}"
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    names = [field.name for field in fields]
    foreign = next((key for key in values if key not in names), None)
    if foreign is not None:
        raise StorageError(f"{place}: has no {foreign!r}; it has {', '.join(names) or 'no values'}")
    needed = (f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING)
    missing = next((name for name in needed if name not in values), None)
    if missing is not None:
        raise StorageError(f"{place}: has no {missing!r}: it needs {', '.join(names)}")
    given = {key: decode(hints[key], item, f"{place}.{key}") for key, item in values.items()}
    try:
        return kind(**given)
    except UserError as error:
        raise StorageError(f"{place}: {error}") from None


def check(config: Any) -> dict[str, Any]:
    """The config of a stored model in the present format; one of format 1 is brought up to date."""
    if not isinstance(config, dict):
        raise StorageError(f"{reprlib.repr(config)}: expected an object, the config of a stored model")
    missing = next((key for key in KEYS[:-1] if key not in config), None)
    if missing is not None:
        raise StorageError(f"has no {missing!r}: it is not the config of a stored model")
    if config["format"] not in (1, FORMAT):
        raise StorageError(f"format {config['format']!r}: this version reads formats 1 and {FORMAT}; upgrade bfn")
    known = KEYS if config["format"] == FORMAT else KEYS_OF_FORMAT_1
    foreign = next((key for key in config if key not in known), None)
    if foreign is not None:
        raise StorageError(f"{foreign!r}: a config of format {config['format']} has {', '.join(known)}")
    _check_depth(config)
    stored = config["data_shape"]
    for name, shape in (stored if isinstance(stored, dict) else {"": stored}).items():
        sides = decode(tuple[int, ...], shape, f"data_shape{name and '.' + name}")
        if not all(side > 0 for side in sides) or math.prod(sides) > MOST_VALUES:
            raise StorageError(
                f"data_shape {reprlib.repr(stored)}: expected whole numbers above 0, of product below 2^31"
            )
    if config["network"] is not None and not isinstance(config["network"], dict):
        raise StorageError(f"network {reprlib.repr(config['network'])}: expected an object or null")
    return config if config["format"] == FORMAT else _from_format_1(config)


def _check_depth(value: Any) -> None:
    layer, depth = [value], 0
    while layer:
        layer = [item for one in layer for item in (one.values() if isinstance(one, dict) else one)]
        layer, depth = [item for item in layer if isinstance(item, dict | list)], depth + 1
        if depth > DEEPEST:
            raise StorageError(f"lists and objects within each other, more than {DEEPEST} deep")


def _from_format_1(config: dict[str, Any]) -> dict[str, Any]:
    """Format 1 had the facts beside the parts: n_labels, alphabet, tables, and the error curve within the card."""
    n_labels = decode(int | None, config.get("n_labels"), "n_labels") or 0
    if n_labels > MOST_CLASSES:
        raise StorageError(f"n_labels {n_labels}: expected at most {MOST_CLASSES:,}")
    card = dict(decode(Mapping[str, Any] | None, config.get("card"), "card") or {})
    flow = decode(Flow, config["flow"], "flow")
    info = ModelInfo(
        classes=Classes.equal(n_labels) if n_labels > 0 else None,
        alphabet=decode(str | None, config.get("alphabet"), "alphabet"),
        # Images were always scaled so, and commands clipped to it.
        value_range=(-1.0, 1.0) if flow.has_range and len(config["data_shape"]) == 3 else None,
        error_curve=ErrorCurve.from_bins(card.pop("loss_by_t", None)),
        card=card,
    )
    parts = {key: config[key] for key in ("flow", "head", "data_shape", "network")}
    return {"format": FORMAT, **parts, "info": {**encode(info), "tables": config.get("tables") or {}}}
