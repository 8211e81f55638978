"""Many samples, so many at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn.errors import UserError
from bfn.info import Label
from bfn.sampling import Step, sample

if TYPE_CHECKING:
    from bfn.model import Model

__all__ = ["sample_in_batches"]


def sample_in_batches(
    model: Model,
    n: int,
    solver: Any = "auto",
    nfe: int | None = None,
    *,
    batch: int = 256,
    seed: int = 0,
    label: Label | None = None,
    known: Tensor | None = None,
    on_step: Callable[[Step], None] | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Samples on the CPU and their classes, if any, as of :func:`bfn.sample`, which sees at most ``batch`` at a time.

    All batches draw from one generator, one after the other.
    """
    if n < 1 or batch < 1:
        raise UserError(f"n={n}, batch={batch}: expected at least 1 of each")
    generator = torch.Generator(model.device).manual_seed(seed)
    labels = None if label is None else model.info.labels(label, n)
    one_each = known is not None and known.ndim > len(model.data_shape)
    x, classes = [], []
    for first in range(0, n, batch):
        rows = slice(first, min(n, first + batch))
        out = sample(
            model, rows.stop - rows.start, solver, nfe, generator=generator, on_step=on_step,
            label=None if labels is None else labels[rows],
            known=known[rows] if known is not None and one_each else known, **settings,
        )  # fmt: skip
        x.append(out.x.cpu())
        if out.label is not None:
            classes.append(out.label.cpu())
    return torch.cat(x), torch.cat(classes) if classes else None
