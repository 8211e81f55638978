"""Fuzz tests: whatever is put in, a result comes out, or a UserError or TypeError; soon, and finite if the input was.

``run`` draws cases with hypothesis; the same ones each time unless HYPOTHESIS_PROFILE=random is set.
"""

import math
import random
import signal
import warnings
from collections.abc import Mapping
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bfn.core.errors import UserError

SECONDS = 20.0
"""Of processor time that one case may take; ten times as many by the clock, since machines are shared."""

NAN, INF = math.nan, math.inf
ODD = (
    None, True, False, 0, 1, -1, 2, 3, 2.7, 0.5, -0.5, 1e-3, 1e-20, 1e-300, 1e18, 1e300, 10**12, 2**63, -(2**63), 2**80,
    NAN, INF, -INF, "", "3", "x", "nan", "auto", "\x1b[31m", b"x", [], [0], [1, 2], [0.1, 0.5], [NAN], (), (1,),
    (-1, 1), (1, -1), {}, {"name": "x"}, {"label": 1}, set(), object(), torch.tensor(1), torch.tensor([1, 2]),
    torch.empty(0), torch.tensor([0.1, NAN]), torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool), lambda x: 1.0,
    print, list,
)  # fmt: skip
"""What nobody means, and what somebody might. What can be called takes a tensor: an error that a function raises by
itself is its own, and keeps its traceback."""
JSON = (
    None, True, False, 0, 1, -1, 2.7, 1e-300, 1e300, NAN, INF, 2**31, 2**63, 10**30, "", "x", "\x1b[31m", "continuous",
    [], [0], [1, 2, 3], [[]], [None], {}, {"name": "x"}, {"name": 5}, {"": 0},
)  # fmt: skip
"""The same, of what a file can say."""


def values(*ordinary):
    """Mostly ordinary values, sometimes odd ones."""
    return st.one_of(st.sampled_from(ordinary), st.sampled_from(ordinary), st.sampled_from(ODD))


def calls(**arguments):
    """Some of the arguments, each with one of its values."""
    return st.fixed_dictionaries({}, optional=arguments)


def cases(short: int, long: int):
    """A test of so many cases, and a longer one for ``make test-long``."""
    return pytest.mark.parametrize("n", [short, pytest.param(long, marks=pytest.mark.long)])


def run(n: int, check, **drawn) -> None:
    """Draw n cases and check each."""
    always = settings(max_examples=n, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    always(given(**drawn)(check))()


def damage(whole: bytes, chance: random.Random) -> bytes:
    """The bytes of a file with a bit flipped, or with bytes replaced, zeroed, cut or doubled."""
    data, place = bytearray(whole), chance.randrange(len(whole))
    kind = chance.choice(("bit", "byte", "zeros", "cut", "double", "length"))
    if kind == "bit":
        data[place] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        data[place] = chance.randrange(256)
    elif kind == "zeros":
        data[place : place + 16] = bytes(len(data[place : place + 16]))
    elif kind == "cut":
        data = data[:place]
    elif kind == "double":
        data[place:place] = data[place : place + 32]
    else:
        data[:16] = bytes(chance.randrange(256) for _ in data[:16])
    return bytes(data)


@contextmanager
def allowed():
    """The outcomes that are allowed: a result, a UserError of one line or a TypeError, within the time."""

    def late(*_):
        raise TimeoutError(f"more than {SECONDS} seconds of work, or {10 * SECONDS} by the clock")

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * SECONDS)}
    before = {number: signal.signal(number, late) for number in clocks}
    for clock, seconds in clocks.values():
        signal.setitimer(clock, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (UserError, TypeError):
        pass
    finally:
        for number, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(number, before[number])


def assert_finite(result) -> None:
    """No NaN came out."""
    if isinstance(result, Mapping):
        for value in result.values():
            assert_finite(value)
    elif isinstance(result, torch.Tensor) and result.is_floating_point():
        assert not bool(result.isnan().any()), "NaN from finite input"
