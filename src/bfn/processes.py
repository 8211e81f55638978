"""Several processes at one piece of work, on one machine or many: who this one is, and what they tell each other.

``torchrun`` and ``accelerate launch`` say in the environment how many there are. Work is cut into numbered blocks that
depend on no other; a process takes every so-many-th, and what all have found is put in the order of the numbers. So
the result is the same for any number of processes.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from bfn.errors import UserError

__all__ = ["ALONE", "Processes"]

T = TypeVar("T")
PATIENCE = timedelta(days=7)
"""How long a process waits for another: one may have much more to do."""


@dataclass(frozen=True)
class Processes:
    """This process among all: its number, how many there are, and its number on its own machine."""

    index: int = 0
    count: int = 1
    local_index: int = 0

    @classmethod
    def here(cls) -> Processes:
        """What the launcher has set up; one process alone where there is none."""
        values = (os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        try:
            index, count = map(int, values)
            local_index = int(os.environ.get("LOCAL_RANK", index))
        except ValueError:
            raise UserError("RANK, WORLD_SIZE, LOCAL_RANK: expected whole numbers, as torchrun sets them") from None
        return cls(index, count, local_index) if count > 1 else ALONE

    @property
    def main(self) -> bool:
        """Whether this is the one that prints and writes what is one for all."""
        return self.index == 0

    def own(self, blocks: Iterable[T]) -> list[T]:
        """Those of the blocks that this process does."""
        return list(blocks)[self.index :: self.count]

    def gather(self, values: Sequence[T]) -> list[T]:
        """What all have found of their own blocks, in the order of the blocks; all have it then."""
        if self.count == 1:
            return list(values)
        found: list[Any] = [None] * self.count
        _group().all_gather_object(found, list(values))
        return [found[i % self.count][i // self.count] for i in range(sum(map(len, found)))]

    def from_main(self, value: T) -> T:
        """What the first process has, for all; the others' is not looked at."""
        if self.count == 1:
            return value
        box = [value]
        _group().broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Until all are here."""
        self.gather([])


ALONE = Processes()
"""One process, with all of the work."""


def _group() -> Any:
    """torch.distributed, with the processes in touch; gloo, since what they exchange is on the CPU."""
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=PATIENCE)
        atexit.register(distributed.destroy_process_group)
    return distributed
