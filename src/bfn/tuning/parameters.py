r"""The free numbers of a table: what is fitted to a model.

A row u_next = a u + sum_j b_j w_hat[-1-j] + c xi from s_0 to s_1 of any good solver keeps two sums,

    a s_0 + sum_j b_j = s_1          a constant w_hat is integrated exactly
    a^2 + c^2 / kappa = 1            the noise in the state stays that of its level

and what is left is free: the grid; the angle phi of each row, a = cos phi and c = sqrt(kappa) sin phi, which is the
stochasticity dial (0 the ODE, a right angle full re-noising); the shares of the older predictions in each step and in
the sample. A network is not exact, and its predictions in few steps even less: where noise is fitted, two more numbers
a row, the gain and the noise, let it depart from both sums. Where the first call is not made at s = 0, so are its s and
the width of the first state.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bfn.core.table import BoundRow, BoundTable, Row, Table
from bfn.errors import UserError
from bfn.flows import Flow, NoiseLevel

__all__ = ["TableParameters"]

DEPTH = 3
"""Predictions that a row may mix at least; more where the table that tuning starts from does."""


class TableParameters:
    """The free numbers of a table with ``nfe`` calls, each a float64 tensor with gradients.

    steps: logits of the shares of [s_0, s(1)] that the grid's intervals take, the last one what is left out at its end
        (absent where the grid ends at s(1)). angles: phi of each row. older: shares of the older predictions in each
        row. mix: shares of the older predictions in the sample. gain, noise: logs of what sum_j b_j and c are
        multiplied by. Where noise is fitted and s_0 > 0, the shares are of [0, s(1)], the first one s_0 itself, and
        width is the log of the first state's standard deviation over sqrt(kappa).
    """

    def __init__(self, flow: Flow, table: Table, *, noisy: bool = True, least_angle: float = 0.0) -> None:
        """Those of a table without Runge-Kutta stages, such as any multistep solver's.

        noisy: whether angles, gain, noise and the start may be fitted. least_angle: where the angles start at least.
        """
        if table.parts:
            raise UserError("joint data: of their tables only the grid is fitted; take the objective SearchedGrid")
        if table.draws or not all(row.commit for row in table.rows):
            raise UserError("the table draws classes or has Runge-Kutta stages: tune from a multistep solver")
        self.flow = flow
        s = torch.tensor(flow.schedule.s_of(table.times), dtype=torch.float64)
        self.starts_late = noisy and bool(s[0] > 0)
        self.width = torch.tensor([table.start], dtype=torch.float64).log().requires_grad_(self.starts_late)
        # What the shares are of begins at s = 0 if the start moves, else where the grid starts.
        self.start, self.end = (torch.zeros_like(s[0]) if self.starts_late else s[0]), flow.schedule.s(1.0)
        left = 1 - (s[-1] - self.start) / (self.end - self.start)
        ends = torch.cat([self.start[None], s]) if self.starts_late else s
        shares = torch.cat([ends.diff() / (self.end - self.start), left[None]])
        self.ends_early = bool(left > 1e-9)
        self.steps = (shares if self.ends_early else shares[:-1]).log().requires_grad_()
        rows = table.rows[:-1]
        numbers = [(row.a, row.c, sum(row.b)) for row in rows]
        a, c, total = torch.tensor(numbers, dtype=torch.float64).reshape(-1, 3).unbind(1)
        gain = total / (s[1:] - a * s[:-1])
        if not bool(((a.abs() <= 1 + 1e-9) & (gain > 0)).all()):
            raise UserError("the table stretches the state or steps back: tune from a multistep solver")
        angles = a.clamp(-1, 1).acos()
        self.gain = gain.log().requires_grad_(noisy)
        drawn = c / (math.sqrt(flow.kappa) * angles.sin().clamp(min=1e-9))
        self.noise = torch.where(c > 0, drawn, 1.0).log().requires_grad_(noisy)
        self.angles = angles.clamp(min=least_angle).requires_grad_(noisy)
        width = max(DEPTH, table.depth) - 1
        self.older = _padded([[b / sum(row.b) for b in row.b[1:]] for row in rows], width).requires_grad_()
        self.mix = _padded([table.final[1:]], width)[0].requires_grad_()
        # A prediction that has not been made yet has no share.
        self._made = torch.ones(table.nfe, width, dtype=torch.float64).tril(-1)

    @property
    def first_std(self) -> Tensor:
        """Standard deviation of the first state over sqrt(kappa)."""
        return self.width.exp()[0]

    @property
    def fitted(self) -> list[Tensor]:
        """All that may be fitted."""
        every = (self.steps, self.width, self.angles, self.gain, self.noise, self.older, self.mix)
        return [each for each in every if each.requires_grad]

    @property
    def vector(self) -> Tensor:
        """All that may be fitted in one row, without shares of predictions that have not been made yet."""
        return torch.cat([each.detach()[used] for each, used in self._used()])

    @torch.no_grad()
    def set(self, vector: Tensor) -> None:
        """Set all that may be fitted."""
        used = self._used()
        parts = torch.split(vector, [int(mask.sum()) for _, mask in used])
        for (each, mask), part in zip(used, parts, strict=True):
            each[mask] = part

    @property
    def shared_directions(self) -> Tensor:
        """(len(vector), m): one number changed in all rows alike, for a search that first looks where there are few.

        Of the steps: from early to late ones, where the grid ends, and where it starts if that moves. Of the older
        shares: all of them in proportion, how far to extrapolate. Of the mix: its first.
        """
        first, last = int(self.starts_late), len(self.steps) - self.ends_early
        tilt = torch.zeros_like(self.steps)
        tilt[first:last] = torch.linspace(-1, 1, last - first, dtype=torch.float64)
        extrapolation = self.older.detach()
        ways = [(self.steps, tilt.detach())]
        ways += [(self.steps, _unit(self.steps, -1))] if self.ends_early else []
        ways += [(self.steps, _unit(self.steps, 0))] if self.starts_late else []
        every = (self.width, self.angles, self.gain, self.noise)
        ways += [(each, torch.ones_like(each)) for each in every if each.requires_grad]
        ways += [(self.older, extrapolation if bool(extrapolation.any()) else torch.ones_like(extrapolation))]
        ways += [(self.mix, _unit(self.mix, 0))]

        def direction(changed: Tensor, way: Tensor) -> Tensor:
            parts = [(way if each is changed else torch.zeros_like(each))[used] for each, used in self._used()]
            return torch.cat(parts).detach()

        found = torch.stack([direction(*way) for way in ways], 1)
        # Of few calls some move nothing: there is no older prediction, or no step to tilt.
        return found[:, found.any(0)]

    def _used(self) -> list[tuple[Tensor, Tensor]]:
        masks = {id(self.older): self._made[:-1] > 0, id(self.mix): self._made[-1] > 0}
        return [(each, masks.get(id(each), torch.ones_like(each, dtype=torch.bool))) for each in self.fitted]

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The table they stand for: s (nfe,), a (nfe - 1,), b (nfe - 1, depth) newest first, c (nfe - 1,), final."""
        shares = torch.softmax(self.steps, 0).cumsum(0)
        inner = self.start + (self.end - self.start) * shares[:-1]
        s = torch.cat([inner, *(() if self.ends_early else (self.end[None],))])
        s = s if self.starts_late else torch.cat([self.start[None], s])
        a = self.angles.cos()
        total = (s[1:] - a * s[:-1]) * self.gain.exp()
        older, mix = self.older * self._made[:-1], self.mix * self._made[-1]
        b = total[:, None] * torch.cat([1 - older.sum(1, keepdim=True), older], 1)
        # A row may turn its angle through 0; the sign of noise means nothing.
        c = math.sqrt(self.flow.kappa) * self.angles.sin().abs() * self.noise.exp()
        return s, a, b, c, torch.cat([1 - mix.sum()[None], mix])

    def bind(self, u: Tensor) -> BoundTable:
        """The table for a batch of states, with gradients to the parameters."""
        s, a, b, c, final = self.coefficients()
        times = self.flow.schedule.time_of_s(s).clamp(max=1)
        calls = zip(times.to(u), s.to(u), strict=True)
        levels = tuple(NoiseLevel(t.expand(len(u)), each.view(1, *(1,) * (u.ndim - 1))) for t, each in calls)
        steps = zip(a.to(u), b.to(u), c.to(u), strict=True)
        rows = [BoundRow.bind(self.flow, u, a, b[: i + 1].unbind(), c) for i, (a, b, c) in enumerate(steps)]
        last = BoundRow.bind(self.flow, u, 1.0, (), 0.0)
        return BoundTable(tuple(times.tolist()), levels, (*rows, last), tuple(final.to(u)[: len(times)]))

    @torch.no_grad()
    def table(self) -> Table:
        """The table as plain numbers."""
        s, a, b, c, final = self.coefficients()
        times = self.flow.schedule.time_of_s(s).clamp(max=1).tolist()
        steps = zip(times, a.tolist(), b.tolist(), c.tolist(), strict=False)
        rows = [Row(t, a, tuple(b[: i + 1]), c) for i, (t, a, b, c) in enumerate(steps)]
        return Table((*rows, Row(times[-1])), tuple(final[: len(times)].tolist()), start=float(self.first_std))


def _unit(like: Tensor, index: int) -> Tensor:
    """1 at the index, 0 elsewhere."""
    way = torch.zeros_like(like)
    way[index] = 1
    return way.detach()


def _padded(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """(len(rows), width) float64, zeros where a row has fewer."""
    padded = [[*row, *[0.0] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.float64).reshape(-1, width)
