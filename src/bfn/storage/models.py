"""Models on disk: a directory with config.json and model.safetensors.

The config holds everything but the weights, in plain values, and so does a copy in the header of the weights. Both
files carry a SHA-256 digest, so any changed byte is noticed, and are written atomically: whenever a process is killed,
a complete model is there.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import math
import os
import re
import reprlib
import shutil
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bfn._utils.files import atomic, atomic_write, locked, read_text, sweep
from bfn.core.conditions import Classes
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Flow
from bfn.core.heads import Head
from bfn.core.info import ErrorCurve, ModelInfo
from bfn.core.model import BFN, Model
from bfn.core.plain import StorageError, from_plain, to_plain
from bfn.core.table import Table
from bfn.networks import build_for, check_weights
from bfn.solvers.few_step import Calibration

FORMAT = 3

WEIGHTS = "model.safetensors"
"""File of the weights."""
CONFIG = "config.json"
"""File of everything else."""

DEEPEST = 50
"""Maximum depth of nested lists and objects in a config."""
MOST_VALUES = 2**27
"""Maximum number of values in one sample."""
MOST_CLASSES = 1_000_000
KEYS = ("format", "flow", "head", "data_shape", "network", "info")
KEYS_OF_FORMAT_1 = (*KEYS[:-1], "n_labels", "alphabet", "card", "tables")

# --- config -----------------------------------------------------------------------------------------------------------


def check_config(config: Any) -> dict[str, Any]:
    """Check the config of a stored model and return it in the present format."""
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
    _check_shape(config["data_shape"])
    if config["network"] is not None and not isinstance(config["network"], dict):
        raise StorageError(f"network {reprlib.repr(config['network'])}: expected an object or null")
    # Format 2 has other names of facts, see bfn.storage.old_facts.
    return _from_format_1(config) if config["format"] == 1 else {**config, "format": FORMAT}


def _check_shape(stored: Any) -> None:
    """Raise a StorageError for a shape of data that no model has."""
    for name, shape in (stored if isinstance(stored, dict) else {"": stored}).items():
        sides = from_plain(tuple[int, ...], shape, f"data_shape{name and '.' + name}")
        if not all(side > 0 for side in sides) or math.prod(sides) > MOST_VALUES:
            found = f"data_shape {reprlib.repr(stored)}"
            raise StorageError(f"{found}: expected whole numbers above 0, with a product of at most {MOST_VALUES:,}")


def _check_depth(value: Any) -> None:
    """Raise a StorageError for values that are nested too deeply."""
    layer, depth = [value], 0
    while layer:
        layer = [item for one in layer for item in (one.values() if isinstance(one, dict) else one)]
        layer, depth = [item for item in layer if isinstance(item, dict | list)], depth + 1
        if depth > DEEPEST:
            raise StorageError(f"nested lists and objects: more than {DEEPEST} deep")


def _from_format_1(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a model of format 1, which had no info but n_labels, alphabet, card and tables."""
    n_labels = from_plain(int | None, config.get("n_labels"), "n_labels") or 0
    if n_labels > MOST_CLASSES:
        raise StorageError(f"n_labels {n_labels}: expected at most {MOST_CLASSES:,}")
    card = dict(from_plain(Mapping[str, Any] | None, config.get("card"), "card") or {})
    flow = from_plain(Flow, config["flow"], "flow")
    info = ModelInfo(
        classes=Classes.equal(n_labels) if n_labels > 0 else None,
        alphabet=from_plain(str | None, config.get("alphabet"), "alphabet"),
        # Images were always scaled to this range, and predictions clipped to it.
        value_range=(-1.0, 1.0) if flow.has_range and len(config["data_shape"]) == 3 else None,
        error_curve=ErrorCurve.from_bins(card.pop("loss_by_t", None)),
        card=card,
    )
    parts = {key: config[key] for key in ("flow", "head", "data_shape", "network")}
    tables = config.get("tables")
    return {"format": FORMAT, **parts, "info": {**to_plain(info), **({"tables": tables} if tables else {})}}


# --- sealed weights ---------------------------------------------------------------------------------------------------

