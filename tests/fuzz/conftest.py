"""Bounds on every case of the fuzz tests: memory and time."""

import resource
from pathlib import Path

import pytest

MEMORY = 4 << 30
"""Bytes that the process may map beyond what it has when the fuzz tests begin."""


@pytest.fixture(autouse=True, scope="package")
def _bounded_memory():
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
