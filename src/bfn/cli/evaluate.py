"""``bfn evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from bfn.cli.common import (
    AsJson,
    Device,
    Loaded,
    ModelName,
    Seed,
    check_positive,
    load,
    on_terminal,
    print_json,
)
from bfn.cli.held_out import Part, headline, held_out, measured_on, own_data

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.estimate import Estimate


def evaluate(
    model: ModelName,
    data: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
    part: Part = "test",
    n: int = 1000,
    n_steps: Annotated[tuple[int, ...], arg(metavar="N [N ...]")] = (),
    seed: Seed = 0,
    batch: int = 64,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Measure the bits a dimension (a character, for text) of held-out data: transmission and reconstruction.

    The continuous-time loss and the reconstruction at t = 1 are unbiased estimates, each with its 95 % interval; their
    total bounds -log p from above. The loss of n steps is that of a code sent in so many pieces, and higher the fewer
    they are.

    Example: bfn evaluate text8 --n 1000 --seed 1

    Example: bfn evaluate mnist-binary --n-steps 10 25 100

    Args:
        data: a standard set or a path, as bfn train takes it; the set that the model was trained on if left out.
        part: which part of it.
        n: how many samples, at most; images are chosen at random, pieces of a text evenly.
        n_steps: measure also the losses of these numbers of steps.
        batch: samples that go through the network at a time.
    """
    check_positive(n=n, batch=batch)
    for steps in n_steps:
        check_positive(**{"n-steps": steps})
    loaded = load(model, device)
    source = data or own_data(loaded)
    x, labels = held_out(loaded, source, part, n, seed)
    report = _measure(loaded, x, labels, n_steps, seed, batch)
    values = measured_on(model, loaded, source, part, x, labels, seed)
    if json:
        plain = {steps: {name: bits.asdict() for name, bits in parts.items()} for steps, parts in report.items()}
        return print_json({**values, **plain.pop(""), "n_steps": plain})
    print(f"{headline(values)}, {values['unit']}:")
    for steps, parts in report.items():
        for name, bits in parts.items():
            print(f"  {f'{steps}-step ' if steps else ''}{name:18}  {bits}")
    if loaded.model.flow.kind == "continuous":
        print("  (of a density on [-1, 1]; the reconstruction is that of the model's head at t = 1)")
    return None


def _measure(
    loaded: Loaded, x: Tensor, labels: Tensor | None, n_steps: tuple[int, ...], seed: int, batch: int
) -> dict[str, dict[str, Estimate]]:
    """Bits a dimension with the continuous-time loss, and with that of each number of steps."""
    import torch

    from bfn.likelihood import held_out_bits

    def bits(steps: int | None) -> dict[str, Estimate]:
        generator = torch.Generator(loaded.model.device).manual_seed(seed)
        return held_out_bits(
            loaded.model, x, labels, n_steps=steps, batch=batch, generator=generator, progress=on_terminal()
        )

    return {"" if steps is None else str(steps): bits(steps) for steps in (None, *n_steps)}
