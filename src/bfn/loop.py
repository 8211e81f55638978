"""The one loop: rows of a table, callbacks, final prediction. The network is called in one place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.conditions import Conditions
from bfn.errors import NetworkError
from bfn.heads import Output
from bfn.known import Predict
from bfn.progress import Shown, over
from bfn.solvers.table import BoundTable

__all__ = ["End", "Range", "Run", "Step", "walk"]

Range = tuple[float, float]
"""Lowest and highest value that predictions are clipped to."""


@dataclass(frozen=True)
class Step:
    """What ``on_step`` is shown after each network call: the state it was made on, and what it predicted."""

    index: int
    t: float
    u: Tensor
    prediction: Tensor


class Run:
    """The way of one batch through a table, for this module's loop and for loops that others own (``bfn.interop``).

    At each row: :meth:`prediction` of the network's output, :meth:`keep` it, then :meth:`step` unless :attr:`at_end`,
    where :meth:`final` is the sample. u: the first state. reuse: whether states may be written over that are needed no
    more, where nobody else keeps them: new memory for a large one takes longer than the step itself.
    """

    def __init__(self, table: BoundTable, u: Tensor, clip: Range | None = None, reuse: bool = False) -> None:
        self.table, self.clip, self.reuse, self.index = table, clip, reuse, 0
        self._predictions: deque[Tensor] = deque(maxlen=max(1, table.depth))
        self._base, self._first = u, u.untyped_storage().data_ptr()

    @property
    def at_end(self) -> bool:
        """Whether this is the last row, which makes its call but no step."""
        return self.index == self.table.nfe - 1

    def prediction(self, output: Output, generator: torch.Generator | None = None) -> Tensor:
        """What this row takes from the output: its mean, or a draw where the table draws; clipped."""
        if not self.table.draws:
            prediction = output.mean
        elif self.table.whole:
            prediction = output.draw_whole(generator)
        else:
            prediction = output.mode if self.at_end else output.draw(generator)
        prediction = prediction.to(self._base.dtype)
        return prediction if self.clip is None else prediction.clamp(*self.clip)

    def keep(self, prediction: Tensor) -> None:
        """Make this the newest prediction."""
        self._predictions.appendleft(prediction)

    def step(self, u: Tensor, noise: Callable[[], Tensor]) -> Tensor:
        """The next state from the one that the network was called on."""
        spare = None
        if self.index == 0 or self.table.rows[self.index - 1].commit:
            spare = self._base if self.reuse and self._is_free(self._base) else None
            self._base = u
        u = self.table.rows[self.index](self._base, self._predictions, noise, spare)
        self.index += 1
        return u

    def _is_free(self, state: Tensor) -> bool:
        """Whether this state's memory is nobody's: not the first one's, which is the caller's, nor a prediction's."""
        place = state.untyped_storage().data_ptr()
        return place != self._first and all(p.untyped_storage().data_ptr() != place for p in self._predictions)

    def select(self, members: Tensor) -> None:
        """Go on with these members of the batch, (batch,), some of them perhaps several times, others not."""
        self._base = self._base[members]
        self._predictions = deque((p[members] for p in self._predictions), self._predictions.maxlen)

    def final(self) -> Tensor:
        """The mix of the last predictions that the table says is the sample."""
        if len(self.table.final) == 1:
            return self._predictions[0]
        weighted = [weight * p for weight, p in zip(self.table.final, self._predictions, strict=False)]
        mix = torch.stack(weighted).sum(0)
        return mix if self.clip is None else mix.clamp(*self.clip)


@dataclass(frozen=True)
class End:
    """Where the loop ended. final: the mix that is the sample. prediction: the last one. u: the last state."""

    final: Tensor
    prediction: Tensor
    u: Tensor


def walk(
    predict: Predict,
    table: BoundTable,
    u: Tensor,
    noise: Callable[[], Tensor],
    *,
    conditions: Conditions | None = None,
    clip: Range | None = None,
    class_generator: torch.Generator | None = None,
    on_step: Callable[[Step], None] | None = None,
    select: Callable[[], Tensor | None] | None = None,
    autocast: torch.dtype | None = None,
    progress: Shown = False,
) -> End:
    """The one loop: from the first state through all rows of a table; gradients flow where they are asked for.

    predict: called once at each row. noise: called at each row with noise, for standard normal numbers like u.
    select: called before each step, for the members of the batch that go on, (batch,), or None for all as they are.
    The rest as in :func:`bfn.sample`.
    """
    alone = on_step is None and select is None and not torch.is_grad_enabled() and u.device.type == "cpu"
    run = Run(table, u, clip, reuse=alone)
    shape, prediction, given = u.shape, u, conditions or {}
    totals = []
    cast = nullcontext() if autocast is None else torch.autocast(u.device.type, autocast)
    for index, level in enumerate(over(table.levels, "sampling", "call", progress)):
        try:
            with cast:
                output = predict(u, level, **given)
        except NetworkError as error:
            raise NetworkError(f"call {index}: {error}") from None
        prediction = run.prediction(output, class_generator)
        if prediction.shape != shape:
            raise NetworkError(
                f"the network's prediction at call {index} (t={table.times[index]:.6g}) has shape "
                f"{tuple(prediction.shape)}: expected {tuple(shape)}"
            )
        totals.append(output.mean.detach().sum(dtype=torch.float32))
        run.keep(prediction)
        if on_step is not None:
            on_step(Step(index, table.times[index], u, prediction))
        if run.at_end:
            break
        members = None if select is None else select()
        if members is not None:
            u = u[members]
            run.select(members)
        u = run.step(u, noise)
    # One look at all totals after the loop: a look at each would stall a GPU at every step.
    finite = torch.stack(totals).isfinite().tolist()
    if not all(finite):
        first = finite.index(False)
        raise NetworkError(
            f"the network's prediction at call {first} (t={table.times[first]:.6g}) has NaN or infinite values"
        )
    return End(output.nearest(run.final()), prediction, u)
