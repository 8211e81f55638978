"""Training and evaluation mode: what samples or measures a model leaves dropout out, whatever mode the model is in."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["evaluating"]

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
