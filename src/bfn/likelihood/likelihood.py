"""The log-likelihood of each sample, by the method that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bfn._utils.files import write_arrays
from bfn._utils.pieces import ALONE, Pieces, Processes, block_generator, digest, evaluating, write_pieces
from bfn._utils.progress import Progress, Shown
from bfn.core.errors import NetworkError, UserError
from bfn.likelihood.bits import Batch, Likelihood, batch_size, checked_conditions, some_of
from bfn.likelihood.bounds import continuous_bound, n_step_bound
from bfn.likelihood.ode import Dequantise, Divergence, Method, Ode, Settings

if TYPE_CHECKING:
    from bfn.core.conditions import Label
    from bfn.core.model import Model


@torch.no_grad()
def log_likelihood(
    model: Model,
    x: Tensor,
    method: Method = "ode",
    nfe: int | None = None,
    *,
    tolerance: float | None = None,
    divergence: Divergence | None = None,
    probes: int = 1,
    importance: int = 1,
    levels: int | None = None,
    dequantise: Dequantise = "uniform",
    variance: Tensor | None = None,
    label: Label | None = None,
    condition: Mapping[str, Any] | None = None,
    present: Any = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
    processes: Processes = ALONE,
    keep: Path | None = None,
    request: Mapping[str, Any] | None = None,
    batch: int | None = None,
    progress: Shown = False,
) -> Likelihood:
    """log p(x) of each sample, or a lower bound: (n,), nats.

    method: "ode"; "bound", the continuous-time loss; "n-step", with as many messages as there are calls but one.
    nfe: network calls a sample, 100 if None; with a tolerance, the most that a sample may take.
    tolerance: adaptive steps, each sample with its own, with about this error of log p in the end (nats).
    divergence: "exact" (a backward pass a dimension at every call) or "hutchinson" (one a probe; unbiased); None: exact
        up to 100 dimensions. probes: vectors of random signs, drawn once for a trajectory.
    importance: draws over which the bound is tightened by importance weighting; with "hutchinson" it takes at least 2
        probes, and helps only where their noise is below a nat or so.
    levels: the values a dimension takes on a grid over [-1, 1]: the probability of the bin instead of a density.
    dequantise: how draws fill the bin: "uniform"; or "noise", as the flow's own noise at the data end, cut to the bin,
        for models that have learnt the grid as needles. Both bound the same probability.
    variance: (n_steps,), what :func:`receiver_variance` found on other data, for "n-step" on continuous data.
    label, condition: what the network is told, as in :func:`bfn.sample`; nothing where they are None.
    present: bool, like the data, True where there is data; the rest counts nowhere.
    batch: states that go through the network at a time; None: as many as make 2^16 numbers.
    generator: draws what is drawn, one batch after the other; or seed, from which each batch has a generator of its
        own, so that processes may share the work: they measure the batches in turn, and all get all figures.
    keep: directory for the figures of each batch, ``likelihood-000000.npz`` and so on: what was stopped goes on there.
        request: plain values that name the model, so that figures of another are not taken for its own.
    """
    conditions = checked_conditions(
        model, x, label, condition, present, probes=probes, importance=importance, batch=batch
    )
    settings = Settings(method, nfe, tolerance, divergence, probes, importance, levels, dequantise, variance)
    settings.check(model, x)
    n_states = math.prod(model.flow.state_shape(model.data_shape))
    size = batch_size(batch, n_states, importance)
    if generator is not None and (seed is not None or processes.count > 1 or keep is not None):
        raise UserError("a generator beside a seed, several processes or keep: give a seed alone")

    def measured(first: int, on_call: Callable[[int], object]) -> Likelihood:
        """The figures of one batch."""
        some, its_own = some_of(x, conditions, slice(first, first + size), model.device)
        own = generator if seed is None else block_generator(seed, first // size, model.device)
        these = Batch(model, some, its_own, own, on_call)
        if method == "ode":
            return Ode(these, settings).run().on_cpu()
        if method == "bound":
            return continuous_bound(these, settings.calls).on_cpu()
        return n_step_bound(these, settings.calls, variance).on_cpu()

    calls = importance * settings.calls
    with evaluating(model):
        if keep is None:
            total = None if tolerance is not None else len(x) * calls
            with Progress(total, "likelihood", "call", progress) as bar:
                own = processes.own(range(0, len(x), size))
                found = [measured(first, lambda states: bar.update(states * processes.count)) for first in own]
            result = Likelihood.joined(processes.gather(found))
        else:
            pieces = Pieces(keep, len(x), size, ".npz", "likelihood")

            def write(rows: range, path: Path, advance: Callable[[float], None]) -> None:
                write_arrays(path, **measured(rows.start, lambda states: advance(states / calls)).arrays())

            asked = {**(request or {}), "seed": seed, "settings": repr(settings), "data": digest(x)}
            write_pieces(pieces, write, asked, processes=processes, progress=progress)
            result = Likelihood.joined([*map(Likelihood.read, pieces.paths)])
    if bad := int((~result.log_prob.isfinite()).sum()):
        raise NetworkError(f"log-likelihood of {bad} of {len(x)} samples is NaN or infinite")
    return result
