"""``bfn likelihood``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from bfn.cli.common import (
    AsJson,
    Device,
    ModelName,
    Seed,
    check_positive,
    load,
    on_terminal,
    print_json,
)
from bfn.cli.held_out import Part, headline, held_out, measured_on, own_data
from bfn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from bfn.likelihood import Likelihood


def likelihood(
    model: ModelName,
    data: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None,
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

    check_positive(n=n, **({} if batch is None else {"batch": batch}))
    loaded = load(model, device)
    source = data or own_data(loaded)
    both = method == "n-step" and loaded.kind == "continuous"
    x, labels = held_out(loaded, source, part, 2 * n if both else n, seed)
    others, other_labels = x[n:], None if labels is None else labels[n:]
    x, labels = x[:n], None if labels is None else labels[:n]

    def generator() -> torch.Generator:
        return torch.Generator(loaded.model.device).manual_seed(seed)

    def measure(variance: Tensor | None = None) -> Likelihood:
        return loaded.model.log_likelihood(
            x,
            method,
            nfe,
            tolerance=tolerance,
            divergence=divergence,
            probes=probes,
            importance=importance,
            levels=levels,
            dequantise=dequantise,
            variance=variance,
            label=labels,
            generator=generator(),
            batch=batch,
            progress=on_terminal(),
        )

    results: dict[str, Likelihood] = {method: measure()}
    if both:
        if len(others) == 0:
            raise UserError(
                f"--n {n}: all of {source} ({part}); the receiver's variance needs other samples, take fewer"
            )
        steps = (nfe or NFE) - 1
        results["n-step, best variance"] = measure(
            receiver_variance(loaded.model, others, steps, other_labels, generator(), batch)
        )
    report = {name: _values(result) for name, result in results.items()}
    values = measured_on(model, loaded, source, part, x, labels, seed)
    if json:
        return print_json({**values, "results": report})
    print(f"{headline(values)}:")
    for name, result in results.items():
        what = "density on [-1, 1]" if result.is_density else "probability"
        print(f"{name}: -log p of a {what}{', from above' if result.is_bound else ''}; {_calls(result)}")
        print(f"  {'nats a sample':18}  {result.nats}")
        for part_name, estimate in result.parts.items():
            unit = f" ({values['unit']})" if part_name == "total" else ""
            print(f"  {part_name:18}  {estimate}{unit}")
    return None


def _values(result: Likelihood) -> dict[str, Any]:
    return {
        "is_density": result.is_density,
        "is_bound": result.is_bound,
        "nats": result.nats.asdict(),
        "bits": {name: estimate.asdict() for name, estimate in result.parts.items()},
        "nfe": float(result.nfe.double().mean()),
        "log_prob": result.log_prob.tolist(),
        "log_prob_error": [_known(error) for error in result.error.tolist()],
    }


def _known(value: float) -> float | None:
    """JSON has no NaN: null stands for an error that one value alone does not tell."""
    return None if math.isnan(value) else value


def _calls(result: Likelihood) -> str:
    low, high = int(result.nfe.min()), int(result.nfe.max())
    return f"{low} calls a sample" if low == high else f"{low} to {high} calls a sample"
