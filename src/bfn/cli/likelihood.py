"""``bfn likelihood``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from bfn.errors import UserError

if TYPE_CHECKING:
    from bfn.likelihood import Likelihood

__all__ = ["likelihood"]


def likelihood(
    model: ModelName,
    data: Source = None,
    part: Part = "test",
    n: int = 16,
    method: Literal["ode", "bound", "n-step"] = "ode",
    nfe: int | None = None,
    tolerance: float | None = None,
    divergence: Literal["exact", "hutchinson"] | None = None,
    probes: int = 1,
    importance: Annotated[int, arg(metavar="K")] = 1,
    levels: int | None = None,
    dequantise: Literal["uniform", "noise"] = "uniform",
    seed: Seed = 0,
    batch: int | None = None,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Measure how likely a model holds held-out data to be: nats a sample, bits a dimension (a character, for text).

    By the probability-flow ODE: the density of continuous data, or a bound on the probability of discrete data and of
    grey levels (--levels). Or by the continuous-time bound (bound), or the bound of n steps (n-step), for continuous
    data also with the best variance of the receiver, taken from as many other samples.

    Example: bfn likelihood digits --n 32 --nfe 50

    Example: bfn likelihood mnist-binary --divergence hutchinson --probes 2 --importance 4

    Args:
        data: a standard set or a path, as bfn train takes it; the set that the model was trained on if left out.
        part: which part of it.
        n: how many samples, at most; images are chosen at random, pieces of a text evenly.
        method: the probability-flow ODE, the continuous-time bound, or the bound of n steps.
        nfe: network calls a sample, 100 if left out; with --tolerance, the most that one may take.
        tolerance: take steps as small as an error of log p of about so many nats asks for.
        divergence: exact takes a backward pass a dimension at each call, hutchinson one a probe.
        probes: random vectors a trajectory, for hutchinson.
        importance: draws a sample over which a bound is tightened.
        levels: grey levels of continuous images, such as 256: the probability of those instead of a density.
        dequantise: how draws fill a grey level: evenly, or as the flow's own noise at the data end does.
        batch: states that go through the network at a time; chosen by their size if left out.
    """
    import torch

    from bfn.likelihood import NFE, receiver_variance
    from bfn.model_data import read_model_data

    check_positive(n=n, batch=batch)
    source = load(model, device)
    best_too = method == "n-step" and source.flow.has_range
    read = read_model_data(source, data, part, 2 * n if best_too else n, seed=seed, progress=on_terminal())
    held_out, others = read.split(n)
    if best_too and len(others.x) == 0:
        raise UserError(f"--n {n}: all of {read.source} ({part}); the best variance needs other samples, take fewer")
    settings: dict[str, Any] = {
        "tolerance": tolerance, "divergence": divergence, "probes": probes, "importance": importance, "levels": levels,
        "dequantise": dequantise, "label": held_out.label, "batch": batch, "progress": on_terminal(),
    }  # fmt: skip

    def generator() -> torch.Generator:
        return torch.Generator(source.device).manual_seed(seed)

    results: dict[str, Likelihood] = {
        method: source.log_likelihood(held_out.x, method, nfe, generator=generator(), **settings)
    }
    if best_too:
        best = receiver_variance(source, others.x, (nfe or NFE) - 1, others.label, generator(), batch)
        results["n-step, best variance"] = source.log_likelihood(
            held_out.x, method, nfe, generator=generator(), variance=best, **settings
        )
    values, headline = measured_on(model, source, held_out, seed)
    if json:
        return print_json({**values, "results": {name: result.asdict() for name, result in results.items()}})
    print(headline)
    unit = f" ({values['unit']})"
    for name, result in results.items():
        print(f"{name}: {result}")
        print(f"  {'nats a sample':18}{result.nats}")
        for part_name, estimate in result.parts.items():
            print(f"  {part_name:18}{estimate}{unit if part_name == 'total' else ''}")
    return None
