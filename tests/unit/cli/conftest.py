import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from bfn.cli import main
from commands import run


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A directory with one stored model of each kind."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("images", "binary", "text", "vectors", "molecules"):
        tiny.save(kind, root / kind)
    return root


@pytest.fixture
def story(tmp_path) -> Path:
    """A text file."""
    path = tmp_path / "story.txt"
    path.write_text("the cat sat on the mat and the dog ran " * 40)
    return path


@pytest.fixture
def pictures(tmp_path) -> Path:
    """A file of 40 images in three classes."""
    path = tmp_path / "some.npz"
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(path, x=x, labels=np.arange(40) % 3)
    return path


@pytest.fixture
def values(capsys) -> Callable[..., Any]:
    """Run a command line with --json; returns the value that it prints."""

    def run_json(*arguments: object) -> Any:
        capsys.readouterr()
        run(*arguments, "--json")
        return json.loads(capsys.readouterr().out)

    return run_json


@pytest.fixture
def refused(capsys, tmp_path) -> Callable[..., str]:
    """Run a command line that must end with code 2, one line on stderr and no file; returns the line."""

    def run(*arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, error = capsys.readouterr()
        assert (code, out) == (2, "")
        assert error.startswith("bfn: ")
        assert error.count("\n") == 1, error
        assert sorted(tmp_path.rglob("*")) == before
        return error.strip()

    return run
