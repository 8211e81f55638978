"""Hooks of the documentation site: formulas become MathML while it is built, so that no script is needed to read it.

The reference shows of each module what its ``__all__`` names: a page has the line ``::: bfn.quality`` alone.
"""

import ast
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
MODULE = re.compile(r"^::: (bfn[\w.]*)$", re.MULTILINE)
SOURCE = Path(__file__).parents[1] / "src"


def on_page_content(content: str, **_: Any) -> str:
    """The page with every formula as MathML, which browsers draw themselves."""
    return FORMULA.sub(
        lambda found: convert(html.unescape(found[3]), display="block" if found[2] == "[" else "inline"), content
    )


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the members of each module: those that its ``__all__`` names."""
    return MODULE.sub(lambda found: f"{found[0]}\n    options:\n      members: {exported(found[1])}", markdown)


def exported(module: str) -> list[str]:
    """The names in a module's ``__all__``, read without importing it."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{module}: has no __all__")
