"""Readers cost little and end in one line on files that are small, damaged, endless, or not what their names say."""

import gzip
import io
import os
import resource
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from bfn._utils import files as bounds
from bfn._utils.files import Bounded, check_decoded, open_file
from bfn.core.errors import UserError
from bfn.data.images import read_folder, read_idx_images, read_npy, read_npz
from bfn.data.loading import load


@pytest.fixture
def small_bound(monkeypatch):
    """Bounds that a test reaches at once."""
    monkeypatch.setattr(bounds, "ALWAYS", 1 << 16)


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_an_idx_header_asks_for_no_memory(tmp_path):
    path = tmp_path / "huge-idx3-ubyte"
    path.write_bytes(b"\x00\x00\x08\x03" + struct.pack(">3I", 60_000, 28, 28_000) + b"x" * 100)
    code = (
        "import resource, sys; from pathlib import Path; from bfn.data.images import read_idx_images\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: read_idx_images(Path(sys.argv[1]))\n"
        "except ValueError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True, preexec_fn=limited
    )
    line, kilobytes = done.stdout.splitlines()
    assert "the idx header says 47040000000 bytes, found 100" in line
    assert int(kilobytes) < 50_000


def test_what_shrank_a_thousandfold_is_refused_while_it_is_read(tmp_path, small_bound):
    path = tmp_path / "bomb-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\x00\x00\x08\x03" + struct.pack(">3I", 1000, 28, 28) + bytes(784_000)))
    with pytest.raises(UserError, match=r"bomb-idx3-ubyte.gz: says that it holds .* bytes, but it has"):
        read_idx_images(path)


def test_a_large_file_may_hold_many_times_its_size_and_no_more():
    check_decoded("x", bounds.ALWAYS, 10)
    check_decoded("x", 64 * (1 << 30), 1 << 30)
    with pytest.raises(UserError, match="x: says that it holds"):
        check_decoded("x", 65 * (1 << 30), 1 << 30)


def test_a_bounded_stream_gives_what_the_file_has(tmp_path):
    content = os.urandom(3_000_000)
    assert Bounded(io.BytesIO(content), "x", 10).read() == content
    stream = Bounded(io.BytesIO(content), "x", 10)
    assert b"".join(iter(lambda: stream.read(700_000), b"")) == content
    for name, stored in (("plain", content), ("packed.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(stored)
        with open_file(tmp_path / name) as file:
            assert file.read() == content


def test_npz_members_that_expand_are_refused_before_they_are_read(tmp_path, small_bound):
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((2000, 28, 28), np.uint8))
    with pytest.raises(UserError, match=r"bomb.npz: says that it holds 1,568,\d+ bytes"):
        read_npz(tmp_path / "bomb.npz")


@pytest.mark.parametrize("shape", ["(10000000, 28, 28)", "(-1, 28, 28)", f"({2**70},)", "(3, 28, 27)"])
def test_numpy_headers_must_fit_their_files(tmp_path, shape):
    whole = npy(np.zeros((3, 28, 28), np.uint8))
    changed = whole[:128].replace(b"(3, 28, 28)", shape.encode())[:128].ljust(127) + b"\n" + whole[128:]
    (tmp_path / "x.npy").write_bytes(changed)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", changed)
    for name, read in (("x.npy", read_npy), ("x.npz", read_npz)):
        with pytest.raises(UserError, match=f"{name}: not a plain numpy file"):
            read(tmp_path / name)


def test_damaged_files_end_in_one_line_wherever_the_damage_is(tmp_path):
    pixels = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    np.savez_compressed(tmp_path / "x.npz", pixels)
    files = {
        "x.npy": npy(pixels),
        "x.npz": (tmp_path / "x.npz").read_bytes(),
        "x-idx3.gz": gzip.compress(b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 8, 8) + pixels.tobytes()),
    }
    generator = np.random.default_rng(0)
    for name, whole in files.items():
        for _ in range(150):
            damaged = bytearray(whole)
            place = int(generator.integers(len(whole)))
            damaged[place] ^= 1 << int(generator.integers(8))
            (tmp_path / name).write_bytes(damaged[: int(generator.choice([len(whole), place]))])
            with suppress(UserError):
                load(tmp_path / name, "all")


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.npy", "pipe-idx3.gz", "pipe.npz"])
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="not a regular file"):
        load(tmp_path / name)


def test_pictures_are_of_a_few_kinds_whatever_their_names(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "cat.eps", "EPS")
    (tmp_path / "cat.eps").rename(tmp_path / "cat.png")
    with pytest.raises(UserError, match=r"cat.png: not an image of PNG, JPEG"):
        read_folder(tmp_path, progress=False)


def test_blank_pictures_that_expand_are_refused_before_they_are_decoded(tmp_path, small_bound):
    for number in range(3):
        Image.new("L", (2000, 2000)).save(tmp_path / f"{number}.png")
    with pytest.raises(UserError, match=r"says that it holds 12,000,000 bytes"):
        read_folder(tmp_path, progress=False)


def test_a_label_of_any_size_asks_for_no_memory(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 4, 4), np.uint8), y=np.array([0, 10**12]))
    with pytest.raises(UserError, match="whole numbers from 0 up, below 1,000,000"):
        load(tmp_path / "x.npz")
