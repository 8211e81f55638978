"""From what a user names to data: a standard set, a folder of images, an array, a text file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from bfn.data import fetching
from bfn.data.digits import read_digits
from bfn.data.images import Images, concatenate, read_cifar_folder, read_folder, read_idx_images, read_npy, read_npz
from bfn.data.text import TEXT8, Alphabet, Text, read_text
from bfn.errors import UserError

Part = Literal["train", "validation", "test", "all"]

HELD_OUT = 0.05  # of a set, for validation and again for the test: on all of text8 this is its standard division
_CLASS_NAMES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}
_PICKLE_SUFFIXES = frozenset({".pkl", ".pickle", ".pt", ".pth", ".joblib"})


def names() -> tuple[str, ...]:
    """The sets that ``load`` knows by name."""
    return ("digits", *fetching.names())


def load(
    source: str | Path, part: Part = "train", *, alphabet: Alphabet | None = None, progress: bool = True
) -> Images | Text:
    """A part of a standard set (``names()``) or of what is at a path.

    Paths: a folder of images (sub-folders are classes) or of CIFAR-10's binary version, ``.npy``, ``.npz``, an MNIST
    idx file (``.gz`` too), or a text file. A set with a test part of its own keeps it; of any other, 5 % are held out
    for the test. As much is held out for validation: of images a fixed random choice, of a text its end.

    Args:
        source: Name or path. A ``Path``, or a string with a slash, is always a path.
        part: ``train``, ``validation``, ``test`` or ``all``, which is everything, the test part too.
        alphabet: Symbols of a text; found in it if None (text8: space, a..z).
        progress: Show progress bars.

    Raises:
        ValueError: What is there cannot be read, or holds something else than it should.
        FileNotFoundError: Nothing is there.
        bfn.data.FetchError: A standard set could not be had.
    """
    if part not in get_args(Part):
        raise UserError(f"part={part!r}: expected one of {', '.join(get_args(Part))}")
    if isinstance(source, str) and source in _CLASS_NAMES:
        return _standard_images(source, part, progress)
    if source == "text8":
        whole: Images | Text = read_text(fetching.fetch("text8", progress=progress, verify=False) / "text8", TEXT8)
    elif source == "digits":
        whole = read_digits()
    else:
        whole = _read_path(Path(source), alphabet, progress)
    return _part(whole, part)


def _standard_images(name: str, part: Part, progress: bool) -> Images:
    folder = fetching.fetch(name, progress=progress, verify=False)
    train, test = (
        replace(
            read_npy(folder / f"{stored}-images.npy", folder / f"{stored}-labels.npy"), class_names=_CLASS_NAMES[name]
        )
        for stored in ("train", "test")
    )
    if part == "test":
        return test
    if part == "all":
        return concatenate(train, test)
    return train.split(HELD_OUT)[part == "validation"]


def _part(whole: Images | Text, part: Part) -> Images | Text:
    """A part of a set that comes undivided: the test part from all of it, as much for validation from the rest."""
    if part == "all":
        return whole
    n = max(1, round(HELD_OUT * len(whole)))
    rest, test = whole.split(n)
    if part == "test":
        return test
    return rest.split(n)[part == "validation"]


def _read_path(path: Path, alphabet: Alphabet | None, progress: bool) -> Images | Text:
    path = path.expanduser()
    if path.is_dir():
        if any(path.glob("data_batch_*.bin")):
            return read_cifar_folder(path)
        if (path / "data_batch_1").exists():
            raise _pickle(path)
        return read_folder(path, progress)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder, nor one of the sets {', '.join(names())}")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".npz":
        return read_npz(path)
    if "-idx" in path.name or ".idx" in path.name:
        return read_idx_images(path)
    with path.open("rb") as file:
        beginning = file.read(1 << 12)
    if suffix in _PICKLE_SUFFIXES or beginning.startswith(b"\x80"):  # as every pickle since protocol 2
        raise _pickle(path)
    if b"\0" in beginning:
        raise UserError(
            f"{path}: not a kind of file that can be read: expected a folder of images, .npy, .npz, an MNIST idx file "
            "or a text file"
        )
    return read_text(path, alphabet)


def _pickle(path: Path) -> UserError:
    return UserError(
        f"{path}: a pickle, which could run code and is never loaded: save arrays as .npz; "
        "of CIFAR-10 take the binary version, or the name cifar10"
    )
