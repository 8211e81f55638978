"""``bfn likelihood``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from bfn.cli.common import DIRECTORY, AsJson, HeldOut, ModelName, check_positive, load, shown, tell
from bfn.errors import UserError
from bfn.processes import Processes

if TYPE_CHECKING:
    from bfn.likelihood import Likelihood

__all__ = ["likelihood"]

MANY_PASSES = 50_000
"""Backward passes beyond which it is said how long this may take."""


def likelihood(
    model: ModelName,
    held_out: HeldOut = HeldOut(n=16),
    method: Literal["ode", "bound", "n-step"] = "ode",
    nfe: int | None = None,
    tolerance: float | None = None,
    divergence: Literal["exact", "hutchinson"] | None = None,
    probes: int = 1,
    importance: Annotated[int, arg(metavar="K")] = 1,
    levels: int | None = None,
    dequantise: Literal["uniform", "noise"] = "uniform",
    batch: int | None = None,
    out: Annotated[Path | None, DIRECTORY] = None,
    json: AsJson = False,
) -> None:
    """Measure how likely a model holds held-out data to be: nats a sample, bits a dimension (a character, for text).

    By the probability-flow ODE: the density of continuous data, or a bound on the probability of discrete data and of
    grey levels (--levels). Or by the continuous-time bound (bound), or the bound of n steps (n-step), for continuous
    data also with the best variance of the receiver, taken from as many other samples.

    Example: bfn likelihood digits --n 32 --nfe 50

    On several GPUs or cores: torchrun --nproc_per_node 2 -m bfn -- likelihood digits --n 1000 --out figures

    Example: bfn likelihood mnist-binary --divergence hutchinson --probes 2 --importance 4

    Args:
        method: the probability-flow ODE, the continuous-time bound, or the bound of n steps.
        nfe: network calls a sample, 100 if left out; with --tolerance, the most that one may take.
        tolerance: take steps as small as an error of log p of about so many nats asks for.
        divergence: exact takes a backward pass a dimension at each call, hutchinson one a probe.
        probes: random vectors a trajectory, for hutchinson.
        importance: draws a sample over which a bound is tightened.
        levels: grey levels of continuous images, such as 256: the probability of those instead of a density.
        dequantise: how draws fill a grey level: evenly, or as the flow's own noise at the data end does.
        batch: states that go through the network at a time; chosen by their size if left out.
        out: keep the figures of each batch there, as .npz: the same command goes on after a kill.
    """
    import math
    import sys

    import torch

    from bfn.likelihood import NFE, receiver_variance
    from bfn.likelihood.settings import Settings
    from bfn.quality.measurements import identify

    check_positive(n=held_out.n, batch=batch)
    source = load(model, held_out.device, held_out.network)
    best_too = method == "n-step" and source.flow.has_range
    everything = held_out.read(source, json, 2 * held_out.n if best_too else held_out.n)
    read, others = everything.split(held_out.n)
    if best_too and len(others.x) == 0:
        where = f"{read.source} ({read.part})"
        raise UserError(f"--n {held_out.n}: all of {where}; the best variance needs other samples, take fewer")

    settings = Settings(method, nfe, tolerance, divergence, probes, importance, levels, dequantise, None)
    settings.check(source, read.x)
    n_states = math.prod(source.flow.state_shape(source.data_shape))
    calls = len(read.x) * settings.calls
    if method == "ode" and settings.is_exact(n_states) and calls * n_states > MANY_PASSES:
        print(
            f"bfn: {len(read.x)} samples, {settings.calls} calls, {n_states} dimensions: {calls * n_states:,} backward "
            f"passes; --divergence hutchinson takes {calls:,} and is right on average",
            file=sys.stderr,
        )
    processes = Processes.here()
    request = {} if out is None else {"model": identify(source), "data": read.source, "part": read.part}

    def measured(**settings: Any) -> Likelihood:
        return source.log_likelihood(
            read.x, method, nfe, tolerance=tolerance, divergence=divergence, probes=probes, importance=importance,
            levels=levels, dequantise=dequantise, **read.given(source), batch=batch, progress=shown(json),
            seed=held_out.seed, processes=processes, request=request, **settings,
        )  # fmt: skip

    results: dict[str, Likelihood] = {method: measured(keep=out)}
    if best_too:
        generator = torch.Generator(source.device).manual_seed(held_out.seed)
        best = receiver_variance(source, others.x, (nfe or NFE) - 1, others.label, generator, batch)
        again = None if out is None else out / "best-variance"
        results["n-step, best variance"] = measured(variance=best, keep=again)
    values, headline = held_out.told(model, source, read)
    lines = [headline]
    for name, result in results.items():
        lines += [f"{name}: {result}", f"  {'nats a sample':18}{result.nats}"]
        units = {"total": f" ({values['unit']})"}
        lines += [f"  {part:18}{estimate}{units.get(part, '')}" for part, estimate in result.parts.items()]
    tell({**values, "results": {name: result.asdict() for name, result in results.items()}}, lines, json)
