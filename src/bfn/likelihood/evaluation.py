"""The log-likelihood of each sample, by the method that is asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn.errors import NetworkError, UserError
from bfn.eval_mode import evaluating
from bfn.likelihood.batches import Part, batches, check_batch
from bfn.likelihood.bounds import continuous_bound, n_step_bound
from bfn.likelihood.ode import Dequantise, Ode
from bfn.likelihood.results import Likelihood

if TYPE_CHECKING:
    from bfn.model import Model

Method = Literal["ode", "bound", "n-step"]
Divergence = Literal["exact", "hutchinson"]

NFE = 100
"""Network calls a sample where neither their number nor a tolerance is given."""

EXACT_DEFAULT, EXACT_LIMIT = 100, 1024
"""Up to so many dimensions the divergence is exact if nothing is said, and at most if it is asked for."""

MAX_NFE = 10_000
"""Calls after which adaptive steps give up: the tolerance is then finer than the network's rounding."""


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
    label: Tensor | None = None,
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
    label: (n,) classes for a class-conditional network.
    batch: states that go through the network at a time; None: as many as make 2^16 numbers.
    """
    flow = model.flow
    flow.check(x, model.data_shape)
    _check_settings(
        model, x, method, nfe, tolerance, divergence, probes, importance, levels, dequantise, variance, batch
    )
    if label is not None and tuple(label.shape) != (len(x),):
        raise UserError(f"label of shape {tuple(label.shape)}: expected one class a sample, ({len(x)},)")
    states = math.prod(flow.state_shape(model.data_shape))
    exact = _is_exact(divergence, states)
    edge = None if levels is None else 1 / (levels - 1)
    budget = nfe or (NFE if tolerance is None else MAX_NFE)
    parts: list[Part] = []
    with evaluating(model), tqdm(total=len(x), desc="likelihood", unit="sample", disable=not progress) as bar:
        for some, its_label in batches(x, label, batch, states, model.device, importance):
            if method == "ode":
                ode = Ode(model, some, its_label, importance, None if exact else probes, edge, dequantise, generator)
                parts.append(ode.run(budget, tolerance))
            elif method == "bound":
                parts.append(continuous_bound(model, some, budget, its_label, generator))
            else:
                parts.append(n_step_bound(model, some, budget, variance, its_label, generator))
            bar.update(len(some))
    log_prob, error, calls, reconstruction, density = (torch.cat(column) for column in zip(*parts, strict=True))
    _check_finite(log_prob)
    is_density = bool(density.all())
    direct = method == "ode" and flow.kind == "continuous"
    return Likelihood(
        log_prob,
        error,
        calls,
        math.prod(model.data_shape),
        is_bound=not (direct and is_density),
        is_density=is_density,
        reconstruction=None if direct or importance > 1 else reconstruction,
    )


def _is_exact(divergence: Divergence | None, states: int) -> bool:
    return states <= EXACT_DEFAULT if divergence is None else divergence == "exact"


def _check_levels(x: Tensor, levels: int) -> None:
    """Refuse data that are not the values 2 k / (levels - 1) - 1, to a hundredth of what lies between them."""
    steps = (x.double() + 1) * (levels - 1) / 2
    off = ~((steps - steps.round().clamp(0, levels - 1)).abs() <= 0.01)
    if bool(off.any()):
        raise UserError(
            f"levels={levels}: the data hold {float(x[off][0]):g}, which is none of so many values on [-1, 1]; "
            "say how many values the data take"
        )


def _check_finite(log_prob: Tensor) -> None:
    bad = ~torch.isfinite(log_prob)
    if bool(bad.any()):
        raise NetworkError(f"log-likelihood of {int(bad.sum())} of {len(log_prob)} samples is NaN or infinite")


def _check_settings(
    model: Model,
    x: Tensor,
    method: Method,
    nfe: int | None,
    tolerance: float | None,
    divergence: Divergence | None,
    probes: int,
    importance: int,
    levels: int | None,
    dequantise: Dequantise,
    variance: Tensor | None,
    batch: int | None,
) -> None:
    """What does not fit together, in one line each."""
    kind = model.flow.kind
    for name, value, allowed in (
        ("method", method, get_args(Method)),
        ("divergence", "exact" if divergence is None else divergence, get_args(Divergence)),
        ("dequantise", dequantise, get_args(Dequantise)),
    ):
        if value not in allowed:
            raise UserError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
    if len(x) == 0:
        raise UserError("no data: expected at least 1 sample")
    for name, count in (("probes", probes), ("importance", importance)):
        if count < 1:
            raise UserError(f"{name}={count}: expected at least 1")
    check_batch(batch)
    if nfe is not None and nfe < 5:
        raise UserError(f"nfe={nfe}: expected at least 5 network calls a sample")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise UserError(f"tolerance={tolerance:g}: expected a positive error, such as 1e-4")
    if method != "ode":
        given = {"tolerance": tolerance, "divergence": divergence, "levels": levels}
        wrong = [name for name, value in given.items() if value is not None]
        wrong += [name for name, count in (("importance", importance), ("probes", probes)) if count > 1]
        if wrong:
            raise UserError(f"{wrong[0]} with method={method!r}: it belongs to method='ode'")
    if variance is not None:
        if method != "n-step" or kind != "continuous":
            raise UserError(f"variance with method={method!r} on {kind} data: it is for 'n-step' on continuous data")
        if tuple(variance.shape) != ((nfe or NFE) - 1,):
            raise UserError(
                f"variance of shape {tuple(variance.shape)}: expected one a step, nfe - 1 = {(nfe or NFE) - 1} of them"
            )
        if not bool(((variance >= 0) & variance.isfinite()).all()):
            raise UserError(f"variance from {float(variance.min()):g} on: expected finite numbers from 0 up")
    if levels is None and dequantise != "uniform":
        raise UserError(f"dequantise={dequantise!r} without levels: say how many values there are, such as levels=256")
    if levels is not None:
        if kind != "continuous" or not isinstance(levels, int) or levels < 2:
            raise UserError(
                f"levels={levels} on {kind} data: expected a whole number of values on [-1, 1] of continuous data, "
                "at least 2"
            )
        _check_levels(x, levels)
    if importance > 1 and kind == "continuous" and levels is None:
        raise UserError(f"importance={importance}: a density needs no draws; give levels to bound a probability")
    states = math.prod(model.flow.state_shape(model.data_shape))
    if importance > 1 and probes == 1 and not _is_exact(divergence, states):
        raise UserError(
            f"importance={importance} with divergence='hutchinson' and probes=1: weights as noisy as that of one probe "
            "give no bound; take probes=2 or more"
        )
    if divergence == "exact" and states > EXACT_LIMIT:
        raise UserError(
            f"divergence='exact' in {states} dimensions: it takes a backward pass for each at every call (at most "
            f"{EXACT_LIMIT}); take 'hutchinson'"
        )
