"""The text8 recipe: an XML dump of Wikipedia becomes words of a..z with single spaces between them.

A step by step equivalent, on bytes, of the filter published with the text8 corpus (M. Mahoney, "About the test data",
mattmahoney.net/dc/textdata): keep what a reader of the page sees, drop markup, write digits as words, turn everything
else into spaces. The dump is read record by record, a record ending at each ``>``, so memory stays small.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

__all__ = ["clean"]

_BLOCK = 1 << 20
_DIGITS = (b"zero", b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"eight", b"nine")

# In this order: later rules rely on what earlier ones removed.
_RULES: tuple[tuple[re.Pattern[bytes], bytes], ...] = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, replacement, flags in (
        (rb"<ref[^<]*</ref>", b"", 0),
        (rb"<[^>]*>", b"", 0),
        (rb"\[http:[^] ]*", b"[", 0),  # an external link keeps its visible text
        (rb"\|thumb", b"", re.I),  # an image keeps its caption
        (rb"\|left", b"", re.I),
        (rb"\|right", b"", re.I),
        (rb"\|[0-9]+px", b"", re.I),
        (rb"\[\[image:[^\[\]]*\|", b"", re.I),
        (rb"\[\[category:([^|\]]*)[^]]*\]\]", rb"[[\1]]", re.I),
        (rb"\[\[[a-z\-]*:[^\]]*\]\]", b"", 0),  # links to other languages
        (rb"\[\[[^|\]]*\|", b"[[", 0),  # a wiki link keeps its visible text
        (rb"\{\{[^}]*\}\}", b"", 0),
        (rb"\{[^}]*\}", b"", 0),
        (rb"[\[\]]", b"", 0),
        (rb"&[^;]*;", b" ", 0),
    )
)
_TAG_AT_END = re.compile(rb"<.*>")
_REDIRECT = re.compile(rb"#redirect", re.I)
_LETTERS = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 0x20 for byte in range(256))


def clean(dump: BinaryIO) -> Iterator[bytes]:
    """Pieces of cleaned text from a Wikipedia XML dump; each begins with a space, their concatenation is the corpus."""
    inside = False
    for record in _records(iter(lambda: dump.read(_BLOCK), b"")):
        if b"<text " in record:
            inside = True
        if inside and _REDIRECT.search(record):
            inside = False
        if inside:
            if b"</text>" in record:
                inside = False
            words = _visible_words(record)
            if words:
                yield b" " + b" ".join(words)


def _records(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Split a stream of blocks after every ``>``; what follows the last one is a record too."""
    pending: list[bytes] = []
    for block in blocks:
        head, *rest = block.split(b">")
        pending.append(head)
        for part in rest:
            yield b"".join(pending) + b">"
            pending = [part]
    if last := b"".join(pending):
        yield last


def _visible_words(record: bytes) -> list[bytes]:
    text = _TAG_AT_END.sub(b"", record, count=1)
    text = text.replace(b"&amp;", b"&").replace(b"&lt;", b"<").replace(b"&gt;", b">")
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = text.lower()
    for digit, word in enumerate(_DIGITS):
        text = text.replace(b"%d" % digit, b" " + word + b" ")
    return text.translate(_LETTERS).split()
