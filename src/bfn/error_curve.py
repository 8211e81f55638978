"""How wrong a model's prediction still is at each time: what model-made grids and optimal variances are made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from bfn.core.info import Fact
from bfn.errors import UserError
from bfn.flows import Flow
from bfn.schedules import TabulatedSchedule, Time, as_float64

__all__ = ["ErrorCurve"]


@dataclass(frozen=True)
class ErrorCurve:
    """E ||w(x) - w_hat||^2 / kappa a dimension of the data, at increasing times; linear between, constant outside.

    For both kinds of data this is also the mean squared error of one entry of the predicted message: a dimension has
    kappa entries. ``bfn.losses.error_curve`` measures one; training stores one in the model's info.
    """

    t: tuple[float, ...]
    squared_error: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.t) != len(self.squared_error) or not self.t:
            raise UserError(f"{len(self.t)} times, {len(self.squared_error)} errors: expected as many, at least one")
        if not all(0 <= t <= 1 for t in self.t) or any(b <= a for a, b in pairwise(self.t)):
            raise UserError("t: the times of an error curve must increase within [0, 1]")
        if not all(0 <= e < float("inf") for e in self.squared_error):
            raise UserError("squared_error: expected finite numbers that are not negative")

    @classmethod
    def from_bins(cls, bins: Mapping[str, Any] | None) -> "ErrorCurve | None":
        """The curve of errors that training measured in bins of time, {"t": [...], "squared_error": [...]}, if any.

        The error of a good prediction never rises with t. A bin above an earlier one is noise, or one that training
        never drew and filled with the mean of the others: it takes the earlier value.
        """
        if not bins:
            return None
        try:
            t, errors = (tuple(map(float, bins[key])) for key in ("t", "squared_error"))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"loss_by_t: expected lists of numbers t and squared_error ({error!r})") from None
        if not t:
            return None
        return cls(t, tuple(accumulate(cls(t, errors).squared_error, min)))

    def at(self, t: Time) -> Tensor:
        """Squared error at time(s) t, float64."""
        t, known = as_float64(t), torch.tensor([self.t, self.squared_error], dtype=torch.float64)
        if len(self.t) == 1:
            return torch.full_like(t, self.squared_error[0])
        i = torch.searchsorted(known[0], t.contiguous()).clamp(1, len(self.t) - 1)
        share = ((t - known[0, i - 1]) / (known[0, i] - known[0, i - 1])).clamp(0, 1)
        return torch.lerp(known[1, i - 1], known[1, i], share)

    def time_of_share(self, share: float) -> float:
        """The first time at which no more than that share of the error at the start is left; the last one if none is.

        >>> ErrorCurve((0.0, 0.5, 1.0), (2.0, 1.0, 0.0)).time_of_share(0.75)
        0.25
        """
        wanted, times, errors = share * self.squared_error[0], self.t, self.squared_error
        for t, following, error, less in zip(times, times[1:], errors, errors[1:], strict=False):
            if less <= wanted < error:
                return t + (following - t) * (error - wanted) / (error - less)
        return times[0] if wanted >= errors[0] else times[-1]

    def information(self, flow: Flow, t: Tensor) -> Tensor:
        """Nats a dimension learnt up to each of the increasing times t from the first: int beta'/2 squared_error dt."""
        steps = flow.schedule.increment(t[:-1], t[1:]) * (self.at(t[1:]) + self.at(t[:-1])) / 4
        return torch.cat((steps.new_zeros(1), steps.cumsum(0)))

    def equal_shares(self, flow: Flow, n: int, t_start: float = 0.0) -> Tensor:
        """n + 1 times from t_start to 1 between which the model learns equal shares of :meth:`information`."""
        fine = torch.linspace(t_start, 1, 4097, dtype=torch.float64)
        gathered = self.information(flow, fine)
        if not float(gathered[-1]) > 0:
            raise UserError("the model's error curve is 0 everywhere: there is no information to share")
        shares = gathered[-1] * torch.linspace(0, 1, n + 1, dtype=torch.float64)
        i = torch.searchsorted(gathered, shares).clamp(1, len(fine) - 1)
        within = (shares - gathered[i - 1]) / (gathered[i] - gathered[i - 1])
        times = torch.lerp(fine[i - 1], fine[i], within.clamp(0, 1))
        times[-1], times[0] = 1.0, t_start
        return times

    def even_schedule(self, flow: Flow, n: int = 200) -> TabulatedSchedule:
        """A schedule, as a table of n + 1 points, on which information grows evenly in t.

        It ends at the accuracy at which the flow's present one ends, the one that this curve was measured on.
        A network's errors beyond what cannot be known count as information too.

        >>> from bfn import DiscreteFlow
        >>> flat = ErrorCurve((0.0,), (1.0,))
        >>> schedule = flat.even_schedule(DiscreteFlow(n_classes=4, beta_1=2.0))
        >>> [round(float(schedule.beta(t)), 3) for t in (0.25, 0.5, 1.0)]
        [0.5, 1.0, 2.0]
        """
        betas = flow.schedule.beta(self.equal_shares(flow, n)).tolist()
        return TabulatedSchedule(tuple(i / n for i in range(n + 1)), tuple(betas))


ERROR_CURVE: Fact[ErrorCurve | None] = Fact("error_curve", ErrorCurve | None, None, "shared")
"""Error of the model's predictions over time."""
