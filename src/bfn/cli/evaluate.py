"""``bfn evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from bfn.cli.common import (
    AsJson,
    Device,
    Loaded,
    ModelName,
    Seed,
    check_positive,
    load,
    print_json,
    progress_bar,
)
from bfn.cli.held_out import Part, headline, held_out, measured_on, own_data

if TYPE_CHECKING:
    from torch import Tensor


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
    """Measure the bits a dimension (a character, for text) of held-out data: bound and reconstruction.

    The continuous-time bound and the reconstruction at t = 1 are unbiased estimates, each with its standard error. The
    bound of n steps is that of a code sent in so many pieces, and higher the fewer they are.

    Example: bfn evaluate text8 --n 1000 --seed 1

    Example: bfn evaluate mnist-binary --n-steps 10 25 100

    Args:
        data: a standard set or a path, as bfn train takes it; the set that the model was trained on if left out.
        part: which part of it.
        n: how many samples, at most; images are chosen at random, pieces of a text evenly.
        n_steps: measure also the bounds of these numbers of steps, apart and with the reconstruction.
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
        return print_json({**values, **report})
    print(f"{headline(values)}, {values['unit']}:")
    lines = {name: report[name] for name in ("bound", "reconstruction", "total")}
    for steps, parts in report["n_steps"].items():
        lines |= {f"{steps}-step bound": parts["bound"], f"{steps}-step total": parts["total"]}
    for name, value in lines.items():
        print(f"  {name:18}{value['mean']:10.4f} +- {value['standard_error']:.4f}")
    if loaded.model.flow.kind == "continuous":
        print("  (of a density on [-1, 1]; the reconstruction is that of the model's head at t = 1)")
    return None


def _measure(
    loaded: Loaded, x: Tensor, labels: Tensor | None, n_steps: tuple[int, ...], seed: int, batch: int
) -> dict[str, Any]:
    """Bound, reconstruction and their sum, each with its standard error; bound and sum for each number of steps too."""
    import dataclasses

    import torch

    from bfn.quality.bits import bits_report

    model = loaded.model
    generator = torch.Generator(model.device).manual_seed(seed)
    kinds: tuple[int | None, ...] = (None, *dict.fromkeys(n_steps))
    nats: dict[int | None, list[Tensor]] = {kind: [] for kind in kinds}
    reconstruction = []
    with torch.no_grad(), progress_bar(len(x), "evaluating", "sample") as bar:
        for first in range(0, len(x), batch):
            some = x[first : first + batch].to(model.device)
            label = None if labels is None else labels[first : first + batch].to(model.device)
            nats[None].append(model.loss(some, generator=generator, label=label).cpu())
            reconstruction.append(model.reconstruction_loss(some, generator=generator, label=label).cpu())
            for steps in dict.fromkeys(n_steps):
                nats[steps].append(model.loss(some, n_steps=steps, generator=generator, label=label).cpu())
            bar.update(len(some))
    reports = {kind: bits_report(torch.cat(nats[kind]), torch.cat(reconstruction)) for kind in kinds}
    plain = {
        kind: {name: dataclasses.asdict(getattr(report, name)) for name in ("bound", "reconstruction", "total")}
        for kind, report in reports.items()
    }
    return {**plain[None], "n_steps": {str(steps): plain[steps] for steps in n_steps}}