ZEROS = "0" * 64
SEAL = re.compile(r'(?<!\\)"sha256": ?"([0-9a-f]{64})"')
MOST_HEADER = 100_000_000
"""Maximum size of a header in bytes, as in safetensors."""
DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int16: "I16", torch.uint8: "U8", torch.int8: "I8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """Header of a safetensors file.

    Args:
        shapes: shapes of the tensors, by name.
        metadata: metadata, by name.
    """

    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str]

    @property
    def digest(self) -> str | None:
        """The SHA-256 digest in the header; None for files of other programs and earlier versions."""
        return self.metadata.get("sha256")


def seal(text: str, rest: Iterable[Any] = ()) -> str:
    """Return the text with its zeros replaced by the digest of the text and of the bytes after it."""
    return text.replace(ZEROS, digest_of(text, rest), 1)


def sealed_by(text: str) -> str | None:
    """Return the digest that is written in a text."""
    found = SEAL.search(text)
    return found and found[1]


def digest_of(text: str, rest: Iterable[Any] = ()) -> str:
    """Return the SHA-256 of a text, with its own digest read as zeros, and of the bytes after it."""
    own = sealed_by(text)
    # Some programs change line ends when they copy a file. This is not damage.
    plain = (text if own is None else text.replace(own, ZEROS, 1)).replace("\r\n", "\n").encode()
    digest = hashlib.sha256(plain)
    for piece in rest:
        digest.update(piece)
    return digest.hexdigest()


def write_weights(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write a safetensors file with a digest, atomically. Returns the digest."""
    foreign = next((name for name, value in tensors.items() if value.dtype not in DTYPES), None)
    if foreign is not None:
        raise UserError(f"{foreign} of {tensors[foreign].dtype}: expected one of {', '.join(map(str, DTYPES))}")
    # Wide types first, so that every tensor begins at a multiple of the width of its type.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    pieces = {name: tensors[name].detach().cpu().contiguous() for name in order}
    entries: dict[str, Any] = {"__metadata__": {"sha256": ZEROS, **(metadata or {})}}
    end = 0
    for name, value in pieces.items():
        start, end = end, end + value.nbytes
        entries[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"))
    data = [value.reshape(-1).view(torch.uint8).numpy() for value in pieces.values()]
    text += " " * (-len(text) % 8)
    length = len(text).to_bytes(8, "little")
    text = seal(text, [length, *data])
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.write(length + text.encode())
        for piece in data:
            file.write(piece.data)
    return str(sealed_by(text))


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file."""
    text = _header_text(path)
    try:
        entries = json.loads(text)
        metadata = dict(entries.pop("__metadata__", None) or {})
        shapes = {str(name): tuple(int(side) for side in entry["shape"]) for name, entry in entries.items()}
        if any(side < 0 for shape in shapes.values() for side in shape):
            raise ValueError("a negative size")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, error) from None
    if metadata.get("sha256") != sealed_by(text):
        raise _damaged(path)
    return Header(shapes, metadata)


def verify(path: Path) -> None:
    """Raise a StorageError if the bytes of a file do not have its digest. Files without a digest pass."""
    text = _header_text(path)
    own = sealed_by(text)
    if own is None:
        return
    with path.open("rb") as file:
        length = file.read(8)
        file.seek(len(text.encode()), os.SEEK_CUR)
        if digest_of(text, chain([length], iter(lambda: file.read(1 << 20), b""))) != own:
            raise _damaged(path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file after checking its digest. Floats are returned as float32."""
    verify(path)
    try:
        weights = load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from None
    return {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}


def _header_text(path: Path) -> str:
    """Return the header of a safetensors file as text."""
    if not path.is_file():  # opening a pipe may block for ever
        raise StorageError(f"{path}: not there: expected a directory with model.safetensors and config.json")
    try:
        with path.open("rb") as file:
            size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MOST_HEADER):
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            return file.read(length).decode()
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: BaseException | None = None) -> StorageError:
    """Return the error for a file that is incomplete or changed."""
    what = "damaged, its bytes are not those that were stored"
    if error is not None:
        what = f"not a whole safetensors file ({' '.join(str(error).split())})"
    return StorageError(f"{path}: {what}: restore it from a copy, or try bfn info {path.parent} --repair")


# --- models -----------------------------------------------------------------------------------------------------------

