"""Models on disk: ``model.safetensors`` with the weights and ``config.json`` with everything else.

A directory is enough to build the model again where its network comes from :mod:`bfn.networks`; a network of the user's
own is stored as weights alone and is given again on loading. Nothing is unpickled, ever.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bfn import config as configs
from bfn import networks
from bfn.config import FORMAT, StorageError
from bfn.errors import UserError, did_you_mean
from bfn.files import atomic, atomic_write
from bfn.flows import Flow
from bfn.heads import Head
from bfn.info import ModelInfo
from bfn.solvers.table import Table

if TYPE_CHECKING:
    from bfn.model import BFN

__all__ = [
    "CONFIG", "WEIGHTS", "StorageError", "bundled", "describe", "locate", "place_for_tables", "read_config",
    "read_info", "read_parts", "read_weights", "save", "store_tables", "write_weights",
]  # fmt: skip

WEIGHTS = "model.safetensors"
"""The file of a stored model's weights."""
CONFIG = "config.json"
"""The file of everything else."""

SHIPPED_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def describe(model: BFN) -> dict[str, Any]:
    """The config of a model, as stored."""
    model.info.check()
    network = getattr(model.network, "config", None)
    return {
        "format": FORMAT,
        "flow": configs.encode(model.flow),
        "head": configs.encode(model.head),
        "data_shape": configs.encode(model.data_shape),
        "network": dict(network) if isinstance(network, Mapping) else None,
        "info": configs.encode(model.info),
    }


def save(model: BFN, directory: Path | str, *, dtype: str = "float32") -> Path:
    """Write model.safetensors and config.json into a directory, each atomically, the weights first.

    dtype: what the weights are kept in; float16 and bfloat16 halve the file, and are read back as float32.
    """
    if dtype not in SHIPPED_DTYPES:
        raise UserError(f"dtype={dtype!r}: expected one of {', '.join(SHIPPED_DTYPES)}")
    if not isinstance(model.network, nn.Module):
        raise UserError(f"network {model.network!r}: only a torch.nn.Module has weights that can be stored")
    directory = Path(directory)
    config = describe(model)
    weights = {
        name: (value.to(SHIPPED_DTYPES[dtype]) if value.is_floating_point() else value)
        for name, value in model.network.state_dict().items()
    }
    write_weights(directory / WEIGHTS, weights)
    _write_config(directory, config)
    return directory


def read_parts(name: Path | str, network: nn.Module | None = None) -> tuple[nn.Module, Flow, Head, Any, ModelInfo]:
    """What a stored model is made of: its network with the weights in float32, flow, head, data shape and info.

    network: needed where the model was stored with a network that is not one of :mod:`bfn.networks`.
    """
    directory = locate(name)
    config = read_config(directory)
    weights = read_weights(directory / WEIGHTS)
    if network is None and config["network"] is None:
        raise StorageError(f"{directory}: stored with a network of its own: give it again, load(..., network=...)")
    try:
        network = networks.build(config["network"]) if network is None else network
        flow = configs.decode(Flow, config["flow"], "flow")
        head = configs.decode(Head, config["head"], "head")
        info = configs.decode(ModelInfo, config.get("info", {}), "info")
    except (UserError, TypeError, RuntimeError, ArithmeticError) as error:
        raise StorageError(f"{directory / CONFIG}: {' '.join(str(error).split())}") from None
    _fill(network, weights, directory)
    shape = config["data_shape"]
    data_shape = {name: tuple(own) for name, own in shape.items()} if isinstance(shape, dict) else tuple(shape)
    return network, flow, head, data_shape, info


def read_config(name: Path | str) -> dict[str, Any]:
    """The config.json of a stored model in the present format: flow, head, data_shape, network, info."""
    path = locate(name) / CONFIG
    try:
        return configs.check(json.loads(path.read_text()))
    except FileNotFoundError:
        raise StorageError(f"{path}: not there: expected a directory with {WEIGHTS} and {CONFIG}") from None
    except StorageError as error:
        raise StorageError(f"{path}: {error}") from None
    except ValueError as error:
        raise StorageError(f"{path}: not a whole JSON file ({error}): get it again") from None


def read_info(name: Path | str) -> ModelInfo:
    """The info of a stored model, without its weights."""
    info: ModelInfo = configs.decode(ModelInfo, read_config(name).get("info", {}), f"{locate(name) / CONFIG}: info")
    return info


def bundled() -> tuple[str, ...]:
    """Names of the models that come with the package."""
    root = resources.files("bfn").joinpath("bundled")
    if not root.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.joinpath(CONFIG).is_file()))


def locate(name: Path | str) -> Path:
    """The directory of a stored model: a path, or the name of a bundled one."""
    path = Path(name)
    known = bundled()
    if (path / CONFIG).is_file() or (path.is_dir() and name not in known):
        return path
    if isinstance(name, str) and name in known:
        return Path(str(resources.files("bfn").joinpath("bundled", name)))
    raise StorageError(
        f"{str(name)!r}: neither a directory nor one of the bundled models {', '.join(known) or '(none here)'}"
        f"{did_you_mean(name, known)}"
    )


def store_tables(name: Path | str, tables: Mapping[int, Table], out: Path | str | None = None) -> Path:
    """Add tuned tables to a stored model, in place of those for the same calls; with ``out``, to a copy of it there.

    The config is written last: without it a directory is no model, so that whole pairs are all that is ever there.
    """
    source, target = locate(name), place_for_tables(name, out)
    known = target if (target / CONFIG).is_file() else source
    config, info = read_config(known), read_info(known)
    info.tables = {**info.tables, **tables}
    info.check()
    if not (target / WEIGHTS).is_file():
        with atomic(target / WEIGHTS) as temporary:
            shutil.copyfile(source / WEIGHTS, temporary)
    _write_config(target, {**config, "info": configs.encode(info)})
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


def _write_config(directory: Path, config: Mapping[str, Any]) -> None:
    atomic_write(directory / CONFIG, json.dumps(config, indent=2) + "\n")


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """A safetensors file, atomically."""
    with atomic(path) as temporary:
        try:
            save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, temporary)
        except safetensors.SafetensorError as error:  # a full disk is told by this, not by an OSError
            raise StorageError(f"{path}: could not be written ({error})") from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, floats as float32."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise StorageError(f"{path}: not there: expected a directory with {WEIGHTS} and {CONFIG}") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise StorageError(f"{path}: not a whole safetensors file ({error}): get it again") from None
    return {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}


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
