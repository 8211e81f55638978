"""The public surface: what ``__all__`` of the documented modules names. It is small, documented, and has docstrings."""

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import bfn

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (bfn[\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
)
NOT_FOR_USERS = {
    *("app", "arguments", "bench", "cli", "config", "core", "eval_mode", "files"),
    *("joint_places", "ngrams", "output_controls", "partly_known", "pieces", "progress", "record_data", "seeds"),
    "weights_file",
}
"""Entrances, and what only the library itself uses."""
MOST_NAMES = 371
"""Raise it for names that users call, not for what one module takes from another."""


@cache
def public_names() -> dict[str, Any]:
    """Every public name once: by the module that defines it, where it says so."""
    found = {}
    for module in ("bfn", *MODULES):
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            thing = getattr(loaded, name)
            if not inspect.ismodule(thing):
                own = inspect.isclass(thing) or inspect.isfunction(thing)
                found[f"{thing.__module__ if own else _home(name, module)}.{name}"] = thing
    return found


def _home(name: str, module: str) -> str:
    """Where a constant is assigned: constants do not know it themselves."""
    tree = ast.parse(Path(inspect.getsourcefile(importlib.import_module(module)) or "").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            return _home(name, str(node.module))
    return module


def test_there_are_few() -> None:
    names = public_names()
    assert len(names) <= MOST_NAMES, f"{len(names)} public names"
    assert len(names) > 100


def test_every_module_is_documented_or_not_for_users() -> None:
    top = {module.name for module in iter_modules(bfn.__path__) if not module.name.startswith("_")}
    assert {name.split(".")[1] for name in MODULES} == top - NOT_FOR_USERS
    assert len(MODULES) == len(set(MODULES))
    for name in bfn.__all__:
        if inspect.ismodule(getattr(bfn, name)):
            assert f"bfn.{name}" in MODULES


def test_what_bfn_names_itself_is_documented_where_it_is_defined() -> None:
    exported = {
        id(getattr(importlib.import_module(m), name)) for m in MODULES for name in importlib.import_module(m).__all__
    }
    for name in bfn.__all__:
        assert inspect.ismodule(getattr(bfn, name)) or id(getattr(bfn, name)) in exported, name


def test_every_public_name_has_a_docstring() -> None:
    def documented(name: str, thing: Any) -> bool:
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            return _documented_constant(name)
        # One that only repeats the signature is what dataclasses make.
        return bool(thing.__doc__) and not thing.__doc__.startswith(f"{thing.__name__}(")

    assert [name for name, thing in public_names().items() if not documented(name, thing)] == []


def _documented_constant(name: str) -> bool:
    module, _, constant = name.rpartition(".")
    tree = ast.parse(Path(inspect.getsourcefile(importlib.import_module(module)) or "").read_text(encoding="utf-8"))
    for node, following in zip(tree.body, tree.body[1:], strict=False):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == constant for target in targets):
            return isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return False


def test_every_module_of_the_package_has_an_all() -> None:
    package = Path(bfn.__file__).parent
    without = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.name != "__main__.py" and "__all__" not in path.read_text(encoding="utf-8")
    ]
    assert not without
