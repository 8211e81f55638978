"""Load data: standard sets and files, as they are or as a model takes them.

``load`` returns ``Images``, ``Text`` or ``Records``, and ``read_model_data`` returns tensors for
a model. ``info_of_records`` and ``encode_records`` do the same for records that a model is trained on.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bfn._utils.arguments import require
from bfn._utils.files import atomic_write, home, regular_size, telling_damage
from bfn._utils.files import read_text as read_small_file
from bfn._utils.progress import Shown
from bfn.core.codec import CODEC, ClassNames, Codec, Scaling, join_codecs
from bfn.core.conditions import Classes, Condition, Lengths, rows_of
from bfn.core.errors import UserError, did_you_mean
from bfn.core.flows import Shape
from bfn.core.info import ModelInfo, Spread
from bfn.core.model import Model
from bfn.data import images as image_files
from bfn.data.images import Images, concatenate, read_npy
from bfn.data.records import Categories, Columns, Numbers, Records, is_record_file, read_records
from bfn.data.sources import SOURCES, fetch, is_fetched, read_manifest
from bfn.data.text import Sequences, Text, read_text
from bfn.data.tokenizers import Text as TextCodec
from bfn.data.tokenizers import Tokenizer

Part = Literal["train", "validation", "test", "all"]
"""A part of a data set."""

ImagePart = Literal["top", "bottom", "left", "right", "border"]
"""A part of an image that may be known: a half of it, or all but its middle."""

COLUMN_OPTIONS = tuple(field.name for field in fields(Columns))
"""Options of a training run that name columns."""

_HELD_OUT = 0.05  # share of a set for validation and again for the test: the standard division of text8
_PICKLE_SUFFIXES = frozenset({".pkl", ".pickle", ".pt", ".pth", ".joblib"})
_NUMPY_READERS = {".npy": read_npy, ".npz": image_files.read_npz}
_PATHS = "trained-on.json"


# --- loading sets and files -------------------------------------------------------------------------------------------


def names() -> tuple[str, ...]:
    """Return the names of the standard sets that ``load`` knows."""
    return ("digits", *(name for name, source in SOURCES.items() if not source.is_network))


def is_at_hand(name: str) -> bool:
    """Return True if the standard set of that name needs no download."""
    return name == "digits" or is_fetched(name)


def load(
    source: str | Path,
    part: Part = "train",
    *,
    tokenizer: Tokenizer | str | None = None,
    columns: Columns | None = None,
    progress: Shown = True,
) -> Images | Text | Records:
    """Load a part of a standard set (``names``) or of the data at a path.

    Paths may be a folder of images (sub-folders are classes) or of the binary version of CIFAR-10, a ``.npy`` or
    ``.npz`` file, an MNIST idx file (also with ``.gz``), a text file, or a file of records: CSV, TSV, Parquet, FASTA or
    a list of SMILES (``bfn.data.read_records``). Arrays of one or two axes are records. If ``columns`` are
    given, every file is read as records; a ``.txt`` file then has one record in each line.

    Sets with a test part keep it; of all others, 5 % are held out for the test. Another 5 % are held out for
    validation: a fixed random choice of images and records, the end of a text.

    Args:
        source: name or path. A ``Path``, or a string with a slash, is always a path.
        part: "train", "validation", "test" or "all", which is everything including the test part.
        tokenizer: tokenizer of texts; the characters found in the text if None (text8: space, a to z).
        columns: what the columns of records are for; guessed if there is one possibility only.
        progress: whether to show progress.

    Raises:
        UserError: there is nothing at the path, or it cannot be read.
        bfn.data.FetchError: a standard set could not be downloaded.

    Warns:
        UserWarning: the cached version of a standard set is not the usual one; its ``note`` says why.
    """
    if part not in get_args(Part):
        raise UserError(f"part={part!r}: expected one of {', '.join(get_args(Part))}")
    if source == "digits":
        return _take_part(_read_digits(), part)
    if isinstance(source, str) and source in SOURCES:
        return _load_standard(source, part, tokenizer, columns, progress)
    return _take_part(_read_path(Path(source).expanduser(), tokenizer, columns, progress), part)


def _load_standard(
    name: str, part: Part, tokenizer: Tokenizer | str | None, columns: Columns | None, progress: Shown
) -> Images | Text | Records:
    known = SOURCES[name]
    if known.is_table:
        raise UserError(f"{name}: a table: use bfn.data.read_table({name!r}) or TableSynthesizer().fit({name!r})")
    if known.is_network:
        raise UserError(f"{name}: a Bayesian network, which has no data: use bfn_lab.BayesianNetwork.fetch({name!r})")
    folder = fetch(name, progress=progress, verify=False)
    note = read_manifest(folder).get("note", "")
    if note:
        warnings.warn(f"{name}: {note}", stacklevel=3)
    if (folder / "train-images.npy").exists():
        return replace(_image_part(folder, part), class_names=known.class_names, note=note)
    if (folder / f"{name}.csv").exists():
        records = read_records(folder / f"{name}.csv", columns or known.columns, tokenizer or known.tokenizer)
        return _take_part(replace(records, source=name, note=note), part)
    return _take_part(replace(read_text(folder / name, tokenizer or known.alphabet), note=note), part)


def _read_digits() -> Images:
    """Read the 8x8 digits of scikit-learn, which need no download. Pixels have 17 levels."""
    bunch = require("sklearn.datasets", "for the 8x8 digits").load_digits()
    x = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
    return Images(x, torch.from_numpy(bunch.target).long(), levels=17, class_names=tuple("0123456789"))


def _image_part(folder: Path, part: Part) -> Images:
    """Read a part of a fetched set of images, which has its own test part."""
    train, test = (read_npy(folder / f"{own}-images.npy", folder / f"{own}-labels.npy") for own in ("train", "test"))
    if part == "test":
        return test
    if part == "all":
        return concatenate(train, test)
    return train.split(_HELD_OUT)[part == "validation"]


def _take_part(whole: Images | Text | Records, part: Part) -> Images | Text | Records:
    """Return a part of an undivided set. The test part is taken first, then as much for validation from the rest."""
    if part == "all":
        return whole
    n = max(1, round(_HELD_OUT * len(whole)))
    rest, test = whole.split(n)
    return test if part == "test" else rest.split(n)[part == "validation"]


def _read_path(
    path: Path, tokenizer: Tokenizer | str | None, columns: Columns | None, progress: Shown
) -> Images | Text | Records:
    if path.is_dir():
        return _read_directory(path, progress)
    if not path.exists():
        hint = did_you_mean(path, names())
        raise UserError(f"{path}: no such file or folder, nor one of the sets {', '.join(names())}{hint}")
    regular_size(path)
    numpy_reader = _NUMPY_READERS.get(path.suffix.lower())
    if columns is not None or is_record_file(path) or (numpy_reader is not None and not _has_images(path)):
        return read_records(path, columns, tokenizer)
    if numpy_reader is not None:
        return numpy_reader(path)
    if "-idx" in path.name or ".idx" in path.name:
        return image_files.read_idx_images(path)
    _check_text_file(path)
    return read_text(path, tokenizer)


def _read_directory(path: Path, progress: Shown) -> Images:
    if any(path.glob("data_batch_*.bin")):
        return image_files.read_cifar_folder(path)
    if (path / "data_batch_1").exists():
        raise _pickle_error(path)
    return image_files.read_folder(path, progress)


def _has_images(path: Path) -> bool:
    """Return True if an array has the axes of images. Damaged files are left to the reader of images."""
    try:
        return any(len(shape) > 2 for shape in image_files.numpy_shapes(path).values())
    except UserError:
        return True


def _check_text_file(path: Path) -> None:
    """Raise a UserError for pickles and other binary files."""
    with telling_damage(path), path.open("rb") as file:
        beginning = file.read(1 << 12)
    if path.suffix.lower() in _PICKLE_SUFFIXES or beginning.startswith(b"\x80"):  # as all pickles since protocol 2
        raise _pickle_error(path)
    if b"\0" in beginning:
        kinds = "a folder of images, .npy, .npz, an MNIST idx file, a text file, or records in .csv, .tsv, .parquet"
        raise UserError(f"{path}: not a kind of file that can be read: expected {kinds}, .fasta or .smi")


def _pickle_error(path: Path) -> UserError:
    instead = "save arrays as .npz; of CIFAR-10 take the binary version, or the name cifar10"
    return UserError(f"{path}: a pickle, which could run code and is never loaded: {instead}")


# --- paths that the user has trained on -------------------------------------------------------------------------------


def remember_path(source: str) -> None:
    """Note that the user trains on the data at a path."""
    if source in names() or not Path(source).expanduser().exists():
        return
    path, known = str(Path(source).expanduser().resolve()), _remembered_paths()
    if path not in known:
        with suppress(OSError):  # a read-only home directory is no reason to stop training
            atomic_write(home() / _PATHS, json.dumps([*known, path], indent=2) + "\n")


def from_card(source: object) -> str:
    """Return the name or path of the data that a model's card names.

    A card may come from anywhere. So a path is only opened if the user has trained on it on this machine.
    """
    if not isinstance(source, str):
        raise UserError("the model's card does not say what it was trained on; give data, a standard set or a path")
    if source not in names() and str(Path(source).expanduser().resolve()) not in _remembered_paths():
        found = f"the model's card says that it was trained on {source!r}, where you have not trained on this machine"
        raise UserError(f"{found}: if you trust it, give it yourself, --data {source!r}")
    return source


def _remembered_paths() -> list[str]:
    try:
        return [str(path) for path in json.loads(read_small_file(home() / _PATHS))]
    except (OSError, ValueError, TypeError):
        return []


# --- records for a model ----------------------------------------------------------------------------------------------


def columns_of(options: Mapping[str, Any]) -> Columns | None:
    """Return what columns are for, by the options of a training run; None if these do not say it.

    For a standard set without such options, these are the columns of the set.
    """
    named = {name: options[name] for name in COLUMN_OPTIONS if options.get(name)}
    if named:
        return Columns(**named)
    known = SOURCES.get(str(options.get("name")))
    return None if known is None else known.columns


def record_lengths(records: Records) -> tuple[Tensor, tuple[str, ...]] | None:
    """Return the length of each record, (n,), and the parts that have it; None if all have the full length."""
    found: dict[str, Tensor] = {}
    longest = 0
    for name, column in records.samples.items():
        if isinstance(column, Sequences):
            found[name], longest = column.lengths, max(longest, column.longest)
        elif records.present is not None and column.values.ndim > 1:
            found[name], longest = records.present.sum(1), max(longest, records.present.shape[1])
            if not torch.equal(records.present, torch.arange(longest) < found[name][:, None]):
                raise UserError(f"{records.source}: present has gaps: expected all data first, then padding")
    if not found:
        return None
    lengths = next(iter(found.values()))
    if not all(torch.equal(other, lengths) for other in found.values()):
        names = " and ".join(found)
        raise UserError(f"{records.source}: the lengths of {names} differ: expected one length for each record")
    return (lengths, tuple(found)) if bool((lengths < longest).any()) else None


def shape_of_records(records: Records) -> Shape | dict[str, Shape]:
    """Return the shape of a sample; a mapping of shapes for several columns. A single number is a vector, (1,)."""
    shapes = {
        name: (column.longest,) if isinstance(column, Sequences) else tuple(column.values.shape[1:])
        for name, column in records.samples.items()
    }
    return shapes if len(shapes) > 1 else next(iter(shapes.values())) or (1,)


def n_values_of(records: Records) -> dict[str, int | None]:
    """Return the number of values that a variable of each part can take, None for numbers."""
    return {name: None if isinstance(column, Numbers) else column.n_classes for name, column in records.samples.items()}


def info_of_records(records: Records) -> ModelInfo:
    """Return the facts of a model of these records: codecs, classes, conditions, lengths, scale and range."""
    single = len(records.samples) == 1
    codecs: dict[str, Codec] = {}
    spreads: dict[str, Spread] = {}
    value_range = None
    for name, column in records.samples.items():
        part = "" if single else name
        if isinstance(column, Sequences):
            codecs[part] = TextCodec(column.tokenizer)
        elif isinstance(column, Numbers):
            codecs[part], spread, own_range = _number_facts(records, column)
            spreads |= {} if spread is None else {part: spread}
            value_range = own_range if single else None
        elif column.names != tuple(map(str, range(column.n_classes))):
            codecs[part] = ClassNames(column.names)
    lengths = record_lengths(records)
    return ModelInfo(
        codec=join_codecs(codecs) if codecs else None,
        classes=None if records.label is None else Classes(records.label.names, records.label.shares()),
        conditions={
            name: Condition.of(column.values, column.names if isinstance(column, Categories) else ())
            for name, column in records.conditions.items()
        },
        lengths=None if lengths is None else Lengths.of(lengths[0], ("",) if single else lengths[1]),
        spreads=spreads,
        value_range=value_range,
    )


def _number_facts(records: Records, column: Numbers) -> tuple[Scaling, Spread | None, tuple[float, float] | None]:
    """Return the scaling of a column of numbers, and the spread and the range of the scaled values.

    The spread is None if some values are padding, and the range is None if all values are the same.
    """
    present = records.present_in(column)
    padded = not bool(present.all())
    scaling = Scaling.of(column.values, present if padded else None)
    values = scaling.to_model(column.values)
    label = None if records.label is None else records.label.values
    low, high = map(float, (values[present] if padded else values).aminmax())
    return scaling, None if padded else Spread.of(values, label), (low, high) if low < high else None


def encode_records(records: Records, info: ModelInfo, shape: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Encode records for a model.

    Args:
        records: the records.
        info: facts about the model.
        shape: data shape of the model.

    Returns:
        Packed samples, (n, ...), and their conditions by name, each (n, ...), with ``present`` among them.
    """
    joint = isinstance(shape, Mapping)
    shapes = dict(shape) if joint else dict.fromkeys(records.samples, shape)
    if set(shapes) != set(records.samples) or (len(shapes) != 1 and not joint):
        expected = f"the parts {', '.join(shape)}" if joint else f"one column, of shape {shape}"
        raise UserError(f"{records.source}: samples of {', '.join(records.samples)}: expected {expected}")
    codec = info[CODEC]
    codecs: Mapping[str, Codec] = {} if codec is None else codec.by_part
    encoded = [
        _encode_column(records, name, tuple(own), codecs.get(name if joint else "")) for name, own in shapes.items()
    ]
    x, present = ([*values] for values in zip(*encoded, strict=True))
    conditions = _encode_conditions(records, info)
    if info.lengths is not None:
        conditions["present"] = _pack(present) if joint else present[0]
    elif not all(bool(mask.all()) for mask in present):
        raise UserError(f"{records.source}: records of different lengths: the model's are all of shape {shape}")
    return (_pack(x) if joint else x[0]), conditions


