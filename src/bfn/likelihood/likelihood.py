"""The log-likelihood of each sample, by the method that is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn.errors import NetworkError
from bfn.eval_mode import evaluating
from bfn.likelihood.batches import batches, checked_conditions
from bfn.likelihood.bits import Likelihood
from bfn.likelihood.bounds import continuous_bound, n_step_bound
from bfn.likelihood.ode import Ode
from bfn.likelihood.settings import Dequantise, Divergence, Method, Settings

if TYPE_CHECKING:
    from bfn.info import Label
    from bfn.model import Model

__all__ = ["log_likelihood"]


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
    batch: int | None = None,
    progress: bool = False,
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
    """
    conditions = checked_conditions(
        model, x, label, condition, present, probes=probes, importance=importance, batch=batch
    )
    settings = Settings(method, nfe, tolerance, divergence, probes, importance, levels, dequantise, variance)
    settings.check(model, x)
    n_states = math.prod(model.flow.state_shape(model.data_shape))
    found: list[Likelihood] = []
    with evaluating(model), tqdm(total=len(x), desc="likelihood", unit="sample", disable=not progress) as bar:
        for some, its_own in batches(x, conditions, batch, n_states, model.device, importance):
            if method == "ode":
                found.append(Ode(model, some, its_own, settings, generator).run())
            elif method == "bound":
                found.append(continuous_bound(model, some, settings.calls, its_own, generator))
            else:
                found.append(n_step_bound(model, some, settings.calls, variance, its_own, generator))
            bar.update(len(some))
    result = Likelihood.joined(found)
    if bad := int((~result.log_prob.isfinite()).sum()):
        raise NetworkError(f"log-likelihood of {bad} of {len(x)} samples is NaN or infinite")
    return result
