"""Markov chains of classes: exact posterior marginals by forward-backward, in log space."""

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.exact.base import DiscreteExactModel, check_probs, draw_classes, restore_log_zero, safe_log
from bfn.flows import DiscreteFlow

__all__ = ["MarkovChain"]


class MarkovChain(DiscreteExactModel):
    """x_1 ~ initial (K,), x_{d+1} ~ transition[x_d], rows of (K, K), for ``length`` variables.

    Zeros in either are allowed: all sums are of logarithms, so that no evidence, however strong, divides 0 by 0.
    """

    log_initial: Tensor
    log_transition: Tensor

    def __init__(
        self,
        initial: Tensor,
        transition: Tensor,
        length: int,
        *,
        beta_1: float = 0.75**2,
        flow: DiscreteFlow | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        initial, transition = torch.as_tensor(initial), torch.as_tensor(transition)
        if initial.ndim != 1:
            raise UserError(f"initial of shape {tuple(initial.shape)}: expected one probability a class, (n_classes,)")
        n_classes = len(initial)
        if tuple(transition.shape) != (n_classes, n_classes):
            raise UserError(f"transition of shape {tuple(transition.shape)}: expected ({n_classes}, {n_classes})")
        super().__init__(n_classes, length, beta_1, flow)
        self.register_buffer("log_initial", safe_log(check_probs(initial, "initial")).to(dtype))
        self.register_buffer("log_transition", safe_log(check_probs(transition, "rows of transition")).to(dtype))

    def marginals(self, log_likelihood: Tensor) -> Tensor:
        before, _ = self._forward(log_likelihood)
        after = log_likelihood.new_zeros(len(log_likelihood), self.flow.n_classes)
        logits = [before[-1] + log_likelihood[:, -1]]
        for d in range(len(before) - 2, -1, -1):
            here = torch.log_softmax(log_likelihood[:, d + 1] + after, 1).unsqueeze(1)
            after = torch.logsumexp(self.log_transition + here, 2)
            logits.append(before[d] + log_likelihood[:, d] + after)
        return torch.stack(logits[::-1], 1)

    def log_normaliser(self, log_likelihood: Tensor) -> Tensor:
        return self._forward(log_likelihood)[1]

    def log_prob(self, x: Tensor) -> Tensor:
        self.flow.check(x, self.data_shape)
        return restore_log_zero(self.log_initial[x[:, 0]] + self.log_transition[x[:, :-1], x[:, 1:]].sum(1))

    def sample_data(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        x = [draw_classes(self.log_initial.exp().expand(n, -1), generator)]
        for _ in range(1, self.data_shape[0]):
            x.append(draw_classes(self.log_transition[x[-1]].exp(), generator))
        return torch.stack(x, 1)

    def _forward(self, log_likelihood: Tensor) -> tuple[list[Tensor], Tensor]:
        """log p(x_d = k | evidence of the variables before d), (batch, K) for each d, and the log normaliser."""
        before = [self.log_initial.expand(len(log_likelihood), -1)]
        total = log_likelihood.new_zeros(len(log_likelihood))
        for d in range(log_likelihood.shape[1]):
            joint = before[-1] + log_likelihood[:, d]
            # Kept normalised: sums that grow along the string would lose digits.
            norm = torch.logsumexp(joint, 1, keepdim=True)
            total = total + norm.squeeze(1)
            if d + 1 < log_likelihood.shape[1]:
                before.append(torch.logsumexp((joint - norm).unsqueeze(2) + self.log_transition, 1))
        return before, total
