"""Models on disk: ``model.safetensors`` with the weights and ``config.json`` with everything else.

A directory is enough to build the model again where its network comes from :mod:`bfn.networks`; a network of the user's
own is stored as weights alone and is given again on loading. Nothing is unpickled, ever.
"""

import dataclasses
import filecmp
import json
import math
import os
import reprlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bfn import networks
from bfn.error_curve import ErrorCurve
from bfn.errors import UserError, did_you_mean
from bfn.files import atomic, atomic_write
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow, Shape
from bfn.heads import HEADS, Head
from bfn.schedules import ExponentialSchedule, QuadraticSchedule, Schedule
from bfn.solvers import Row, Table

FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"

SCHEDULES: dict[str, type[Schedule]] = {"exponential": ExponentialSchedule, "quadratic": QuadraticSchedule}
SHIPPED_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "flow": (lambda value: isinstance(value, dict), "an object"),
    "head": (lambda value: isinstance(value, dict), "an object"),
    "data_shape": (
        lambda value: isinstance(value, list) and all(type(side) is int and side > 0 for side in value),
        "a list of whole numbers above 0",
    ),
    "network": (lambda value: value is None or isinstance(value, dict), "an object or null"),
    "n_labels": (lambda value: value is None or (type(value) is int and value >= 0), "a whole number"),
    "alphabet": (lambda value: value is None or isinstance(value, str), "a string or null"),
    "card": (lambda value: value is None or isinstance(value, dict), "an object"),
}
"""What a config holds: the test that each field passes, and what the test asks for."""


class StorageError(UserError):
    """A stored model that cannot be read or does not fit; the message is one clear line."""


class Storable(Protocol):
    """The parts of a model that are stored."""

    @property
    def network(self) -> Any:
        """A torch.nn.Module."""

    @property
    def flow(self) -> Flow:
        """The kind of data."""

    @property
    def head(self) -> Head:
        """What the network's output means."""

    @property
    def data_shape(self) -> Shape:
        """Shape of one sample."""

    @property
    def tables(self) -> Mapping[int, Table]:
        """Solvers tuned to this model, by their number of calls."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """A model taken from disk, in parts."""

    network: nn.Module
    flow: Flow
    head: Head
    data_shape: Shape
    tables: Mapping[int, Table]
    error_curve: ErrorCurve | None


def save(
    model: Storable, directory: Path | str, extras: Mapping[str, Any] | None = None, *, dtype: str = "float32"
) -> Path:
    """Write model.safetensors and config.json into a directory, each atomically, the weights first.

    extras: ``n_labels``, ``alphabet`` (the symbols of a text model) and ``card`` (a free dict), all optional.
    dtype: what the weights are kept in; float16 and bfloat16 halve the file, and are read back as float32.
    """
    if dtype not in SHIPPED_DTYPES:
        raise UserError(f"dtype={dtype!r}: expected one of {', '.join(SHIPPED_DTYPES)}")
    if not isinstance(model.network, nn.Module):
        raise UserError(f"network {model.network!r}: only a torch.nn.Module has weights that can be stored")
    directory = Path(directory)
    config = describe(model, extras)
    weights = {
        name: (value.to(SHIPPED_DTYPES[dtype]) if value.is_floating_point() else value)
        for name, value in model.network.state_dict().items()
    }
    write_weights(directory / WEIGHTS, weights)
    atomic_write(directory / CONFIG, json.dumps(config, indent=2) + "\n")
    return directory


def load_parts(name: Path | str, network: nn.Module | None = None) -> Parts:
    """The parts of a model from a directory, or of a bundled one by its name; weights in float32.

    network: needed where the model was stored with a network that is not one of :mod:`bfn.networks`.
    """
    directory = locate(name)
    config = read_config(directory)
    weights = read_weights(directory / WEIGHTS)
    if network is None and config["network"] is None:
        raise StorageError(f"{directory}: stored with a network of its own: give it again, load(..., network=...)")
    with _reading(f"{directory / CONFIG}", "get it again"):
        network = networks.build(config["network"]) if network is None else network
        flow = make_flow(config["flow"])
        head, curve = make_head(config["head"], flow), ErrorCurve.from_card(config.get("card"))
    _fill(network, weights, directory)
    tables = make_tables(config.get("tables", {}), directory / CONFIG)
    return Parts(network, flow, head, tuple(config["data_shape"]), tables, curve)


def read_config(name: Path | str) -> dict[str, Any]:
    """The config.json of a stored model: flow, head, data_shape, network, tables, n_labels, alphabet, card."""
    path = locate(name) / CONFIG
    try:
        config: Any = json.loads(path.read_text())
    except FileNotFoundError:
        raise StorageError(f"{path}: not there: expected a directory with {WEIGHTS} and {CONFIG}") from None
    except ValueError as error:
        raise StorageError(f"{path}: not a whole JSON file ({error}): get it again") from None
    if not isinstance(config, dict):
        raise StorageError(f"{path}: {reprlib.repr(config)}: expected an object, the config of a stored model")
    missing = [key for key in ("format", "flow", "head", "data_shape", "network") if key not in config]
    if missing:
        raise StorageError(f"{path}: has no {missing[0]!r}: it is not the config of a stored model")
    if config["format"] != FORMAT:
        raise StorageError(f"{path}: format {config['format']!r}: this version reads format {FORMAT}")
    for key, (fits, expected) in FIELDS.items():
        if key in config and not fits(config[key]):
            raise StorageError(f"{path}: {key} {reprlib.repr(config[key])}: expected {expected}")
    return config


def bundled() -> tuple[str, ...]:
    """Names of the models that come with the package."""
    root = resources.files("bfn").joinpath("bundled")
    if not root.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.joinpath(CONFIG).is_file()))


def locate(name: Path | str) -> Path:
    """The directory of a stored model: a path, or the name of a bundled one."""
    path = Path(name)
    if (path / CONFIG).is_file() or (path.is_dir() and name not in bundled()):
        return path
    if isinstance(name, str) and name in bundled():
        return Path(str(resources.files("bfn").joinpath("bundled", name)))
    known = bundled()
    hint = did_you_mean(name, known)
    raise StorageError(
        f"{str(name)!r}: neither a directory nor one of the bundled models {', '.join(known) or '(none here)'}{hint}"
    )


def describe(model: Storable, extras: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config of a model, as stored."""
    extras = dict(extras or {})
    card = extras.pop("card", {})
    n_labels = extras.pop("n_labels", 0)
    alphabet = extras.pop("alphabet", None)
    if extras:
        raise UserError(f"extras has {next(iter(extras))!r}: expected n_labels, alphabet and card")
    config = getattr(model.network, "config", None)
    return {
        "format": FORMAT,
        "flow": describe_flow(model.flow),
        "head": _describe(model.head, HEADS),
        "data_shape": list(model.data_shape),
        "network": dict(config) if isinstance(config, Mapping) else None,
        "tables": describe_tables(model.tables),
        "n_labels": n_labels,
        "alphabet": alphabet,
        "card": card,
    }


