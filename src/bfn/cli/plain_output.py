"""What commands print, without power over the terminal: a model's card or a file's name may hold escape sequences."""

from typing import IO, Any

__all__ = ["PlainOutput", "printable"]

HARMLESS = "\n\t"
TURNING = (*range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that turn the direction of what follows."""
CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *TURNING)
    if chr(code) not in HARMLESS
}


def printable(text: str) -> str:
    r"""Text with its control characters written out.

    >>> printable("red \x1b[31m")
    'red \\x1b[31m'
    """
    return text.translate(CONTROLS)


class PlainOutput:
    """A stream that control characters pass only written out."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, and say that all was written."""
        self._stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
