"""``bfn evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bfn.cli.common import BATCH, AsJson, Counts, HeldOut, ModelName, check_positive, load, shown, tell

if TYPE_CHECKING:
    from bfn.estimate import Estimate

__all__ = ["evaluate"]


def evaluate(
    model: ModelName,
    held_out: HeldOut = HeldOut(n=1000),
    n_steps: Counts = (),
    batch: Annotated[int, BATCH] = 64,
    json: AsJson = False,
) -> None:
    """Measure the bits a dimension (a character, for text) of held-out data: transmission and reconstruction.

    The continuous-time loss and the reconstruction at t = 1 are unbiased estimates, each with its 95 % interval; their
    total bounds -log p from above. The loss of n steps is that of a code sent in so many pieces, and higher the fewer
    they are.

    Example: bfn evaluate text8 --n 1000 --seed 1

    Example: bfn evaluate mnist-binary --n-steps 10 25 100

    Args:
        n_steps: measure also the losses of these numbers of steps.
    """
    import torch

    from bfn.likelihood import held_out_bits

    check_positive(n=held_out.n, batch=batch, n_steps=min(n_steps, default=None))
    source = load(model, held_out.device, held_out.network)
    read = held_out.read(source, json)

    def bits(steps: int | None) -> dict[str, Estimate]:
        generator = torch.Generator(source.device).manual_seed(held_out.seed)
        settings: dict[str, Any] = {"n_steps": steps, "batch": batch, "generator": generator}
        return held_out_bits(source, read.x, **read.given(source), **settings, progress=shown(json))

    figures = {"": bits(None), **{f"{steps}-step ": bits(steps) for steps in n_steps}}
    values, headline = held_out.told(model, source, read)
    plain = {kind: {name: figure.asdict() for name, figure in parts.items()} for kind, parts in figures.items()}
    values |= {**plain.pop(""), "n_steps": {kind.partition("-")[0]: parts for kind, parts in plain.items()}}
    lines = [f"  {kind + name:24}{figure}" for kind, parts in figures.items() for name, figure in parts.items()]
    if source.flow.has_range and not source.info.scaling:
        lines.append("  (of a density on [-1, 1]; the reconstruction is that of the model's head at t = 1)")
    tell(values, [headline, *lines], json)