def _encode_column(records: Records, name: str, shape: Shape, codec: Codec | None) -> tuple[Tensor, Tensor]:
    """Return the values of a part as the model takes them, and where they are present, both (n, *shape)."""
    column = records.samples[name]
    if isinstance(column, Sequences):
        _check_sequences(records, name, column, shape[0], codec)
        return column.padded(shape[0])
    values, present = column.values, records.present_in(column)
    if values.ndim == 1 and math.prod(shape) == 1:
        values, present = (tensor.reshape(len(column), *shape) for tensor in (values, present))
    if tuple(values.shape[1:]) != shape:
        raise UserError(f"{records.source}: {name} of shape {tuple(values.shape[1:])}: the model's data are {shape}")
    if isinstance(codec, Scaling):
        values = codec.to_model(values)
    elif isinstance(codec, ClassNames) and isinstance(column, Categories):
        values = _renumber(column, codec.names, name)
    return values.masked_fill(~present, 0), present


def _check_sequences(records: Records, name: str, column: Sequences, longest: int, codec: Codec | None) -> None:
    """Raise a UserError for sequences that have other tokens than the model's, or are too long for it."""
    own = column.tokenizer
    if isinstance(codec, TextCodec) and codec.tokenizer.pieces != own.pieces:
        raise UserError(f"{records.source}: {name}: other tokens than the model's: give its own tokenizer")
    if len(column) and int(column.lengths.max()) > longest:
        row = int(column.lengths.argmax())
        (text,) = column[row : row + 1].texts()
        found = f"{name} {text[:60]!r} has {int(column.lengths[row])} {own.unit}"
        raise UserError(f"{records.source}: {found}: the model's longest is {longest}")


