from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from bfn.cli import main


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A directory with one stored model of each kind."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("images", "binary", "text", "vectors"):
        tiny.save(kind, root / kind)
    return root


@pytest.fixture
def refused(capsys, tmp_path) -> Callable[..., str]:
    """Run a command line that must end with code 2, one line on stderr and no file; returns the line."""

    def run(*arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, error = capsys.readouterr()
        assert code == 2
        assert out == ""
        assert error.startswith("bfn: ")
        assert error.count("\n") == 1, error
        assert sorted(tmp_path.rglob("*")) == before
        return error.strip()

    return run
