"""What a run changes in its process and puts back: threads, random state, signals."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bfn.training.settings import Settings

__all__ = ["Signals", "surroundings"]


@contextmanager
def surroundings(settings: Settings) -> Iterator[None]:
    """The process's thread count and random state, as they were before, afterwards."""
    threads = torch.get_num_threads()
    try:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)


class Signals:
    """Remembers SIGTERM and SIGINT instead of dying of them; a second one does what it always did."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, _: object) -> None:
        self.received = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