SHIPPED_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def describe(model: BFN) -> dict[str, Any]:
    """Return the config of a model, as it is stored."""
    model.info.check()
    network = getattr(model.network, "config", None)
    return {
        "format": FORMAT,
        "flow": to_plain(model.flow),
        "head": to_plain(model.head),
        "data_shape": to_plain(model.data_shape),
        "network": dict(network) if isinstance(network, Mapping) else None,
        "info": to_plain(model.info),
    }


def save(model: BFN, directory: Path | str, *, dtype: str = "float32") -> Path:
    """Write a model to a directory.

    Args:
        model: the model.
        directory: the directory.
        dtype: type of the stored weights; float16 and bfloat16 halve the file and are read back as float32.

    Returns:
        The directory.
    """
    if dtype not in SHIPPED_DTYPES:
        raise UserError(f"dtype={dtype!r}: expected one of {', '.join(SHIPPED_DTYPES)}")
    if not isinstance(model.network, nn.Module):
        raise UserError(f"network {model.network!r}: only a torch.nn.Module has weights that can be stored")
    directory = Path(directory)
    config = _dumped(describe(model))
    weights = {
        name: (value.to(SHIPPED_DTYPES[dtype]) if value.is_floating_point() else value)
        for name, value in model.network.state_dict().items()
    }
    _check_finite(model.network, weights, f"{directory}: not stored")
    with _lock(directory):
        sweep(directory / WEIGHTS, directory / CONFIG)
        digest = write_weights(directory / WEIGHTS, weights, {"config": config})
        _write_config(directory, config, digest)
    return directory


def read_parts(name: Path | str, network: nn.Module | None = None) -> tuple[nn.Module, Flow, Head, Any, ModelInfo]:
    """Return network, flow, head, data shape and info of a stored model. The weights are float32.

    Args:
        name: directory, or name of a bundled model.
        network: the network, needed if it is not one of ``bfn.networks``.
    """
    if isinstance(network, type):
        raise UserError(f"network={network.__name__}: a class: give one of its networks, {network.__name__}(...)")
    directory = locate(name)
    config = read_config(directory)
    weights = read_weights(directory / WEIGHTS)
    if network is None and config["network"] is None:
        raise StorageError(f"{directory}: stored with a network of its own: give it again, load(..., network=...)")
    try:
        flow = from_plain(Flow, config["flow"], "flow")
        head = from_plain(Head, config["head"], "head")
        info = ModelInfo.from_plain(config.get("info", {}), "info")
        if network is not None:
            check_weights(network, weights)
        loaded = build_for(config["network"], weights) if network is None else network
    except Exception as error:  # wrong values may raise any kind of error
        raise StorageError(f"{directory / CONFIG}: {' '.join(str(error).split()) or type(error).__name__}") from None
    _check_finite(loaded, weights, str(directory / WEIGHTS))
    if network is not None:
        network.load_state_dict(weights)
    shape = config["data_shape"]
    data_shape = {name: tuple(own) for name, own in shape.items()} if isinstance(shape, dict) else tuple(shape)
    return loaded, flow, head, data_shape, info


def load(name: Path | str, network: nn.Module | None = None) -> BFN:
    """Load a model from a directory, or a bundled one by its name; in evaluation mode, float32.

    Args:
        name: the directory, or a name that ``bfn models`` lists.
        network: the network, if the model was stored with one that is not registered.
    """
    parts = read_parts(name, network)
    try:
        model = BFN(*parts)
    except UserError as error:
        raise StorageError(f"{locate(name) / CONFIG}: {error}") from None
    model.eval()
    return model


def read_config(name: Path | str) -> dict[str, Any]:
    """Return the config of a stored model in the present format: flow, head, data_shape, network, info."""
    directory = locate(name)
    path = directory / CONFIG
    try:
        config = _parsed(read_text(path))
    except FileNotFoundError:
        raise StorageError(f"{path}: not there: expected a directory with {WEIGHTS} and {CONFIG}") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise StorageError(f"{path}: {reason}: restore it from a copy, or try bfn info {directory} --repair") from None
    weights = config.pop("weights", None)
    header = read_header(directory / WEIGHTS) if (directory / WEIGHTS).is_file() else None
    if header is not None and weights != header.digest:
        path, config = directory / WEIGHTS, _config_in(header, directory)
    try:
        return check_config(config)
    except StorageError as error:
        raise StorageError(f"{path}: {error}") from None