def _encode_conditions(records: Records, info: ModelInfo) -> dict[str, Tensor]:
    """Return the label and the conditions that both the model and the records have."""
    found = {}
    if records.label is not None and info.classes is not None:
        found["label"] = _renumber(records.label, info.classes.names, "label")
    for name, column in records.conditions.items():
        if name in info.conditions:
            known = info.conditions[name].names
            found[name] = _renumber(column, known, name) if known and isinstance(column, Categories) else column.values
    return found


def _renumber(column: Categories, known: tuple[str, ...], name: str) -> Tensor:
    """Return classes by their numbers in the model, whose classes have the names ``known``."""
    if column.names == known[: len(column.names)]:
        return column.values
    foreign = next((own for own in column.names if own not in known), None)
    if foreign is not None:
        raise UserError(f"{name} {foreign!r}: the model knows {', '.join(known[:12])}{did_you_mean(foreign, known)}")
    return torch.tensor([known.index(own) for own in column.names])[column.values]


def _pack(parts: list[Tensor]) -> Tensor:
    """Join parts to one tensor, (n, numbers of a sample)."""
    flat = [part.flatten(1) if part.ndim > 1 else part[:, None] for part in parts]
    return torch.cat([part if part.dtype is torch.bool else part.to(torch.get_default_dtype()) for part in flat], 1)


