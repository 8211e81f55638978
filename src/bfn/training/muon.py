"""Muon in float32: momentum, orthogonalised matrix by matrix (Jordan et al., 2024), and AdamW for the rest."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bfn.errors import UserError

__all__ = ["Muon", "orthogonalise", "split"]

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Quintic a x + b x^3 + c x^5 whose iterates bring singular values fast, if not exactly, to 1: into [0.7, 1.2]."""

ADAMW_LAYERS = ("stem", "head", "conditioning", "modulation")
"""First, last and conditioning layers of the networks here: tables of vectors rather than maps, left to AdamW."""


def orthogonalise(matrices: Tensor, n_steps: int = 5) -> Tensor:
    """U V^T of each matrix U S V^T of (..., rows, columns), to within the singular values' range [0.7, 1.2].

    Newton-Schulz iteration in the type of the input. float32 on CPU: bfloat16 is emulated there, and far slower.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x  # type: ignore[no-any-return]


def split(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters of a network as (matrices inside it, the rest): what Muon and what AdamW should train."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        inner = parameter.ndim >= 2 and not any(part in ADAMW_LAYERS for part in name.split("."))
        (matrices if inner else rest).append(parameter)
    return matrices, rest


class Muon(torch.optim.Optimizer):
    """Muon for matrices, AdamW for the rest, as one optimiser with one learning rate.

    Steps of matrices are scaled by 0.2 sqrt(max(rows, columns)), which gives them the typical size of AdamW's
    (Liu et al., 2025), so that the learning rate and its schedule serve both. Convolutions count as matrices of
    (out, in * kernel).

    matrices, rest: as `split` finds them in a network. momentum: decay of the matrices' (Nesterov) momentum.
    betas, eps: AdamW's. weight_decay: decoupled decay of the matrices; the rest is not decayed.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        rest: Iterable[nn.Parameter] = (),
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not lr >= 0:
            raise UserError(f"lr={lr}: expected a learning rate of at least 0")
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "matrices": True, "weight_decay": weight_decay},
            {"params": list(rest), "matrices": False, "weight_decay": 0.0},
        ]
        for parameter in groups[0]["params"]:
            if parameter.ndim < 2:
                shape = tuple(parameter.shape)
                raise UserError(f"a parameter of shape {shape} among the matrices: give it as one of the rest")
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__([group for group in groups if group["params"]], defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step; closure, if given, recomputes and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            (self._muon if group["matrices"] else self._adamw)(group)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(state["momentum"], group["momentum"]).flatten(1)
            by_shape.setdefault((update.shape[0], update.shape[1]), []).append((parameter, update))
        for shape, pairs in by_shape.items():
            # Matrices of one shape go through the iteration together: fewer, larger products.
            updates = orthogonalise(torch.stack([update for _, update in pairs]))
            for (parameter, _), update in zip(pairs, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(update.view_as(parameter), alpha=0.2 * math.sqrt(max(shape)) * group["lr"])

    def _adamw(self, group: dict[str, Any]) -> None:
        beta_1, beta_2 = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                zeros = torch.zeros_like(parameter)
                state.update(step=torch.zeros(()), mean=zeros, square=zeros.clone())
            state["step"] += 1
            state["mean"].lerp_(parameter.grad, 1 - beta_1)
            state["square"].lerp_(parameter.grad.square(), 1 - beta_2)
            n = state["step"].item()
            scale = (state["square"] / (1 - beta_2**n)).sqrt_().add_(group["eps"])
            parameter.addcdiv_(state["mean"], scale, value=-group["lr"] / (1 - beta_1**n))
