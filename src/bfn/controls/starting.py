"""Starting data: begin at a later time from noised data instead of pure noise ("image to image")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, sqrt
from typing import Any, ClassVar

from torch import Tensor

from bfn._utils.arguments import as_tensor
from bfn.core.control import Batch, Control, Model, Noise, Rows, Stage, as_samples
from bfn.core.errors import UserError
from bfn.core.flows import Flow
from bfn.core.table import Row, Table


@dataclass(frozen=True, eq=False)
class StartingData(Control):
    """Start from data that are noised to ``t_start``: the later that is, the more of them stays.

    Args:
        x: data, (n, *data_shape) or data_shape; a mapping of parts for joint data.
    """

    stage: ClassVar[Stage] = Stage.START
    draws_conditions: ClassVar[bool] = False
    is_single: ClassVar[bool] = True

    x: Any

    def bind(self, model: Model, n: int, request: Any) -> StartingData:
        """Check the time and pack the data of n samples."""
        if request.initial is not None:
            raise UserError("start_from beside initial: both set the first state; give one of them")
        t_start = request.given_start
        if t_start is None:
            raise UserError("start_from without t_start: give the time in (0, 1) to noise it to, such as t_start=0.4")
        if not 0 < t_start < 1:
            raise UserError(f"t_start={t_start:g} with start_from: expected a time in (0, 1), such as 0.4")
        try:
            packed = model.flow.pack(_expanded(self.x, n, model), model.data_shape).to(model.device)
            if len(packed) != n:
                raise UserError(f"{len(packed)} samples of packed data: expected {n}")
        except UserError as error:
            raise UserError(f"start_from: {error}") from None
        return StartingData(packed)

    def rows(self, rows: Rows) -> StartingData:
        """Return the data of some of the samples."""
        return StartingData(self.x[rows])

    def start(self, u: Tensor, batch: Batch) -> Tensor:
        """Return the noised data."""
        return batch.model.flow.noised(self.x, batch.table.levels[0].s, batch.noise)


def _expanded(x: Any, n: int, model: Model) -> Any:
    """Return data for each of n samples, from data for all of them or for each."""
    flow, shapes = model.flow, model.flow.by_part("data_shape", model.data_shape)
    if isinstance(x, Tensor) and len(shapes) > 1:
        return x  # packed already
    values = flow.by_part("data", x).items()
    return flow.from_parts({name: as_samples("data", as_tensor("data", own), n, shapes[name]) for name, own in values})


@dataclass(frozen=True)
class FixedNoise(Control):
    """Use the noise of the first state in every noisy step.

    For a constant predicted message a state is ``s w + sqrt(kappa) eps`` with standard normal eps: a row keeps ``a n``
    of the noise n so far and adds c of its own, with ``hypot(a n, c) = sqrt(kappa)``. If both are the same noise they
    add up as numbers, so that c becomes ``hypot(a n, c) - a n``. For small steps this is the smooth path

        dy = w_hat d beta + sqrt(kappa) eps ds          at g = 1, instead of sqrt(kappa) dB_beta

    It is another process than the reverse SDE and the ODE, and its samples follow another distribution even for an
    exact model.
    """

    stage: ClassVar[Stage] = Stage.NOISE

    @classmethod
    def from_options(cls, noise: str = "fresh") -> FixedNoise | None:
        """Make the control from ``noise=``: "fixed", or "fresh", which asks for nothing."""
        if noise not in ("fresh", "fixed"):
            raise UserError(f"noise={noise!r}: expected one of fresh, fixed")
        return cls() if noise == "fixed" else None

    def table(self, table: Table, flow: Flow) -> Table:
        """Return the table with the amounts of noise for noise that is always the same."""
        rows = {name: _fixed_rows(table.parts.get(name, table).rows, part.kappa) for name, part in flow.parts.items()}
        parts = {name: replace(own, rows=rows[name]) for name, own in table.parts.items()}
        return replace(table, rows=rows[flow.leading_part], parts=parts)

    def noise(self, noise: Noise, batch: Batch) -> Noise:
        """Return a function that gives the noise of the first state."""
        return lambda: batch.noise


def _fixed_rows(rows: tuple[Row, ...], kappa: float) -> tuple[Row, ...]:
    amount, fixed = sqrt(kappa), []
    for row in rows:
        total = hypot(row.a * amount, row.c)
        fixed.append(replace(row, c=total - row.a * amount if row.c else 0.0))
        amount = total if row.commit else amount
    return tuple(fixed)
