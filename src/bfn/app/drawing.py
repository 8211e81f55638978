"""Samples for the page, drawn call by call in a thread of their own, which can be watched and stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from bfn import solvers
from bfn.app.requests import DrawRequest, Panel
from bfn.errors import UserError
from bfn.sampling import Step, sample, undisturbed
from bfn.solvers import Plan, plan
from bfn.viz import Recorder

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["PanelProgress", "dial", "draw", "panel_plan", "usable_solvers", "watched"]

T = TypeVar("T")


class _StoppedError(Exception):
    """Nobody waits for the result any more."""


def watched(work: Callable[[Callable[[T], None]], None]) -> Generator[T, None, None]:
    """What ``work(tell)`` tells, as it tells it, from a thread of its own.

    Closing the generator stops the work at the next thing it tells. One that is left unclosed wastes no more than the
    rest of its work: nothing waits for the reader.
    """
    told: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def tell(what: T) -> None:
        if stopped.is_set():
            raise _StoppedError
        told.put((what,))

    def run() -> None:
        try:
            work(tell)
        except _StoppedError:
            pass
        except BaseException as error:
            told.put(error)
        else:
            told.put(None)

    threading.Thread(target=run, name="bfn-app-work", daemon=True).start()
    try:
        while (item := told.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stopped.set()


@dataclass(frozen=True)
class PanelProgress:
    """A panel so far: how the samples formed, call by call; what it took; whether it is finished.

    plan: what it runs through. steps: (t, what is known, what is predicted) of each call made: mu and x_hat, or theta
    and class probabilities. conditions: what was asked for, lengths of the samples among it.
    """

    model: Model
    panel: Panel
    plan: Plan
    steps: tuple[tuple[float, Tensor, Tensor], ...]
    seconds: float
    finished: bool
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Tensor]:
        """The conditions that were asked for by name, one a sample."""
        n, given = len(self.steps[0][1]), self.conditions.get("condition", {})
        return {name: torch.full((n,), float(value)) for name, value in given.items()}

    @property
    def present(self) -> Tensor | None:
        """Where the samples have data, bool (n, longest); None where they have it everywhere."""
        lengths = self.conditions.get("lengths")
        return None if lengths is None else torch.arange(self.model.data_shape[0]) < lengths[:, None]


def panel_plan(model: Model, panel: Panel, conditions: Mapping[str, Any] | None = None) -> Plan:
    """What a panel runs through; a UserError where its settings make no sense together."""
    free = undisturbed(**(conditions or {}))
    return plan(model, panel.solver, panel.calls, t_start=panel.t_start, g=dial(panel), plain=free)


def usable_solvers(model: Model) -> tuple[str, ...]:
    """Names of the solvers that work with this model: some need what not every model has."""

    def works(name: str) -> bool:
        try:
            plan(model, name, 2)
        except UserError:
            return False
        return True

    return tuple(name for name in solvers.names(model.flow.kind) if works(name))


def dial(panel: Panel) -> float | None:
    """The dial that is asked for, where the solver has one: the page hides it elsewhere, but sends what it was."""
    return panel.g if solvers.get(panel.solver).has_dial else None


def draw(model: Model, request: DrawRequest, panel: Panel, conditions: Mapping[str, Any]) -> Iterator[PanelProgress]:
    """One panel's samples, its progress after each network call; each panel draws its noise from the same seed.

    conditions: further arguments of ``bfn.sample``, for what is known of the samples.
    """
    steps: list[tuple[float, Tensor, Tensor]] = []
    planned = panel_plan(model, panel, conditions)

    def work(tell: Callable[[bool], None]) -> None:
        record = Recorder(model, request.n, steps)

        def on_step(step: Step) -> None:
            record(step)
            tell(False)

        out = sample(model, request.n, planned.table, seed=request.seed, on_step=on_step, **conditions)
        # Where the sample is a mix of the last predictions, the last picture shows the mix.
        steps[-1] = (*steps[-1][:2], out.final.cpu())
        tell(True)

    start = time.perf_counter()
    for finished in watched(work):
        spent = time.perf_counter() - start
        yield PanelProgress(model, panel, planned, tuple(steps), spent, finished, conditions)
