"""Paths that the user has trained on: of those that a model's card names, only these are opened."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch

from bfn._utils.files import atomic_write, home, regular_size
from bfn._utils.files import read_text as read_small_file
from bfn._utils.packages import require, telling_damage
from bfn._utils.progress import Shown
from bfn.core.errors import UserError, did_you_mean
from bfn.data.fetching import fetch, is_fetched, read_manifest
from bfn.data.images import (
    Images,
    concatenate,
    numpy_shapes,
    read_cifar_folder,
    read_folder,
    read_idx_images,
    read_npy,
    read_npz,
)
from bfn.data.record_files import is_record_file, read_records
from bfn.data.records import Columns, Records
from bfn.data.sources import SOURCES
from bfn.data.text import Text, read_text
from bfn.data.tokenizers import Tokenizer

_PATHS = "trained-on.json"


def remember_path(source: str) -> None:
    """Note that the user trains on data at a path."""
    if source in names() or not Path(source).expanduser().exists():
        return
    path, known = str(Path(source).expanduser().resolve()), _remembered()
    if path not in known:
        with suppress(OSError):  # a home that cannot be written to forgets
            atomic_write(home() / _PATHS, json.dumps([*known, path], indent=2) + "\n")


def from_card(source: object) -> str:
    """The data that a model's card names: a standard set, or a path that the user has trained on here.

    A card may come from anywhere; what it names is not opened for that alone.
    """
    if not isinstance(source, str):
        raise UserError("the model's card does not say what it was trained on; give data, a standard set or a path")
    if source not in names() and str(Path(source).expanduser().resolve()) not in _remembered():
        raise UserError(
            f"the model's card says that it was trained on {source!r}, where you have not trained on this machine: "
            f"if you trust it, give it yourself, --data {source!r}"
        )
    return source


def _remembered() -> list[str]:
    try:
        return [str(path) for path in json.loads(read_small_file(home() / _PATHS))]
    except (OSError, ValueError, TypeError):
        return []


Part = Literal["train", "validation", "test", "all"]
"""A part of a data set."""

_HELD_OUT = 0.05  # of a set, for validation and again for the test: on all of text8 this is its standard division
_PICKLE_SUFFIXES = frozenset({".pkl", ".pickle", ".pt", ".pth", ".joblib"})


def names() -> tuple[str, ...]:
    """The sets that ``load`` knows by name."""
    return ("digits", *(name for name, source in SOURCES.items() if not source.is_network))


def is_at_hand(name: str) -> bool:
    """Whether ``load`` gives the standard set of that name without a download."""
    return name == "digits" or is_fetched(name)


def load(
    source: str | Path,
    part: Part = "train",
    *,
    tokenizer: Tokenizer | str | None = None,
    columns: Columns | None = None,
    progress: Shown = True,
) -> Images | Text | Records:
    """A part of a standard set (``names()``) or of what is at a path.

    Paths: a folder of images (sub-folders are classes) or of CIFAR-10's binary version, ``.npy``, ``.npz``, an MNIST
    idx file (``.gz`` too), a text file, or a file of records: CSV, TSV, Parquet, FASTA, a list of SMILES
    (:func:`bfn.data.record_files.read_records`). Arrays of one or two axes are records, and so is every file whose ``columns`` are
    named, a ``.txt`` then having one record a line.

    A set with a test part of its own keeps it; of any other, 5 % are held out for the test. As much is held out for
    validation: of images and records a fixed random choice, of a text its end.

    Where the version of a standard set that is in the cache is not the usual one, its ``note`` says so and a warning
    tells it.

    Args:
        source: Name or path. A ``Path``, or a string with a slash, is always a path.
        part: ``train``, ``validation``, ``test`` or ``all``, which is everything, the test part too.
        tokenizer: Symbols or tokens of a text; the characters found in it if None (text8: space, a..z).
        columns: What the columns of records are for; guessed where there is one possibility only.
        progress: Whether to show progress.

    Raises:
        UserError: Nothing is there, or what is there cannot be read or holds something else than it should.
        bfn.data.fetching.FetchError: A standard set could not be had.
    """
    if part not in get_args(Part):
        raise UserError(f"part={part!r}: expected one of {', '.join(get_args(Part))}")
    if source == "digits":
        return _part(_read_digits(), part)
    if not (isinstance(source, str) and source in SOURCES):
        return _part(_read_path(Path(source), tokenizer, columns, progress), part)
    if SOURCES[source].is_table:
        raise UserError(
            f"{source}: a table: bfn.data.table_files.read_table({source!r}), or TableSynthesizer().fit({source!r})"
        )
    if SOURCES[source].is_network:
        raise UserError(
            f"{source}: a Bayesian network: bfn.exact.bayesian_network.BayesianNetwork.fetch({source!r}) draws rows of it"
        )
    folder = fetch(source, progress=progress, verify=False)
    note = read_manifest(folder).get("note", "")
    if note:
        warnings.warn(f"{source}: {note}", stacklevel=2)
    if (folder / "train-images.npy").exists():
        return replace(_image_part(folder, part), class_names=SOURCES[source].class_names, note=note)
    if (folder / f"{source}.csv").exists():
        known = SOURCES[source]
        whole = read_records(folder / f"{source}.csv", columns or known.columns, tokenizer or known.tokenizer)
        return _part(replace(whole, source=source, note=note), part)
    return _part(replace(read_text(folder / source, tokenizer or SOURCES[source].alphabet), note=note), part)


def _read_digits() -> Images:
    """scikit-learn's 8x8 digits, which need no download: pixels in 17 levels (0..16), labels 0..9."""
    bunch = require("sklearn.datasets", "for the 8x8 digits").load_digits()
    x = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
    return Images(x, torch.from_numpy(bunch.target).long(), levels=17, class_names=tuple("0123456789"))


