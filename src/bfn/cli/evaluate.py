"""``bfn evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from bfn.cli.common import (
    AsJson,
    Device,
    ModelName,
    Part,
    Seed,
    Source,
    check_positive,
    load,
    measured_on,
    on_terminal,
    print_json,
)  # fmt: skip

if TYPE_CHECKING:
    from bfn.estimate import Estimate

__all__ = ["evaluate"]


def evaluate(
    model: ModelName,
    data: Source = None,
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
    import torch

    from bfn.likelihood import held_out_bits
    from bfn.model_data import read_model_data

    check_positive(n=n, batch=batch, n_steps=min(n_steps, default=None))
    source = load(model, device)
    held_out = read_model_data(source, data, part, n, seed=seed, progress=on_terminal())

    def bits(steps: int | None) -> dict[str, Estimate]:
        generator = torch.Generator(source.device).manual_seed(seed)
        return held_out_bits(
            source, held_out.x, held_out.label, n_steps=steps, batch=batch, generator=generator, progress=on_terminal()
        )

    figures = {"": bits(None), **{f"{steps}-step ": bits(steps) for steps in n_steps}}
    values, headline = measured_on(model, source, held_out, seed)
    if json:
        plain = {kind: {name: bits.asdict() for name, bits in parts.items()} for kind, parts in figures.items()}
        whole = plain.pop("")
        return print_json({**values, **whole, "n_steps": {kind.partition("-")[0]: plain[kind] for kind in plain}})
    print(headline)
    for kind, parts in figures.items():
        for name, estimate in parts.items():
            print(f"  {kind + name:24}{estimate}")
    if source.flow.has_range:
        print("  (of a density on [-1, 1]; the reconstruction is that of the model's head at t = 1)")
    return None
