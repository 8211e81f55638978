"""Errors that a user can mend, and the hint that goes with a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Wrong input: the message says the value, what was expected and what to do, in one line.

    Commands turn these, and only these, into one line and exit code 2. Anything else is a bug and
    keeps its traceback.
    """


class NetworkError(UserError):
    """The network gave something that cannot be used, with the call and the time at which it happened."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or nothing where none is near.

    >>> did_you_mean("bfn-slover2", ["bfn-solver1", "bfn-solver2"])
    "; did you mean 'bfn-solver2'?"
    """
    near = get_close_matches(str(name), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
