"""The command ``bfn``: finds the command, reads its arguments with tyro, and turns wrong input into one clear line.

A command is one function in one file, listed in ``bfn.cli.commands.COMMANDS``. What its docstring says is its help, its
parameters are its options, what it returns is the exit code. It imports what it needs when it runs.

Exit codes: 0 done, 2 wrong input (one line on standard error), 130 interrupted. What the user can mend is a UserError,
a missing package, a file that cannot be read or written; every other error, a ValueError from inside torch too, keeps
its traceback, and the exit code is 1. BFN_TRACEBACK=1 shows the traceback of the expected ones too.
"""

import errno
import functools
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from bfn._utils.pieces import Processes
from bfn.cli.common import PlainOutput, printable
from bfn.core.errors import UserError, did_you_mean

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
"""Packages that not everybody needs, and the extra that installs them."""

DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""Told without a file's name by writes to one that is open."""

Command = Callable[..., int | None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (``sys.argv`` if None) and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
            return _run(arguments)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does: nothing is left to say, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        line = explain(error)
        if line is None or os.environ.get("BFN_TRACEBACK"):
            raise
        _say(line)
        return WRONG_INPUT


def explain(error: Exception) -> str | None:
    """One line for an error that the user can mend; None for one that nobody expected.

    Expected are wrong input, packages that are not installed, files that cannot be read or written, and a full disk.
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


def _run(arguments: Sequence[str]) -> int:
    from bfn.cli.commands import COMMANDS

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(COMMANDS))
        return 0
    if arguments[0] == "--version":
        from bfn import __version__

        print(f"bfn {__version__}")
        return 0
    command = bind(arguments)
    # Of several processes the first one speaks for all.
    stream = sys.stdout if Processes.here().main else io.StringIO()
    with redirect_stdout(PlainOutput(stream)):
        return command() or 0


def bind(arguments: Sequence[str]) -> Callable[[], int | None]:
    """The command that a command line asks for, its arguments read and bound.

    Where they are wrong, tyro's box of an error becomes a UserError of one line.
    """
    import tyro

    from bfn.cli.commands import ARRANGED, COMMANDS

    name = _find(arguments, COMMANDS)
    command = COMMANDS[name]
    words = arguments[len(name.split()) :]

    @functools.wraps(command)
    def later(*values: Any, **options: Any) -> Callable[[], int | None]:
        return functools.partial(command, *values, **options)

    box = io.StringIO()
    try:
        with redirect_stderr(box):
            bound: Callable[[], int | None] = tyro.cli(
                later,
                prog=f"bfn {name}",
                description=_description(command),
                args=ARRANGED[name](words) if name in ARRANGED else words,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as leave:
        if leave.code == WRONG_INPUT:
            raise UserError(f"{_one_line(box.getvalue())}; see bfn {name} --help") from None
        return lambda: 0
    return bound


def _find(arguments: Sequence[str], commands: Mapping[str, Command]) -> str:
    """The command that the arguments start with; one may have two words, such as "data fetch"."""
    for words in (2, 1):
        if " ".join(arguments[:words]) in commands:
            return " ".join(arguments[:words])
    given = arguments[0]
    longer = [name for name in commands if name.startswith(f"{given} ")]
    if longer:
        raise UserError(f"{given}: expected bfn {' or bfn '.join(longer)}, with --help to read more")
    hint = did_you_mean(given, commands)
    raise UserError(f"{given!r}: expected a command, one of {', '.join(commands)}{hint}")


def _description(command: Command) -> str:
    """The docstring without its list of arguments, which tyro shows beside each."""
    return (inspect.getdoc(command) or "").partition("\nArgs:")[0].strip()


def _one_line(box: str) -> str:
    """The message of an error box: its first part, and a similar option if it names one."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [row.strip("│ ") for row in plain.splitlines() if not row.startswith(("╭", "╰"))]
    parts = [part.split("\n") for part in "\n".join(rows).split("\n─") if part.strip()]
    message = " ".join(row.strip() for row in parts[0]) if parts else "wrong arguments"
    near = next((part[part.index("Perhaps you meant:") + 1] for part in parts if "Perhaps you meant:" in part), None)
    return message.rstrip(".") + (f"; perhaps you meant {near}" if near else "")


def _overview(commands: Mapping[str, Command]) -> str:
    width = max(map(len, commands)) + 2
    summaries = (f"  {name:{width}}{_description(command).splitlines()[0]}" for name, command in commands.items())
    return "\n".join([
        "usage: bfn COMMAND [OPTIONS]\n",
        "Bayesian flow networks: train them, sample from them in a handful of network calls, measure them.\n",
        *summaries,
        "\nbfn COMMAND --help explains a command and shows an example; bfn --version tells the version.",
    ])  # fmt: skip


def _say(line: str) -> None:
    print(printable(f"bfn: {line}"), file=sys.stderr)
