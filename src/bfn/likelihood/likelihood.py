"""The log-likelihood of each sample, by the method that is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bfn.errors import NetworkError
from bfn.estimate import Estimate, mean_estimate
from bfn.eval_mode import evaluating
from bfn.likelihood.batches import BatchLikelihood, batches
from bfn.likelihood.bits import bits_estimate, bits_parts
from bfn.likelihood.bounds import continuous_bound, n_step_bound
from bfn.likelihood.ode import Ode
from bfn.likelihood.settings import Dequantise, Divergence, Method, Settings

if TYPE_CHECKING:
    from bfn.info import Label
    from bfn.model import Model


@dataclass(frozen=True)
class Likelihood:
    """What is known of each sample's log-likelihood, in nats.

    log_prob: (n,). A lower bound, in expectation, where ``is_bound``.
    error: (n,), its standard error from what was drawn for the sample; 0 where nothing was, NaN where only one draw was
        made. Of a bound it is that of the transmission; the reconstruction's one draw comes on top.
    nfe: (n,), network calls made.
    n_dims: dimensions of a sample. is_density: of a density, rather than of a probability.
    reconstruction: (n,), the part -log p_O(x) of -log_prob, where a bound has it.
    """

    log_prob: Tensor
    error: Tensor
    nfe: Tensor
    n_dims: int
    is_bound: bool
    is_density: bool
    reconstruction: Tensor | None = None

    @property
    def nats(self) -> Estimate:
        """Mean of -log p a sample, with its interval over the samples."""
        return mean_estimate(-self.log_prob)

    @property
    def bits(self) -> Estimate:
        """Mean of -log2 p a dimension (a character, for text), with its interval over the samples."""
        return bits_estimate(-self.log_prob, self.n_dims)

    @property
    def parts(self) -> dict[str, Estimate]:
        """Bits a dimension: "total", and of a bound "transmission" and "reconstruction" as well."""
        if self.reconstruction is None:
            return {"total": self.bits}
        return bits_parts(-self.log_prob - self.reconstruction, self.reconstruction, self.n_dims)

    def __str__(self) -> str:
        """One line for people: of what it is, and what it took."""
        what = "density on [-1, 1]" if self.is_density else "probability"
        low, high = int(self.nfe.min()), int(self.nfe.max())
        calls = f"{low}" if low == high else f"{low} to {high}"
        return f"-log p of a {what}{', from above' if self.is_bound else ''}; {calls} calls a sample"

    def asdict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        return {
            "is_density": self.is_density,
            "is_bound": self.is_bound,
            "nats": self.nats.asdict(),
            "bits": {name: estimate.asdict() for name, estimate in self.parts.items()},
            "nfe": float(self.nfe.double().mean()),
            "log_prob": self.log_prob.tolist(),
            "log_prob_error": [None if math.isnan(error) else error for error in self.error.tolist()],
        }


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
    label: classes for a class-conditional network, one for all or one a sample; None for the network without classes.
    batch: states that go through the network at a time; None: as many as make 2^16 numbers.
    """
    model.flow.check(x, model.data_shape)
    settings = Settings(
        method, nfe, tolerance, divergence, probes, importance, levels, dequantise, variance, batch
    )  # fmt: skip
    settings.check(model, x)
    labels = None if label is None else model.info.labels(label, len(x), device=model.device)
    n_states = math.prod(model.flow.state_shape(model.data_shape))
    found: list[BatchLikelihood] = []
    with evaluating(model), tqdm(total=len(x), desc="likelihood", unit="sample", disable=not progress) as bar:
        for some, its_label in batches(x, labels, batch, n_states, model.device, importance):
            if method == "ode":
                found.append(Ode(model, some, its_label, settings, generator).run())
            elif method == "bound":
                found.append(continuous_bound(model, some, settings.calls, its_label, generator))
            else:
                found.append(n_step_bound(model, some, settings.calls, variance, its_label, generator))
            bar.update(len(some))
    log_prob, error, calls, reconstruction, density = (torch.cat(column) for column in zip(*found, strict=True))
    bad = int((~torch.isfinite(log_prob)).sum())
    if bad:
        raise NetworkError(f"log-likelihood of {bad} of {len(x)} samples is NaN or infinite")
    is_density = bool(density.all())
    direct = method == "ode" and model.flow.has_range
    return Likelihood(
        log_prob,
        error,
        calls,
        math.prod(model.data_shape),
        is_bound=not (direct and is_density),
        is_density=is_density,
        reconstruction=None if direct or importance > 1 else reconstruction,
    )
