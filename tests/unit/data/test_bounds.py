"""Readers need little memory, whatever a file says about its size."""

import gzip
import io
import os
import resource
import struct
import subprocess
import sys

from bfn._utils import files
from bfn._utils.files import Bounded, check_decoded, open_file
from data_files import write
from messages import refused


def test_an_idx_header_asks_for_no_memory(tmp_path):
    path = write(tmp_path / "huge-idx3", b"\x00\x00\x08\x03" + struct.pack(">3I", 60_000, 28, 28_000) + b"x" * 100)
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


def test_a_large_file_may_hold_64_times_its_size():
    check_decoded("x", files.ALWAYS, 10)
    check_decoded("x", 64 * (1 << 30), 1 << 30)
    refused("says that it holds", check_decoded, "x", 65 * (1 << 30), 1 << 30)


def test_a_bounded_stream_returns_the_content_of_a_file(tmp_path):
    content = os.urandom(3_000_000)
    stream = Bounded(io.BytesIO(content), "x", 10)
    assert b"".join(iter(lambda: stream.read(700_000), b"")) == content
    for name, stored in (("plain", content), ("packed.gz", gzip.compress(content))):
        with open_file(write(tmp_path / name, stored)) as file:
            assert file.read() == content
