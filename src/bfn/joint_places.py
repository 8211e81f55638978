"""Numbers and classes side by side in one state: messages and noise of all of them in a few operations.

A number has one place of the state, a variable of K classes has K. Data of all variables, one number each, (batch, N),
reach the state (batch, D) by one addition at the places that they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bfn.flows import ContinuousFlow, DiscreteFlow, Flow

__all__ = ["Places"]


@dataclass(frozen=True, eq=False)
class Places:
    """Where each variable's places are. first, n_values: (N,), its first place and how many it has, 1 for a number.

    variable: (D,), the number of the variable that a place belongs to.
    """

    first: Tensor
    n_values: Tensor
    variable: Tensor

    @classmethod
    def make(cls, parts: Sequence[tuple[Flow, int]]) -> Places | None:
        """Of flows with as many variables each; None where one is of another kind."""
        if any(type(flow) not in (ContinuousFlow, DiscreteFlow) for flow, _ in parts):
            return None
        sizes = [size for flow, count in parts for size in [flow.n_values or 1] * count]
        n_values = torch.tensor(sizes)
        return cls(n_values.cumsum(0) - n_values, n_values, torch.repeat_interleave(n_values))

    def message(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """w(x), (batch, D)."""
        is_class, _ = self._kinds(x, dtype)
        where, amount = self._additions(x, dtype)
        return (-is_class).repeat(len(x), 1).scatter_add_(1, where, amount)

    def noised(self, x: Tensor, s: float | Tensor, eps: Tensor) -> Tensor:
        """s w(x) + sqrt(kappa) eps, (batch, D); s a number or (batch or 1, D)."""
        is_class, root = self._kinds(x, eps.dtype)
        where, amount = self._additions(x, eps.dtype)
        s = torch.as_tensor(s, dtype=eps.dtype, device=eps.device).expand(
            1 if not isinstance(s, Tensor) else -1, len(root)
        )
        u = torch.addcmul(-(s * is_class), eps, root)
        return u.scatter_add_(1, where, amount * s.index_select(1, self.first.to(x.device)))

    def indices(self, x: Tensor) -> Tensor:
        """(batch, N): the place of a number, or of a variable's class."""
        steps = torch.where((self.n_values > 1).to(x.device), x, 0).long()
        return steps + self.first.to(x.device)

    def _additions(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Where the message is more than -1 for classes and 0 for numbers, and by how much."""
        n_values = self.n_values.to(x.device)
        return self.indices(x), torch.where(n_values > 1, n_values.to(dtype), x.to(dtype))

    def _kinds(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(D,): 1 where there are classes, and sqrt(kappa)."""
        n_values = self.n_values.to(x.device)[self.variable.to(x.device)]
        return (n_values > 1).to(dtype), n_values.to(torch.float64).sqrt().to(dtype)
