"""Training and evaluation mode: what samples or measures a model leaves dropout out, whatever mode the model is in."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """The model's networks in evaluation mode; each gets its own mode back. Exact models have none."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