def _image_part(folder: Path, part: Part) -> Images:
    """A part of a fetched set of images, which has a test part of its own."""
    train, test = (
        read_npy(folder / f"{stored}-images.npy", folder / f"{stored}-labels.npy") for stored in ("train", "test")
    )
    if part == "test":
        return test
    if part == "all":
        return concatenate(train, test)
    return train.split(_HELD_OUT)[part == "validation"]


def _part(whole: Images | Text | Records, part: Part) -> Images | Text | Records:
    """A part of a set that comes undivided: the test part from all of it, as much for validation from the rest."""
    if part == "all":
        return whole
    n = max(1, round(_HELD_OUT * len(whole)))
    rest, test = whole.split(n)
    if part == "test":
        return test
    return rest.split(n)[part == "validation"]


def _read_path(
    path: Path, tokenizer: Tokenizer | str | None, columns: Columns | None, progress: Shown
) -> Images | Text | Records:
    path = path.expanduser()
    if path.is_dir():
        if any(path.glob("data_batch_*.bin")):
            return read_cifar_folder(path)
        if (path / "data_batch_1").exists():
            raise _pickle(path)
        return read_folder(path, progress)
    if not path.exists():
        known = names()
        raise UserError(
            f"{path}: no such file or folder, nor one of the sets {', '.join(known)}{did_you_mean(path, known)}"
        )
    regular_size(path)
    suffix = path.suffix.lower()
    if columns is not None or is_record_file(path) or (suffix in (".npy", ".npz") and not _has_images(path)):
        return read_records(path, columns, tokenizer)
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".npz":
        return read_npz(path)
    if "-idx" in path.name or ".idx" in path.name:
        return read_idx_images(path)
    with telling_damage(path), path.open("rb") as file:
        beginning = file.read(1 << 12)
    if suffix in _PICKLE_SUFFIXES or beginning.startswith(b"\x80"):  # as every pickle since protocol 2
        raise _pickle(path)
    if b"\0" in beginning:
        raise UserError(
            f"{path}: not a kind of file that can be read: expected a folder of images, .npy, .npz, an MNIST idx "
            "file, a text file, or records in .csv, .tsv, .parquet, .fasta or .smi"
        )
    return read_text(path, tokenizer)


def _has_images(path: Path) -> bool:
    """Whether an array has the axes of images; a file that cannot be read is left to the reader of images."""
    try:
        return any(len(shape) > 2 for shape in numpy_shapes(path).values())
    except UserError:
        return True


def _pickle(path: Path) -> UserError:
    return UserError(
        f"{path}: a pickle, which could run code and is never loaded: save arrays as .npz; "
        "of CIFAR-10 take the binary version, or the name cifar10"
    )
