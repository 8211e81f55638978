"""Log-likelihood of data under a model: by the probability-flow ODE, and by bounds; in nats and in bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bfn._utils.arguments import MOST_COUNT, check_positive, check_whole
from bfn._utils.files import write_arrays
from bfn._utils.pieces import ALONE, Pieces, Processes, block_generator, digest, evaluating, write_pieces
from bfn._utils.progress import Progress, Shown
from bfn.core.conditions import Label
from bfn.core.control import Model
from bfn.core.errors import NetworkError, UserError
from bfn.likelihood.bits import (
    Batch,
    Likelihood,
    batch_size,
    bits_estimate,
    bits_parts,
    check_data,
    held_out_bits,
    is_continuous,
    n_states_of,
    take,
)  # fmt: skip
from bfn.likelihood.bounds import continuous_bound, n_step_bound, receiver_variance
from bfn.likelihood.ode import Dequantise, Ode

__all__ = [
    "NFE", "Dequantise", "Divergence", "Likelihood", "Method", "bits_estimate", "bits_parts", "held_out_bits",
    "log_likelihood", "receiver_variance",
]  # fmt: skip

Method = Literal["ode", "bound", "n-step"]
"""Method of a likelihood: the probability-flow ODE, the continuous-time bound, or the bound of n steps."""

Divergence = Literal["exact", "hutchinson"]
"""Method of the divergence of the ODE: term by term, or by random probes."""

CHOICES: Mapping[str, Any] = {"method": Method, "divergence": Divergence, "dequantise": Dequantise}

NFE = 100
"""Default number of network calls for each sample."""

MOST_NFE = 10_000
"""Default maximum number of calls with a tolerance."""

EXACT_DEFAULT, EXACT_LIMIT = 100, 1024
"""Maximum number of dimensions for which the divergence is exact by default, and for which it may be exact."""


@dataclass(frozen=True)
class Settings:
    """Settings of a likelihood.

    Attributes:
        method: "ode"; "bound", the continuous-time loss; or "n-step", with nfe - 1 messages.
        nfe: number of network calls for each sample, 100 if None. With a tolerance it is the maximum.
        tolerance: error of log p in nats for adaptive steps, which each sample has of its own.
        divergence: "exact", with a backward pass for each dimension at every call, or "hutchinson", with one for each
            probe, which is unbiased. If None, exact up to 100 dimensions.
        probes: number of vectors of random signs, which are drawn once for a trajectory.
        importance: number of draws of importance weighting, which tightens a bound. With "hutchinson" it needs at least
            2 probes, and helps only if their noise is below about one nat.
        levels: number of values of a dimension, on a grid from -1 to 1: bound the probability of the values instead of
            computing a density.
        dequantise: distribution of the draws around a value: "uniform", or the "noise" of the flow at the data end, for
            models that have learned the grid itself. Both bound the same probability.
        variance: (n_steps,), from ``receiver_variance`` on other data, for "n-step" on continuous data.
    """

    method: Method = "ode"
    nfe: int | None = None
    tolerance: float | None = None
    divergence: Divergence | None = None
    probes: int = 1
    importance: int = 1
    levels: int | None = None
    dequantise: Dequantise = "uniform"
    variance: Tensor | None = None

    @property
    def calls(self) -> int:
        """Number of network calls for each sample; with a tolerance, the maximum."""
        return self.nfe or (NFE if self.tolerance is None else MOST_NFE)

    def is_exact(self, n_states: int) -> bool:
        """Return True if the divergence in that many dimensions is exact."""
        return n_states <= EXACT_DEFAULT if self.divergence is None else self.divergence == "exact"

    def measure(self, batch: Batch) -> Likelihood:
        """Return the likelihood of each sample of a batch."""
        if self.method == "bound":
            return continuous_bound(batch, self.calls)
        if self.method == "n-step":
            return n_step_bound(batch, self.calls, self.variance)
        probes = None if self.is_exact(n_states_of(batch.model)) else self.probes
        return Ode(batch, probes, self.importance, self.levels, self.dequantise).run(self.calls, self.tolerance)

    def check(self, model: Model, x: Tensor) -> None:
        """Raise a UserError for settings that contradict each other or do not fit the data."""
        self._check_values()
        continuous, n_states = is_continuous(model.flow), n_states_of(model)
        for problem in chain(
            self._option_problems(continuous), self._level_problems(continuous, x), self._divergence_problems(n_states)
        ):
            raise UserError(problem)

    def _check_values(self) -> None:
        for name, choices in CHOICES.items():
            value, allowed = getattr(self, name), get_args(choices)
            if value not in allowed and (name, value) != ("divergence", None):
                raise UserError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
        for name, least in {"nfe": 5, "probes": 1, "importance": 1}.items():
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least, 10**6)
        tolerance = check_positive("tolerance", self.tolerance)
        if tolerance is not None and tolerance < sys.float_info.epsilon:
            raise UserError(f"tolerance={tolerance:g}: smaller than rounding in float64; give an error such as 1e-4")

    def _option_problems(self, continuous: bool) -> Iterator[str]:
        """Yield a message for each option of another method."""
        usual = {"tolerance": None, "divergence": None, "levels": None, "importance": 1, "probes": 1}
        for name in (name for name, value in usual.items() if getattr(self, name) != value and self.method != "ode"):
            yield f"{name} with method={self.method!r}: it is an option of method='ode'; leave it out"
        if (variance := self.variance) is None:
            return
        if self.method != "n-step" or not continuous:
            yield f"variance with method={self.method!r}: it is for method='n-step' and continuous data; leave it out"
        if tuple(variance.shape) != (self.calls - 1,):
            yield f"variance of shape {tuple(variance.shape)}: expected one for each step, ({self.calls - 1},)"
        if not bool(((variance >= 0) & variance.isfinite()).all()):
            yield f"variance with minimum {float(variance.min()):g}: expected finite numbers of at least 0"

    def _level_problems(self, continuous: bool, x: Tensor) -> Iterator[str]:
        """Yield a message for each problem of levels, and of options that need them."""
        if self.levels is None:
            if self.dequantise != "uniform":
                yield f"dequantise={self.dequantise!r} without levels: give the number of values, such as levels=256"
            if continuous and self.importance > 1:
                yield f"importance={self.importance}: a density needs no draws; give levels to bound a probability"
            return
        if not continuous:
            yield f"levels={self.levels}: it is for continuous data; leave it out"
        check_whole("levels", self.levels, 2, MOST_COUNT)
        # The values are 2 k / (levels - 1) - 1, up to a hundredth of their distance.
        steps = (x.double() + 1) * (self.levels - 1) / 2
        off = ~((steps - steps.round().clamp(0, self.levels - 1)).abs() <= 0.01)
        if bool(off.any()):
            found = f"the data contain {float(x[off][0]):g}"
            yield f"levels={self.levels}: {found}, which is not one of that many values from -1 to 1"

    def _divergence_problems(self, n_states: int) -> Iterator[str]:
        exact = self.is_exact(n_states)
        if self.probes > 1 and self.method == "ode" and exact:
            yield f"probes={self.probes} with an exact divergence, which needs none: give divergence='hutchinson'"
        if self.importance > 1 and self.probes == 1 and not exact:
            yield f"importance={self.importance} with divergence='hutchinson' and probes=1: give at least probes=2"
        if self.divergence == "exact" and n_states > EXACT_LIMIT:
            yield f"divergence='exact' in {n_states} dimensions: expected at most {EXACT_LIMIT}; give 'hutchinson'"


@torch.no_grad()
def log_likelihood(
    model: Model,
    x: Tensor,
    method: Method = "ode",
    nfe: int | None = None,
    *,
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
    **settings: Any,
) -> Likelihood:
    """Measure log p(x) of each sample, or a lower bound on it, in nats.

    Args:
        model: the model.
        x: data, packed, (n, ...).
        method, nfe: see ``Settings``.
        label, condition: conditions, as for ``bfn.sample``; the network gets none if they are None.
        present: bool, like the data, True where a sample has data; the rest does not count.
        generator: source of the random numbers, for one batch after the other.
        seed: seed instead of a generator. Every batch then has a generator of its own.
        processes: processes that share the work, batch by batch; each of them gets all results.
        keep: directory for the figures of each batch, ``likelihood-000000.npz`` and so on. An interrupted run resumes.
        request: plain values that identify the model, so that stored figures of another model are not used.
        batch: maximum number of states that go through the network together; if None, as many as make 2^16 numbers.
        progress: whether to show progress.
        settings: the other settings, such as ``tolerance=1e-3``; see ``Settings``.
    """
    conditions = check_data(model, x, label, condition, present, batch=batch)
    chosen = Settings(method, nfe, **settings)
    chosen.check(model, x)
    size = batch_size(batch, n_states_of(model), chosen.importance)
    if generator is not None and (seed is not None or processes.count > 1 or keep is not None):
        raise UserError("generator beside seed, processes or keep: give a seed instead of the generator")

    def measure(first: int, on_call: Callable[[int], object]) -> Likelihood:
        some, own = take(x, conditions, slice(first, first + size), model.device)
        source = generator if seed is None else block_generator(seed, first // size, model.device)
        return chosen.measure(Batch(model, some, own, source, on_call)).on_cpu()

    calls = chosen.importance * chosen.calls
    with evaluating(model):
        if keep is None:
            total = None if chosen.tolerance is not None else len(x) * calls
            with Progress(total, "likelihood", "call", progress) as bar:
                firsts = processes.own(range(0, len(x), size))
                found = [measure(first, lambda states: bar.update(states * processes.count)) for first in firsts]
            result = Likelihood.joined(processes.gather(found))
        else:
            pieces = Pieces(keep, len(x), size, ".npz", "likelihood")

            def write(rows: range, path: Path, advance: Callable[[float], None]) -> None:
                write_arrays(path, **measure(rows.start, lambda states: advance(states / calls)).arrays())

            asked = {**(request or {}), "seed": seed, "settings": repr(chosen), "data": digest(x)}
            write_pieces(pieces, write, asked, processes=processes, progress=progress)
            result = Likelihood.joined([*map(Likelihood.read, pieces.paths)])
    if bad := int((~result.log_prob.isfinite()).sum()):
        raise NetworkError(f"log-likelihood of {bad} of {len(x)} samples is NaN or infinite")
    return result
