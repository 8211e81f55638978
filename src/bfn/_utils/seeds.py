"""Seeds from seeds: what is drawn at random in pieces does not depend on who makes them, where, and when."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from a few numbers and words; nearby ones give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little") >> 1


def derived_generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by :func:`derived_seed`."""
    return torch.Generator(device).manual_seed(derived_seed(*parts))


def block_generator(seed: int, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of a block of samples, by its number: the first has the seed itself, as a sample of its own has."""
    return torch.Generator(device).manual_seed(derived_seed(seed, "block", index) if index else seed)


_lock = threading.Lock()
_users: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How many blocks keep a part in evaluation mode that is to go back to training: the last to end puts it back."""


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """The model's networks in evaluation mode; each gets its own mode back. Exact models have none.

    Threads may share a model: it stays in evaluation mode until all of them are done.
    """
    with _lock:
        parts = list(model.modules()) if isinstance(model, nn.Module) else []
        held = [part for part in parts if part.training or part in _users]
        for part in held:
            _users[part] = _users.get(part, 0) + 1
            part.training = False
    try:
        yield
    finally:
        with _lock:
            for part in held:
                _users[part] -= 1
                if not _users[part]:
                    del _users[part]
                    part.training = True