def describe_flow(flow: Flow) -> dict[str, Any]:
    """A flow as plain values."""
    classes = {"n_classes": flow.n_classes} if isinstance(flow, DiscreteFlow) else {}
    return {"name": flow.kind, **classes, "schedule": _describe(flow.schedule, SCHEDULES)}


def make_flow(config: Mapping[str, Any]) -> Flow:
    """The flow of a stored config."""
    schedule = _make(config["schedule"], SCHEDULES, "schedule")
    if config["name"] == ContinuousFlow.kind:
        return ContinuousFlow(schedule=schedule)
    if config["name"] == DiscreteFlow.kind:
        return DiscreteFlow(config["n_classes"], schedule=schedule)
    raise StorageError(f"flow {config['name']!r}: expected continuous or discrete")


def make_head(config: Mapping[str, Any], flow: Flow) -> Head:
    """The head of a stored config, checked against the kind of data."""
    head: Head = _make(config, HEADS, "head")
    if head.kind != flow.kind:
        fitting = ", ".join(name for name, kind in HEADS.items() if kind.kind == flow.kind)
        raise StorageError(f"head {config['name']!r} is for {head.kind} data: {flow.kind} data take {fitting}")
    return head


def store_tables(name: Path | str, tables: Mapping[int, Table], out: Path | str | None = None) -> Path:
    """Add tuned tables to a stored model, in place of those for the same calls; with ``out``, to a copy of it there.

    The config is written last: without it a directory is no model, so that whole pairs are all that is ever there.
    """
    source, target = locate(name), place_for_tables(name, out)
    config = read_config(target if (target / CONFIG).is_file() else source)
    known = {**make_tables(config.get("tables", {}), target / CONFIG), **tables}
    if not (target / WEIGHTS).is_file():
        with atomic(target / WEIGHTS) as temporary:
            shutil.copyfile(source / WEIGHTS, temporary)
    atomic_write(target / CONFIG, json.dumps({**config, "tables": describe_tables(known)}, indent=2) + "\n")
    return target


