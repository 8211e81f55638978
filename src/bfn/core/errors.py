"""Errors that a user can correct, and the hint for an unknown name."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Wrong input. The message says the value, what was expected and what to do, in one line.

    Commands print the line and exit with code 2. Other errors keep their traceback.
    """


class NetworkError(UserError):
    """The output of the network cannot be used. The message says at which call and time."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, with the nearest known name; "" if none is near.

    >>> did_you_mean("bfn-slover2", ["bfn-solver1", "bfn-solver2"])
    "; did you mean 'bfn-solver2'?"
    """
    near = get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