# --- data as a model takes them ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelData:
    """Data as a model takes them.

    Attributes:
        x: samples, (n, *data_shape), or packed parts.
        label: classes of the samples, (n,); None if the model or the data have none.
        source, part: where the samples come from.
        condition: other conditions by name, each (n, ...).
        present: bool, like x, True where a sample has data; None if all samples have the same length.
    """

    x: Tensor
    label: Tensor | None
    source: str
    part: Part
    condition: Mapping[str, Tensor] = field(default_factory=dict)
    present: Tensor | None = None

    def split(self, n: int) -> tuple[ModelData, ModelData]:
        """Return the first n samples, and the others."""
        return self._rows(slice(n)), self._rows(slice(n, None))

    def _rows(self, rows: slice) -> ModelData:
        label, present = (None if tensor is None else tensor[rows] for tensor in (self.label, self.present))
        return replace(self, x=self.x[rows], label=label, condition=rows_of(self.condition, rows), present=present)

    def arguments(self, model: Model) -> dict[str, Any]:
        """Return the arguments ``label``, ``condition`` and ``present`` of likelihoods and losses."""
        present = None if self.present is None else model.flow.unpack(self.present)
        return {"label": self.label, "condition": self.condition, "present": present}


def read_model_data(
    model: Model,
    source: str | Path | None = None,
    part: Part = "test",
    n: int | None = None,
    *,
    seed: int | None = 0,
    progress: Shown = False,
) -> ModelData:
    """Read a part of a standard set or of a file as a model takes it.

    Args:
        model: the model.
        source: as ``load`` takes it; if None, the data that the model was trained on, which are not downloaded.
        part: part of the data.
        n: maximum number of samples. Images are chosen at random, windows of a text are evenly spread.
        seed: seed of the choice of images; None to spread them evenly.
        progress: whether to show progress.
    """
    name = _training_data(model) if source is None else str(source)
    tokenizers = [codec.tokenizer for codec in model.codec.by_part.values() if isinstance(codec, TextCodec)]
    tokenizer = tokenizers[0] if len(tokenizers) == 1 else None
    found = load(name, part, tokenizer=tokenizer, columns=columns_of(model.info.trained_on), progress=progress)
    if isinstance(found, Records):
        x, conditions = encode_records(found[:n], model.info, model.data_shape)
        label, present = conditions.pop("label", None), conditions.pop("present", None)
        return ModelData(x, label, name, part, conditions, present)
    if isinstance(found, Text):
        if not isinstance(model.codec, TextCodec):
            raise UserError(f"{name}: is text, and the model is one of {model.form}")
        length = model.data_shape[0]
        count = len(found) // length
        return ModelData(found.tiles(length, count if n is None else min(n, count)), None, name, part)
    if found.data_shape != model.data_shape:
        raise UserError(f"{name}: images of shape {found.data_shape}, and the model's data are {model.data_shape}")
    some = _choose_images(found, n, seed)
    return ModelData(as_model_data(model, some), some.labels if model.info.classes else None, name, part)


