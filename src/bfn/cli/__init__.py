"""The command ``bfn``: finds a command, parses its arguments with tyro and turns errors of the user into one line.

A command is a function in the registry "command": its docstring is its help, its parameters are its options, and it
returns the exit code. Installed packages add commands by entry points, see ``bfn.core.registry``.

Exit codes: 0 for success, 2 for an error that the user can correct (one line on standard error), 130 for an interrupt.
Errors that the user can correct are a UserError, a missing package, and a file that cannot be read or written. All
other errors keep their traceback, and the exit code is 1. BFN_TRACEBACK=1 shows the traceback of every error.
"""

from __future__ import annotations

import errno
import functools
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from bfn.core.errors import UserError, did_you_mean
from bfn.core.registry import Registry, registry

__all__ = ["Command", "bind", "explain", "main"]

WRONG_INPUT = 2
INTERRUPTED = 130

EXTRAS = {
    "tyro": "cli",
    "PIL": "cli",
    "sklearn": "data",
    "pooch": "data",
    "accelerate": "train",
    "yaml": "train",
    "spylls": "metrics",
    "matplotlib": "plot",
    "gradio": "app",
}
"""Optional packages, and the extra of this distribution that installs each."""

DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""Errors that are raised without a file name by writes to an open file."""

DIRECTION_MARKS = (*range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
ESCAPED = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *DIRECTION_MARKS)
    if chr(code) not in "\n\t"
}
"""Control characters, including those that change the direction of text, and how they are printed."""

Command = Callable[..., int | None]

COMMANDS: Registry[Command] = registry("command")
"""The commands by name; a name may have two words."""

WORD_ORDER: dict[Command, Callable[[Sequence[str]], list[str]]] = {}
"""Functions that reorder the words of a command line before they are parsed, by command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (``sys.argv`` if None) and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
            return _run(arguments)
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed the pipe. Python would fail to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        line = explain(error)
        if line is None or os.environ.get("BFN_TRACEBACK"):
            raise
        complain(line)
        return WRONG_INPUT


def explain(error: Exception) -> str | None:
    """Return one line for an error that the user can correct; None for any other error.

    The user can correct wrong input, a missing package, files that cannot be read or written, and a full disk.
    """
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, ImportError):
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            return f"{package} is needed for this: pip install 'bayesian-flow[{EXTRAS[package]}]'"
        return str(error) if "bayesian-flow[" in str(error) else None
    if isinstance(error, OSError) and error.strerror and (error.filename or error.errno in DISK_FULL):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None


def bind(arguments: Sequence[str]) -> Callable[[], int | None]:
    """Parse a command line and return the command with its arguments bound.

    Raises:
        UserError: the arguments are wrong; tyro's box with the error is shortened to one line.
    """
    name = _find(arguments)
    command = COMMANDS[name]

    import tyro

    words = arguments[len(name.split()) :]

    @functools.wraps(command)
    def bound(*values: Any, **options: Any) -> Callable[[], int | None]:
        return functools.partial(command, *values, **options)

    box = io.StringIO()
    try:
        with redirect_stderr(box):
            parsed: Callable[[], int | None] = tyro.cli(
                bound,
                prog=f"bfn {name}",
                description=_description(command),
                args=WORD_ORDER.get(command, list)(words),
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as leave:
        if leave.code == WRONG_INPUT:
            raise UserError(f"{_one_line(box.getvalue())}; see bfn {name} --help") from None
        return lambda: 0
    return parsed


def printable(text: str) -> str:
    r"""Return the text with its control characters escaped.

    >>> printable("red \x1b[31m")
    'red \\x1b[31m'
    """
    return text.translate(ESCAPED)


def complain(line: str) -> None:
    """Print a line of the program itself on standard error."""
    print(printable(f"bfn: {line}"), file=sys.stderr)


class PlainOutput:
    """A stream that escapes control characters: model cards and file names may contain terminal commands."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text and return its length."""
        self._stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from bfn import __version__

        print(f"bfn {__version__}")
        return 0
    command = bind(arguments)
    # Only the first of several processes prints. Its number is read here: importing torch takes too long for --help.
    stream = sys.stdout if os.environ.get("RANK", "0") == "0" else io.StringIO()
    with redirect_stdout(PlainOutput(stream)):
        return command() or 0


def _find(arguments: Sequence[str]) -> str:
    """Return the name of the command that the arguments start with."""
    for words in (2, 1):
        if " ".join(arguments[:words]) in COMMANDS:
            return " ".join(arguments[:words])
    first = arguments[0]
    longer = [name for name in COMMANDS if name.startswith(f"{first} ")]
    if longer:
        raise UserError(f"{first}: expected bfn {' or bfn '.join(longer)}; --help explains it")
    names = tuple(COMMANDS)
    raise UserError(f"{first!r}: expected a command, one of {', '.join(names)}{did_you_mean(first, names)}")


def _description(command: Command) -> str:
    """Return the docstring without its list of arguments, which tyro shows with the options."""
    return (inspect.getdoc(command) or "").partition("\nArgs:")[0].strip()


def _one_line(box: str) -> str:
    """Return the message of tyro's error box: its first part, and a similar option if it names one."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [row.strip("│ ") for row in plain.splitlines() if not row.startswith(("╭", "╰"))]
    parts = [part.split("\n") for part in "\n".join(rows).split("\n─") if part.strip()]
    message = " ".join(row.strip() for row in parts[0]) if parts else "wrong arguments"
    near = next((part[part.index("Perhaps you meant:") + 1] for part in parts if "Perhaps you meant:" in part), None)
    return message.rstrip(".") + (f"; perhaps you meant {near}" if near else "")


def _overview() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS)) + 2
    return "\n".join([
        "usage: bfn COMMAND [OPTIONS]\n",
        "Train Bayesian flow networks, sample from them in a few network calls, and measure them.\n",
        *(f"  {name:{width}}{_summary(name)}" for name in COMMANDS),
        "\nbfn COMMAND --help explains a command and shows examples; bfn --version prints the version.",
    ])  # fmt: skip


def _summary(name: str) -> str:
    """Return the first line of a command's docstring, from its source: importing it would take a second."""
    target = COMMANDS.target(name)
    if target is None:
        return _description(COMMANDS[name]).partition("\n")[0]
    module, _, function = target.partition(":")
    try:
        source = Path(str(getattr(find_spec(module), "origin", ""))).read_text(encoding="utf-8")
    except (ImportError, OSError, ValueError):
        return ""  # the command itself says what is wrong with its package
    found = re.search(rf'^def {function}\(.*?^    """(.*?)$', source, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""
