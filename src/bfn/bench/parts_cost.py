"""What the parts cost: a row of a table over memory's bandwidth, a training step over its bare loop."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from bfn.bench.contest import Figure, contest, ratio_of
from bfn.core.table import BoundRow

__all__ = ["kernel", "training"]

BANDWIDTH, TRAINING = 0.6, 0.95


def kernel(quick: bool) -> Iterator[Figure]:
    """A row's bandwidth, each number read and written once, over that of a copy.

    States larger than the caches: below, what counts is the time to start an operation, some microseconds a step.
    """
    for size in (1 << 22,) if quick else (1 << 22, 1 << 24):
        u, copied, out = torch.randn(size), torch.zeros(size), torch.zeros(size)
        predictions = [torch.randn(size) for _ in range(3)]
        for depth, a, offset in (
            (1, 1.0, None),
            (2, 1.0, None),
            (2, 0.9, None),
            (2, 1.0, torch.tensor(-0.3)),
            (3, 0.9, None),
        ):
            row = BoundRow(a, (0.3,) * depth, 0.0, offset)
            seconds = contest(
                {
                    "copy": lambda u=u, copied=copied: copied.copy_(u),  # type: ignore[misc]
                    "row": lambda row=row, u=u, p=predictions, out=out: row(u, p, lambda: u, out),  # type: ignore[misc]
                },
                9 if quick else 21,
            )
            kind = "numbers" if offset is None else "classes"
            name = f"2^{size.bit_length() - 1} of {kind}, {depth} predictions, a = {a:g}"
            yield ratio_of("kernel", name, seconds["copy"], seconds["row"], (2 + depth) / 2,
                           goal=BANDWIDTH, side="at least")  # fmt: skip


def training(quick: bool) -> Iterator[Figure]:
    """A bare loop of forward pass, backward pass and optimiser step over the trainer's step."""
    from bfn.training import recipe
    from bfn.training.loop import recipe_trainer
    from bfn.training.process import OneProcess
    from bfn.training.trainer import Trainer

    for name, batch in (("digits", 64),) if quick else (("digits", 64), ("digits", 256)):
        with tempfile.TemporaryDirectory() as folder:
            settings = recipe(name).override({"threads": 1, "tensorboard": False, "batch": batch})
            trainer = recipe_trainer(settings, Path(folder), OneProcess(torch.device("cpu")), False)
            batch_0 = trainer.objective.batch(0, trainer.rows)

            def plain(trainer: Trainer = trainer) -> None:
                trainer.devices.backward(trainer.objective.next_loss(trainer.module, batch_0))  # noqa: B023
                trainer.optimiser.step()
                trainer.optimiser.zero_grad(set_to_none=True)

            seconds = contest({"plain": plain, "trainer": trainer.train_step}, 11 if quick else 31)
        yield ratio_of("training", f"recipe {name}, batch {batch}", seconds["plain"], seconds["trainer"],
                       goal=TRAINING, side="at least")  # fmt: skip
