"""The public surface: every public name has a docstring and an entry on a page of the reference."""

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import bfn

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")}
ENTRIES = [name for page in PAGES.values() for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)]
NOT_FOR_USERS = {"bfn.app", "bfn.cli", "bfn.core", "bfn.controls"}
"""Packages whose names are public as names of ``bfn`` itself, or that are commands."""

sys.path.insert(0, str(ROOT / "tools"))


@cache
def public_names() -> dict[str, Any]:
    """Return every public object once, by the module that defines it and its name."""
    found = {}
    for module in [entry for entry in ENTRIES if isinstance(_object(entry), ModuleType)]:
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            thing = getattr(loaded, name)
            if not inspect.ismodule(thing):
                own = inspect.isclass(thing) or inspect.isfunction(thing)
                found[f"{thing.__module__ if own else _home(name, module)}.{name}"] = thing
    return found


def _object(name: str) -> Any:
    """Return the module or the object of a dotted name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def _tree(module: str) -> ast.Module:
    return ast.parse(Path(inspect.getsourcefile(importlib.import_module(module)) or "").read_text(encoding="utf-8"))


def _home(name: str, module: str) -> str:
    """Return the module in which a constant is assigned."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            return _home(name, str(node.module))
    return module


def test_every_package_with_public_names_has_one_entry() -> None:
    from docs_hooks import exported

    assert len(ENTRIES) == len(set(ENTRIES))
    assert "bfn" in ENTRIES
    modules = [f"bfn.{bfn._MODULES[name]}" for name in bfn.__all__ if inspect.ismodule(getattr(bfn, name))]
    assert set(modules) <= set(ENTRIES)
    package = Path(bfn.__file__).parent
    for path in package.glob("*/__init__.py"):
        name = f"bfn.{path.parent.name}"
        if "__all__" in path.read_text(encoding="utf-8"):
            assert name in ENTRIES or name in NOT_FOR_USERS, name
    assert set(exported("bfn")) == {name for name in bfn.__all__ if not inspect.ismodule(getattr(bfn, name))}


def test_every_public_name_has_a_docstring() -> None:
    def documented(name: str, thing: Any) -> bool:
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            return _is_documented_constant(name)
        # Dataclasses without a docstring get one that repeats the signature.
        return bool(thing.__doc__) and not thing.__doc__.startswith(f"{thing.__name__}(")

    assert [name for name, thing in public_names().items() if not documented(name, thing)] == []


def _is_documented_constant(name: str) -> bool:
    module, _, constant = name.rpartition(".")
    body = _tree(module).body
    for node, following in pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == constant for target in targets):
            return isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return False