def _training_data(model: Model) -> str:
    """Return the name of the data that the model was trained on, which must be on this machine."""
    name = from_card(model.info.trained_on.get("name"))
    if name in names() and not is_at_hand(name):
        raise UserError(f"{name} is not in the cache: run bfn data fetch {name}, or give other data")
    return name


def _choose_images(images: Images, n: int | None, seed: int | None) -> Images:
    count = len(images) if n is None else min(n, len(images))
    if seed is None:
        return images[torch.arange(count) * len(images) // count]
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]]


def as_model_data(model: Model, images: Images) -> Tensor:
    """Return images with the levels that the model was trained on, as floats or as classes of pixels."""
    n_values = model.flow.parts[""].n_values
    images = images.for_model(n_values, model.info.trained_on)
    return images.to_float() if n_values is None else images.to_classes()


def known_part(model: Model, images: Tensor, part: ImagePart) -> dict[str, Tensor]:
    """Return the arguments ``known`` and ``known_mask`` of ``bfn.sample`` for a known part of images."""
    if model.form != "images":
        raise UserError(f"a known part of images: the model is one of {model.form}, not of images; leave it out")
    _, height, width = model.data_shape
    row, column = torch.arange(height)[:, None], torch.arange(width)
    upper, left = row < height // 2, column < width // 2
    outer_rows = torch.minimum(row, height - 1 - row) < height // 4
    edge = outer_rows | (torch.minimum(column, width - 1 - column) < width // 4)
    parts = {"top": upper, "bottom": ~upper, "left": left, "right": ~left, "border": edge}
    if part not in parts:
        raise UserError(f"part={part!r}: expected one of {', '.join(parts)}")
    return {"known": images, "known_mask": parts[part].expand(model.data_shape).clone()}
