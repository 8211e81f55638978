"""The model of a table, and its training."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from bfn.data.table_columns import TableColumns
from bfn.eval_mode import evaluating
from bfn.flows import ContinuousFlow, DiscreteFlow, Flow
from bfn.heads import Head, LogitsHead, PreconditionedHead
from bfn.info import ModelInfo
from bfn.joint import JointFlow
from bfn.joint_head import JointHead
from bfn.model import BFN
from bfn.networks import MLP
from bfn.partly_known import PartlyKnown
from bfn.progress import Progress
from bfn.weightings import Weighting, weighted_loss, weighting_of

__all__ = ["table_model", "train"]

SIGMA_1 = 0.02
"""The noise that is left on numbers, whose standard deviation is 1."""
CHECKS, PATIENCE = 40, 10
"""How often the loss of held-out rows is looked at in a whole run, and after how many looks without gain it ends."""
MOST_HELD_OUT = 1000
KNOWN_EVERY = 2
"""One of so many batches is shown with some columns known, as rows are when cells are given or imputed."""


def table_model(columns: TableColumns, width: int = 192, n_blocks: int = 3, dropout: float = 0.0) -> BFN:
    """An untrained model of a table with these columns."""
    flows: dict[str, Flow] = {}
    heads: dict[str, str | Head] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    if columns.number_columns:
        name = columns.numbers_part
        flows[name], heads[name] = ContinuousFlow(SIGMA_1), PreconditionedHead(data_std=1.0)
        shapes[name] = (len(columns.number_columns),)
    for column in columns.class_columns:
        flows[column.name], heads[column.name] = DiscreteFlow.with_separation(column.n_states), LogitsHead()
        shapes[column.name] = ()
    flow = JointFlow(flows).for_shape(shapes)
    network = MLP(flow.state_shape(shapes)[0], width=width, n_blocks=n_blocks, dropout=dropout)
    return BFN(network, flow, JointHead.make(heads, flow, flat=True), shapes, ModelInfo(columns=columns))


def train(
    model: BFN, x: Tensor, steps: int, batch: int, lr: float, seed: int, progress: bool | None
) -> tuple[BFN, int, float]:
    """The best average of the weights by the loss of held-out rows, after how many steps, and that loss."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    n_held_out = min(MOST_HELD_OUT, max(1, len(x) // 10))
    held_out, x = x[order[:n_held_out]], x[order[n_held_out:]]
    # Each row at several times, so that what is compared between looks is the model and not the draw.
    held_out = held_out.repeat(max(1, MOST_HELD_OUT // n_held_out), 1)
    weighting, averaged = weighting_of(model, "edm"), copy.deepcopy(model).eval()
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4, betas=(0.9, 0.99))
    warm_up, every = min(100, steps // 10 + 1), max(1, steps // CHECKS)
    best, best_loss, best_step = copy.deepcopy(averaged), math.inf, 0
    with Progress(steps, "training", "step", progress is not False) as bar:
        for step in range(1, steps + 1):
            for group in optimiser.param_groups:
                group["lr"] = lr * min(step / warm_up, 0.5 * (1 + math.cos(math.pi * step / steps)) + 1e-3)
            rows = x[torch.randint(len(x), (min(batch, len(x)),), generator=generator)]
            shown = model if step % KNOWN_EVERY else PartlyKnown(model, rows, _some_columns(model, rows, generator))
            loss = weighted_loss(shown, rows, weighting, generator).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            _average(averaged, model, min(0.999, (1 + step) / (10 + step)))
            bar.update()
            if step % every == 0 or step == steps:
                now = _held_out_loss(averaged, held_out, weighting)
                bar.note(**{"held-out loss": f"{now:.4g}"})
                if now < best_loss:
                    best, best_loss, best_step = copy.deepcopy(averaged), now, step
                elif step - best_step >= PATIENCE * every:
                    break
    return best, best_step, best_loss


def _some_columns(model: BFN, x: Tensor, generator: torch.Generator) -> Tensor:
    """A mask of the packed data: of each row a random share of the columns, with all that is said of each."""
    columns = model.info.columns
    assert columns is not None
    share = torch.rand(len(x), 1, generator=generator)
    chosen = torch.rand(len(x), len(columns.columns), generator=generator) < share
    of = {column.name: chosen[:, i] for i, column in enumerate(columns.columns)}
    masks = [torch.stack([of[column.name] for column in columns.number_columns], 1)] if columns.number_columns else []
    return torch.cat([*masks, *(of[column.name].unsqueeze(1) for column in columns.class_columns)], 1)


@torch.no_grad()
def _average(averaged: BFN, model: BFN, decay: float) -> None:
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - decay)


@torch.no_grad()
def _held_out_loss(model: BFN, x: Tensor, weighting: Weighting) -> float:
    """As in training, with and without known columns; the same times, noise and columns at every look."""
    generator = torch.Generator().manual_seed(0)
    partly = PartlyKnown(model, x, _some_columns(model, x, generator))
    with evaluating(model):
        both = [weighted_loss(shown, x, weighting, generator).mean() for shown in (model, partly)]
    return float(both[0] + (both[1] - both[0]) / KNOWN_EVERY)