def _config_in(header: Header, directory: Path) -> Any:
    """Return the copy of the config in the weights, with a warning, for weights that are not those of the config."""
    if header.digest is None:
        raise StorageError(
            f"{directory / WEIGHTS}: not the weights that {CONFIG} was stored with: restore them, or delete "
            f'the line "weights" in {CONFIG} to use these'
        )
    advice = f"using the copy in {WEIGHTS}; bfn info {directory} --repair writes it there"
    killed = f"{directory / CONFIG}: of other weights, as a save that was killed leaves it: {advice}"
    warnings.warn(killed, stacklevel=3)
    return json.loads(header.metadata.get("config", "null"))


def repair(name: Path | str, copies: Iterable[Path] = ()) -> str:
    """Repair a damaged stored model from what is left of it.

    A damaged config is replaced by the copy in the weights, which lacks tables that were tuned later. Damaged weights
    are replaced by those of a copy: one with the same weights, or else the first complete one.

    Args:
        name: directory, or name of a bundled model.
        copies: directories of stored models.

    Returns:
        A line that says what was done.
    """
    directory = locate(name)
    with _lock(directory):
        sweep(directory / WEIGHTS, directory / CONFIG)
        try:
            config = _parsed(read_text(directory / CONFIG))
        except (OSError, ValueError, RecursionError):
            config = {}
        digest, from_where = _whole(directory), ""
        if digest is None:
            whole = [(found, copy) for copy in copies if (found := _whole(copy)) is not None]
            same = [copy for found, copy in whole if found == config.get("weights")]
            source = next(iter(same or [copy for _, copy in whole]), None)
            if source is None:
                raise StorageError(
                    f"{directory / WEIGHTS}: not whole, or without a digest, and no copy is known: restore it from a "
                    "backup, or train or download it again"
                )
            with atomic(directory / WEIGHTS) as temporary:
                shutil.copyfile(source / WEIGHTS, temporary)
            digest, from_where = _whole(directory), f"{WEIGHTS} taken from {source}; "
        if config.get("weights") == digest:
            return f"{directory}: {from_where}{'' if from_where else 'nothing to repair, '}{CONFIG} is whole"
        header = read_header(directory / WEIGHTS)
        _write_config(directory, header.metadata["config"], digest)
    return f"{directory}: {from_where}{CONFIG} written again from the copy in {WEIGHTS}"


def _whole(directory: Path) -> str | None:
    """Return the digest of a stored model's weights if they are complete, else None."""
    try:
        verify(directory / WEIGHTS)
        return read_header(directory / WEIGHTS).digest
    except StorageError:
        return None