def place_for_tables(name: Path | str, out: Path | str | None = None) -> Path:
    """Where :func:`store_tables` writes: the model's own directory, or ``out``, new, empty or a copy of that model."""
    source = locate(name)
    target = source if out is None else Path(out)
    there = next(path for path in (target, *target.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise StorageError(f"{target}: {there} is no directory that can be written to: give another")
    held = target.is_dir() and any(not path.name.startswith(".") for path in target.iterdir())
    if held and not _is_copy(source, target):
        raise StorageError(f"{target}: holds something else than a copy of {name}: give a new or empty directory")
    return target


def _is_copy(source: Path, target: Path) -> bool:
    """Whether a directory has the same weights, and the same model made of them where its config is written."""
    paths = source / WEIGHTS, target / WEIGHTS
    if not all(path.is_file() for path in paths) or not filecmp.cmp(*paths, shallow=False):
        return False
    if not (target / CONFIG).is_file():
        return True
    ours, theirs = read_config(source), read_config(target)
    return all(ours[key] == theirs[key] for key in ("flow", "head", "data_shape", "network"))


def describe_tables(tables: Mapping[int, Table]) -> dict[str, Any]:
    """Tuned tables as plain values, by their number of calls."""
    return {str(nfe): dataclasses.asdict(table) for nfe, table in sorted(tables.items())}


def make_tables(config: Any, path: Path) -> dict[int, Table]:
    """The tuned tables of a stored config."""
    if not isinstance(config, Mapping):
        raise StorageError(f"{path}: tables {config!r}: expected an object of tables by their number of calls")
    return {table.nfe: table for table in (_make_table(values, nfe, path) for nfe, values in config.items())}


def _make_table(values: Any, nfe: str, path: Path) -> Table:
    with _reading(f"{path}: the table for {nfe} calls", "remove it, or run bfn tune again"):
        rows = tuple(
            Row(_number(row["t"]), _number(row["a"]), _numbers(row["b"]), _number(row["c"]), _bool(row["commit"]))
            for row in values["rows"]
        )
        table = Table(rows, _numbers(values["final"]), _bool(values["draws"]), dict(values["record"]))
        _check_table(table, nfe)
    return table


def _check_table(table: Table, nfe: str) -> None:
    """Refuse rows that no run through them could follow."""
    if not table.rows or nfe != str(table.nfe):
        raise UserError(f"has {table.nfe} rows: expected one a call, at least 1")
    if not all(0 <= t <= 1 for t in table.times) or any(b <= a for a, b in pairwise(table.times)):
        raise UserError(f"times {table.times}: expected increasing ones within [0, 1]")
    for i, row in enumerate(table.rows):
        if len(row.b) > i + 1 or row.c < 0:
            raise UserError(f"row {i}: expected at most {i + 1} numbers b, one a call so far, and c of at least 0")
    if not 1 <= len(table.final) <= table.nfe or abs(sum(table.final) - 1) > 1e-6:
        raise UserError(f"final {table.final}: expected 1 to {table.nfe} weights that sum to 1")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{value!r}: expected a finite number")
    return float(value)


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(map(_number, values))


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{value!r}: expected true or false")
    return value


@contextmanager
def _reading(what: str, advice: str) -> Iterator[None]:
    """Whatever is wrong with stored values, told in one line with their place and what to do."""
    try:
        yield
    except StorageError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error) if type(error) is ValueError else repr(error)
        raise StorageError(f"{what}: cannot be used ({reason}): {advice}") from None


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """A safetensors file, atomically."""
    with atomic(path) as temporary:
        save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, temporary)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, floats as float32."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise StorageError(f"{path}: not there: expected a directory with {WEIGHTS} and {CONFIG}") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise StorageError(f"{path}: not a whole safetensors file ({error}): get it again") from None
    return {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}


def _describe(part: Any, known: Mapping[str, type[Any]]) -> dict[str, Any]:
    for name, kind in known.items():
        if type(part) is kind:
            return {"name": name, **dataclasses.asdict(part)}
    raise UserError(f"{part!r}: only {', '.join(known)} can be stored")


def _make(config: Mapping[str, Any], known: Mapping[str, type[Any]], what: str) -> Any:
    arguments = dict(config)
    name = arguments.pop("name", None)
    if name not in known:
        raise StorageError(f"{what} {name!r}: expected one of {', '.join(known)}")
    fields = [field.name for field in dataclasses.fields(known[name])]
    foreign = [key for key in arguments if key not in fields]
    if foreign:
        raise StorageError(f"{what} {name}: has no {foreign[0]!r}; its parameters are {', '.join(fields) or 'none'}")
    try:
        return known[name](**arguments)
    except TypeError as error:
        raise StorageError(f"{what} {name}: {error}") from None


def _fill(network: nn.Module, weights: Mapping[str, Tensor], directory: Path) -> None:
    """Put the weights into the network, or name the first ones that do not fit."""
    own = network.state_dict()
    missing = [name for name in own if name not in weights]
    foreign = [name for name in weights if name not in own]
    if missing or foreign:
        parts = [f"no {', '.join(missing[:3])}"] if missing else []
        parts += [f"{', '.join(foreign[:3])}, which the network does not have"] if foreign else []
        raise StorageError(f"{directory / WEIGHTS}: weights of another architecture: {'; '.join(parts)}")
    for name, value in own.items():
        if value.shape != weights[name].shape:
            raise StorageError(
                f"{directory / WEIGHTS}: weights of another architecture: {name} has shape "
                f"{tuple(weights[name].shape)}, the network's has {tuple(value.shape)}"
            )
    network.load_state_dict(dict(weights))
