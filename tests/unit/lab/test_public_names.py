"""bfn_lab uses public names of bfn only: those in ``__all__`` of bfn and of its rooms."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import bfn
import bfn_lab

FILES = sorted(Path(bfn_lab.__file__).parent.glob("*.py"))


def private_names(tree: ast.Module) -> list[str]:
    """Return the names of bfn that are imported, or read from an imported module, and are not public."""
    found, modules = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("bfn.")]
            modules |= {name.asname or name.name: bfn for name in node.names if name.name == "bfn"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bfn":
            module = import_module(node.module or "")
            if module is not bfn and node.module not in {f"bfn.{name}" for name in bfn.__all__}:
                found.append(str(node.module))
                continue
            for name in node.names:
                if name.name not in module.__all__:
                    found.append(f"{node.module}.{name.name}")
                elif isinstance(getattr(module, name.name), type(bfn)):
                    modules[name.asname or name.name] = getattr(module, name.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr.startswith("_") and not node.attr.startswith("__") and not own:
                found.append(node.attr)
            module = modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if module is not None and node.attr not in module.__all__ and not node.attr.startswith("__"):
                found.append(f"{module.__name__}.{node.attr}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_public_names_are_used(path: Path) -> None:
    assert private_names(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "from bfn.core.model import BFN",
        "from bfn.quality.judge import Judge",
        "import bfn\nbfn.core",
        "from bfn import solvers\nsolvers.few_step",
        "from bfn import BFN\nBFN._apply",
    ],
)
def test_private_names_are_found(source: str) -> None:
    assert private_names(ast.parse(source))