def _parsed(text: str) -> dict[str, Any]:
    """Return the values of a config after checking its digest, if it has one."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UserError(f"not a whole JSON file ({error})") from None
    if not isinstance(config, dict):
        raise UserError("expected an object, the config of a stored model")
    if "sha256" not in config:
        return config
    own = config.pop("sha256")
    if own != sealed_by(text) or own != digest_of(text):
        raise UserError('changed since it was stored; undo the change, or delete the line "sha256" to keep it')
    return config


def read_info(name: Path | str) -> ModelInfo:
    """Return the info of a stored model without reading its weights."""
    info: ModelInfo = from_plain(ModelInfo, read_config(name).get("info", {}), f"{locate(name) / CONFIG}: info")
    return info


def bundled() -> tuple[str, ...]:
    """Return the names of the bundled models."""
    root = resources.files("bfn").joinpath("bundled")
    if not root.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.joinpath(CONFIG).is_file()))


def locate(name: Path | str) -> Path:
    """Return the directory of a stored model by its path or, for a bundled model, by its name."""
    path = Path(name)
    known = bundled()
    if (path / CONFIG).is_file() or (path.is_dir() and name not in known):
        return path
    if name not in known:
        among = f"one of the bundled models {', '.join(known) or '(none here)'}{did_you_mean(name, known)}"
        raise StorageError(f"{str(name)!r}: neither a directory nor {among}")
    return Path(str(resources.files("bfn").joinpath("bundled", str(name))))


def store_tables(
    name: Path | str,
    tables: Mapping[int, Table],
    out: Path | str | None = None,
    *,
    calibration: Calibration | None = None,
) -> Path:
    """Store tuned tables with a model, or with a copy of it.

    Args:
        name: directory, or name of a bundled model.
        tables: tables by number of network calls; they replace tables for the same numbers.
        out: directory for the copy; None to change the model itself.
        calibration: calibration that replaces the model's own, if any.

    Returns:
        The directory that was written.
    """
    source, target = locate(name), place_for_tables(name, out)
    with _lock(target):
        place_for_tables(name, out)  # again: another process may have written there in the meantime
        known = target if (target / CONFIG).is_file() else source
        config, info = read_config(known), read_info(known)
        info.tables, info.calibration = {**info.tables, **tables}, calibration or info.calibration
        info.check()
        sweep(target / WEIGHTS, target / CONFIG)
        if not (target / WEIGHTS).is_file():
            with atomic(target / WEIGHTS) as temporary:
                shutil.copyfile(source / WEIGHTS, temporary)
        digest = read_header(target / WEIGHTS).digest
        _write_config(target, _dumped({**config, "info": to_plain(info)}), digest)
    return target


def place_for_tables(name: Path | str, out: Path | str | None = None) -> Path:
    """Return the directory that ``store_tables`` writes to, after checking that it may be written.

    This is the model's own directory, or ``out``, which must be new, empty or a copy of the model.
    """
    source = locate(name)
    target = source if out is None else Path(out)
    existing = next(path for path in (target, *target.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise StorageError(f"{target}: {existing} is no directory that can be written to: give another")
    held = target.is_dir() and any(not path.name.startswith(".") for path in target.iterdir())
    if held and not _is_copy(source, target):
        raise StorageError(f"{target}: holds something else than a copy of {name}: give a new or empty directory")
    return target


def _is_copy(source: Path, target: Path) -> bool:
    """Return True if a directory has the same weights and, if it has a config, the same model."""
    paths = source / WEIGHTS, target / WEIGHTS
    if not all(path.is_file() for path in paths) or not filecmp.cmp(*paths, shallow=False):
        return False
    if not (target / CONFIG).is_file():
        return True
    ours, theirs = read_config(source), read_config(target)
    return all(ours[key] == theirs[key] for key in ("flow", "head", "data_shape", "network"))


def _lock(directory: Path) -> AbstractContextManager[None]:
    """Return the lock of a directory that is written to."""
    busy = f"{directory}: another process has been writing there for a minute: try again when it is done"
    return locked(directory / ".lock", busy, wait=60)


def _dumped(config: Mapping[str, Any]) -> str:
    """Return a config as JSON."""
    try:
        return json.dumps(config, indent=2)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the model's config or card cannot be stored ({error}): use plain values") from None


def _write_config(directory: Path, config: str, weights: str | None) -> None:
    """Write a config with its own digest and, if there is one, the digest of the weights."""
    seals = {"sha256": ZEROS, **({} if weights is None else {"weights": weights})}
    text = _dumped({**seals, **json.loads(config)}) + "\n"
    atomic_write(directory / CONFIG, seal(text))


def _check_finite(network: nn.Module, weights: Mapping[str, Tensor], place: str) -> None:
    """Raise a StorageError for NaN, and for infinite parameters. Buffers may be infinite: some are masks."""
    parameters = {name for name, _ in network.named_parameters()}
    for name, value in weights.items():
        wrong = ~value.isfinite() if name in parameters else value.isnan()
        if wrong.any():
            what = f"{int(wrong.sum())} of its {value.numel()} values are NaN or infinite"
            raise StorageError(f"{place}: {name}: {what}, as a training run that diverged leaves them")


def identify(model: Model) -> str:
    """Return a hash of everything that a model's predictions depend on: flow, head, network and weights.

    Facts of the model's info are left out: those that change samples are named by the request for them.
    """
    network = getattr(model, "network", None)
    if not isinstance(network, nn.Module):
        raise UserError(f"{type(model).__name__}: only a stored model names itself; give identity='...' for the store")
    parts = to_plain([model.flow, getattr(model, "head", None)])
    config = {"parts": parts, "data_shape": list(model.data_shape), "network": getattr(network, "config", None)}
    sha = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, value in network.state_dict().items():
        sha.update(name.encode())
        sha.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]
