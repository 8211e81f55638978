"""Paths that the user has trained on: of those that a model's card names, only these are opened."""

import json
from contextlib import suppress
from pathlib import Path

from bfn.data.loading import names
from bfn.errors import UserError
from bfn.files import atomic_write, home
from bfn.files import read_text as read_small_file

__all__ = ["from_card", "remember_path"]

_PATHS = "trained-on.json"


def remember_path(source: str) -> None:
    """Note that the user trains on data at a path."""
    if source in names() or not Path(source).expanduser().exists():
        return
    path, known = str(Path(source).expanduser().resolve()), _remembered()
    if path not in known:
        with suppress(OSError):  # a home that cannot be written to forgets
            atomic_write(home() / _PATHS, json.dumps([*known, path], indent=2) + "\n")


def from_card(source: object) -> str:
    """The data that a model's card names: a standard set, or a path that the user has trained on here.

    A card may come from anywhere; what it names is not opened for that alone.
    """
    if not isinstance(source, str):
        raise UserError("the model's card does not say what it was trained on; give data, a standard set or a path")
    if source not in names() and str(Path(source).expanduser().resolve()) not in _remembered():
        raise UserError(
            f"the model's card says that it was trained on {source!r}, where you have not trained on this machine: "
            f"if you trust it, give it yourself, --data {source!r}"
        )
    return source


def _remembered() -> list[str]:
    try:
        return [str(path) for path in json.loads(read_small_file(home() / _PATHS))]
    except (OSError, ValueError, TypeError):
        return []
