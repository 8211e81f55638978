"""Hooks of the documentation site: formulas become MathML while it is built, so that no script is needed to read it."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """The page with every formula as MathML, which browsers draw themselves."""
    return FORMULA.sub(
        lambda found: convert(html.unescape(found[3]), display="block" if found[2] == "[" else "inline"), content
    )
