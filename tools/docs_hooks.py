"""Hooks of the documentation site.

Formulas become MathML when the site is built, so that no script is needed to read it. A line ``::: bfn.quality`` on a
reference page shows the names in the ``__all__`` of that module, without modules among them.
"""

import ast
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
MODULE = re.compile(r"^::: ([a-z_]+(?:\.[a-z_]+)*)$", re.MULTILINE)
SOURCE = Path(__file__).parents[1] / "src"


def on_page_content(content: str, **_: Any) -> str:
    """Return the page with every formula as MathML, which browsers draw themselves."""
    return FORMULA.sub(
        lambda found: convert(html.unescape(found[3]), display="block" if found[2] == "[" else "inline"), content
    )


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with the public members of each module that it names."""
    return MODULE.sub(_with_members, markdown)


def _with_members(found: re.Match[str]) -> str:
    file = source_of(found[1])
    return found[0] if file is None else f"{found[0]}\n    options:\n      members: {exported(found[1])}"


def source_of(name: str) -> Path | None:
    """Return the file of a module or a package; None for other names, such as functions."""
    path = SOURCE.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def exported(module: str) -> list[str]:
    """Return the names in a module's ``__all__`` that are not modules, without importing it."""
    file = source_of(module)
    assigned = {
        getattr(node.targets[0], "id", None): node.value
        for node in ast.parse("" if file is None else file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
    }
    if "__all__" not in assigned:
        raise ValueError(f"{module}: has no __all__")
    modules = ast.literal_eval(assigned["_MODULES"]) if "_MODULES" in assigned else {}
    return [name for name in ast.literal_eval(assigned["__all__"]) if name not in modules]
